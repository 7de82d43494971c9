/* Types of CUDA that hold numbers. Part of cellgen_cuda_emulation.h. */
#ifndef CELLGEN_CUDA_EMULATION_TYPES_H
#define CELLGEN_CUDA_EMULATION_TYPES_H

#include <stdint.h>
#include <string.h>

/* --------------------------------------------------------------------------------- bfloat16 */

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float x)
    {
        uint32_t wide;
        memcpy(&wide, &x, sizeof wide);
        const uint32_t odd = (wide >> 16) & 1;
        bits = (uint16_t)(x != x ? (wide >> 16) | 0x40 : (wide + 0x7fff + odd) >> 16);
    }
};

inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }

inline float __bfloat162float(__nv_bfloat16 x)
{
    const uint32_t wide = (uint32_t)x.bits << 16;
    float result;
    memcpy(&result, &wide, sizeof result);
    return result;
}

struct uint2 {
    uint32_t x, y;
};

struct uint4 {
    uint32_t x, y, z, w;
};

#endif /* CELLGEN_CUDA_EMULATION_TYPES_H */
