/* CUDA's driver for the emulation: a cell compiled for the CPU passes for libcuda.so.1, so that the host's
 * half of the same cell (cellgen_cuda_driver.h) runs where no device is. Its image is the line
 * "cellgen emulated <suffix> <kind> <function>", of one element type and part; the kernels are this library's.
 * Part of cellgen_cuda_emulation.h. */
#ifndef CELLGEN_CUDA_EMULATION_DRIVER_H
#define CELLGEN_CUDA_EMULATION_DRIVER_H

#include <tuple>

#include "cellgen_cuda_names.h"

/* ------------------------------------------------------------------------------------ kernels */

/* A kernel with the arguments that lie behind addresses, as the driver is given them. */
struct cellgen_emulated_kernel {
    cellgen_thread_work (*with)(void **);
    bool barrier;
    int granted; /* bytes of shared memory */
};
inline std::map<std::string, cellgen_emulated_kernel> &cellgen_emulated_kernels()
{
    static std::map<std::string, cellgen_emulated_kernel> *const all =
        new std::map<std::string, cellgen_emulated_kernel>;
    return *all;
}

template <typename... P, size_t... at>
inline cellgen_thread_work cellgen_emulated_work(
    void (*kernel)(P...), void **places, std::index_sequence<at...>)
{
    const std::tuple<P...> arguments(*(P *)places[at]...);
    const auto body = [=]() { std::apply(kernel, arguments); };
    return cellgen_work_of(body);
}

template <bool barrier, auto kernel> struct cellgen_exported;
template <bool barrier, typename... P, void (*kernel)(P...)> struct cellgen_exported<barrier, kernel> {
    static cellgen_thread_work with(void **places)
    {
        return cellgen_emulated_work(kernel, places, std::index_sequence_for<P...>());
    }
    static bool put()
    {
        const char *const name = cellgen_kernel_name<kernel>();
        return cellgen_emulated_kernels()[name] = {with, barrier, 48 << 10}, true;
    }
    static const bool is_there;
};
template <bool barrier, typename... P, void (*kernel)(P...)>
const bool cellgen_exported<barrier, kernel>::is_there = put();
#define CELLGEN_EXPORT_KERNEL(barrier, ...) ((void)&cellgen_exported<barrier, (__VA_ARGS__)>::is_there)

/* -------------------------------------------------------------------------------- the driver's calls */

struct cellgen_emulated_config { /* CUlaunchConfig */
    dim3 grid, block;
    unsigned bytes;
    void *stream;
    struct {
        int id, pad;
        unsigned value[16];
    } *attributes;
    unsigned count;
};

#define CELLGEN_DRIVER_API extern "C" __attribute__((weak, visibility("default"))) int
/* The driver keeps no error. */
inline int cellgen_emulated(cudaError_t error) { return (void)cudaGetLastError(), (int)error; }

inline void *&cellgen_emulated_context()
{
    static thread_local void *context = nullptr; /* the device + 1 */
    return context;
}

CELLGEN_DRIVER_API cuInit(unsigned) { return 0; }
CELLGEN_DRIVER_API cuGetErrorString(int error, const char **text)
{
    return *text = cudaGetErrorString((cudaError_t)error), 0;
}
CELLGEN_DRIVER_API cuDeviceGetCount(int *count)
{
    const int error = cellgen_emulated(cudaGetDeviceCount(count));
    return error == cudaErrorNoDevice ? 0 : error;
}
CELLGEN_DRIVER_API cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return cellgen_emulated(cudaDeviceGetAttribute(value, attribute, device));
}
CELLGEN_DRIVER_API cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)(uintptr_t)(device + 1);
    return device < cellgen_emulator::one().devices ? 0 : cudaErrorInvalidDevice;
}
CELLGEN_DRIVER_API cuCtxGetCurrent(void **context) { return *context = cellgen_emulated_context(), 0; }
CELLGEN_DRIVER_API cuCtxSetCurrent(void *context)
{
    cellgen_emulated_context() = context;
    return cellgen_emulated(cudaSetDevice((int)(uintptr_t)context - 1));
}
CELLGEN_DRIVER_API cuCtxGetDevice(int *device)
{
    if (!cellgen_emulated_context()) return 201; /* CUDA_ERROR_INVALID_CONTEXT */
    return cellgen_emulated(cudaGetDevice(device));
}
CELLGEN_DRIVER_API cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
    cudaPointerAttributes found;
    const int error = cellgen_emulated(cudaPointerGetAttributes(&found, (const void *)(uintptr_t)address));
    *(int *)value = attribute == 2 ? found.type : attribute == 9 ? found.device : 0;
    return error;
}
CELLGEN_DRIVER_API cuMemPoolCreate(void **pool, const void *)
{
    return cellgen_emulated(cudaMemPoolCreate(pool, nullptr));
}
CELLGEN_DRIVER_API cuMemPoolSetAttribute(void *pool, int attribute, void *value)
{
    return cellgen_emulated(cudaMemPoolSetAttribute(pool, attribute, value));
}
CELLGEN_DRIVER_API cuMemAllocFromPoolAsync(uint64_t *address, size_t bytes, void *pool, void *stream)
{
    void *at = nullptr;
    const int error = cellgen_emulated(cudaMallocFromPoolAsync(&at, bytes, pool, stream));
    return *address = (uint64_t)(uintptr_t)at, error;
}
CELLGEN_DRIVER_API cuMemFreeAsync(uint64_t address, void *stream)
{
    return cellgen_emulated(cudaFreeAsync((void *)(uintptr_t)address, stream));
}
CELLGEN_DRIVER_API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
    return cellgen_emulated(
        cudaMemcpyAsync((void *)(uintptr_t)to, from, bytes, cudaMemcpyHostToDevice, stream));
}
CELLGEN_DRIVER_API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
    return cellgen_emulated(
        cudaMemcpyAsync(to, (const void *)(uintptr_t)from, bytes, cudaMemcpyDeviceToHost, stream));
}
CELLGEN_DRIVER_API cuStreamCreate(void **stream, unsigned flags)
{
    return cellgen_emulated(cudaStreamCreateWithFlags(stream, flags));
}
CELLGEN_DRIVER_API cuStreamSynchronize(void *stream) { return cellgen_emulated(cudaStreamSynchronize(stream)); }
CELLGEN_DRIVER_API cuStreamIsCapturing(void *stream, int *is_capturing)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const int error = cellgen_emulated(cudaStreamIsCapturing(stream, &status));
    return *is_capturing = (int)status, error;
}
CELLGEN_DRIVER_API cuStreamBeginCapture_v2(void *stream, int mode)
{
    return cellgen_emulated(cudaStreamBeginCapture(stream, mode));
}
CELLGEN_DRIVER_API cuStreamEndCapture(void *stream, void **graph)
{
    return cellgen_emulated(cudaStreamEndCapture(stream, (cudaGraph_t *)graph));
}
CELLGEN_DRIVER_API cuThreadExchangeStreamCaptureMode(int *mode) { return *mode = 0, 0; }
CELLGEN_DRIVER_API cuGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    return cellgen_emulated(cudaGraphGetNodes((cudaGraph_t)graph, nodes, count));
}
CELLGEN_DRIVER_API cuGraphInstantiateWithFlags(void **made, void *graph, uint64_t flags)
{
    return cellgen_emulated(cudaGraphInstantiate((cudaGraphExec_t *)made, (cudaGraph_t)graph, (int)flags));
}
CELLGEN_DRIVER_API cuGraphLaunch(void *graph, void *stream)
{
    return cellgen_emulated(cudaGraphLaunch((cudaGraphExec_t)graph, stream));
}
CELLGEN_DRIVER_API cuGraphDestroy(void *graph) { return cellgen_emulated(cudaGraphDestroy((cudaGraph_t)graph)); }
CELLGEN_DRIVER_API cuGraphExecDestroy(void *graph)
{
    return cellgen_emulated(cudaGraphExecDestroy((cudaGraphExec_t)graph));
}

/* ---------------------------------------------------------------------------- images and launches */

CELLGEN_DRIVER_API cuLibraryLoadData(
    void **library, const void *image, void *, void **, unsigned, void *, void **, unsigned)
{
    const char *const begins = "cellgen emulated ";
    if (const int error = cellgen_emulated(cellgen_emulator::one().fails("image"))) return error;
    if (strncmp((const char *)image, begins, strlen(begins))) return 200; /* CUDA_ERROR_INVALID_IMAGE */
    return *library = new std::string((const char *)image + strlen(begins)), 0;
}
CELLGEN_DRIVER_API cuLibraryUnload(void *library) { return delete (std::string *)library, 0; }

/* A function's name out of what compilers make of it: `_Z`, its length, itself, then its parameters. */
static std::string cellgen_function_of(const std::string &name)
{
    char *begins = nullptr;
    if (name.compare(0, 2, "_Z")) return name;
    const unsigned long length = strtoul(name.c_str() + 2, &begins, 10);
    return std::string(begins).substr(0, length);
}
static bool cellgen_ends_with(const std::string &text, const std::string &end)
{
    return text.size() >= end.size() && !text.compare(text.size() - end.size(), end.size(), end);
}

/* The part that has a kernel, but for the function of what is a function's own. */
static std::string cellgen_part_of(const std::string &name, const std::string &function)
{
    const std::string stem = function.substr(0, function.rfind('_'));
    if (!function.compare(0, 8, "cellgen_")) return "shared";
    if (!cellgen_ends_with(stem, "_persistent")) return "own";
    const bool is_forward = cellgen_ends_with(stem, "_forward_persistent");
    return std::string(name.find("ILb1E") == std::string::npos ? "device" : "cluster")
        + (is_forward ? " sequence_forward" : " sequence_backward");
}

/* A cell's own kernels are those of the image's element type, which ends their names, and of no other. */
CELLGEN_DRIVER_API cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    const std::string image = *(const std::string *)library;
    const std::string function = cellgen_function_of(name), part = cellgen_part_of(name, function);
    const std::string suffix = image.substr(0, image.find(' '));
    const auto found = cellgen_emulated_kernels().find(name);
    bool is_here = found != cellgen_emulated_kernels().end()
        && !image.compare(suffix.size() + 1, part.size(), part);
    for (const std::string other : {"_f32", "_f64", "_bf16", "_f16"})
        is_here &= other == "_" + suffix || !cellgen_ends_with(function, other);
    return is_here ? (*kernel = &found->second, 0) : 500; /* CUDA_ERROR_NOT_FOUND */
}
CELLGEN_DRIVER_API cuKernelGetAttribute(int *value, int, void *, int)
{
    cudaFuncAttributes code;
    const int error = cellgen_emulated(cudaFuncGetAttributes(&code, 0));
    return *value = code.binaryVersion, error;
}
CELLGEN_DRIVER_API cuKernelSetAttribute(int attribute, int value, void *kernel, int)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return 1;
    if (value > cellgen_emulator::one().shared_bytes) return 1;
    ((cellgen_emulated_kernel *)kernel)->granted = value;
    return cellgen_emulated(cudaFuncSetAttribute(kernel, attribute, value));
}
CELLGEN_DRIVER_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *, int, size_t)
{
    return *count = cellgen_emulator::one().at_once, 0;
}
CELLGEN_DRIVER_API cuOccupancyMaxActiveClusters(int *count, void *, const void *)
{
    return *count = cellgen_emulator::one().clusters_at_once, 0;
}
CELLGEN_DRIVER_API cuLaunchKernelEx(const cellgen_emulated_config *how, void *kernel, void **places, void **)
{
    enum { COOPERATIVE = 2, CLUSTER = 4 };
    cellgen_emulator &machine = cellgen_emulator::one();
    const cellgen_emulated_kernel &code = *(const cellgen_emulated_kernel *)kernel;
    if ((int)how->bytes > code.granted) return 1;
    unsigned together = 1;
    for (unsigned at = 0; at < how->count; ++at) {
        const unsigned *const value = how->attributes[at].value;
        if (how->attributes[at].id == CLUSTER) together = value[0] * value[1] * value[2];
        if (how->attributes[at].id == COOPERATIVE && value[0])
            together = how->grid.x * how->grid.y * how->grid.z;
    }
    if (how->count && machine.fails("together")) return cellgen_emulated((cudaError_t)machine.here().last_error);
    machine.take(how->stream, {code.barrier, how->grid, how->block, how->bytes, code.with(places), together});
    return cellgen_emulated((cudaError_t)machine.here().last_error);
}

#endif /* CELLGEN_CUDA_EMULATION_DRIVER_H */
