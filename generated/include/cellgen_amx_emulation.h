/* Instructions of AMX in C, on the tiles of one thread, with the bits of hardware, payloads of NaN included: for
 * machines that have none (CELLGEN_AMX_EMULATED). What hardware answers with a signal ends the process: a tile that is
 * not configured, or three tiles that do not fit each other.
 *
 * A dot of bfloat16, one element of C with a row a of A and a column b of B, P pairs of neighbouring k:
 *
 *   first = second = +0
 *   for p = 0 .. P - 1:  first = fma(a[2p], b[2p], first),  second = fma(a[2p + 1], b[2p + 1], second)
 *   c = c + (first + second)
 *
 * Each operation is rounded once, to the nearest, ties to even; denormal operands and results are zeros with their
 * sign; a result is denormal if it is after rounding to 24 bits with any exponent. Modes of the processor have no
 * influence. NaN: the payload of the first operand that is one, made quiet; of numbers, 0xffc00000. fmaf has to be
 * rounded once. */
#ifndef CELLGEN_AMX_EMULATION_H
#define CELLGEN_AMX_EMULATION_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cellgen_compiler.h"

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} cellgen_amx_config;

static __thread cellgen_amx_config cellgen_amx_set CELLGEN_UNUSED;
static __thread uint8_t cellgen_amx_tiles[8][16][64] CELLGEN_UNUSED;

CELLGEN_INLINE void cellgen_amx_require(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "emulated AMX: %s\n", what);
    abort();
}
CELLGEN_INLINE void cellgen_amx_require_tile(int t)
{
    cellgen_amx_require(cellgen_amx_set.palette == 1 && cellgen_amx_set.rows[t], "a tile is not configured");
}

CELLGEN_STATIC void cellgen_amx_configure(const cellgen_amx_config *config)
{
    for (int t = 0; t < 16; ++t)
        cellgen_amx_require(config->rows[t] <= (t < 8 ? 16 : 0) && config->bytes[t] <= (t < 8 ? 64 : 0) && !config->bytes[t] == !config->rows[t],
                            "a tile has more rows or bytes than there are");
    cellgen_amx_require(config->palette == 1, "the palette is not 1");
    cellgen_amx_set = *config;
    memset(cellgen_amx_tiles, 0, sizeof cellgen_amx_tiles);
}
CELLGEN_STATIC void cellgen_amx_release(void)
{
    memset(&cellgen_amx_set, 0, sizeof cellgen_amx_set);
    memset(cellgen_amx_tiles, 0, sizeof cellgen_amx_tiles);
}
CELLGEN_STATIC void cellgen_amx_zero(int t)
{
    cellgen_amx_require_tile(t);
    memset(cellgen_amx_tiles[t], 0, sizeof cellgen_amx_tiles[t]);
}
CELLGEN_STATIC void cellgen_amx_load(int t, const void *from, int64_t stride)
{
    cellgen_amx_zero(t); /* beyond rows and bytes */
    for (int row = 0; row < cellgen_amx_set.rows[t]; ++row)
        memcpy(cellgen_amx_tiles[t][row], (const char *)from + row * stride, cellgen_amx_set.bytes[t]);
}
CELLGEN_STATIC void cellgen_amx_store(int t, void *to, int64_t stride)
{
    cellgen_amx_require_tile(t);
    for (int row = 0; row < cellgen_amx_set.rows[t]; ++row)
        memcpy((char *)to + row * stride, cellgen_amx_tiles[t][row], cellgen_amx_set.bytes[t]);
}

CELLGEN_INLINE uint32_t cellgen_amx_word(const uint8_t *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}
CELLGEN_INLINE uint32_t cellgen_amx_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
CELLGEN_INLINE float cellgen_amx_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
CELLGEN_INLINE int cellgen_amx_is_none(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}
CELLGEN_INLINE uint32_t cellgen_amx_normal(uint32_t bits)
{
    return bits & 0x7f800000u ? bits : bits & 0x80000000u;
}
CELLGEN_STATIC uint32_t cellgen_amx_fma(uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t of[3] = {cellgen_amx_normal(a), cellgen_amx_normal(b), cellgen_amx_normal(c)};
    for (int i = 0; i < 3; ++i)
        if (cellgen_amx_is_none(of[i])) return of[i] | 0x00400000u;
    const float x = cellgen_amx_float(of[0]), y = cellgen_amx_float(of[1]), z = cellgen_amx_float(of[2]);
    const float result = fmaf(x, y, z);
    const uint32_t bits = cellgen_amx_bits(result);
    if (cellgen_amx_is_none(bits)) return 0xffc00000u;
    if ((bits & 0x7fffffffu) > 0x00800000u || (bits & 0x7fffffffu) == 0) return bits;
    /* denormal, or the smallest normal number: as if exponents had no end */
    const float scaled = fmaf(x * 0x1p+60f, y * 0x1p+60f, z * 0x1p+60f * 0x1p+60f);
    return (bits & 0x80000000u) | (fabsf(scaled) < 0x1p-6f ? 0u : 0x00800000u);
}
CELLGEN_STATIC uint32_t cellgen_amx_add(uint32_t a, uint32_t b)
{
    const uint32_t of[2] = {cellgen_amx_normal(a), cellgen_amx_normal(b)};
    for (int i = 0; i < 2; ++i)
        if (cellgen_amx_is_none(of[i])) return of[i] | 0x00400000u;
    const uint32_t bits = cellgen_amx_bits(cellgen_amx_float(of[0]) + cellgen_amx_float(of[1])); /* exact where denormal */
    return cellgen_amx_is_none(bits) ? 0xffc00000u : cellgen_amx_normal(bits);
}

CELLGEN_INLINE void cellgen_amx_require_fit(int c, int a, int b)
{
    const cellgen_amx_config *const set = &cellgen_amx_set;
    cellgen_amx_require_tile(c);
    cellgen_amx_require_tile(a);
    cellgen_amx_require_tile(b);
    cellgen_amx_require(set->rows[c] == set->rows[a] && set->bytes[c] == set->bytes[b] && set->bytes[a] == 4 * set->rows[b],
                        "three tiles do not fit each other");
}
CELLGEN_STATIC void cellgen_amx_dot_bf16(int c, int a, int b)
{
    cellgen_amx_require_fit(c, a, b);
    for (int m = 0; m < cellgen_amx_set.rows[c]; ++m)
        for (int n = 0; n < cellgen_amx_set.bytes[c]; n += 4) {
            uint8_t *const at = cellgen_amx_tiles[c][m] + n;
            uint32_t first = 0, second = 0;
            for (int p = 0; p < cellgen_amx_set.rows[b]; ++p) {
                const uint32_t x = cellgen_amx_word(cellgen_amx_tiles[a][m] + 4 * p), y = cellgen_amx_word(cellgen_amx_tiles[b][p] + n);
                first = cellgen_amx_fma(x << 16, y << 16, first);
                second = cellgen_amx_fma(x & 0xffff0000u, y & 0xffff0000u, second);
            }
            const uint32_t sum = cellgen_amx_add(cellgen_amx_word(at), cellgen_amx_add(first, second));
            memcpy(at, &sum, sizeof sum);
        }
}

/* Exact sums of four products of a byte without sign, of A, and one with sign, of B; in 32 bits. */
CELLGEN_STATIC void cellgen_amx_dot_bytes(int c, int a, int b)
{
    cellgen_amx_require_fit(c, a, b);
    for (int m = 0; m < cellgen_amx_set.rows[c]; ++m)
        for (int n = 0; n < cellgen_amx_set.bytes[c]; n += 4) {
            uint8_t *const at = cellgen_amx_tiles[c][m] + n;
            uint32_t sum = cellgen_amx_word(at);
            for (int k = 0; k < 4 * cellgen_amx_set.rows[b]; ++k)
                sum += (uint32_t)((int)cellgen_amx_tiles[a][m][k] * (int8_t)cellgen_amx_tiles[b][k / 4][n + k % 4]);
            memcpy(at, &sum, sizeof sum);
        }
}

#endif
