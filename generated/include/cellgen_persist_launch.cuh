/* Launches of kernels whose blocks are on a device together. */
#ifndef CELLGEN_PERSIST_LAUNCH_CUH
#define CELLGEN_PERSIST_LAUNCH_CUH

#include "cellgen_persist.cuh"

#if defined(CELLGEN_DEVICE_HALF)

#define CELLGEN_TELL_TOGETHER(...) ((void)0)
int cellgen_refusal_of(int device);
bool cellgen_was_refused(cellgen_run *run);
template <typename K> cudaError_t cellgen_occupancy(int *at_once, K kernel, const cellgen_together &how);

#else

/* The error by which each device refused such a launch to this library; 0: none did. Hidden, for what is not
 * would be one of all libraries. */
__attribute__((visibility("hidden"))) inline int *cellgen_refusal_on(int device)
{
    static int of_device[64];
    return device >= 0 && device < 64 ? of_device + device : nullptr;
}
inline int cellgen_refusal_of(int device)
{
    const int *const error = cellgen_refusal_on(device);
    return error ? __atomic_load_n(error, __ATOMIC_RELAXED) : 0;
}

/* Whether an error says that a device does not launch blocks that are there together: the configuration
 * (9), the resources of the launch (701), too many blocks (720), not permitted (800), not supported (801),
 * the size of a cluster (912). */
inline bool cellgen_is_refusal(int error)
{
    return error == 9 || error == 701 || error == 720 || error == 800 || error == 801 || error == 912;
}

/* What such a launch itself came to: a call that failed before it is no refusal. */
static inline void cellgen_end_launch(cellgen_run *run, cudaError_t error)
{
    run->error = cellgen_cuda_code(error);
    if (cellgen_is_refusal((int)error)) run->refused = (int)error;
}

/* After a launch: whether the device refused it. It is then not asked again, and nothing is wrong. */
static inline bool cellgen_was_refused(cellgen_run *run)
{
    const int error = run->refused;
    int device = 0;
    if (!error) return false;
    run->refused = 0;
    run->error = cellgen_cuda_code(cudaGetDevice(&device));
    if (int *const kept = cellgen_refusal_on(device)) __atomic_store_n(kept, error, __ATOMIC_RELAXED);
    return true;
}

/* Another library of the cell, of another element type, was refused by a device, with a code. */
CELLGEN_CUDA_API void cellgen_cuda_refuse(int device, int code)
{
    if (int *const kept = cellgen_refusal_on(device)) __atomic_store_n(kept, code - CELLGEN_CUDA_ERROR, __ATOMIC_RELAXED);
}

/* How a device refused blocks that are there together, as a code; none: it did not. */
CELLGEN_CUDA_API int cellgen_cuda_refused(int device)
{
    const int error = cellgen_refusal_of(device);
    return error ? CELLGEN_CUDA_ERROR + error : CELLGEN_OK;
}

#if !defined(CELLGEN_EMULATED)

#define CELLGEN_TELL_TOGETHER(...) ((void)0)

#if CELLGEN_HAS_PIECES
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
    cellgen_run *run, cellgen_kernel<P...> kernel, const cellgen_together &how, A... arguments)
{
    if (run->error) return;
    run->error = cellgen_cuda_code(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared));
    if (run->error) return;
    const cellgen_launch_config launch(how, run->stream);
    cellgen_end_launch(run, cudaLaunchKernelEx(&launch.config, kernel, (P)arguments...));
}
#else /* nothing is chosen that would be launched */
template <typename K> inline cudaError_t cellgen_occupancy(int *at_once, K, const cellgen_together &)
{
    return *at_once = 0, cudaSuccess;
}
template <typename K, typename... A>
inline void cellgen_launch_together(cellgen_run *, K, const cellgen_together &, A...)
{
}
#endif
#define CELLGEN_LAUNCH_TOGETHER(run, kernel, how, ...)                                             \
    cellgen_launch_together(run, CELLGEN_KERNEL(kernel), how, how, __VA_ARGS__)

#else

#define CELLGEN_LAUNCH_TOGETHER(run, kernel, how, ...)                                             \
    do {                                                                                           \
        CELLGEN_EXPORT_KERNEL(true, kernel);                                                       \
        if (!(run)->error && cellgen_emulator::one().fails("together")) {                          \
            cellgen_end_launch((run), cudaGetLastError());                                         \
        } else if (!(run)->error) {                                                                \
            cellgen_emulator::one().launch(                                                        \
                (run)->stream, true,                                                               \
                dim3((unsigned)(how).blocks, (unsigned)(how).heads, (unsigned)(how).sets),         \
                dim3((unsigned)(how).threads), (size_t)(how).shared,                               \
                (unsigned)((how).cluster > 1 ? (how).cluster                                       \
                                             : (how).blocks * (how).heads * (how).sets),           \
                (kernel), (how), __VA_ARGS__);                                                     \
            (run)->error = cellgen_cuda_code(cudaGetLastError());                                  \
        }                                                                                          \
    } while (0)
#define CELLGEN_TELL_TOGETHER(...) (cellgen_emulator::one().here().told_together = {__VA_ARGS__})

/* As many as a proof says that a device has room for. */
template <typename K> inline cudaError_t cellgen_occupancy(int *at_once, K, const cellgen_together &how)
{
    *at_once = how.cluster > 1 ? cellgen_emulator::one().clusters_at_once : cellgen_emulator::one().at_once;
    return cudaSuccess;
}

#endif

/* The same, named apart for what compiles one of the two. */
#define CELLGEN_LAUNCH_IN_CLUSTER CELLGEN_LAUNCH_TOGETHER

#endif

/* A kernel of which there is one for each way to multiply, and, beside those of a cluster, over the device. */
#define CELLGEN_STAYING_KERNEL(kernel, in_cluster, products) (kernel<in_cluster, products>)
#define CELLGEN_STAYING_KERNELS(kernel)                                                            \
    cellgen_kernels_of(CELLGEN_KERNEL(kernel<false, CELLGEN_FMA>),                                 \
                       CELLGEN_KERNEL(kernel<true, CELLGEN_FMA>),                                  \
                       CELLGEN_KERNEL(kernel<false, cellgen_other_products<store>::are>),          \
                       CELLGEN_KERNEL(kernel<true, cellgen_other_products<store>::are>))
template <typename K> struct cellgen_staying_kernels {
    K of[2][2];
};
template <typename K>
inline cellgen_staying_kernels<K> cellgen_kernels_of(K on_device, K in_cluster, K other_on_device, K other_in_cluster)
{
    return {{{on_device, in_cluster}, {other_on_device, other_in_cluster}}};
}
#if CELLGEN_PRODUCTS
#define CELLGEN_BY_PRODUCTS(launch, run, kernel, in_cluster, how, ...)                             \
    do {                                                                                           \
        enum { other = cellgen_other_products<store>::are };                                       \
        if ((how).products)                                                                        \
            launch(run, CELLGEN_STAYING_KERNEL(kernel, in_cluster, other), how, __VA_ARGS__);      \
        else                                                                                       \
            launch(run, CELLGEN_STAYING_KERNEL(kernel, in_cluster, CELLGEN_FMA), how, __VA_ARGS__); \
    } while (0)
#else
#define CELLGEN_BY_PRODUCTS(launch, run, kernel, in_cluster, how, ...)                             \
    launch(run, CELLGEN_STAYING_KERNEL(kernel, in_cluster, CELLGEN_FMA), how, __VA_ARGS__)
#endif

#endif /* CELLGEN_PERSIST_LAUNCH_CUH */
