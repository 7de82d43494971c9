/* Matrix products and register tiles of the generated kernels: row-major, no BLAS, no allocation.
 *
 * Every element of a result is one chain of fused multiply-adds with k ascending, which starts from
 * 0 or, with `accumulate`, from the element's old value. Tile shapes, blocks of k, packing, column
 * remainders and the split over threads cannot change a bit of it, and a row never depends on the
 * other rows. Compile with -ffp-contract=off (needed only where there is no fma instruction:
 * there the chain is a multiplication and an addition).
 *
 * _f32 and _f64 of, with dimensions and leading dimensions as int64_t:
 *   cellgen_gemm_nn   C(M,N) (+)= A(M,K) B(K,N)
 *   cellgen_gemm_nt   C(M,N) (+)= A(M,K) B(N,K)^T
 *   cellgen_gemm_tn   C(M,N) (+)= A(K,M)^T B(K,N)
 *   cellgen_panels_size, cellgen_pack_panels, cellgen_tile, cellgen_gemm_panels: packed weights
 *
 * Whole products use 80 KB of stack. The preprocessor chooses AVX-512, AVX2 with FMA, arm64 or
 * 16-byte vectors. */
#ifndef CELLGEN_GEMM_H
#define CELLGEN_GEMM_H

#include <stdint.h>
#include <string.h>

#include "cellgen.h"
#include "cellgen_compiler.h"

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Whether tiles of bfloat16 and int8 are this object's own, or another one's, too. */
#define CELLGEN_TILES_OWN 0
#define CELLGEN_TILES_ELSEWHERE 1
#define CELLGEN_TILES_FOR_ALL 2
#ifndef CELLGEN_TILES_ARE
#define CELLGEN_TILES_ARE CELLGEN_TILES_OWN
#endif

/* Whether tiles of so many rows and vectors fetch anything, what is coming among it. */
#define CELLGEN_FETCHES(rows, vectors) ((rows) >= 4 && (vectors) >= 2)

/* What a product fetches into that cache meanwhile: a line for each k, so many bytes further each. */
typedef struct {
    const void *at;
    int64_t step;
} cellgen_fetch;

/* Arrays that are needed after the products of a step: tiles fetch them in pieces of 2^shift bytes, one
 * array after the other, each tile from where the one before ended. A k of a product takes one piece, or
 * two where no panel is next. */
enum { CELLGEN_PREFETCH_ARRAYS = 16 }; /* arrays; more are not fetched */
typedef struct {
    int64_t arrays, array; /* how many there are, and which is next */
    int64_t wait, done;    /* pieces left out at first; those of the next array that have come */
    int64_t total;         /* bytes of all arrays */
    int shift;
    const char *rows[CELLGEN_PREFETCH_ARRAYS];
    int64_t bytes[CELLGEN_PREFETCH_ARRAYS];
} cellgen_prefetch;

/* How many pieces of the array that is next come now, at most so many, and where the first is; 0 where
 * all have come, or it is not time yet. */
CELLGEN_INLINE int64_t cellgen_next_pieces(cellgen_prefetch *prefetch, int64_t most, const char **piece)
{
    const int64_t array = prefetch->array, done = prefetch->done;
    if (array == prefetch->arrays) return 0;
    if (prefetch->wait >= most) {
        prefetch->wait -= most;
        return 0;
    }
    const int64_t left = ((prefetch->bytes[array] - 1) >> prefetch->shift) + 1 - done;
    *piece = prefetch->rows[array] + (done << prefetch->shift);
    prefetch->wait = 0;
    prefetch->done = left > most ? done + most : 0;
    prefetch->array += left <= most;
    return left > most ? most : left;
}

/* ------------------------------------------------------------------------------- one vector
 * load, store, set1, zero, fma(a, b, c) = a*b + c; a `part` is the first n lanes: the others read
 * as 0 and are not written. */

#if defined(__AVX512F__)

#define CELLGEN_VECTORS "AVX-512"
#define CELLGEN_VECTOR_BYTES 64
#define CELLGEN_VECTOR_REGISTERS 32
#define CELLGEN_HAVE_PART 1 /* partial loads cost what full ones cost */

#define CELLGEN_VECTOR(S, REAL, P, V, PART)                                                        \
    typedef V cellgen_vec_##S;                                                                     \
    typedef PART cellgen_part_##S;                                                                 \
    CELLGEN_INLINE V cellgen_load_##S(const REAL *p) { return _mm512_loadu_##P(p); }               \
    CELLGEN_INLINE void cellgen_store_##S(REAL *p, V v) { _mm512_storeu_##P(p, v); }               \
    CELLGEN_INLINE V cellgen_set1_##S(REAL x) { return _mm512_set1_##P(x); }                       \
    CELLGEN_INLINE V cellgen_zero_##S(void) { return _mm512_setzero_##P(); }                       \
    CELLGEN_INLINE V cellgen_fma_##S(V a, V b, V c) { return _mm512_fmadd_##P(a, b, c); }          \
    CELLGEN_INLINE PART cellgen_part_make_##S(int64_t n) { return (PART)((1u << n) - 1u); }        \
    CELLGEN_INLINE V cellgen_load_part_##S(const REAL *p, PART n)                                  \
    {                                                                                              \
        return _mm512_maskz_loadu_##P(n, p);                                                       \
    }                                                                                              \
    CELLGEN_INLINE void cellgen_store_part_##S(REAL *p, PART n, V v)                               \
    {                                                                                              \
        _mm512_mask_storeu_##P(p, n, v);                                                           \
    }
CELLGEN_VECTOR(f32, float, ps, __m512, __mmask16)
CELLGEN_VECTOR(f64, double, pd, __m512d, __mmask8)
#undef CELLGEN_VECTOR

/* 16 bytes of rows 0, step, 2 step, 3 step */
CELLGEN_INLINE __m512 cellgen_load_lanes_f32(const float *p, int64_t step)
{
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(p));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + step), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 2 * step), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(p + 3 * step), 3);
}
CELLGEN_INLINE __m512d cellgen_load_lanes_f64(const double *p, int64_t step)
{
    return _mm512_castps_pd(cellgen_load_lanes_f32((const float *)(const void *)p, 2 * step));
}
/* the unmasked forms set off a false -Wmaybe-uninitialized in GCC 12 */
#define CELLGEN_LO32(a, b) _mm512_maskz_unpacklo_ps((__mmask16)-1, a, b)
#define CELLGEN_HI32(a, b) _mm512_maskz_unpackhi_ps((__mmask16)-1, a, b)
#define CELLGEN_LO64(a, b) _mm512_maskz_unpacklo_pd((__mmask8)-1, a, b)
#define CELLGEN_HI64(a, b) _mm512_maskz_unpackhi_pd((__mmask8)-1, a, b)
#define CELLGEN_PD(a) _mm512_castps_pd(a)
#define CELLGEN_PS(a) _mm512_castpd_ps(a)
#define CELLGEN_HAVE_UNPACK 1

#elif defined(__AVX2__) && defined(__FMA__)

#define CELLGEN_VECTORS "AVX2 with FMA"
#define CELLGEN_VECTOR_BYTES 32
#define CELLGEN_VECTOR_REGISTERS 16
#define CELLGEN_HAVE_PART 0 /* a mask would take one of the 16 registers */

#define CELLGEN_VECTOR(S, REAL, P, V)                                                              \
    typedef V cellgen_vec_##S;                                                                     \
    typedef __m256i cellgen_part_##S;                                                              \
    CELLGEN_INLINE V cellgen_load_##S(const REAL *p) { return _mm256_loadu_##P(p); }               \
    CELLGEN_INLINE void cellgen_store_##S(REAL *p, V v) { _mm256_storeu_##P(p, v); }               \
    CELLGEN_INLINE V cellgen_set1_##S(REAL x) { return _mm256_set1_##P(x); }                       \
    CELLGEN_INLINE V cellgen_zero_##S(void) { return _mm256_setzero_##P(); }                       \
    CELLGEN_INLINE V cellgen_fma_##S(V a, V b, V c) { return _mm256_fmadd_##P(a, b, c); }          \
    CELLGEN_INLINE V cellgen_load_part_##S(const REAL *p, __m256i n)                               \
    {                                                                                              \
        return _mm256_maskload_##P(p, n);                                                          \
    }                                                                                              \
    CELLGEN_INLINE void cellgen_store_part_##S(REAL *p, __m256i n, V v)                            \
    {                                                                                              \
        _mm256_maskstore_##P(p, n, v);                                                             \
    }
CELLGEN_VECTOR(f32, float, ps, __m256)
CELLGEN_VECTOR(f64, double, pd, __m256d)
#undef CELLGEN_VECTOR

CELLGEN_INLINE __m256i cellgen_part_make_f32(int64_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}
CELLGEN_INLINE __m256i cellgen_part_make_f64(int64_t n)
{
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
CELLGEN_INLINE __m256 cellgen_load_lanes_f32(const float *p, int64_t step)
{
    const __m256 v = _mm256_castps128_ps256(_mm_loadu_ps(p));
    return _mm256_insertf128_ps(v, _mm_loadu_ps(p + step), 1);
}
CELLGEN_INLINE __m256d cellgen_load_lanes_f64(const double *p, int64_t step)
{
    const __m256d v = _mm256_castpd128_pd256(_mm_loadu_pd(p));
    return _mm256_insertf128_pd(v, _mm_loadu_pd(p + step), 1);
}
#define CELLGEN_LO32(a, b) _mm256_unpacklo_ps(a, b)
#define CELLGEN_HI32(a, b) _mm256_unpackhi_ps(a, b)
#define CELLGEN_LO64(a, b) _mm256_unpacklo_pd(a, b)
#define CELLGEN_HI64(a, b) _mm256_unpackhi_pd(a, b)
#define CELLGEN_PD(a) _mm256_castps_pd(a)
#define CELLGEN_PS(a) _mm256_castpd_ps(a)
#define CELLGEN_HAVE_UNPACK 1

#else

#define CELLGEN_VECTOR_BYTES 16
#define CELLGEN_HAVE_PART 0

#if defined(__aarch64__)
#define CELLGEN_HAVE_UNPACK 1
#define CELLGEN_VECTORS "NEON"
#define CELLGEN_VECTOR_REGISTERS 32
typedef float32x4_t cellgen_vec_f32;
typedef float64x2_t cellgen_vec_f64;
#define CELLGEN_FMA(S, a, b, c) vfmaq_##S(c, a, b)
#elif CELLGEN_GNU
#define CELLGEN_VECTORS "16-byte vectors without fma"
#define CELLGEN_VECTOR_REGISTERS 16
typedef float cellgen_vec_f32 __attribute__((vector_size(16)));
typedef double cellgen_vec_f64 __attribute__((vector_size(16)));
#define CELLGEN_FMA(S, a, b, c) ((a) * (b) + (c))
#else /* the compiler may find vectors by itself */
#define CELLGEN_VECTORS "vectors that the compiler finds"
#define CELLGEN_VECTOR_REGISTERS 16
typedef struct {
    float lane[4];
} cellgen_vec_f32;
typedef struct {
    double lane[2];
} cellgen_vec_f64;
CELLGEN_INLINE cellgen_vec_f32 cellgen_lanes_fma_f32(cellgen_vec_f32 a, cellgen_vec_f32 b, cellgen_vec_f32 c)
{
    for (int k = 0; k < 4; ++k) c.lane[k] += a.lane[k] * b.lane[k];
    return c;
}
CELLGEN_INLINE cellgen_vec_f64 cellgen_lanes_fma_f64(cellgen_vec_f64 a, cellgen_vec_f64 b, cellgen_vec_f64 c)
{
    for (int k = 0; k < 2; ++k) c.lane[k] += a.lane[k] * b.lane[k];
    return c;
}
#define CELLGEN_FMA(S, a, b, c) cellgen_lanes_fma_##S(a, b, c)
#endif

#if CELLGEN_GNU || defined(__aarch64__)
#define CELLGEN_BRACES(...) {__VA_ARGS__}
#else
#define CELLGEN_BRACES(...) {{__VA_ARGS__}}
#endif
#define CELLGEN_ZEROS CELLGEN_BRACES(0)

#define CELLGEN_VECTOR(S, REAL, V)                                                                 \
    typedef size_t cellgen_part_##S;                                                               \
    CELLGEN_INLINE V cellgen_load_##S(const REAL *p)                                               \
    {                                                                                              \
        V v;                                                                                       \
        memcpy(&v, p, sizeof v);                                                                   \
        return v;                                                                                  \
    }                                                                                              \
    CELLGEN_INLINE void cellgen_store_##S(REAL *p, V v) { memcpy(p, &v, sizeof v); }               \
    CELLGEN_INLINE V cellgen_zero_##S(void)                                                        \
    {                                                                                              \
        const V v = CELLGEN_ZEROS;                                                                 \
        return v;                                                                                  \
    }                                                                                              \
    CELLGEN_INLINE V cellgen_fma_##S(V a, V b, V c) { return CELLGEN_FMA(S, a, b, c); }            \
    CELLGEN_INLINE size_t cellgen_part_make_##S(int64_t n) { return (size_t)n * sizeof(REAL); }    \
    CELLGEN_INLINE V cellgen_load_part_##S(const REAL *p, size_t n)                                \
    {                                                                                              \
        V v = CELLGEN_ZEROS;                                                                       \
        memcpy(&v, p, n);                                                                          \
        return v;                                                                                  \
    }                                                                                              \
    CELLGEN_INLINE void cellgen_store_part_##S(REAL *p, size_t n, V v) { memcpy(p, &v, n); }
CELLGEN_VECTOR(f32, float, cellgen_vec_f32)
CELLGEN_VECTOR(f64, double, cellgen_vec_f64)
#undef CELLGEN_VECTOR
#undef CELLGEN_FMA

#if defined(__aarch64__)
CELLGEN_INLINE cellgen_vec_f32 cellgen_load_lanes_f32(const float *p, int64_t step)
{
    (void)step;
    return cellgen_load_f32(p);
}
CELLGEN_INLINE cellgen_vec_f64 cellgen_load_lanes_f64(const double *p, int64_t step)
{
    (void)step;
    return cellgen_load_f64(p);
}
#define CELLGEN_LO32(a, b) vzip1q_f32(a, b)
#define CELLGEN_HI32(a, b) vzip2q_f32(a, b)
#define CELLGEN_LO64(a, b) vzip1q_f64(a, b)
#define CELLGEN_HI64(a, b) vzip2q_f64(a, b)
#define CELLGEN_PD(a) vreinterpretq_f64_f32(a)
#define CELLGEN_PS(a) vreinterpretq_f32_f64(a)
#if CELLGEN_GNU /* fmla by a lane of a vector: copies of an element would take the units that fma has */
#define CELLGEN_BY_LANE 1
CELLGEN_INLINE cellgen_vec_f32 cellgen_fma_lane_f32(float a, cellgen_vec_f32 b, cellgen_vec_f32 c)
{
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(c) : "w"(b), "w"(a));
    return c;
}
CELLGEN_INLINE cellgen_vec_f64 cellgen_fma_lane_f64(double a, cellgen_vec_f64 b, cellgen_vec_f64 c)
{
    __asm__("fmla %0.2d, %1.2d, %2.d[0]" : "+w"(c) : "w"(b), "w"(a));
    return c;
}
#endif
#else
#define CELLGEN_HAVE_UNPACK 0
#endif

CELLGEN_INLINE cellgen_vec_f32 cellgen_set1_f32(float x)
{
    const cellgen_vec_f32 v = CELLGEN_BRACES(x, x, x, x);
    return v;
}
CELLGEN_INLINE cellgen_vec_f64 cellgen_set1_f64(double x)
{
    const cellgen_vec_f64 v = CELLGEN_BRACES(x, x);
    return v;
}

#endif

#ifndef CELLGEN_BY_LANE
#define CELLGEN_BY_LANE 0
#endif

#define CELLGEN_LANES_F32 (CELLGEN_VECTOR_BYTES / 4)
#define CELLGEN_LANES_F64 (CELLGEN_VECTOR_BYTES / 8)

#if CELLGEN_HAVE_UNPACK
/* v[k] = b[0 .. LANES)[k] for the k of 16 bytes */
CELLGEN_INLINE void cellgen_gather_f32(const float *b, int64_t ldb, cellgen_vec_f32 *v)
{
    CELLGEN_OPAQUE(b); /* else the caller's loop keeps a spilled pointer to every row */
    const cellgen_vec_f32 r0 = cellgen_load_lanes_f32(b, 4 * ldb);
    const cellgen_vec_f32 r1 = cellgen_load_lanes_f32(b + ldb, 4 * ldb);
    const cellgen_vec_f32 r2 = cellgen_load_lanes_f32(b + 2 * ldb, 4 * ldb);
    const cellgen_vec_f32 r3 = cellgen_load_lanes_f32(b + 3 * ldb, 4 * ldb);
    const cellgen_vec_f64 p01 = CELLGEN_PD(CELLGEN_LO32(r0, r1));
    const cellgen_vec_f64 q01 = CELLGEN_PD(CELLGEN_HI32(r0, r1));
    const cellgen_vec_f64 p23 = CELLGEN_PD(CELLGEN_LO32(r2, r3));
    const cellgen_vec_f64 q23 = CELLGEN_PD(CELLGEN_HI32(r2, r3));
    v[0] = CELLGEN_PS(CELLGEN_LO64(p01, p23));
    v[1] = CELLGEN_PS(CELLGEN_HI64(p01, p23));
    v[2] = CELLGEN_PS(CELLGEN_LO64(q01, q23));
    v[3] = CELLGEN_PS(CELLGEN_HI64(q01, q23));
}
CELLGEN_INLINE void cellgen_gather_f64(const double *b, int64_t ldb, cellgen_vec_f64 *v)
{
    CELLGEN_OPAQUE(b); /* else the caller's loop keeps a spilled pointer to every row */
    const cellgen_vec_f64 r0 = cellgen_load_lanes_f64(b, 2 * ldb);
    const cellgen_vec_f64 r1 = cellgen_load_lanes_f64(b + ldb, 2 * ldb);
    v[0] = CELLGEN_LO64(r0, r1);
    v[1] = CELLGEN_HI64(r0, r1);
}
#endif

/* ------------------------------------------------------------------------------------ tiles
 * Rows a tile may have, by its width in vectors: accumulators, the vectors of one k and one
 * broadcast stay in registers (or, with fewer rows than vectors, the broadcasts and one vector).
 *
 * GFLOP/s of one Ice Lake core, float32, K = 256, panels in L2, best of several runs of the loop
 * in benchmarks/gemm.py beside other work. 188 is two fma a cycle at 2.94 GHz; the core loads about
 * 1.2 vectors or broadcasts a cycle, so few loads per fma decide: 10 for 24 with 4 and with 6
 * vectors, 9 for 8 with 1.
 *   vectors \ rows   1    2    3    4    5    6    7    8
 *   1               31   59   80   94   87   86   86   90   (12 rows: 85)
 *   2               56  104  135  128  143  151  145  149   (12 rows: 150)
 *   3               73  114  146  164  171  172  172  184
 *   4               75  118  154  180  185  186
 *   5               74  133  181  182  179
 *   6               72  129  176  179
 *   7               70  124  177
 *   8               65  123  175
 * Panels in L3 give 15 a row (31 GB/s), whatever the width. AVX2 on the same core (peak 112): 6x2,
 * 4x3 and 3x4 reach 105, 8x1 90. GCC and clang agree within the noise. One Zen 3 core (AVX2, peak
 * 100), `python -m benchmarks.gemm`; seven and eight vectors are two narrower tiles side by side:
 *   1               12   25   35   46   57   67   75   75
 *   2               23   44   64   83   88   90
 *   3               31   57   77   84
 *   4               37   68   81 */
#if CELLGEN_VECTOR_REGISTERS == 32
#define CELLGEN_TILE_ROWS_MAX {0, 8, 8, 8, 6, 5, 4, 3, 3}
#else
#define CELLGEN_TILE_ROWS_MAX {0, 8, 6, 4, 3, 2, 2, 3, 3}
#endif
#define CELLGEN_TILE_VECTORS_MAX 8

CELLGEN_INLINE int64_t cellgen_tile_rows(int64_t vectors)
{
    static const signed char rows[] = CELLGEN_TILE_ROWS_MAX;
    return rows[vectors];
}

/* Bytes of the next panel that each of `tiles` tiles fetches for each k. Many tiles share it out
 * evenly: the few buffers of the first-level cache that wait for it serve other loads as well. */
CELLGEN_INLINE int64_t cellgen_pace(int64_t tiles, int64_t vectors)
{
    const int64_t size = vectors * CELLGEN_VECTOR_BYTES;
    return tiles * 64 < 2 * size ? 64 : (size + tiles - 1) / tiles;
}
/* Where the part of a tile begins, for K of them; its first line again where none is left. */
CELLGEN_INLINE cellgen_fetch cellgen_part(const void *panel, int64_t tile, int64_t pace, int64_t K,
                                          int64_t vectors)
{
    const int left = tile * pace < vectors * CELLGEN_VECTOR_BYTES;
    const cellgen_fetch part = {(const char *)panel + (left ? tile * K * pace : 0), pace};
    return part;
}

#define CELLGEN_ROWS_1(X, NV) X(0, NV)
#define CELLGEN_ROWS_2(X, NV) CELLGEN_ROWS_1(X, NV) X(1, NV)
#define CELLGEN_ROWS_3(X, NV) CELLGEN_ROWS_2(X, NV) X(2, NV)
#define CELLGEN_ROWS_4(X, NV) CELLGEN_ROWS_3(X, NV) X(3, NV)
#define CELLGEN_ROWS_5(X, NV) CELLGEN_ROWS_4(X, NV) X(4, NV)
#define CELLGEN_ROWS_6(X, NV) CELLGEN_ROWS_5(X, NV) X(5, NV)
#define CELLGEN_ROWS_7(X, NV) CELLGEN_ROWS_6(X, NV) X(6, NV)
#define CELLGEN_ROWS_8(X, NV) CELLGEN_ROWS_7(X, NV) X(7, NV)

#define CELLGEN_COLUMNS_1(X, R, NV) X(R, 0, NV)
#define CELLGEN_COLUMNS_2(X, R, NV) CELLGEN_COLUMNS_1(X, R, NV) X(R, 1, NV)
#define CELLGEN_COLUMNS_3(X, R, NV) CELLGEN_COLUMNS_2(X, R, NV) X(R, 2, NV)
#define CELLGEN_COLUMNS_4(X, R, NV) CELLGEN_COLUMNS_3(X, R, NV) X(R, 3, NV)
#define CELLGEN_COLUMNS_5(X, R, NV) CELLGEN_COLUMNS_4(X, R, NV) X(R, 4, NV)
#define CELLGEN_COLUMNS_6(X, R, NV) CELLGEN_COLUMNS_5(X, R, NV) X(R, 5, NV)
#define CELLGEN_COLUMNS_7(X, R, NV) CELLGEN_COLUMNS_6(X, R, NV) X(R, 6, NV)
#define CELLGEN_COLUMNS_8(X, R, NV) CELLGEN_COLUMNS_7(X, R, NV) X(R, 7, NV)

/* the rows of column J, for tiles wider than high */
#define CELLGEN_DOWN_1(X, J, NV) X(0, J, NV)
#define CELLGEN_DOWN_2(X, J, NV) CELLGEN_DOWN_1(X, J, NV) X(1, J, NV)
#define CELLGEN_DOWN_3(X, J, NV) CELLGEN_DOWN_2(X, J, NV) X(2, J, NV)
#define CELLGEN_DOWN_4(X, J, NV) CELLGEN_DOWN_3(X, J, NV) X(3, J, NV)
#define CELLGEN_DOWN_5(X, J, NV) CELLGEN_DOWN_4(X, J, NV) X(4, J, NV)
#define CELLGEN_DOWN_6(X, J, NV) CELLGEN_DOWN_5(X, J, NV) X(5, J, NV)
#define CELLGEN_DOWN_7(X, J, NV) CELLGEN_DOWN_6(X, J, NV) X(6, J, NV)

/* X(1, E) X(2, E) ... */
#define CELLGEN_COUNT_1(X, E) X(1, E)
#define CELLGEN_COUNT_2(X, E) CELLGEN_COUNT_1(X, E) X(2, E)
#define CELLGEN_COUNT_3(X, E) CELLGEN_COUNT_2(X, E) X(3, E)
#define CELLGEN_COUNT_4(X, E) CELLGEN_COUNT_3(X, E) X(4, E)
#define CELLGEN_COUNT_5(X, E) CELLGEN_COUNT_4(X, E) X(5, E)
#define CELLGEN_COUNT_6(X, E) CELLGEN_COUNT_5(X, E) X(6, E)
#define CELLGEN_COUNT_7(X, E) CELLGEN_COUNT_6(X, E) X(7, E)
#define CELLGEN_COUNT_8(X, E) CELLGEN_COUNT_7(X, E) X(8, E)

#define CELLGEN_ONLY_TILES 0
#define CELLGEN_REAL float
#define CELLGEN_LEFT float
#define CELLGEN_SUM float
#define CELLGEN_S(name) cellgen_##name##_f32
#define CELLGEN_C(name) cellgen_##name##_f32
#define CELLGEN_LANES CELLGEN_LANES_F32
#include "cellgen_gemm_real.inc.h"

#define CELLGEN_ONLY_TILES 0
#define CELLGEN_REAL double
#define CELLGEN_LEFT double
#define CELLGEN_SUM double
#define CELLGEN_S(name) cellgen_##name##_f64
#define CELLGEN_C(name) cellgen_##name##_f64
#define CELLGEN_LANES CELLGEN_LANES_F64
#include "cellgen_gemm_real.inc.h"

#endif
