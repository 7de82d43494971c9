/* Types of CUDA that hold numbers, where a C++ compiler reads kernels: in the emulation, and in the host's
 * half of a cell. */
#ifndef CELLGEN_CUDA_NUMBERS_H
#define CELLGEN_CUDA_NUMBERS_H

#include "cellgen_half.h"

/* Numbers of 16 bits, by the conversions of cellgen_half.h: what is no number keeps its sign and digits, so
 * that all ones stay all ones where nothing makes them another NaN. */
struct __nv_bfloat16 {
    uint16_t bits;
    float wide() const { return cellgen_bf16_to_float(bits); }
};

struct __half {
    uint16_t bits;
    float wide() const { return cellgen_f16_to_float(bits); }
};

inline __nv_bfloat16 __float2bfloat16(float x) { return {(uint16_t)cellgen_bf16_bits(x)}; }
inline float __bfloat162float(__nv_bfloat16 x) { return x.wide(); }
inline __half __float2half_rn(float x) { return {cellgen_f16_bits(x)}; }
inline float __half2float(__half x) { return x.wide(); }

struct uint2 {
    uint32_t x, y;
};

struct uint4 {
    uint32_t x, y, z, w;
};

#endif /* CELLGEN_CUDA_NUMBERS_H */
