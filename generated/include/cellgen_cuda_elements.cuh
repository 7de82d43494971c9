/* Types of elements on a device: a row each. Part of cellgen_cuda.cuh.
 *
 * Arithmetic is in the type that a row computes in; numbers of 16 bits are widened as they are read, and
 * rounded to the nearest, ties to even, as they are written: float16 becomes infinite from 65520 on. */
#ifndef CELLGEN_CUDA_ELEMENTS_CUH
#define CELLGEN_CUDA_ELEMENTS_CUH

#include "cellgen.h"

/* By suffix, which is what CELLGEN_STORE is: the type, and the bits of the one that it computes in. */
#define CELLGEN_OF_STORE(stem) CELLGEN_JOINED(stem, CELLGEN_STORE)
#define CELLGEN_JOINED(stem, suffix) CELLGEN_JOINED_EXPANDED(stem, suffix)
#define CELLGEN_JOINED_EXPANDED(stem, suffix) stem##suffix
#define CELLGEN_STORE_f32 float
#define CELLGEN_STORE_f64 double
#define CELLGEN_STORE_bf16 __nv_bfloat16
#define CELLGEN_STORE_f16 __half
#define CELLGEN_BITS_f32 32
#define CELLGEN_BITS_f64 64
#define CELLGEN_BITS_bf16 32
#define CELLGEN_BITS_f16 32

/* What is known of a type: what it computes in; whether matrix units multiply it, with sums in float; its
 * cudaDataType and cublasComputeType_t. */
template <typename E> struct cellgen_element;

#define CELLGEN_ELEMENT(E, R, widened, narrowed, units, blas_, compute_)                           \
    inline __device__ R cellgen_widen(E x) { return widened(x); }                                  \
    inline __device__ void cellgen_put(E *place, R x) { *place = narrowed(x); }                    \
    template <> struct cellgen_element<E> {                                                        \
        typedef R real;                                                                            \
        enum { on_units = units, blas = blas_, compute = compute_ };                               \
    };
/*              type           real    widened           rounded          units  cuBLAS */
CELLGEN_ELEMENT(float,         float,  ,                 ,                0,     0, 68)
CELLGEN_ELEMENT(double,        double, ,                 ,                0,     1, 70)
CELLGEN_ELEMENT(__nv_bfloat16, float,  __bfloat162float, __float2bfloat16, 1,    14, 68)
CELLGEN_ELEMENT(__half,        float,  __half2float,     __float2half_rn, 1,     2, 68)
#undef CELLGEN_ELEMENT

/* c += a b of a whole warp, fragments of E; of float, of numbers rounded by cellgen_tf32. */
template <typename E>
inline __device__ void cellgen_mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

#if defined(CELLGEN_EMULATED)
template <typename E>
inline void cellgen_mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    cellgen_emulator::one().multiply<E>(c, a, b);
}
inline uint32_t cellgen_two_of_bf16(float first, float second)
{
    return (uint32_t)__float2bfloat16(first).bits | (uint32_t)__float2bfloat16(second).bits << 16;
}
inline uint32_t cellgen_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x == x ? (bits + 0x1000u) & ~0x1fffu : bits;
}
#else
#define CELLGEN_FRAGMENTS_OF(E, shape, word)                                                              \
    template <>                                                                                    \
    inline __device__ void cellgen_mma<E>(                                                         \
        float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])                             \
    {                                                                                              \
        asm volatile(                                                                              \
            "mma.sync.aligned." shape ".row.col.f32." word "." word ".f32 "                         \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                      \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                   \
    }
CELLGEN_FRAGMENTS_OF(__nv_bfloat16, "m16n8k16", "bf16")
CELLGEN_FRAGMENTS_OF(__half, "m16n8k16", "f16")
CELLGEN_FRAGMENTS_OF(float, "m16n8k8", "tf32")
#undef CELLGEN_FRAGMENTS_OF

/* Two numbers of bfloat16, the first one in the lower half; a number of 11 bits, rounded to the nearest. */
inline __device__ uint32_t cellgen_two_of_bf16(float first, float second)
{
    uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    return two;
}
inline __device__ uint32_t cellgen_tf32(float x)
{
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return rounded;
}
#endif

#endif /* CELLGEN_CUDA_ELEMENTS_CUH */
