/* CUDA's runtime for the host's half of a cell, as far as generated text calls it, over the driver that
 * is there: no header or library of CUDA is needed to compile it. Part of cellgen_cuda_words.cuh.
 *
 * Kernels come as images (cubin, PTX) that cellgen_cuda_load hands over, several for each element type
 * and device: a call has those that it needs. The host knows a kernel by the name that C++ gives it, which
 * is the same in both halves.
 * Like the runtime it takes the primary context of a device, that of device 0 where a thread has none;
 * errors are the driver's, whose numbers are those of the runtime. */
#ifndef CELLGEN_CUDA_DRIVER_H
#define CELLGEN_CUDA_DRIVER_H

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include <atomic>

#include "cellgen_cuda_constants.h"
#include "cellgen_cuda_names.h"

#define __global__ inline
#define __device__
#define __host__
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#include "cellgen_cuda_numbers.h"

/* Words of kernels: they are read here, and nothing of them is compiled. */
extern const dim3 threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads();
void __syncwarp();
void __trap();
size_t __cvta_generic_to_shared(const void *);
uint4 make_uint4(uint32_t, uint32_t, uint32_t, uint32_t);
template <typename V> V __shfl_sync(unsigned, V, int);
template <typename V> V __shfl_xor_sync(unsigned, V, int);
template <typename V> V __shfl_up_sync(unsigned, V, unsigned);
template <typename V> V __shfl_down_sync(unsigned, V, unsigned);
#define CELLGEN_DYNAMIC_SHARED(type, name) type *const name = nullptr
#define CELLGEN_SHARED(type, name, count) type name[count]

/* --------------------------------------------------------------------------------- the driver */

typedef int cudaError_t;
typedef void *cudaStream_t, *cudaGraph_t, *cudaGraphExec_t, *cudaMemPool_t;
enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDevice = 101,
    cudaErrorSymbolNotFound = 500
};
enum { cudaLaunchAttributeCooperative = 2, cudaLaunchAttributeClusterDimension = 4 };

struct cudaPointerAttributes {
    int type, device;
};
struct cudaFuncAttributes {
    int binaryVersion, ptxVersion;
};
struct cudaMemPoolProps { /* CUmemPoolProps */
    int allocType, handleTypes;
    struct {
        int type, id;
    } location;
    void *securityAttributes;
    size_t maxSize;
    unsigned char reserved[56];
};
static_assert(sizeof(cudaMemPoolProps) == 88, "as the driver has it");
struct cudaLaunchAttribute { /* CUlaunchAttribute */
    int id;
    char pad[4];
    union {
        char whole[64];
        int cooperative;
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};
static_assert(sizeof(cudaLaunchAttribute) == 72, "as the driver has it");
struct cudaLaunchConfig_t { /* CUlaunchConfig */
    dim3 gridDim, blockDim;
    unsigned dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};
static_assert(sizeof(cudaLaunchConfig_t) == 56, "as the driver has it");

/* What is called of it, all of CUDA 12.0: the last one's name, and parameters. */
#define CELLGEN_OF_DRIVER(ROW)                                                                     \
    ROW(cuInit, (unsigned))                                                                        \
    ROW(cuGetErrorString, (int, const char **))                                                    \
    ROW(cuDeviceGetCount, (int *))                                                                 \
    ROW(cuDeviceGetAttribute, (int *, int, int))                                                   \
    ROW(cuDevicePrimaryCtxRetain, (void **, int))                                                  \
    ROW(cuCtxGetCurrent, (void **))                                                                \
    ROW(cuCtxSetCurrent, (void *))                                                                 \
    ROW(cuCtxGetDevice, (int *))                                                                   \
    ROW(cuPointerGetAttribute, (void *, int, uint64_t))                                            \
    ROW(cuMemPoolCreate, (void **, const cudaMemPoolProps *))                                      \
    ROW(cuMemPoolSetAttribute, (void *, int, void *))                                              \
    ROW(cuMemAllocFromPoolAsync, (uint64_t *, size_t, void *, void *))                             \
    ROW(cuMemFreeAsync, (uint64_t, void *))                                                        \
    ROW(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *))                            \
    ROW(cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, void *))                                  \
    ROW(cuStreamCreate, (void **, unsigned))                                                       \
    ROW(cuStreamSynchronize, (void *))                                                             \
    ROW(cuStreamIsCapturing, (void *, int *))                                                      \
    ROW(cuStreamBeginCapture_v2, (void *, int))                                                    \
    ROW(cuStreamEndCapture, (void *, void **))                                                     \
    ROW(cuThreadExchangeStreamCaptureMode, (int *))                                                \
    ROW(cuGraphGetNodes, (void *, void **, size_t *))                                              \
    ROW(cuGraphInstantiateWithFlags, (void **, void *, uint64_t))                                  \
    ROW(cuGraphLaunch, (void *, void *))                                                           \
    ROW(cuGraphDestroy, (void *))                                                                  \
    ROW(cuGraphExecDestroy, (void *))                                                              \
    ROW(cuLibraryLoadData, (void **, const void *, void *, void **, unsigned, void *, void **, unsigned)) \
    ROW(cuLibraryUnload, (void *))                                                                 \
    ROW(cuLibraryGetKernel, (void **, void *, const char *))                                       \
    ROW(cuKernelGetAttribute, (int *, int, void *, int))                                           \
    ROW(cuKernelSetAttribute, (int, int, void *, int))                                             \
    ROW(cuLaunchKernelEx, (const cudaLaunchConfig_t *, void *, void **, void **))                  \
    ROW(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, void *, int, size_t))                 \
    ROW(cuOccupancyMaxActiveClusters, (int *, void *, const cudaLaunchConfig_t *))

#define CELLGEN_DRIVER_MEMBER(name, parameters) int (*name) parameters = nullptr;
#define CELLGEN_DRIVER_FIND(name, parameters)                                                      \
    *(void **)&name = library ? dlsym(library, #name) : nullptr;                                   \
    if (!name) error = cudaErrorInsufficientDriver;

enum { CELLGEN_MOST_DEVICES = 64, CELLGEN_IMAGES = 128 };

/* The driver, the contexts that were taken, and the images that were loaded. Never closed. */
struct cellgen_driver {
    cudaError_t error = cudaSuccess;
    std::atomic<void *> contexts[CELLGEN_MOST_DEVICES] = {};
    std::atomic<void *> images[CELLGEN_MOST_DEVICES][CELLGEN_IMAGES] = {};
    CELLGEN_OF_DRIVER(CELLGEN_DRIVER_MEMBER)

    explicit cellgen_driver(const char *path)
    {
        void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        CELLGEN_OF_DRIVER(CELLGEN_DRIVER_FIND)
        if (error == cudaSuccess) error = cuInit(0);
    }

    static const char *&path()
    {
        static const char *named = "libcuda.so.1";
        return named;
    }
    static cellgen_driver &one()
    {
        static cellgen_driver *const only = new cellgen_driver(path());
        return *only;
    }

    /* Takes a device for this thread. */
    cudaError_t take(int device)
    {
        if (device < 0 || device >= CELLGEN_MOST_DEVICES) return cudaErrorInvalidDevice;
        void *context = contexts[device].load(std::memory_order_acquire);
        if (!context) {
            if (const cudaError_t refused = cuDevicePrimaryCtxRetain(&context, device)) return refused;
            contexts[device].store(context, std::memory_order_release);
        }
        return cuCtxSetCurrent(context);
    }

    /* The driver is there, and this thread has a device. */
    cudaError_t ready()
    {
        void *context = nullptr;
        if (error != cudaSuccess) return error;
        if (const cudaError_t refused = cuCtxGetCurrent(&context)) return refused;
        return context ? cudaSuccess : take(0);
    }
};

/* Another driver than the system's, before it is first used: that of the emulation. */
CELLGEN_CUDA_API void cellgen_cuda_driver(const char *path) { cellgen_driver::path() = strdup(path); }

/* Begins what needs the driver and a device. */
#define CELLGEN_ON_DRIVER                                                                          \
    cellgen_driver &driver = cellgen_driver::one();                                                \
    if (const cudaError_t refused = driver.ready()) return refused

inline const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = nullptr;
    const cellgen_driver &driver = cellgen_driver::one();
    if (error == cudaErrorInsufficientDriver) return "the driver libcuda.so.1 of CUDA 12.0 or newer is not there";
    if (driver.cuGetErrorString) (void)driver.cuGetErrorString(error, &text);
    return text ? text : "an unknown error";
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; } /* calls tell themselves */

/* ------------------------------------------------------------------------------------ devices */

inline cudaError_t cudaGetDeviceCount(int *count)
{
    cellgen_driver &driver = cellgen_driver::one();
    return driver.error != cudaSuccess ? driver.error : driver.cuDeviceGetCount(count);
}
inline cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    cellgen_driver &driver = cellgen_driver::one();
    return driver.error != cudaSuccess ? driver.error : driver.cuDeviceGetAttribute(value, attribute, device);
}
inline cudaError_t cudaGetDevice(int *device)
{
    CELLGEN_ON_DRIVER;
    return driver.cuCtxGetDevice(device);
}
inline cudaError_t cudaSetDevice(int device)
{
    cellgen_driver &driver = cellgen_driver::one();
    return driver.error != cudaSuccess ? driver.error : driver.take(device);
}
/* Memory that the driver does not know is the host's. */
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *found, const void *address)
{
    CELLGEN_ON_DRIVER;
    enum { MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9 };
    unsigned type = 0, managed = 0;
    const uint64_t at = (uint64_t)(uintptr_t)address;
    found->type = cudaMemoryTypeHost, found->device = -1;
    cudaError_t error = driver.cuPointerGetAttribute(&type, MEMORY_TYPE, at);
    if (error == cudaErrorInvalidValue) return cudaSuccess;
    if (error == cudaSuccess) error = driver.cuPointerGetAttribute(&managed, IS_MANAGED, at);
    if (error == cudaSuccess) error = driver.cuPointerGetAttribute(&found->device, DEVICE_ORDINAL, at);
    found->type = managed ? cudaMemoryTypeManaged : (int)type;
    return error;
}

/* ------------------------------------------------------------------------- memory and streams */

inline cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *wanted)
{
    CELLGEN_ON_DRIVER;
    return driver.cuMemPoolCreate(pool, wanted);
}
inline cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, int attribute, void *value)
{
    CELLGEN_ON_DRIVER;
    return driver.cuMemPoolSetAttribute(pool, attribute, value);
}
inline cudaError_t cudaMallocFromPoolAsync(void **address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
{
    CELLGEN_ON_DRIVER;
    uint64_t at = 0;
    const cudaError_t error = driver.cuMemAllocFromPoolAsync(&at, bytes, pool, stream);
    return *address = (void *)(uintptr_t)at, error;
}
inline cudaError_t cudaFreeAsync(void *address, cudaStream_t stream)
{
    CELLGEN_ON_DRIVER;
    return driver.cuMemFreeAsync((uint64_t)(uintptr_t)address, stream);
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream)
{
    CELLGEN_ON_DRIVER;
    return kind == cudaMemcpyHostToDevice
        ? driver.cuMemcpyHtoDAsync_v2((uint64_t)(uintptr_t)to, from, bytes, stream)
        : driver.cuMemcpyDtoHAsync_v2(to, (uint64_t)(uintptr_t)from, bytes, stream);
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CELLGEN_ON_DRIVER;
    return driver.cuStreamSynchronize(stream);
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    CELLGEN_ON_DRIVER;
    return driver.cuStreamCreate(stream, flags);
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    CELLGEN_ON_DRIVER;
    int is_capturing = 0;
    const cudaError_t error = driver.cuStreamIsCapturing(stream, &is_capturing);
    return *status = (cudaStreamCaptureStatus)is_capturing, error;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode)
{
    CELLGEN_ON_DRIVER;
    return driver.cuStreamBeginCapture_v2(stream, mode);
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    CELLGEN_ON_DRIVER;
    return driver.cuStreamEndCapture(stream, graph);
}
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void **nodes, size_t *count)
{
    CELLGEN_ON_DRIVER;
    return driver.cuGraphGetNodes(graph, nodes, count);
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, uint64_t flags)
{
    CELLGEN_ON_DRIVER;
    return driver.cuGraphInstantiateWithFlags(made, graph, flags);
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    CELLGEN_ON_DRIVER;
    return driver.cuGraphLaunch(graph, stream);
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    CELLGEN_ON_DRIVER;
    return driver.cuGraphDestroy(graph);
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    CELLGEN_ON_DRIVER;
    return driver.cuGraphExecDestroy(graph);
}

#include "cellgen_cuda_driver_kernels.h"

#endif /* CELLGEN_CUDA_DRIVER_H */
