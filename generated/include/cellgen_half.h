/* Numbers of 16 bits: bfloat16 and float16, widened exactly and rounded to the nearest, ties to even. The
 * driver's, and of whatever hands such arrays to kernels. */
#ifndef CELLGEN_HALF_H
#define CELLGEN_HALF_H

#include <stdint.h>
#include <string.h>

#include "cellgen.h"
#include "cellgen_compiler.h"

/* The bits of the nearest bfloat16, ties to even. */
CELLGEN_INLINE uint32_t cellgen_bf16_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
CELLGEN_INLINE float cellgen_bf16_to_float(uint16_t from)
{
    const uint32_t bits = (uint32_t)from << 16;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}
CELLGEN_INLINE float cellgen_f16_to_float(uint16_t from)
{
    const uint32_t sign = (uint32_t)(from & 0x8000u) << 16, rest = from & 0x7fffu;
    uint32_t bits = (rest << 13) + (rest >= 0x7c00u ? 0x70000000u : 0x38000000u) + (rest > 0x7c00u ? 0x400000u & ~(rest << 13) : 0u);
    float found = (float)rest * 0x1p-24f; /* below the smallest normal number: exact */
    if (rest < 0x400u) memcpy(&bits, &found, sizeof bits);
    bits |= sign;
    memcpy(&found, &bits, sizeof found);
    return found;
}
/* To the nearest, ties to even; what is no number stays none. */
CELLGEN_INLINE uint16_t cellgen_f16_bits(float from)
{
    uint32_t bits, shifted;
    memcpy(&bits, &from, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    float small;
    memcpy(&small, &bits, sizeof small);
    small += 0.5f; /* adds and rounds as a number below the smallest normal one is rounded */
    memcpy(&shifted, &small, sizeof shifted);
    const uint32_t normal = (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13;
    const uint32_t found = bits > 0x7f800000u    ? 0x7e00u | (bits >> 13 & 0x3ffu)
                           : bits >= 0x477ff000u ? 0x7c00u
                           : bits < 0x38800000u  ? shifted - 0x3f000000u
                                                 : normal;
    return (uint16_t)(sign | found);
}

/* Numbers side by side. */
CELLGEN_STATIC void cellgen_widen(float *CELLGEN_RESTRICT to, const char *from, int64_t count, int kind)
{
    const uint16_t *const narrow = (const uint16_t *)(const void *)from;
    if (kind == CELLGEN_STORED_BF16) {
        CELLGEN_VECTORIZE
        for (int64_t k = 0; k < count; ++k) to[k] = cellgen_bf16_to_float(narrow[k]);
    } else if (kind == CELLGEN_STORED_F16) {
        CELLGEN_VECTORIZE
        for (int64_t k = 0; k < count; ++k) to[k] = cellgen_f16_to_float(narrow[k]);
    } else {
        memcpy(to, from, (size_t)count * sizeof *to);
    }
}
CELLGEN_STATIC void cellgen_narrow(char *to, const float *CELLGEN_RESTRICT from, int64_t count, int kind)
{
    uint16_t *const narrow = (uint16_t *)(void *)to;
    if (kind == CELLGEN_STORED_BF16) {
        CELLGEN_VECTORIZE
        for (int64_t k = 0; k < count; ++k) narrow[k] = (uint16_t)cellgen_bf16_bits(from[k]);
    } else if (kind == CELLGEN_STORED_F16) {
        CELLGEN_VECTORIZE
        for (int64_t k = 0; k < count; ++k) narrow[k] = cellgen_f16_bits(from[k]);
    } else {
        memcpy(to, from, (size_t)count * sizeof *from);
    }
}

#endif /* CELLGEN_HALF_H */
