/* Products of rows of float32 and panels of int8, each column with a scale: a quarter of the weights to read.
 *
 * A column w of a matrix is q = w / scale, rounded to the nearest integer, ties to even, from -127 to 127, with
 * scale = max |w| / 127, a float. Every product of a row and a column is one chain of fused multiply-adds of the
 * row and q, from 0 on with k ascending, or their exact sum in fixed point (cellgen_fixed_int8.h); it is multiplied
 * by the scale and added to what was there by one more. Neither tiles nor threads change a bit of it, and a row
 * never depends on others.
 *
 * A column of zeros has the scale 0, and so has one whose scale is below the smallest denormal float; of denormal
 * scales q ends at 127. A column with an infinity or a number that is none has such a scale, and so such results.
 *
 * Panels, tiles and slices are those of cellgen_gemm.h with a byte in the place of a float. The scales of a block
 * of units follow its panel; blocks are whole cache lines. */
#ifndef CELLGEN_GEMM_INT8_H
#define CELLGEN_GEMM_INT8_H

#include "cellgen_gemm.h"

#define CELLGEN_INT8_MOST 127 /* the largest q */

/* Whether rows are in fixed point (cellgen_fixed_int8.h), but for the longest. */
#if CELLGEN_GNU && defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define CELLGEN_FIXED_ROWS 1
#else
#define CELLGEN_FIXED_ROWS 0
#endif

/* ------------------------------------------------------------------------------- one vector */

typedef cellgen_vec_f32 cellgen_vec_int8;
typedef int cellgen_part_int8; /* panels have whole vectors */
CELLGEN_INLINE cellgen_part_int8 cellgen_part_make_int8(int64_t n) { return (int)n; }

/* LANES bytes, widened. */
#if defined(__AVX512F__)
CELLGEN_INLINE cellgen_vec_f32 cellgen_load_int8(const int8_t *p)
{
    /* the unmasked forms set off a false -Wmaybe-uninitialized in GCC 12 */
    const __mmask16 all = (__mmask16)-1;
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_maskz_cvtepi32_ps(all, _mm512_maskz_cvtepi8_epi32(all, bytes));
}
#elif defined(__AVX2__) && defined(__FMA__)
CELLGEN_INLINE cellgen_vec_f32 cellgen_load_int8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
#elif defined(__aarch64__)
CELLGEN_INLINE cellgen_vec_f32 cellgen_load_int8(const int8_t *p)
{
    uint32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(bytes))))));
}
#else
CELLGEN_INLINE cellgen_vec_f32 cellgen_load_int8(const int8_t *p)
{
    float wide[CELLGEN_LANES_F32];
    for (int k = 0; k < CELLGEN_LANES_F32; ++k) wide[k] = (float)p[k];
    return cellgen_load_f32(wide);
}
#endif
CELLGEN_INLINE cellgen_vec_f32 cellgen_load_part_int8(const int8_t *p, cellgen_part_int8 n)
{
    (void)n;
    return cellgen_load_int8(p);
}
CELLGEN_INLINE cellgen_vec_f32 cellgen_set1_int8(float x) { return cellgen_set1_f32(x); }
CELLGEN_INLINE cellgen_vec_f32 cellgen_fma_int8(cellgen_vec_f32 a, cellgen_vec_f32 b, cellgen_vec_f32 c)
{
    return cellgen_fma_f32(a, b, c);
}
#if CELLGEN_BY_LANE
CELLGEN_INLINE cellgen_vec_f32 cellgen_fma_lane_int8(float a, cellgen_vec_f32 b, cellgen_vec_f32 c)
{
    return cellgen_fma_lane_f32(a, b, c);
}
#endif

#define CELLGEN_ONLY_TILES (CELLGEN_FIXED_ROWS ? 3 : 2)
#define CELLGEN_REAL int8_t
#define CELLGEN_LEFT float
#define CELLGEN_SUM float
#define CELLGEN_S(name) cellgen_##name##_int8
#define CELLGEN_C(name) cellgen_##name##_f32
#define CELLGEN_LANES CELLGEN_LANES_F32
#include "cellgen_gemm_real.inc.h"

/* out (+)= sums times the scale of their column, of `vectors` whole vectors. */
CELLGEN_INLINE void cellgen_scale_int8(int64_t rows, int64_t vectors, const float *sums, int64_t step, const float *scale,
                                       float *out, int64_t ldc, int accumulate)
{
    for (int64_t j = 0; j < vectors * CELLGEN_LANES_F32; j += CELLGEN_LANES_F32) {
        const cellgen_vec_f32 by = cellgen_load_f32(scale + j);
        for (int64_t row = 0; row < rows; ++row) {
            float *const to = out + row * ldc + j;
            const cellgen_vec_f32 before = accumulate ? cellgen_load_f32(to) : cellgen_zero_f32();
            cellgen_store_f32(to, cellgen_fma_f32(cellgen_load_f32(sums + row * step + j), by, before));
        }
    }
}

/* ----------------------------------------------------------------------------------- panels */

#include "cellgen_fixed_int8.h"

/* Bytes of a block of units: K rows of so many columns, or four rows side by side and the sums of columns, then
 * the scales of these. */
CELLGEN_INLINE int64_t cellgen_block_bytes_int8(int64_t K, int64_t columns)
{
    const int64_t of_column = cellgen_is_fixed(K) ? 4 * cellgen_fixed_fours(K) + (int64_t)sizeof(int32_t) : K;
    return (columns * (of_column + (int64_t)sizeof(float)) + 63) / 64 * 64;
}
/* Bytes of all panels. */
CELLGEN_INLINE int64_t cellgen_panels_bytes_int8(int64_t K, int64_t slots, int64_t units, int64_t vectors)
{
    return cellgen_panels_blocks_f32(units, vectors) * cellgen_block_bytes_int8(K, slots * vectors * CELLGEN_LANES_F32);
}

/* max |w| of each of some neighbouring columns, as bits: what is no number is above infinity. */
CELLGEN_STATIC void cellgen_largest_int8(int64_t K, int64_t columns, const float *w, int64_t ldw, int transposed,
                                         uint32_t *CELLGEN_RESTRICT largest)
{
    const int64_t outer = transposed ? columns : K, inner = transposed ? K : columns;
    for (int64_t i = 0; i < outer; ++i, w += ldw) {
        for (int64_t j = 0; j < inner; ++j) {
            uint32_t bits, *const most = largest + (transposed ? i : j);
            memcpy(&bits, w + j, sizeof bits);
            bits &= 0x7fffffffu;
            *most = bits > *most ? bits : *most;
        }
    }
}

/* The nearest integer of w / scale, ties to even, from -MOST to MOST. */
CELLGEN_INLINE int8_t cellgen_nearest_int8(float w, float scale)
{
    const float shifted = w / scale + 12582912.0f; /* 1.5 2^23: adds and rounds to an integer */
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    const int32_t found = (int32_t)(bits - 0x4b400000u);
    return (int8_t)(found > CELLGEN_INT8_MOST ? CELLGEN_INT8_MOST : found < -CELLGEN_INT8_MOST ? -CELLGEN_INT8_MOST : found);
}

/* Pack w(K, columns), or w(columns, K) if `transposed`, from column `first` of a block of units on, whose rows have
 * `step` columns, and the scales of these columns; what is left of `width` columns are zeros. */
CELLGEN_STATIC void cellgen_pack_int8(int64_t K, int64_t width, int64_t columns, const float *w, int64_t ldw, int transposed,
                                      int8_t *block, int64_t first, int64_t step)
{
    const int fixed = cellgen_is_fixed(K);
    const int64_t deep = fixed ? 4 * cellgen_fixed_fours(K) : K, next = fixed ? 4 : 1;
    int32_t *const sums = (int32_t *)(void *)(block + deep * step) + first;
    float *const scale = (float *)(void *)(block + (deep + (fixed ? (int64_t)sizeof *sums : 0)) * step) + first;
    uint32_t largest[4 * CELLGEN_LANES_F32] = {0};
    float by[4 * CELLGEN_LANES_F32];
    cellgen_largest_int8(K, columns, w, ldw, transposed, largest);
    for (int64_t j = 0; j < width; ++j) {
        float most;
        memcpy(&most, largest + j, sizeof most);
        scale[j] = largest[j] < 0x7f800000u ? most / CELLGEN_INT8_MOST : most - most;
        by[j] = scale[j] > 0 ? scale[j] : 1.0f; /* where there is no scale, zeros */
    }
    for (int64_t j = 0; j < width && fixed; ++j) sums[j] = 0;
    for (int64_t k = 0; k < deep; ++k) {
        int8_t *const row = block + (fixed ? k / 4 * 4 * step + k % 4 : k * step) + first * next;
        for (int64_t j = 0; j < width; ++j) {
            const int is_there = k < K && j < columns && scale[j] > 0;
            row[j * next] = is_there ? cellgen_nearest_int8(transposed ? w[j * ldw + k] : w[k * ldw + j], by[j]) : (int8_t)0;
            if (fixed) sums[j] += row[j * next];
        }
    }
}

#endif
