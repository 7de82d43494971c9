/* What the text of a cell means to whoever compiles it: how kernels are named, launched, and have shared
 * memory. Part of cellgen_cuda.cuh. The same text is compiled
 *     whole               by nvcc, with the runtime of CUDA
 *     CELLGEN_DEVICE_HALF by NVRTC: kernels alone; functions of the host are read for the kernels that
 *                         they launch, and nothing of them is left
 *     CELLGEN_HOST_HALF   by a C++ compiler, without a header of CUDA: functions of the host, which find
 *                         the kernels by name (cellgen_cuda_driver.h)
 *     CELLGEN_EMULATED    by a C++ compiler, for the CPU (cellgen_cuda_emulation.h), as a whole */
#ifndef CELLGEN_CUDA_WORDS_CUH
#define CELLGEN_CUDA_WORDS_CUH

#if defined(CELLGEN_DEVICE_HALF)
#define CELLGEN_CUDA_API static inline
#else
#define CELLGEN_CUDA_API extern "C" __attribute__((weak, visibility("default")))
#endif

#if defined(CELLGEN_EMULATED)
#include "cellgen_cuda_emulation.h"
#undef CELLGEN_UNROLL /* of the C runtime */
#define CELLGEN_UNROLL
#define CELLGEN_UNROLL_4
#define CELLGEN_NO_UNROLL
#elif defined(CELLGEN_HOST_HALF)
#include "cellgen_cuda_driver.h"
#undef CELLGEN_UNROLL /* of the C runtime */
#define CELLGEN_UNROLL
#define CELLGEN_UNROLL_4
#define CELLGEN_NO_UNROLL
#else
#define CELLGEN_UNROLL _Pragma("unroll")
#define CELLGEN_UNROLL_4 _Pragma("unroll 4")
#define CELLGEN_NO_UNROLL _Pragma("unroll 1") /* fewer registers */
#define CELLGEN_DYNAMIC_SHARED(type, name)                                                         \
    extern __shared__ double cellgen_dynamic_shared[];                                             \
    type *const name = (type *)(void *)cellgen_dynamic_shared
#define CELLGEN_SHARED(type, name, count) __shared__ type name[count]
#if defined(CELLGEN_DEVICE_HALF)
#include "cellgen_cuda_device_half.cuh"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* A kernel may be given in brackets, so that its template arguments may hold commas. */
#define CELLGEN_LAUNCH(run, kernel, grid, block, ...)                                              \
    do {                                                                                           \
        if (!(run)->error) {                                                                       \
            (kernel)<<<grid, block, 0, (run)->stream>>>(__VA_ARGS__);                              \
            (run)->error = cellgen_cuda_code(cudaGetLastError());                                  \
        }                                                                                          \
    } while (0)
#define CELLGEN_LAUNCH_SHARED(run, kernel, grid, block, bytes, ...)                                \
    do {                                                                                           \
        if (!(run)->error)                                                                         \
            (run)->error = cellgen_cuda_code(cudaFuncSetAttribute(                                 \
                kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)));               \
        if (!(run)->error) {                                                                       \
            (kernel)<<<grid, block, bytes, (run)->stream>>>(__VA_ARGS__);                          \
            (run)->error = cellgen_cuda_code(cudaGetLastError());                                  \
        }                                                                                          \
    } while (0)
#endif
#endif

/* A kernel as the host hands it on. */
#if !defined(CELLGEN_KERNEL)
template <typename... P> using cellgen_kernel = void (*)(P...);
#define CELLGEN_KERNEL(...) (__VA_ARGS__)
#endif
#if !defined(CELLGEN_LAUNCH_BLOCKS)
#define CELLGEN_LAUNCH_BLOCKS CELLGEN_LAUNCH
#endif
#if !defined(CELLGEN_TELL)
#define CELLGEN_TELL(...) ((void)0) /* what the host weighs, for the emulation to keep */
#endif

#endif /* CELLGEN_CUDA_WORDS_CUH */
