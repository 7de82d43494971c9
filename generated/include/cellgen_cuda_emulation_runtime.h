/* CUDA's runtime for the host, as far as generated text calls it. Part of cellgen_cuda_emulation.h. */
#ifndef CELLGEN_CUDA_EMULATION_RUNTIME_H
#define CELLGEN_CUDA_EMULATION_RUNTIME_H

#include "cellgen_cuda_constants.h"

typedef void *cudaStream_t;
typedef cellgen_emulated_graph *cudaGraph_t;
typedef cellgen_emulated_graph *cudaGraphExec_t;

struct cudaPointerAttributes {
    int type, device;
};

inline const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory" : "an emulated error";
}
inline cudaError_t cudaGetLastError()
{
    return (cudaError_t)std::exchange(cellgen_emulator::one().here().last_error, 0);
}

/* Begins every emulated call that may fail. */
#define CELLGEN_MAY_FAIL                                                                           \
    const cellgen_emulator::Turn turn;                                                             \
    cellgen_emulator &machine = cellgen_emulator::one();                                           \
    if (const cudaError_t error = machine.fails(__func__)) return error
#define CELLGEN_MAY_FAIL_ON(stream)                                                                \
    CELLGEN_MAY_FAIL;                                                                              \
    if (const cudaError_t error = machine.is_foreign(stream)) return error

inline cudaError_t cudaGetDeviceCount(int *count)
{
    CELLGEN_MAY_FAIL;
    *count = machine.devices;
    return machine.keep(machine.devices ? cudaSuccess : cudaErrorNoDevice);
}
inline cudaError_t cudaGetDevice(int *device)
{
    CELLGEN_MAY_FAIL;
    *device = machine.here().device;
    return machine.keep(machine.devices ? cudaSuccess : cudaErrorNoDevice);
}
inline cudaError_t cudaSetDevice(int device)
{
    CELLGEN_MAY_FAIL;
    if (device < 0 || device >= machine.devices) return machine.keep(cudaErrorInvalidDevice);
    return machine.here().device = device, cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    CELLGEN_MAY_FAIL;
    *value = 0;
    if (device < 0 || device >= machine.devices) return machine.keep(cudaErrorInvalidDevice);
    const auto other = machine.capabilities.find(device);
    const int capability = other == machine.capabilities.end() ? 80 : other->second;
    if (attribute == cudaDevAttrComputeCapabilityMajor) *value = capability / 10;
    if (attribute == cudaDevAttrComputeCapabilityMinor) *value = capability % 10;
    if (attribute == cudaDevAttrMultiProcessorCount) *value = machine.processors;
    if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin) *value = machine.shared_bytes;
    if (attribute == cudaDevAttrCooperativeLaunch) *value = 1;
    return cudaSuccess;
}
/* Code of a kernel: always for the device that there is. */
struct cudaFuncAttributes {
    int binaryVersion, ptxVersion;
};
template <typename K> inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *code, K)
{
    CELLGEN_MAY_FAIL;
    return *code = {90, 90}, cudaSuccess;
}
template <typename K> inline cudaError_t cudaFuncSetAttribute(K, int, int)
{
    CELLGEN_MAY_FAIL;
    return cudaSuccess;
}
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *found, const void *)
{
    CELLGEN_MAY_FAIL;
    found->type = cudaMemoryTypeDevice;
    found->device = 0;
    return cudaSuccess;
}
struct cudaMemPoolProps {
    int allocType;
    struct {
        int type, id;
    } location;
};
typedef void *cudaMemPool_t;
inline cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *)
{
    CELLGEN_MAY_FAIL;
    return *pool = (void *)1, cudaSuccess;
}
inline cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, int, void *)
{
    CELLGEN_MAY_FAIL;
    return cudaSuccess;
}
#define CELLGEN_NOWHERE ((void *)(uintptr_t)4096) /* memory that nothing is to touch */
inline cudaError_t cudaMallocFromPoolAsync(
    void **address, size_t bytes, cudaMemPool_t, cudaStream_t stream)
{
    CELLGEN_MAY_FAIL_ON(stream);
    if (machine.is_dry) return *address = CELLGEN_NOWHERE, cudaSuccess;
    const size_t limit = (size_t)1 << 40;
    *address = bytes < limit ? aligned_alloc(256, (bytes + 255) / 256 * 256) : nullptr;
    if (*address) memset(*address, 0xff, bytes);
    return machine.keep(*address ? cudaSuccess : cudaErrorMemoryAllocation);
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int, cudaStream_t stream)
{
    CELLGEN_MAY_FAIL_ON(stream);
    return memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CELLGEN_MAY_FAIL_ON(stream);
    return cudaSuccess;
}
inline cudaError_t cudaFreeAsync(void *address, cudaStream_t stream)
{
    CELLGEN_MAY_FAIL_ON(stream);
    const auto captured = machine.capturing.find(stream);
    if (address == CELLGEN_NOWHERE) return cudaSuccess;
    if (captured == machine.capturing.end()) free(address);
    else captured->second->freed.push_back(address);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    CELLGEN_MAY_FAIL;
    return *stream = malloc(1), cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    CELLGEN_MAY_FAIL_ON(stream);
    const bool is = machine.capturing.count(stream) > 0;
    *status = is ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
/* The default stream cannot be captured. */
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int)
{
    CELLGEN_MAY_FAIL_ON(stream);
    if (!stream || machine.refuses_capture || machine.capturing.count(stream))
        return machine.keep(cudaErrorStreamCaptureUnsupported);
    machine.capturing[stream] = new cellgen_emulated_graph();
    return cudaSuccess;
}
/* Capturing has ended also where this fails. */
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    const cellgen_emulator::Turn ending;
    std::map<void *, cellgen_emulated_graph *> &capturing = cellgen_emulator::one().capturing;
    const auto captured = capturing.find(stream);
    const std::unique_ptr<cellgen_emulated_graph> had(
        captured == capturing.end() ? nullptr : captured->second);
    if (had) capturing.erase(captured);
    CELLGEN_MAY_FAIL_ON(stream);
    if (!had) return machine.keep(cudaErrorInvalidValue);
    *graph = new cellgen_emulated_graph(*had);
    return cudaSuccess;
}
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void *, size_t *count)
{
    CELLGEN_MAY_FAIL;
    return *count = graph->nodes.size(), cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, int)
{
    CELLGEN_MAY_FAIL;
    *made = new cellgen_emulated_graph(*graph);
    graph->freed.clear();
    ++machine.counts[cellgen_emulator::GRAPHS];
    return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    CELLGEN_MAY_FAIL_ON(stream);
    ++machine.counts[cellgen_emulator::REPLAYED];
    for (const cellgen_emulated_launch &node : graph->nodes) machine.run(node);
    return cudaSuccess;
}
inline void cellgen_give_up_graph(cellgen_emulated_graph *graph)
{
    for (void *address : graph->freed) free(address);
    delete graph;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    cellgen_give_up_graph(graph);
    CELLGEN_MAY_FAIL;
    return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    const cellgen_emulator::Turn ending;
    cellgen_give_up_graph(graph);
    --cellgen_emulator::one().counts[cellgen_emulator::GRAPHS];
    CELLGEN_MAY_FAIL;
    return cudaSuccess;
}

extern "C" __attribute__((weak, visibility("default"))) void cellgen_emulation_seed(uint64_t seed)
{
    cellgen_emulator::one().seed(seed);
}

extern "C" __attribute__((weak, visibility("default"))) void cellgen_emulation_skip(int line)
{
    cellgen_emulator::one().skip(line);
}

extern "C" __attribute__((weak, visibility("default"))) void cellgen_emulation_refuse_capture(int refuse)
{
    cellgen_emulator::one().refuses_capture = refuse != 0;
}

extern "C" __attribute__((weak, visibility("default"))) void cellgen_emulation_device(
    int processors, int shared_bytes)
{
    cellgen_emulator::one().processors = processors;
    cellgen_emulator::one().shared_bytes = shared_bytes;
}

/* How many blocks a processor has at once, and how many clusters a device. */
extern "C" __attribute__((weak, visibility("default"))) void cellgen_emulation_room(
    int at_once, int clusters)
{
    cellgen_emulator::one().at_once = at_once;
    cellgen_emulator::one().clusters_at_once = clusters;
}

/* What the host weighed last of layers that stay on the device. */
extern "C" __attribute__((weak, visibility("default"))) int64_t cellgen_emulation_told_together(
    double *figures, int64_t most)
{
    const std::vector<double> told = std::exchange(cellgen_emulator::one().here().told_together, {});
    for (size_t at = 0; at < told.size() && (int64_t)at < most; ++at) figures[at] = told[at];
    return (int64_t)told.size();
}

/* How many devices there are, and the compute capability of one of them, ten times. */
extern "C" __attribute__((weak, visibility("default"))) void cellgen_emulation_machine(
    int devices, int device, int capability)
{
    cellgen_emulator &machine = cellgen_emulator::one();
    machine.devices = devices;
    machine.capabilities.clear();
    machine.capabilities[device] = capability;
}

/* The device that a stream is of; -1: it was destroyed. */
extern "C" __attribute__((weak, visibility("default"))) void cellgen_emulation_stream(
    void *stream, int device)
{
    cellgen_emulator::one().streams[stream] = device;
}

/* Whether launches are counted only. */
extern "C" __attribute__((weak, visibility("default"))) void cellgen_emulation_dry(int dry)
{
    cellgen_emulator::one().is_dry = dry != 0;
}

/* What the host weighed last, if there is room; how many figures; they are forgotten. */
extern "C" __attribute__((weak, visibility("default"))) int64_t cellgen_emulation_told(
    double *figures, int64_t most)
{
    const std::vector<double> told = std::exchange(cellgen_emulator::one().here().told, {});
    for (size_t at = 0; at < told.size() && (int64_t)at < most; ++at) figures[at] = told[at];
    return (int64_t)told.size();
}

extern "C" __attribute__((weak, visibility("default"))) void cellgen_emulation_fail(
    const char *call, int error)
{
    cellgen_emulator::one().plan_failure(call, (cudaError_t)error);
}

extern "C" __attribute__((weak, visibility("default"))) int64_t cellgen_emulation_count(int what)
{
    return cellgen_emulator::one().counts[what];
}

#endif
