/* Products of float32 arrays whose operands are rounded to bfloat16, in one of the ways of cellgen_bf16_way.h.
 *
 * An operand is rounded once, to the nearest bfloat16, ties to even; a number that is none stays none.
 * A product of two bfloat16 has no rounding in float32. In pairs and in floats every element of a result is one chain
 * of float32 additions with k ascending, one rounding each: to the bit what cellgen_gemm.h makes of the rounded
 * operands. In tiles it is one chain over groups of 32 k: cellgen_amx.h. Where instructions of AVX512-BF16 or AMX do
 * it, numbers below the smallest normal float32 count as zeros.
 *
 * Two neighbouring k stand in one word of 32 bits, a pair, the first in its upper half, which vdpbf16ps
 * adds first; a last k without a neighbour has zero beside it. Panels, tiles and slices are those of
 * cellgen_gemm.h with a pair in the place of a float. */
#ifndef CELLGEN_GEMM_BF16_H
#define CELLGEN_GEMM_BF16_H

#include "cellgen_amx.h"
#include "cellgen_bf16_way.h"
#include "cellgen_gemm.h"
#include "cellgen_half.h"

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

/* c + a b of the first numbers of the pairs, then of the second. */
#if CELLGEN_AVX512BF16
CELLGEN_INLINE __m512 cellgen_fma_pairs(cellgen_vec_pairs a, cellgen_vec_pairs b, __m512 c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)b, (__m512bh)a);
}
#endif

#define CELLGEN_ONLY_TILES (CELLGEN_AVX512BF16 ? 1 : 4)
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

/* The nearest bfloat16 of each number, as a float. */
CELLGEN_INLINE cellgen_vec_f32 cellgen_round_vector(cellgen_vec_f32 v)
{
#if CELLGEN_GNU
    const cellgen_vec_pairs bits = cellgen_as_pairs(v);
    const cellgen_vec_pairs is_none = (cellgen_vec_pairs)((bits & 0x7fffffffu) > 0x7f800000u);
    const cellgen_vec_pairs nearest = bits + 0x7fffu + (bits >> 16 & 1u), quiet = bits | 0x00400000u;
    return cellgen_as_floats(((nearest & ~is_none) | (quiet & is_none)) & 0xffff0000u);
#else
    for (int k = 0; k < CELLGEN_LANES_F32; ++k) v.lane[k] = cellgen_bf16_to_float((uint16_t)cellgen_bf16_bits(v.lane[k]));
    return v;
#endif
}

/* Round a row of K numbers to pairs. */
CELLGEN_INLINE void cellgen_round_to_pairs(const float *from, int64_t K, cellgen_pair *to)
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

/* Round a row of K numbers to words of a way, zeros behind them. */
CELLGEN_INLINE void cellgen_round_row(int way, const float *from, int64_t K, cellgen_pair *to)
{
    if (way != CELLGEN_BF16_FLOATS) {
        cellgen_round_to_pairs(from, K, to);
        for (int64_t word = CELLGEN_PAIRS(K); word < cellgen_bf16_words(way, K); ++word) to[word] = 0;
        return;
    }
    int64_t k = 0;
    for (; k + CELLGEN_LANES_F32 <= K; k += CELLGEN_LANES_F32)
        cellgen_store_pairs(to + k, cellgen_as_pairs(cellgen_round_vector(cellgen_load_f32(from + k))));
    for (; k < K; ++k) to[k] = cellgen_bf16_bits(from[k]) << 16;
}

/* The same of a row that is bfloat16 already, without zeros behind. */
CELLGEN_STATIC void cellgen_words_of_row(int way, const uint16_t *from, int64_t K, cellgen_pair *to)
{
    int64_t k = 0;
    if (way == CELLGEN_BF16_FLOATS) {
        for (; k < K; ++k) to[k] = (cellgen_pair)from[k] << 16;
        return;
    }
#if CELLGEN_AVX512BF16
    for (; k + 32 <= K; k += 32)
        _mm512_storeu_si512(to + k / 2, _mm512_maskz_rol_epi32((__mmask16)-1, _mm512_loadu_si512(from + k), 16));
#endif
    for (; k < K; k += 2) to[k / 2] = (cellgen_pair)from[k] << 16 | (k + 1 < K ? from[k + 1] : 0u);
}

/* ----------------------------------------------------------------------------------- packing */

/* Vector j of a row that has so many whole ones and a last part. */
CELLGEN_INLINE cellgen_vec_f32 cellgen_vector_of_row(const float *row, int64_t j, int64_t whole, cellgen_part_f32 last)
{
    const float *const from = row + j * CELLGEN_LANES_F32;
    return j < whole ? cellgen_load_f32(from) : j == whole ? cellgen_load_part_f32(from, last) : cellgen_zero_f32();
}

/* out[word][0 .. vectors*LANES) = w[k, or k and k + 1][0 .. columns), padded with zeros */
CELLGEN_INLINE void cellgen_pack_rows_bf16(int way, int64_t K, int64_t vectors, int64_t columns, const float *w,
                                           int64_t ldw, cellgen_pair *out, int64_t step)
{
    const int64_t lanes = CELLGEN_LANES_F32, whole = columns / lanes, each = way == CELLGEN_BF16_FLOATS ? 1 : 2;
    const cellgen_part_f32 last = cellgen_part_make_f32(columns % lanes);
    for (int64_t k = 0; k < K; k += each, w += each * ldw, out += step)
        for (int64_t j = 0; j < vectors; ++j) {
            const cellgen_vec_f32 first = cellgen_vector_of_row(w, j, whole, last);
            if (each == 1) {
                cellgen_store_pairs(out + j * lanes, cellgen_as_pairs(cellgen_round_vector(first)));
                continue;
            }
            const cellgen_vec_f32 second = k + 1 < K ? cellgen_vector_of_row(w + ldw, j, whole, last) : cellgen_zero_f32();
            cellgen_store_pairs(out + j * lanes, cellgen_pair_vectors(first, second));
        }
}

/* the same of weights that are bfloat16 already */
CELLGEN_STATIC void cellgen_pack_rows_of_bf16(int way, int64_t K, int64_t vectors, int64_t columns,
                                              const uint16_t *CELLGEN_RESTRICT w, int64_t ldw,
                                              cellgen_pair *CELLGEN_RESTRICT out, int64_t step)
{
    enum { LANES = CELLGEN_LANES_F32 };
    const int64_t whole = columns / LANES * LANES, each = way == CELLGEN_BF16_FLOATS ? 1 : 2;
    for (int64_t k = 0; k < K; k += each, w += each * ldw, out += step) {
        const int has_second = each == 2 && k + 1 < K;
        const uint16_t *const next = has_second ? w + ldw : w;
        const cellgen_pair second = has_second ? 0xffffu : 0u;
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

/* the same of w[column][k]; `narrow`: bfloat16 already */
#define CELLGEN_ROUNDED_DEPTH 128 /* words of a row that are rounded before they are transposed */
CELLGEN_STATIC void cellgen_pack_transposed_bf16(int way, int64_t K, int64_t vectors, int64_t columns, const float *w,
                                                 const uint16_t *narrow, int64_t ldw, cellgen_pair *out, int64_t step)
{
    cellgen_pair rows[CELLGEN_LANES_F32 * CELLGEN_ROUNDED_DEPTH];
    const int64_t lanes = CELLGEN_LANES_F32, each = way == CELLGEN_BF16_FLOATS ? 1 : 2, words = (K + each - 1) / each;
    for (int64_t j = 0; j < vectors; ++j, columns -= lanes, out += lanes)
        for (int64_t word = 0, depth; word < words; word += depth) {
            const int64_t left = K - each * word, first = j * lanes * ldw + each * word;
            depth = words - word < CELLGEN_ROUNDED_DEPTH ? words - word : CELLGEN_ROUNDED_DEPTH;
            for (int64_t lane = 0; lane < lanes && lane < columns; ++lane) {
                cellgen_pair *const to = rows + lane * CELLGEN_ROUNDED_DEPTH;
                const int64_t count = left < each * depth ? left : each * depth;
                if (narrow)
                    cellgen_words_of_row(way, narrow + first + lane * ldw, count, to);
                else if (each == 1)
                    cellgen_round_row(way, w + first + lane * ldw, count, to);
                else
                    cellgen_round_to_pairs(w + first + lane * ldw, count, to);
            }
            cellgen_pack_transposed_pairs(depth, 1, columns < 0 ? 0 : columns, rows, CELLGEN_ROUNDED_DEPTH,
                                          out + word * step, step);
        }
}

#include "cellgen_outers_bf16.inc.h"
#include "cellgen_outers_amx.inc.h"

#endif
