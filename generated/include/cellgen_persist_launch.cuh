/* Launches of kernels whose blocks are on a device together. */
#ifndef CELLGEN_PERSIST_LAUNCH_CUH
#define CELLGEN_PERSIST_LAUNCH_CUH

#include "cellgen_persist.cuh"

#if !defined(CELLGEN_EMULATED)

#define CELLGEN_TELL_TOGETHER(...) ((void)0)

struct cellgen_launch_config {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[1] = {};

    cellgen_launch_config(const cellgen_together &how, cudaStream_t stream)
    {
        config.gridDim = dim3((unsigned)how.blocks, (unsigned)how.heads, (unsigned)how.sets);
        config.blockDim = dim3((unsigned)how.threads);
        config.dynamicSmemBytes = (size_t)how.shared;
        config.stream = stream;
        if (how.cluster > 1) {
            attribute[0].id = cudaLaunchAttributeClusterDimension;
            attribute[0].val.clusterDim.x = (unsigned)how.cluster;
            attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
        } else {
            attribute[0].id = cudaLaunchAttributeCooperative;
            attribute[0].val.cooperative = 1;
        }
        config.attrs = attribute, config.numAttrs = 1;
    }
};

/* Blocks that a processor has at once, or clusters that the device has. */
template <typename K>
inline cudaError_t cellgen_occupancy(int *at_once, K kernel, const cellgen_together &how)
{
    if (how.cluster == 1)
        return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            at_once, kernel, how.threads, (size_t)how.shared);
    const cellgen_launch_config launch(how, nullptr);
    return cudaOccupancyMaxActiveClusters(at_once, kernel, &launch.config);
}

template <typename... P, typename... A>
inline void cellgen_launch_together(
    cellgen_run *run, void (*kernel)(P...), const cellgen_together &how, A... arguments)
{
    if (run->error) return;
    run->error = cellgen_cuda_code(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared));
    if (run->error) return;
    const cellgen_launch_config launch(how, run->stream);
    run->error = cellgen_cuda_code(cudaLaunchKernelEx(&launch.config, kernel, (P)arguments...));
}
#define CELLGEN_LAUNCH_TOGETHER(run, kernel, how, ...)                                             \
    cellgen_launch_together(run, kernel, how, how, __VA_ARGS__)

#else

#define CELLGEN_LAUNCH_TOGETHER(run, kernel, how, ...)                                             \
    do {                                                                                           \
        if (!(run)->error) {                                                                       \
            cellgen_emulator::one().launch_together(                                               \
                (run)->stream, true,                                                               \
                dim3((unsigned)(how).blocks, (unsigned)(how).heads, (unsigned)(how).sets),         \
                dim3((unsigned)(how).threads), (size_t)(how).shared,                               \
                (unsigned)((how).cluster > 1 ? (how).cluster                                       \
                                             : (how).blocks * (how).heads * (how).sets),           \
                (kernel), (how), __VA_ARGS__);                                                     \
            (run)->error = cellgen_cuda_code(cudaGetLastError());                                  \
        }                                                                                          \
    } while (0)
#define CELLGEN_TELL_TOGETHER(...) (cellgen_emulator::one().told_together = {__VA_ARGS__})

/* As many as a proof says that a device has room for. */
template <typename K> inline cudaError_t cellgen_occupancy(int *at_once, K, const cellgen_together &how)
{
    *at_once = how.cluster > 1 ? cellgen_emulator::one().clusters_at_once : cellgen_emulator::one().at_once;
    return cudaSuccess;
}

#endif

#endif /* CELLGEN_PERSIST_LAUNCH_CUH */
