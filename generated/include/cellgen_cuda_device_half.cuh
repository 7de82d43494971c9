/* What the device's half of a cell needs of CUDA where NVRTC compiles it, which has no headers: numbers
 * of 16 bits, and declarations of what functions of the host call, of which nothing is left. Part of
 * cellgen_cuda_words.cuh. */
#ifndef CELLGEN_CUDA_DEVICE_HALF_CUH
#define CELLGEN_CUDA_DEVICE_HALF_CUH

/* As in cuda_bf16.h and cuda_fp16.h: rounded to nearest even. */
struct __nv_bfloat16 {
    uint16_t bits;
};
struct __half {
    uint16_t bits;
};

inline __device__ __nv_bfloat16 __float2bfloat16(float x)
{
    __nv_bfloat16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(x));
    return rounded;
}
inline __device__ float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}
inline __device__ __half __float2half_rn(float x)
{
    __half rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(x));
    return rounded;
}
inline __device__ float __half2float(__half x)
{
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

/* A kernel that is launched is one that is compiled, in one of these images:
 *     CELLGEN_SHARED_PART   what headers launch, for all functions
 *     CELLGEN_OWN_PART      what one function launches itself (CELLGEN_ONLY_<function>)
 *     CELLGEN_DEVICE_PART   what it launches with blocks that are on the device together
 *     CELLGEN_CLUSTER_PART  and with those of a cluster
 * Headers are read first: cellgen_cuda_real.cuh, which begins a body, has its launches by another name. */
#define CELLGEN_IS_COMPILED(run, kernel, ...) ((void)(run), (void)(kernel))
#define CELLGEN_IS_ELSEWHERE(run, ...) ((void)(run))
#if defined(CELLGEN_SHARED_PART)
#define CELLGEN_LAUNCH CELLGEN_IS_COMPILED
#else
#define CELLGEN_LAUNCH CELLGEN_IS_ELSEWHERE
#endif
#if defined(CELLGEN_OWN_PART)
#define CELLGEN_LAUNCH_OWN CELLGEN_IS_COMPILED
#else
#define CELLGEN_LAUNCH_OWN CELLGEN_IS_ELSEWHERE
#define CELLGEN_WITHOUT_OWN
#endif
#if defined(CELLGEN_DEVICE_PART)
#define CELLGEN_LAUNCH_TOGETHER CELLGEN_IS_COMPILED
#else
#define CELLGEN_LAUNCH_TOGETHER CELLGEN_IS_ELSEWHERE
#endif
#if defined(CELLGEN_CLUSTER_PART)
#define CELLGEN_LAUNCH_IN_CLUSTER CELLGEN_IS_COMPILED
#else
#define CELLGEN_LAUNCH_IN_CLUSTER CELLGEN_IS_ELSEWHERE
#endif
#define CELLGEN_LAUNCH_SHARED CELLGEN_LAUNCH
#define CELLGEN_KERNEL(...) nullptr

#define CELLGEN_TOOLKIT (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)

cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
template <typename K> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *code, K kernel);
template <typename K> cudaError_t cudaFuncSetAttribute(K kernel, cudaFuncAttribute attribute, int value);

#endif /* CELLGEN_CUDA_DEVICE_HALF_CUH */
