/* Products of rows and panels of pairs of bfloat16 on AMX (TILES of cellgen_bf16_way.h).
 *
 * A tile of B is 16 rows of a panel, 16 pairs of 32 neighbouring k, and 16 columns; one of A is 16 rounded rows of
 * 16 pairs. An element of a result is one chain over the groups of 32 k of all operands, k ascending: each adds the
 * sum of two chains of 16 fused multiply-adds, one of first and one of second numbers (cellgen_amx_emulation.h says
 * it to the bit). K of every operand is padded with zeros to whole groups. Neither rows nor columns beside an element
 * have an influence on it.
 *
 * A thread's tiles are configured for the heights and widths of a product, and released where its stage ends: other
 * users of AMX in the same thread configure their own. Numbers of tiles are constants of the instructions:
 *
 *   0, 1 / 2, 3   sums of the upper / lower 16 rows, left and right columns, or of up to 64 columns of the upper ones
 *   4 / 5         upper / lower rows
 *   6, 7          left and right columns of a panel */
#ifndef CELLGEN_AMX_H
#define CELLGEN_AMX_H

#include "cellgen_bf16_way.h"

/* Which heights and widths a thread's tiles have; 0: none. */
typedef struct {
    uint32_t shape;
} cellgen_amx;

/* Operands of a product: `groups` of 16 pairs. */
typedef struct {
    int64_t groups;
    const uint32_t *a;
    int64_t a_row;
    const uint32_t *b;
    int64_t b_step;
    const uint32_t *ahead; /* a panel as large as b, fetched meanwhile; NULL: none */
} cellgen_term_tiles;

#if CELLGEN_AMX

#ifdef CELLGEN_AMX_EMULATED
#include "cellgen_amx_emulation.h"
#else
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} cellgen_amx_config;
/* The intrinsics of GCC 12 do not say which memory is read: stores before them would be lost. */
#define cellgen_amx_configure(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(config)) : "memory")
#define cellgen_amx_release() __asm__ volatile("tilerelease")
#define cellgen_amx_zero(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define cellgen_amx_load(t, from, stride)                                                     \
    __asm__ volatile("{tileloadd (%0,%1,1), %%tmm" #t "|tileloadd %%tmm" #t ", [%0+%1*1]}"    \
                     : : "r"((const void *)(from)), "r"((int64_t)(stride)) : "memory")
#define cellgen_amx_store(t, to, stride)                                                      \
    __asm__ volatile("{tilestored %%tmm" #t ", (%0,%1,1)|tilestored [%0+%1*1], %%tmm" #t "}"  \
                     : : "r"((void *)(to)), "r"((int64_t)(stride)) : "memory")
#define cellgen_amx_dot_bf16(c, a, b)                                                         \
    __asm__ volatile("{tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c                          \
                     "|tdpbf16ps %%tmm" #c ", %%tmm" #a ", %%tmm" #b "}" : :)
#define cellgen_amx_dot_bytes(c, a, b)                                                        \
    __asm__ volatile("{tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c                            \
                     "|tdpbusd %%tmm" #c ", %%tmm" #a ", %%tmm" #b "}" : :)
#endif

/* Let the thread have tiles of so many upper and lower rows, left and right columns, 1 to 16 each. */
CELLGEN_INLINE void cellgen_amx_shape(cellgen_amx *amx, int64_t upper, int64_t lower, int64_t left, int64_t right)
{
    const uint32_t shape = (uint32_t)(upper | lower << 8 | left << 16 | right << 24);
    cellgen_amx_config config;
    if (amx->shape == shape) return;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; ++t) {
        const int is_lower = t == 2 || t == 3 || t == 5, is_right = t == 1 || t == 3 || t == 7;
        config.rows[t] = (uint8_t)(t > 5 ? 16 : is_lower ? lower : upper);
        config.bytes[t] = (uint16_t)(t == 4 || t == 5 ? 64 : 4 * (is_right ? right : left));
    }
    cellgen_amx_configure(&config);
    amx->shape = shape;
}
/* The same for sums of bytes: up to 16 rows in tiles 0 to 5, of rows in 6 and a panel in 7. */
CELLGEN_INLINE void cellgen_amx_shape_bytes(cellgen_amx *amx, int64_t rows)
{
    const uint32_t shape = (uint32_t)rows | 0x80000000u;
    cellgen_amx_config config;
    if (amx->shape == shape) return;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; ++t) {
        config.rows[t] = (uint8_t)(t == 7 ? 16 : rows);
        config.bytes[t] = 64;
    }
    cellgen_amx_configure(&config);
    amx->shape = shape;
}
/* The end of a stage. */
CELLGEN_INLINE void cellgen_amx_end(cellgen_amx *amx)
{
    if (amx->shape) cellgen_amx_release();
    amx->shape = 0;
}

/* Begin the sums of tile t, at c. */
#define CELLGEN_AMX_BEGIN(t, c)                      \
    do {                                             \
        if (accumulate)                              \
            cellgen_amx_load(t, c, ldc * 4);         \
        else                                         \
            cellgen_amx_zero(t);                     \
    } while (0)

/* Fetch a share of the panel ahead: `share` of as many as a product has tiles, a group of k at a time. */
#define CELLGEN_AMX_AHEAD(term)                                                            \
    const int64_t lines = (term)->ahead ? ((term)->b_step + shares - 1) / shares : 0;      \
    const uint32_t *ahead = lines ? (term)->ahead + share * lines * (term)->groups * 16 : 0
#define CELLGEN_AMX_FETCH() \
    for (int64_t line = 0; line < lines; ++line, ahead += 16) CELLGEN_FETCH(ahead)

/* More than 16 rows, up to 32, from row `top` on, by left and, unless `is_narrow`, right columns from column j on. */
CELLGEN_INLINE void cellgen_amx_high(const cellgen_term_tiles *term, int64_t terms, int64_t share, int64_t shares, int64_t top,
                                     int64_t j, int is_narrow, float *c, int64_t ldc, int accumulate)
{
    CELLGEN_AMX_BEGIN(0, c);
    CELLGEN_AMX_BEGIN(2, c + 16 * ldc);
    if (!is_narrow) {
        CELLGEN_AMX_BEGIN(1, c + 16);
        CELLGEN_AMX_BEGIN(3, c + 16 * ldc + 16);
    }
    for (; terms > 0; --terms, ++term) {
        const int64_t a_bytes = term->a_row * 4, b_bytes = term->b_step * 4;
        const uint32_t *a = term->a + top * term->a_row, *b = term->b + j;
        CELLGEN_AMX_AHEAD(term);
        for (int64_t group = 0; group < term->groups; ++group, a += 16, b += 16 * term->b_step) {
            cellgen_amx_load(6, b, b_bytes);
            cellgen_amx_load(4, a, a_bytes);
            CELLGEN_AMX_FETCH();
            cellgen_amx_dot_bf16(0, 4, 6);
            if (!is_narrow) {
                cellgen_amx_load(7, b + 16, b_bytes);
                cellgen_amx_dot_bf16(1, 4, 7);
            }
            cellgen_amx_load(5, a + 16 * term->a_row, a_bytes);
            cellgen_amx_dot_bf16(2, 5, 6);
            if (!is_narrow) cellgen_amx_dot_bf16(3, 5, 7);
        }
    }
    cellgen_amx_store(0, c, ldc * 4);
    cellgen_amx_store(2, c + 16 * ldc, ldc * 4);
    if (!is_narrow) {
        cellgen_amx_store(1, c + 16, ldc * 4);
        cellgen_amx_store(3, c + 16 * ldc + 16, ldc * 4);
    }
}

/* Up to 16 rows from row `top` on by `count` tiles of columns from column j on. */
CELLGEN_INLINE void cellgen_amx_wide(const cellgen_term_tiles *term, int64_t terms, int64_t top, int64_t j, int count,
                                     float *c, int64_t ldc, int accumulate)
{
    CELLGEN_AMX_BEGIN(0, c);
    if (count > 1) CELLGEN_AMX_BEGIN(1, c + 16);
    if (count > 2) CELLGEN_AMX_BEGIN(2, c + 32);
    if (count > 3) CELLGEN_AMX_BEGIN(3, c + 48);
    for (; terms > 0; --terms, ++term) {
        const int64_t a_bytes = term->a_row * 4, b_bytes = term->b_step * 4;
        const uint32_t *a = term->a + top * term->a_row, *b = term->b + j;
        for (int64_t group = 0; group < term->groups; ++group, a += 16, b += 16 * term->b_step) {
            cellgen_amx_load(4, a, a_bytes);
            cellgen_amx_load(6, b, b_bytes);
            cellgen_amx_dot_bf16(0, 4, 6);
            if (count > 1) {
                cellgen_amx_load(7, b + 16, b_bytes);
                cellgen_amx_dot_bf16(1, 4, 7);
            }
            if (count > 2) {
                cellgen_amx_load(6, b + 32, b_bytes);
                cellgen_amx_dot_bf16(2, 4, 6);
            }
            if (count > 3) {
                cellgen_amx_load(7, b + 48, b_bytes);
                cellgen_amx_dot_bf16(3, 4, 7);
            }
        }
    }
    cellgen_amx_store(0, c, ldc * 4);
    if (count > 1) cellgen_amx_store(1, c + 16, ldc * 4);
    if (count > 2) cellgen_amx_store(2, c + 32, ldc * 4);
    if (count > 3) cellgen_amx_store(3, c + 48, ldc * 4);
}

/* c(rows, columns) (+)= the sum over terms of their products, in one chain. */
CELLGEN_OUTLINE void cellgen_amx_product(cellgen_amx *amx, int64_t rows, int64_t columns, const cellgen_term_tiles *term,
                                         int64_t terms, float *c, int64_t ldc, int accumulate)
{
    for (int64_t top = 0; top < rows; top += 32, c += 32 * ldc) {
        const int64_t here = rows - top, upper = here < 16 ? here : 16, lower = here <= 16 ? 0 : here < 32 ? here - 16 : 16;
        const int64_t across = (columns + 31) / 32, first = top / 32 * across;
        const int64_t shares = across * ((rows + 31) / 32);
        int64_t j = 0;
        if (lower) {
            if (columns >= 32) cellgen_amx_shape(amx, upper, lower, 16, 16);
            for (; j + 32 <= columns; j += 32) cellgen_amx_high(term, terms, first + j / 32, shares, top, j, 0, c + j, ldc, accumulate);
            const int64_t left = columns - j < 16 ? columns - j : 16, right = columns - j - left;
            if (left) cellgen_amx_shape(amx, upper, lower, left, right ? right : left);
            if (right)
                cellgen_amx_high(term, terms, first + j / 32, shares, top, j, 0, c + j, ldc, accumulate);
            else if (left)
                cellgen_amx_high(term, terms, first + j / 32, shares, top, j, 1, c + j, ldc, accumulate);
            continue;
        }
        if (columns >= 16) cellgen_amx_shape(amx, upper, upper, 16, 16);
        for (; j + 64 <= columns; j += 64) cellgen_amx_wide(term, terms, top, j, 4, c + j, ldc, accumulate);
        for (; j + 32 <= columns; j += 32) cellgen_amx_wide(term, terms, top, j, 2, c + j, ldc, accumulate);
        for (; j + 16 <= columns; j += 16) cellgen_amx_wide(term, terms, top, j, 1, c + j, ldc, accumulate);
        if (j == columns) continue;
        cellgen_amx_shape(amx, upper, upper, columns - j, columns - j);
        cellgen_amx_wide(term, terms, top, j, 1, c + j, ldc, accumulate);
    }
}
#undef CELLGEN_AMX_BEGIN
#undef CELLGEN_AMX_AHEAD
#undef CELLGEN_AMX_FETCH

#else
CELLGEN_INLINE void cellgen_amx_end(cellgen_amx *amx) { amx->shape = 0; }
#endif
#endif
