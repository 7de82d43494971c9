/* Rows in fixed point beside panels of int8, where vpdpbusd multiplies and adds four bytes at once: three bytes of a
 * number in the time that one multiplication in float takes for four.
 *
 * A row x of K numbers is X = x 2^s, rounded to the nearest integer, ties to even, at most 2^23 - 1, with the s for
 * which the largest |x| lies from 2^22 on and below 2^23. Sums of X and q are exact, in three parts that are
 * converted to float and added, the last one first. A row with an infinity or a number that is none gives such sums.
 *
 * X + 2^23 has three bytes, the first of which have weight 2^16. They lie by 64 numbers, 16 words of first
 * bytes, of second ones, of third ones; panels have four k of a column side by side. On AMX tiles of 16 rows and 64
 * numbers are multiplied at once: the same exact sums. */
#ifndef CELLGEN_FIXED_INT8_H
#define CELLGEN_FIXED_INT8_H

#include "cellgen_gemm_bf16.h"

#define CELLGEN_FOURS(K) (((K) + 3) / 4)
enum { CELLGEN_FIXED_HEAD = 16, CELLGEN_FIXED_MOST = 1 << 16 }; /* words before a row; k whose sums 32 bits hold */

#if CELLGEN_FIXED_ROWS && CELLGEN_AMX && (defined(__AMX_INT8__) || defined(CELLGEN_AMX_EMULATED))
#define CELLGEN_AMX_INT8 1
#else
#define CELLGEN_AMX_INT8 0
#endif

CELLGEN_INLINE int cellgen_is_fixed(int64_t K)
{
    return CELLGEN_FIXED_ROWS && K <= CELLGEN_FIXED_MOST;
}
/* Words of a row. */
CELLGEN_INLINE int64_t cellgen_fixed_words(int64_t K)
{
    return cellgen_is_fixed(K) ? CELLGEN_FIXED_HEAD + (K + 63) / 64 * 48 : 0;
}
/* Rows of four k of a panel: whole tiles. */
CELLGEN_INLINE int64_t cellgen_fixed_fours(int64_t K)
{
    return CELLGEN_AMX_INT8 ? (K + 63) / 64 * 16 : CELLGEN_FOURS(K);
}
enum { CELLGEN_FIXED_ROWS_ON_AMX = 4 }; /* fewer take as long without it: they wait for weights */
/* Whether tiles of AMX add bytes in this process. */
CELLGEN_INLINE int cellgen_int8_on_amx(void)
{
    return CELLGEN_AMX_INT8 && cellgen_bf16_way() == CELLGEN_BF16_TILES;
}

#if CELLGEN_FIXED_ROWS

/* 2^s */
CELLGEN_INLINE float cellgen_power_of_two(int s)
{
    const uint32_t bits = (uint32_t)(s + 127) << 23;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

/* A row in fixed point; before it the two factors of 2^-s. */
CELLGEN_STATIC void cellgen_fix_row(const float *from, int64_t K, cellgen_pair *to)
{
    const __m512i numbers = _mm512_set1_epi32(0x7fffffff);
    __m512i most = _mm512_setzero_si512();
    int64_t k = 0;
    for (; k < K; k += 16) {
        const __mmask16 part = (__mmask16)(K - k < 16 ? (1u << (K - k)) - 1u : 0xffffu);
        most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_maskz_loadu_epi32(part, from + k), numbers));
    }
    const uint32_t largest = _mm512_reduce_max_epu32(most);
    const int is_number = largest < 0x7f800000u, s = largest ? 149 - (int)(largest >> 23) : 0;
    const int first = is_number ? s / 2 : 0, second = is_number ? s - first : 0;
    float down[2] = {cellgen_power_of_two(-first), cellgen_power_of_two(-second)};
    const __m512 up = _mm512_set1_ps(cellgen_power_of_two(first)), more = _mm512_set1_ps(cellgen_power_of_two(second));
    if (!is_number) {
        memcpy(down, &largest, sizeof *down);
        down[0] -= down[0]; /* what is no number */
    }
    memcpy(to, down, sizeof down);
    to += CELLGEN_FIXED_HEAD;
    for (k = 0; k < (K + 63) / 64 * 64; k += 16, to += k % 64 ? 4 : 36) {
        const int64_t left = k < K && is_number ? K - k : 0;
        const __mmask16 part = (__mmask16)(left < 16 ? (1u << left) - 1u : 0xffffu);
        const __m512 x = _mm512_maskz_loadu_ps(part, from + k);
        const __m512i nearest = _mm512_maskz_cvtps_epi32((__mmask16)-1, _mm512_mul_ps(_mm512_mul_ps(x, up), more));
        const __m512i below = _mm512_maskz_min_epi32((__mmask16)-1, nearest, _mm512_set1_epi32((1 << 23) - 1));
        const __m512i shifted = _mm512_add_epi32(below, _mm512_set1_epi32(1 << 23));
        _mm_storeu_si128((__m128i *)(void *)to, _mm512_maskz_cvtepi32_epi8((__mmask16)-1, _mm512_maskz_srli_epi32((__mmask16)-1, shifted, 16)));
        _mm_storeu_si128((__m128i *)(void *)(to + 16), _mm512_maskz_cvtepi32_epi8((__mmask16)-1, _mm512_maskz_srli_epi32((__mmask16)-1, shifted, 8)));
        _mm_storeu_si128((__m128i *)(void *)(to + 32), _mm512_maskz_cvtepi32_epi8((__mmask16)-1, shifted));
    }
}

/* One vector of results of sums in three parts; `zero`: the first one where X = 0. */
CELLGEN_INLINE void cellgen_fixed_result(__m512i first_bytes, __m512i second_bytes, __m512i third_bytes, const cellgen_pair *row,
                                         __m512i zero, __m512 scale, float *out, int accumulate)
{
    float down[2];
    memcpy(down, row, sizeof down);
    const __mmask16 all = (__mmask16)-1;
    const __m512 first = _mm512_maskz_cvtepi32_ps(all, _mm512_sub_epi32(first_bytes, zero));
    const __m512 second = _mm512_maskz_cvtepi32_ps(all, second_bytes), third = _mm512_maskz_cvtepi32_ps(all, third_bytes);
    const __m512 low = _mm512_fmadd_ps(second, _mm512_set1_ps(256.0f), third);
    const __m512 sum = _mm512_fmadd_ps(first, _mm512_set1_ps(65536.0f), low);
    const __m512 product = _mm512_mul_ps(_mm512_mul_ps(sum, _mm512_set1_ps(down[0])), _mm512_set1_ps(down[1]));
    const __m512 before = accumulate ? _mm512_loadu_ps(out) : _mm512_setzero_ps();
    _mm512_storeu_ps(out, _mm512_fmadd_ps(product, scale, before));
}
CELLGEN_INLINE __m512i cellgen_fixed_zero(const int8_t *sums)
{
    return _mm512_maskz_slli_epi32((__mmask16)-1, _mm512_loadu_si512(sums), 7);
}
CELLGEN_INLINE void cellgen_fixed_sum(__m512i first_bytes, __m512i second_bytes, __m512i third_bytes, const cellgen_pair *row,
                                      const int8_t *sums, const int8_t *scale, float *out, int accumulate)
{
    cellgen_fixed_result(first_bytes, second_bytes, third_bytes, row, cellgen_fixed_zero(sums),
                         _mm512_loadu_ps((const float *)(const void *)scale), out, accumulate);
}

/* t += four products of bytes of a, without sign, and of b. GCC would copy the sums of a tile at every turn. */
#define CELLGEN_ADD_BYTES(t, a, b) __asm__("vpdpbusd %2, %1, %0" : "+v"(t) : "v"(a), "v"(b));

#define CELLGEN_FIXED_BEGIN(R, NV) CELLGEN_COLUMNS_##NV(CELLGEN_FIXED_ZERO, R, NV)
#define CELLGEN_FIXED_ZERO(R, J, NV) \
    __m512i first_##R##_##J = _mm512_setzero_si512(), second_##R##_##J = first_##R##_##J, third_##R##_##J = first_##R##_##J; \
    CELLGEN_KEEP(first_##R##_##J);  \
    CELLGEN_KEEP(second_##R##_##J); \
    CELLGEN_KEEP(third_##R##_##J);
#define CELLGEN_FIXED_LOAD(J, NV) const __m512i b_##J = _mm512_loadu_si512(b + 64 * J);
#define CELLGEN_FIXED_FIRST(R, J, NV) CELLGEN_ADD_BYTES(first_##R##_##J, a_##R, b_##J)
#define CELLGEN_FIXED_SECOND(R, J, NV) CELLGEN_ADD_BYTES(second_##R##_##J, a_##R, b_##J)
#define CELLGEN_FIXED_THIRD(R, J, NV) CELLGEN_ADD_BYTES(third_##R##_##J, a_##R, b_##J)
#define CELLGEN_FIXED_ROW(R, NV)                                  \
    __m512i a_##R = _mm512_set1_epi32((int)x[R * stride]);        \
    CELLGEN_COLUMNS_##NV(CELLGEN_FIXED_FIRST, R, NV)              \
    a_##R = _mm512_set1_epi32((int)x[R * stride + 16]);            \
    CELLGEN_COLUMNS_##NV(CELLGEN_FIXED_SECOND, R, NV)             \
    a_##R = _mm512_set1_epi32((int)x[R * stride + 32]);            \
    CELLGEN_COLUMNS_##NV(CELLGEN_FIXED_THIRD, R, NV)
#define CELLGEN_FIXED_END(R, NV) CELLGEN_COLUMNS_##NV(CELLGEN_FIXED_OUT, R, NV)
#define CELLGEN_FIXED_OUT(R, J, NV)                                                                       \
    cellgen_fixed_sum(first_##R##_##J, second_##R##_##J, third_##R##_##J, rows + R * stride,              \
                      ends + 64 * J, ends + 64 * J + 4 * columns, out + R * ldc + 16 * J, accumulate);

/* out (+)= some rows times NV vectors of a block of units whose rows have `columns` columns, K deep; `block` and
 * `out` are those of the first one. */
#define CELLGEN_FIXED_TILE(MR, NV)                                                                        \
    CELLGEN_OUTLINE void cellgen_fixed_tile_##MR##x##NV(int64_t K, const cellgen_pair *rows, int64_t stride, \
                                                        const int8_t *block, int64_t columns, float *out, \
                                                        int64_t ldc, int accumulate)                      \
    {                                                                                                     \
        const int64_t fours = CELLGEN_FOURS(K);                                                           \
        const int8_t *const ends = block + 4 * cellgen_fixed_fours(K) * columns, *b = block;              \
        const cellgen_pair *x = rows + CELLGEN_FIXED_HEAD;                                                \
        CELLGEN_ROWS_##MR(CELLGEN_FIXED_BEGIN, NV)                                                        \
        for (int64_t four = 1; four <= fours; ++four, b += 4 * columns) {                                 \
            CELLGEN_ROWS_##NV(CELLGEN_FIXED_LOAD, NV)                                                     \
            CELLGEN_ROWS_##MR(CELLGEN_FIXED_ROW, NV)                                                      \
            x += four % 16 ? 1 : 33;                                                                      \
        }                                                                                                 \
        CELLGEN_ROWS_##MR(CELLGEN_FIXED_END, NV)                                                          \
    }

#define CELLGEN_FIXED_TILES(NV) CELLGEN_FIXED_TILE(1, NV) CELLGEN_FIXED_TILE(2, NV)
CELLGEN_BEGIN_LIGHT
CELLGEN_FIXED_TILES(1)
CELLGEN_FIXED_TILES(2)
CELLGEN_FIXED_TILES(3)
CELLGEN_FIXED_TILES(4)
CELLGEN_END_LIGHT

#define CELLGEN_FIXED_CASE(ROWS, NV)                                                                                       \
    case NV:                                                                                                               \
        cellgen_fixed_tile_##ROWS##x##NV(K, from, stride, block + 4 * left, columns, out + row * ldc + left, ldc, accumulate); \
        break;
#define CELLGEN_FIXED_CASES(ROWS)                                                                                          \
    switch (next) {                                                                                                        \
        CELLGEN_FIXED_CASE(ROWS, 1)                                                                                        \
        CELLGEN_FIXED_CASE(ROWS, 2)                                                                                        \
        CELLGEN_FIXED_CASE(ROWS, 3)                                                                                        \
    default:                                                                                                               \
        cellgen_fixed_tile_##ROWS##x4(K, from, stride, block + 4 * left, columns, out + row * ldc + left, ldc, accumulate);    \
        break;                                                                                                             \
    }

#if CELLGEN_AMX_INT8
/* Up to 16 rows by one vector, or two, on AMX. */
CELLGEN_INLINE void cellgen_fixed_tile_amx(int has_two, int64_t count, int64_t K, const cellgen_pair *rows, int64_t stride,
                                           const int8_t *block, int64_t columns, float *out, int64_t ldc, int accumulate)
{
    CELLGEN_ALIGNED int32_t parts[6][16][16];
    const int8_t *const ends = block + 4 * cellgen_fixed_fours(K) * columns, *b = block;
    const cellgen_pair *a = rows + CELLGEN_FIXED_HEAD;
    cellgen_amx_zero(0);
    cellgen_amx_zero(1);
    cellgen_amx_zero(2);
    if (has_two) {
        cellgen_amx_zero(3);
        cellgen_amx_zero(4);
        cellgen_amx_zero(5);
    }
    for (int64_t k = 0; k < K; k += 64, a += 48, b += 64 * columns) {
        cellgen_amx_load(7, b, 4 * columns);
        cellgen_amx_load(6, a, 4 * stride);
        cellgen_amx_dot_bytes(0, 6, 7);
        cellgen_amx_load(6, a + 16, 4 * stride);
        cellgen_amx_dot_bytes(1, 6, 7);
        cellgen_amx_load(6, a + 32, 4 * stride);
        cellgen_amx_dot_bytes(2, 6, 7);
        if (!has_two) continue;
        cellgen_amx_load(7, b + 64, 4 * columns);
        cellgen_amx_dot_bytes(5, 6, 7);
        cellgen_amx_load(6, a + 16, 4 * stride);
        cellgen_amx_dot_bytes(4, 6, 7);
        cellgen_amx_load(6, a, 4 * stride);
        cellgen_amx_dot_bytes(3, 6, 7);
    }
    cellgen_amx_store(0, parts[0], 64);
    cellgen_amx_store(1, parts[1], 64);
    cellgen_amx_store(2, parts[2], 64);
    if (has_two) {
        cellgen_amx_store(3, parts[3], 64);
        cellgen_amx_store(4, parts[4], 64);
        cellgen_amx_store(5, parts[5], 64);
    }
    for (int64_t v = 0; v <= has_two; ++v) {
        const __m512i zero = cellgen_fixed_zero(ends + 64 * v);
        const __m512 scale = _mm512_loadu_ps((const float *)(const void *)(ends + 64 * v + 4 * columns));
        for (int64_t r = 0; r < count; ++r)
            cellgen_fixed_result(_mm512_load_si512(parts[3 * v][r]), _mm512_load_si512(parts[3 * v + 1][r]), _mm512_load_si512(parts[3 * v + 2][r]),
                                 rows + r * stride, zero, scale, out + r * ldc + 16 * v, accumulate);
    }
}

/* Any number of rows and vectors. */
CELLGEN_OUTLINE void cellgen_fixed_product_amx(cellgen_amx *amx, int64_t count, int64_t vectors, int64_t K, const cellgen_pair *rows, int64_t stride,
                                               const int8_t *block, float *out, int64_t ldc, int accumulate)
{
    const int64_t columns = vectors * CELLGEN_LANES_F32;
    for (int64_t row = 0; row < count; row += 16) {
        const int64_t here = count - row < 16 ? count - row : 16;
        const cellgen_pair *const from = rows + row * stride;
        float *const to = out + row * ldc;
        int64_t left = 0;
        cellgen_amx_shape_bytes(amx, here);
        for (; left + 32 <= columns; left += 32) cellgen_fixed_tile_amx(1, here, K, from, stride, block + 4 * left, columns, to + left, ldc, accumulate);
        if (left < columns) cellgen_fixed_tile_amx(0, here, K, from, stride, block + 4 * left, columns, to + left, ldc, accumulate);
    }
}
#endif

/* The same of any number of rows and vectors: four vectors at a time, two rows. */
CELLGEN_STATIC void cellgen_fixed_product(int64_t count, int64_t vectors, int64_t K, const cellgen_pair *rows, int64_t stride,
                                          const int8_t *block, float *out, int64_t ldc, int accumulate)
{
    const int64_t columns = vectors * CELLGEN_LANES_F32;
    for (int64_t left = 0; left < columns; left += 4 * CELLGEN_LANES_F32) {
        const int64_t next = (columns - left) / CELLGEN_LANES_F32;
        int64_t row = 0;
        for (; row + 1 < count; row += 2) {
            const cellgen_pair *const from = rows + row * stride;
            CELLGEN_FIXED_CASES(2)
        }
        for (; row < count; ++row) {
            const cellgen_pair *const from = rows + row * stride;
            CELLGEN_FIXED_CASES(1)
        }
    }
}

#endif
#endif
