/* Products of float32 arrays whose operands are rounded to bfloat16: half the weights to read, and
 * with AVX512-BF16 two multiplications and additions in the time of one.
 *
 * An operand is rounded once, to the nearest bfloat16, ties to even; a number that is none stays none.
 * A product of two bfloat16 has no rounding in float32, so every element of a result is one chain of
 * float32 additions with k ascending, one rounding each: to the bit what cellgen_gemm.h makes of the rounded
 * operands. Where vdpbf16ps does it, numbers below the smallest normal float32 count as zeros.
 *
 * Two neighbouring k stand in one word of 32 bits, a pair, the first in its upper half, which that
 * instruction adds first; a last k without a neighbour has zero beside it. Panels, tiles and slices are
 * those of cellgen_gemm.h with a pair in the place of a float. */
#ifndef CELLGEN_GEMM_BF16_H
#define CELLGEN_GEMM_BF16_H

#include "cellgen_gemm.h"
#include "cellgen_half.h"

#if CELLGEN_GNU && defined(__AVX512BF16__)
#define CELLGEN_AVX512BF16 1
#else
#define CELLGEN_AVX512BF16 0
#endif

typedef uint32_t cellgen_pair;
#define CELLGEN_PAIRS(K) (((K) + 1) / 2)

/* Rounded rows from row `first` on, `stride` pairs apart. */
typedef struct {
    cellgen_pair *rows;
    int64_t first, stride;
} cellgen_rounded;

/* ------------------------------------------------------------------------------- one vector */

#if CELLGEN_GNU
typedef uint32_t cellgen_vec_pairs __attribute__((vector_size(CELLGEN_VECTOR_BYTES)));
CELLGEN_INLINE cellgen_vec_pairs cellgen_as_pairs(cellgen_vec_f32 v) { return (cellgen_vec_pairs)v; }
CELLGEN_INLINE cellgen_vec_f32 cellgen_as_floats(cellgen_vec_pairs v) { return (cellgen_vec_f32)v; }
#else
typedef struct {
    uint32_t lane[CELLGEN_LANES_F32];
} cellgen_vec_pairs;
CELLGEN_INLINE cellgen_vec_pairs cellgen_as_pairs(cellgen_vec_f32 v)
{
    cellgen_vec_pairs found;
    memcpy(&found, &v, sizeof found);
    return found;
}
CELLGEN_INLINE cellgen_vec_f32 cellgen_as_floats(cellgen_vec_pairs v)
{
    cellgen_vec_f32 found;
    memcpy(&found, &v, sizeof found);
    return found;
}
#endif
typedef cellgen_part_f32 cellgen_part_pairs;
CELLGEN_INLINE cellgen_vec_pairs cellgen_load_pairs(const cellgen_pair *p)
{
    return cellgen_as_pairs(cellgen_load_f32((const float *)(const void *)p));
}
CELLGEN_INLINE void cellgen_store_pairs(cellgen_pair *p, cellgen_vec_pairs v)
{
    cellgen_store_f32((float *)(void *)p, cellgen_as_floats(v));
}
CELLGEN_INLINE cellgen_vec_pairs cellgen_zero_pairs(void)
{
    return cellgen_as_pairs(cellgen_zero_f32());
}
CELLGEN_INLINE cellgen_vec_pairs cellgen_set1_pairs(cellgen_pair x)
{
#if CELLGEN_GNU
    return cellgen_zero_pairs() + x;
#else
    cellgen_vec_pairs v;
    for (int k = 0; k < CELLGEN_LANES_F32; ++k) v.lane[k] = x;
    return v;
#endif
}
CELLGEN_INLINE cellgen_part_pairs cellgen_part_make_pairs(int64_t n)
{
    return cellgen_part_make_f32(n);
}
CELLGEN_INLINE cellgen_vec_pairs cellgen_load_part_pairs(const cellgen_pair *p, cellgen_part_pairs n)
{
    return cellgen_as_pairs(cellgen_load_part_f32((const float *)(const void *)p, n));
}
CELLGEN_INLINE void cellgen_store_part_pairs(cellgen_pair *p, cellgen_part_pairs n, cellgen_vec_pairs v)
{
    cellgen_store_part_f32((float *)(void *)p, n, cellgen_as_floats(v));
}
#if CELLGEN_HAVE_UNPACK
CELLGEN_INLINE void cellgen_gather_pairs(const cellgen_pair *b, int64_t ldb, cellgen_vec_pairs *v)
{
    cellgen_vec_f32 found[4];
    cellgen_gather_f32((const float *)(const void *)b, ldb, found);
    for (int q = 0; q < 4; ++q) v[q] = cellgen_as_pairs(found[q]);
}
#endif

/* c + a b of the first numbers of the pairs, then of the second; by widening: a bfloat16 is the upper half
 * of a float. */
#if CELLGEN_AVX512BF16
CELLGEN_INLINE __m512 cellgen_fma_pairs(cellgen_vec_pairs a, cellgen_vec_pairs b, __m512 c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)b, (__m512bh)a);
}
#else
CELLGEN_INLINE cellgen_vec_f32 cellgen_first_of(cellgen_vec_pairs v)
{
#if CELLGEN_GNU
    v &= 0xffff0000u;
#else
    for (int k = 0; k < CELLGEN_LANES_F32; ++k) v.lane[k] &= 0xffff0000u;
#endif
    return cellgen_as_floats(v);
}
CELLGEN_INLINE cellgen_vec_f32 cellgen_second_of(cellgen_vec_pairs v)
{
#if CELLGEN_GNU
    v <<= 16;
#else
    for (int k = 0; k < CELLGEN_LANES_F32; ++k) v.lane[k] <<= 16;
#endif
    return cellgen_as_floats(v);
}
CELLGEN_INLINE cellgen_vec_f32 cellgen_fma_pairs(cellgen_vec_pairs a, cellgen_vec_pairs b,
                                                 cellgen_vec_f32 c)
{
    c = cellgen_fma_f32(cellgen_first_of(a), cellgen_first_of(b), c);
    return cellgen_fma_f32(cellgen_second_of(a), cellgen_second_of(b), c);
}
#if CELLGEN_BY_LANE
CELLGEN_INLINE cellgen_vec_f32 cellgen_fma_lane_pairs(cellgen_pair a, cellgen_vec_pairs b, cellgen_vec_f32 c)
{
    const cellgen_pair first = a & 0xffff0000u, second = a << 16;
    float one, other;
    memcpy(&one, &first, sizeof one);
    memcpy(&other, &second, sizeof other);
    c = cellgen_fma_lane_f32(one, cellgen_first_of(b), c);
    return cellgen_fma_lane_f32(other, cellgen_second_of(b), c);
}
#endif
#endif

#define CELLGEN_ONLY_TILES 1
#define CELLGEN_REAL cellgen_pair
#define CELLGEN_LEFT cellgen_pair
#define CELLGEN_SUM float
#define CELLGEN_S(name) cellgen_##name##_pairs
#define CELLGEN_C(name) cellgen_##name##_f32
#define CELLGEN_LANES CELLGEN_LANES_F32
#include "cellgen_gemm_real.inc.h"

/* ---------------------------------------------------------------------------------- rounding */

CELLGEN_INLINE cellgen_pair cellgen_pair_of(float first, float second)
{
    return cellgen_bf16_bits(first) << 16 | cellgen_bf16_bits(second);
}

CELLGEN_INLINE cellgen_vec_pairs cellgen_pair_vectors(cellgen_vec_f32 first, cellgen_vec_f32 second)
{
#if CELLGEN_AVX512BF16
    const __m512i turns = _mm512_setr_epi32(0x00100000, 0x00110001, 0x00120002, 0x00130003, 0x00140004, 0x00150005,
                                            0x00160006, 0x00170007, 0x00180008, 0x00190009, 0x001a000a, 0x001b000b,
                                            0x001c000c, 0x001d000d, 0x001e000e, 0x001f000f);
    return (cellgen_vec_pairs)_mm512_permutexvar_epi16(turns, (__m512i)_mm512_cvtne2ps_pbh(first, second));
#else
    float of[2][CELLGEN_LANES_F32];
    cellgen_pair both[CELLGEN_LANES_F32];
    cellgen_store_f32(of[0], first);
    cellgen_store_f32(of[1], second);
    for (int k = 0; k < CELLGEN_LANES_F32; ++k) both[k] = cellgen_pair_of(of[0][k], of[1][k]);
    return cellgen_load_pairs(both);
#endif
}

/* Round a row of K numbers to pairs. */
CELLGEN_INLINE void cellgen_round_row(const float *from, int64_t K, cellgen_pair *to)
{
    int64_t k = 0;
#if CELLGEN_AVX512BF16
    for (; k + 32 <= K; k += 32) {
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + k + 16), _mm512_loadu_ps(from + k));
        /* the unmasked form sets off a false -Wmaybe-uninitialized in GCC 12 */
        _mm512_storeu_si512(to + k / 2, _mm512_maskz_rol_epi32((__mmask16)-1, both, 16));
    }
#endif
    for (; k < K; k += 2) to[k / 2] = cellgen_pair_of(from[k], k + 1 < K ? from[k + 1] : 0.0f);
}

/* ----------------------------------------------------------------------------------- packing */

/* out[pair][0 .. vectors*LANES) = w[k and k + 1][0 .. columns), padded with zeros */
CELLGEN_INLINE void cellgen_pack_rows_bf16(int64_t K, int64_t vectors, int64_t columns, const float *w,
                                           int64_t ldw, cellgen_pair *out, int64_t step)
{
    const int64_t lanes = CELLGEN_LANES_F32, whole = columns / lanes;
    const cellgen_part_f32 last = cellgen_part_make_f32(columns % lanes);
    for (int64_t k = 0; k < K; k += 2, w += 2 * ldw, out += step)
        for (int64_t j = 0; j < vectors; ++j) {
            cellgen_vec_f32 both[2] = {cellgen_zero_f32(), cellgen_zero_f32()};
            for (int64_t half = 0; half < (K - k < 2 ? 1 : 2) && j <= whole; ++half) {
                const float *const from = w + half * ldw + j * lanes;
                both[half] = j < whole ? cellgen_load_f32(from) : cellgen_load_part_f32(from, last);
            }
            cellgen_store_pairs(out + j * lanes, cellgen_pair_vectors(both[0], both[1]));
        }
}

/* the same of weights that are bfloat16 already */
CELLGEN_STATIC void cellgen_pack_rows_of_bf16(int64_t K, int64_t vectors, int64_t columns,
                                              const uint16_t *CELLGEN_RESTRICT w, int64_t ldw,
                                              cellgen_pair *CELLGEN_RESTRICT out, int64_t step)
{
    enum { LANES = CELLGEN_LANES_F32 };
    const int64_t whole = columns / LANES * LANES;
    for (int64_t k = 0; k < K; k += 2, w += 2 * ldw, out += step) {
        const uint16_t *const next = k + 1 < K ? w + ldw : w;
        const cellgen_pair second = k + 1 < K ? 0xffffu : 0u;
        int64_t j = 0;
        for (; j < whole; j += LANES) {
            CELLGEN_VECTORIZE
            for (int lane = 0; lane < LANES; ++lane)
                out[j + lane] = (cellgen_pair)w[j + lane] << 16 | (next[j + lane] & second);
        }
        for (; j < columns; ++j) out[j] = (cellgen_pair)w[j] << 16 | (next[j] & second);
        for (; j < vectors * LANES; ++j) out[j] = 0;
    }
}
/* A row that is bfloat16 already, in pairs. */
CELLGEN_STATIC void cellgen_pair_row(const uint16_t *from, int64_t K, cellgen_pair *to)
{
    int64_t k = 0;
#if CELLGEN_AVX512BF16
    for (; k + 32 <= K; k += 32)
        _mm512_storeu_si512(to + k / 2, _mm512_maskz_rol_epi32((__mmask16)-1, _mm512_loadu_si512(from + k), 16));
#endif
    for (; k < K; k += 2) to[k / 2] = (cellgen_pair)from[k] << 16 | (k + 1 < K ? from[k + 1] : 0u);
}

/* the same of w[column][k]; `narrow`: bfloat16 already */
#define CELLGEN_ROUNDED_DEPTH 128 /* pairs of a row that are rounded before they are transposed */
CELLGEN_STATIC void cellgen_pack_transposed_bf16(int64_t K, int64_t vectors, int64_t columns, const float *w, const uint16_t *narrow,
                                                 int64_t ldw, cellgen_pair *out, int64_t step)
{
    cellgen_pair rows[CELLGEN_LANES_F32 * CELLGEN_ROUNDED_DEPTH];
    const int64_t lanes = CELLGEN_LANES_F32, pairs = CELLGEN_PAIRS(K);
    for (int64_t j = 0; j < vectors; ++j, columns -= lanes, out += lanes)
        for (int64_t pair = 0, depth; pair < pairs; pair += depth) {
            const int64_t left = K - 2 * pair, first = j * lanes * ldw + 2 * pair;
            depth = pairs - pair < CELLGEN_ROUNDED_DEPTH ? pairs - pair : CELLGEN_ROUNDED_DEPTH;
            for (int64_t lane = 0; lane < lanes && lane < columns; ++lane) {
                cellgen_pair *const to = rows + lane * CELLGEN_ROUNDED_DEPTH;
                const int64_t count = left < 2 * depth ? left : 2 * depth;
                if (narrow)
                    cellgen_pair_row(narrow + first + lane * ldw, count, to);
                else
                    cellgen_round_row(w + first + lane * ldw, count, to);
            }
            cellgen_pack_transposed_pairs(depth, 1, columns < 0 ? 0 : columns, rows, CELLGEN_ROUNDED_DEPTH,
                                          out + pair * step, step);
        }
}

/* ------------------------------------------------------------------------- weight gradients
 * cellgen_gemm_outers of operands that are rounded when they are packed; `packed` holds pairs. */

/* Rows of A^T in tiles of equal height, each [pair][row]. */
CELLGEN_STATIC void cellgen_pack_tiles_bf16(int64_t rows, int64_t tiles, int64_t K, const float *a,
                                            int64_t a_step, cellgen_pair *out)
{
    for (int64_t height; rows > 0; --tiles, rows -= height, a += height) {
        height = (rows + tiles - 1) / tiles;
        const float *from = a;
#if CELLGEN_HAVE_PART
        const cellgen_part_f32 part = cellgen_part_make_f32(height);
        for (int64_t k = 0; k < K; k += 2, from += 2 * a_step, out += height)
            cellgen_store_part_pairs(out, part,
                                     cellgen_pair_vectors(cellgen_load_part_f32(from, part),
                                                          k + 1 < K ? cellgen_load_part_f32(from + a_step, part)
                                                                    : cellgen_zero_f32()));
#else
        for (int64_t k = 0; k < K; k += 2, from += 2 * a_step)
            for (int64_t row = 0; row < height; ++row)
                *out++ = cellgen_pair_of(from[row], k + 1 < K ? from[a_step + row] : 0.0f);
#endif
    }
}

/* Where the pairs of an operand are packed. */
CELLGEN_INLINE cellgen_pair *cellgen_left_pairs(const cellgen_left_f32 *left, int64_t pairs)
{
    return (cellgen_pair *)(void *)left->packed + left->begin * (pairs < CELLGEN_DEPTH ? pairs : CELLGEN_DEPTH);
}

/* All products of one right operand over `depth` of K rows from row k on, downwards, with block `turn` of the
 * left ones, which is packed already. */
CELLGEN_STATIC void cellgen_outers_of_bf16(const cellgen_left_f32 *lefts, const cellgen_right_f32 *right,
                                           int number, const cellgen_outer_f32 *outers, int count, int64_t pairs,
                                           int64_t k, int64_t depth, int64_t turn, int64_t turns, int onto)
{
    CELLGEN_ALIGNED cellgen_pair panel[CELLGEN_BUFFER_BYTES / sizeof(cellgen_pair)];
    const int64_t lanes = CELLGEN_LANES_F32, width = CELLGEN_PANEL_VECTORS * lanes;
    const int64_t N = right->columns, ldb = right->ldb;
    int64_t panels = (N + width - 1) / width;
    for (int64_t j = 0, remaining = (N + lanes - 1) / lanes; remaining > 0; --panels) {
        const int64_t vectors = (remaining + panels - 1) / panels, step = vectors * lanes;
        const int64_t columns = N - j < step ? N - j : step;
        cellgen_pack_rows_bf16(depth, vectors, columns, right->b + k * ldb + j, -ldb, panel, step);
        for (int i = 0; i < count; ++i) {
            const cellgen_outer_f32 *const outer = outers + i;
            if (outer->right != number) continue;
            const cellgen_left_f32 *const left = lefts + outer->left;
            const int64_t first = cellgen_left_block_f32(left, turn, turns);
            cellgen_packed_tiles_pairs(cellgen_left_block_f32(left, turn + 1, turns) - first, vectors,
                                       CELLGEN_PAIRS(depth), cellgen_left_pairs(left, pairs), panel,
                                       outer->c + first * outer->ldc + j, outer->ldc, columns - (vectors - 1) * lanes,
                                       onto || outer->accumulate);
        }
        remaining -= vectors;
        j += step;
    }
}

CELLGEN_STATIC void cellgen_gemm_outers_bf16(const cellgen_left_f32 *lefts, int left_count,
                                             const cellgen_right_f32 *rights, int right_count,
                                             const cellgen_outer_f32 *outers, int count, int64_t K)
{
    const int64_t pairs = CELLGEN_PAIRS(K), depths = (pairs + CELLGEN_DEPTH - 1) / CELLGEN_DEPTH;
    int64_t rows = 0;
    for (int i = 0; i < left_count; ++i) rows += lefts[i].end - lefts[i].begin;
    const int64_t turns = (rows + CELLGEN_PACKED_ROWS - 1) / CELLGEN_PACKED_ROWS;
    for (int64_t done = 0, turn_k = 0, deep; turn_k < depths; ++turn_k, done += deep) {
        deep = (pairs - done + depths - turn_k - 1) / (depths - turn_k);
        const int64_t from = K - 1 - 2 * done, depth = K - 2 * done < 2 * deep ? K - 2 * done : 2 * deep;
        for (int64_t turn = 0; turn < turns; ++turn) {
            for (int i = 0; i < left_count; ++i) {
                const cellgen_left_f32 *const left = lefts + i;
                const int64_t first = cellgen_left_block_f32(left, turn, turns);
                const int64_t partition = cellgen_left_block_f32(left, turn + 1, turns) - first;
                cellgen_pack_tiles_bf16(partition, cellgen_panel_tiles_pairs(partition), depth,
                                        left->a + first + from * left->lda, -left->lda, cellgen_left_pairs(left, pairs));
            }
            for (int i = 0; i < right_count; ++i)
                cellgen_outers_of_bf16(lefts, rights + i, i, outers, count, pairs, from, depth, turn, turns, done > 0);
        }
    }
}

#endif
