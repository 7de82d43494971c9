/* What every library of a cell exports beside its functions: devices, memory, cuBLAS, graphs, streams.
 * Part of cellgen_cuda.cuh. */
#ifndef CELLGEN_CUDA_HOST_CUH
#define CELLGEN_CUDA_HOST_CUH

#include <dlfcn.h>

CELLGEN_CUDA_API const char *cellgen_cuda_error_text(int code)
{
    return cudaGetErrorString((cudaError_t)(code - CELLGEN_CUDA_ERROR));
}

CELLGEN_CUDA_API int cellgen_cuda_devices(int *count) { return cellgen_cuda_code(cudaGetDeviceCount(count)); }

/* Compute capability as 10 major + minor. */
CELLGEN_CUDA_API int cellgen_cuda_capability(int device, int *capability)
{
    int major = 0, minor = 0;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    *capability = 10 * major + minor;
    return cellgen_cuda_code(error);
}

/* The device that an address belongs to, -1 for memory of the host. */
CELLGEN_CUDA_API int cellgen_cuda_device_of(const void *address, int *device)
{
    cudaPointerAttributes found;
    const cudaError_t error = cudaPointerGetAttributes(&found, address);
    *device = error == cudaSuccess
            && (found.type == cudaMemoryTypeDevice || found.type == cudaMemoryTypeManaged)
        ? found.device : -1;
    return cellgen_cuda_code(error);
}

CELLGEN_CUDA_API int cellgen_cuda_use(int device, int *before)
{
    cudaError_t error = cudaGetDevice(before);
    if (error == cudaSuccess && *before != device) error = cudaSetDevice(device);
    return cellgen_cuda_code(error);
}

/* Memory in the order of a stream, from a pool that keeps what is freed. */
CELLGEN_CUDA_API int cellgen_cuda_allocate(int device, int64_t bytes, void *stream, void **address)
{
    static cudaMemPool_t pools[64];
    if (device < 0 || device >= 64) return CELLGEN_CUDA_ERROR + (int)cudaErrorInvalidValue;
    cudaError_t error = cudaSuccess;
    if (!pools[device]) {
        cudaMemPoolProps wanted = {};
        wanted.allocType = cudaMemAllocationTypePinned;
        wanted.location.type = cudaMemLocationTypeDevice;
        wanted.location.id = device;
        uint64_t keep = UINT64_MAX;
        error = cudaMemPoolCreate(&pools[device], &wanted);
        if (error == cudaSuccess)
            error = cudaMemPoolSetAttribute(pools[device], cudaMemPoolAttrReleaseThreshold, &keep);
    }
    if (error == cudaSuccess)
        error = cudaMallocFromPoolAsync(address, (size_t)bytes, pools[device], (cudaStream_t)stream);
    return cellgen_cuda_code(error);
}

CELLGEN_CUDA_API int cellgen_cuda_free(void *address, void *stream)
{
    return cellgen_cuda_code(cudaFreeAsync(address, (cudaStream_t)stream));
}

/* Copies between host and device; reading waits for what the stream has to do. */
CELLGEN_CUDA_API int cellgen_cuda_write(void *address, const void *host, int64_t bytes, void *stream)
{
    cudaError_t error =
        cudaMemcpyAsync(address, host, (size_t)bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize((cudaStream_t)stream);
    return cellgen_cuda_code(error);
}

CELLGEN_CUDA_API int cellgen_cuda_read(void *host, const void *address, int64_t bytes, void *stream)
{
    cudaError_t error =
        cudaMemcpyAsync(host, address, (size_t)bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize((cudaStream_t)stream);
    return cellgen_cuda_code(error);
}

CELLGEN_CUDA_API void cellgen_cuda_blas_close(void *blas)
{
    cellgen_blas *const closing = (cellgen_blas *)blas;
    if (!closing) return;
    if (closing->handle) closing->destroy(closing->handle);
    delete closing; /* the library stays: others may use it */
}

/* Open cuBLAS for the current device. */
CELLGEN_CUDA_API int cellgen_cuda_blas_open(const char *path, void **blas)
{
    cellgen_blas *const opened = new cellgen_blas();
    *blas = nullptr;
    opened->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (opened->library) {
        *(void **)&opened->create = dlsym(opened->library, "cublasCreate_v2");
        *(void **)&opened->destroy = dlsym(opened->library, "cublasDestroy_v2");
        *(void **)&opened->set_stream = dlsym(opened->library, "cublasSetStream_v2");
        *(void **)&opened->set_workspace = dlsym(opened->library, "cublasSetWorkspace_v2");
        *(void **)&opened->gemm = dlsym(opened->library, "cublasGemmEx_64");
        *(void **)&opened->gemm_batched = dlsym(opened->library, "cublasGemmStridedBatchedEx_64");
    }
    if (!opened->library || !opened->create || !opened->destroy || !opened->set_stream
        || !opened->set_workspace || !opened->gemm || !opened->gemm_batched) {
        delete opened;
        return CELLGEN_NO_CUBLAS;
    }
    const int status = opened->create(&opened->handle);
    if (status) {
        delete opened;
        return CELLGEN_CUBLAS_STATUS + status;
    }
    *blas = opened;
    return CELLGEN_OK;
}

/* Graphs: capture what is launched on a stream between begin and end, launch it again later. */
CELLGEN_CUDA_API int cellgen_cuda_graph_begin(void *stream)
{
    return cellgen_cuda_code(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal));
}

CELLGEN_CUDA_API int cellgen_cuda_graph_end(void *stream, void **graph, int64_t *nodes)
{
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t made = nullptr;
    size_t count = 0;
    cudaError_t error = cudaStreamEndCapture((cudaStream_t)stream, &captured);
    if (error == cudaSuccess) error = cudaGraphGetNodes(captured, nullptr, &count);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&made, captured, 0);
    if (captured) (void)cellgen_cuda_code(cudaGraphDestroy(captured));
    *graph = made;
    *nodes = (int64_t)count;
    return cellgen_cuda_code(error);
}

CELLGEN_CUDA_API int cellgen_cuda_graph_launch(void *graph, void *stream)
{
    return cellgen_cuda_code(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream));
}

CELLGEN_CUDA_API int cellgen_cuda_graph_destroy(void *graph)
{
    return graph ? cellgen_cuda_code(cudaGraphExecDestroy((cudaGraphExec_t)graph)) : CELLGEN_OK;
}

/* Whether what is launched on a stream goes into a graph. */
CELLGEN_CUDA_API int cellgen_cuda_capturing(void *stream, int *capturing)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing((cudaStream_t)stream, &status);
    *capturing = status != cudaStreamCaptureStatusNone;
    return cellgen_cuda_code(error);
}

/* A stream of the current device that waits for no other. */
CELLGEN_CUDA_API int cellgen_cuda_stream_create(void **stream)
{
    return cellgen_cuda_code(cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking));
}

#endif /* CELLGEN_CUDA_HOST_CUH */
