/* Kernels of images: found by name, launched. Part of cellgen_cuda_driver.h. */
#ifndef CELLGEN_CUDA_DRIVER_KERNELS_H
#define CELLGEN_CUDA_DRIVER_KERNELS_H

/* Load kernels onto a device, by the place of their image. Also while a stream is captured: nothing is
 * launched. */
CELLGEN_CUDA_API int cellgen_cuda_load(int device, int place, const void *image)
{
    enum { ANY_MODE = 2 };
    cellgen_driver &driver = cellgen_driver::one();
    if (device < 0 || device >= CELLGEN_MOST_DEVICES || place < 0 || place >= CELLGEN_IMAGES)
        return 1000 + cudaErrorInvalidValue;
    cudaError_t error = driver.error;
    void *loaded = nullptr, *none = nullptr;
    int mode = ANY_MODE;
    if (error == cudaSuccess) error = driver.ready();
    if (error == cudaSuccess) error = driver.cuThreadExchangeStreamCaptureMode(&mode);
    if (error != cudaSuccess) return 1000 + error;
    error = driver.cuLibraryLoadData(&loaded, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    (void)driver.cuThreadExchangeStreamCaptureMode(&mode);
    if (error == cudaSuccess && !driver.images[device][place].compare_exchange_strong(none, loaded))
        error = driver.cuLibraryUnload(loaded); /* another thread was first */
    return error == cudaSuccess ? 0 : 1000 + error;
}

/* A kernel's name, and what it is on each device, once it was asked for. */
struct cellgen_kernel_code {
    const char *name;
    std::atomic<void *> of_device[CELLGEN_MOST_DEVICES];

    /* On the current device. Where no image has it, an error. */
    cudaError_t find(int *device, void **kernel)
    {
        CELLGEN_ON_DRIVER;
        if (const cudaError_t refused = driver.cuCtxGetDevice(device)) return refused;
        if (*device < 0 || *device >= CELLGEN_MOST_DEVICES) return cudaErrorInvalidDevice;
        std::atomic<void *> &known = of_device[*device];
        *kernel = known.load(std::memory_order_acquire);
        for (std::atomic<void *> &image : driver.images[*device]) {
            if (*kernel) return cudaSuccess;
            void *const loaded = image.load(std::memory_order_acquire);
            if (loaded && driver.cuLibraryGetKernel(kernel, loaded, name) != cudaSuccess) *kernel = nullptr;
            if (*kernel) known.store(*kernel, std::memory_order_release);
        }
        return *kernel ? cudaSuccess : cudaErrorSymbolNotFound;
    }
};

/* A kernel of these parameters. */
template <typename... P> struct cellgen_kernel {
    cellgen_kernel_code *code;

    cudaError_t launch_as(cudaLaunchConfig_t config, P... arguments) const
    {
        int device = 0;
        void *kernel = nullptr, *places[] = {(void *)&arguments...};
        if (const cudaError_t error = code->find(&device, &kernel)) return error;
        return cellgen_driver::one().cuLaunchKernelEx(&config, kernel, places, nullptr);
    }
    cudaError_t launch(
        cudaStream_t stream, dim3 grid, dim3 block, size_t bytes, P... arguments) const
    {
        return launch_as({grid, block, (unsigned)bytes, stream, nullptr, 0}, arguments...);
    }
};

template <auto kernel> struct cellgen_kernel_of;
template <typename... P, void (*kernel)(P...)> struct cellgen_kernel_of<kernel> {
    static cellgen_kernel<P...> one()
    {
        static cellgen_kernel_code code = {cellgen_kernel_name<kernel>(), {}};
        return {&code};
    }
};
#define CELLGEN_KERNEL(...) (cellgen_kernel_of<(__VA_ARGS__)>::one())

#define CELLGEN_LAUNCH(run, kernel, grid, block, ...)                                              \
    do {                                                                                           \
        if (!(run)->error)                                                                         \
            (run)->error = cellgen_cuda_code(                                                      \
                CELLGEN_KERNEL(kernel).launch((run)->stream, grid, block, 0, __VA_ARGS__));        \
    } while (0)
#define CELLGEN_LAUNCH_SHARED(run, kernel, grid, block, bytes, ...)                                \
    do {                                                                                           \
        if (!(run)->error)                                                                         \
            (run)->error = cellgen_cuda_code(cudaFuncSetAttribute(                                 \
                CELLGEN_KERNEL(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))); \
        if (!(run)->error)                                                                         \
            (run)->error = cellgen_cuda_code(                                                      \
                CELLGEN_KERNEL(kernel).launch((run)->stream, grid, block, bytes, __VA_ARGS__));    \
    } while (0)

/* -------------------------------------------------------------------- what the host asks of them */

template <typename... P>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *code, cellgen_kernel<P...> kernel)
{
    enum { PTX_VERSION = 5, BINARY_VERSION = 6 };
    int device = 0;
    void *found = nullptr;
    cellgen_driver &driver = cellgen_driver::one();
    cudaError_t error = kernel.code->find(&device, &found);
    if (error == cudaSuccess)
        error = driver.cuKernelGetAttribute(&code->binaryVersion, BINARY_VERSION, found, device);
    if (error == cudaSuccess)
        error = driver.cuKernelGetAttribute(&code->ptxVersion, PTX_VERSION, found, device);
    return error;
}
template <typename... P>
inline cudaError_t cudaFuncSetAttribute(cellgen_kernel<P...> kernel, int attribute, int value)
{
    int device = 0;
    void *found = nullptr;
    const cudaError_t error = kernel.code->find(&device, &found);
    return error != cudaSuccess
        ? error : cellgen_driver::one().cuKernelSetAttribute(attribute, value, found, device);
}
template <typename... P>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int *count, cellgen_kernel<P...> kernel, int threads, size_t bytes)
{
    int device = 0;
    void *found = nullptr;
    const cudaError_t error = kernel.code->find(&device, &found);
    return error != cudaSuccess
        ? error
        : cellgen_driver::one().cuOccupancyMaxActiveBlocksPerMultiprocessor(count, found, threads, bytes);
}
template <typename... P>
inline cudaError_t cudaOccupancyMaxActiveClusters(
    int *count, cellgen_kernel<P...> kernel, const cudaLaunchConfig_t *config)
{
    int device = 0;
    void *found = nullptr;
    const cudaError_t error = kernel.code->find(&device, &found);
    return error != cudaSuccess
        ? error : cellgen_driver::one().cuOccupancyMaxActiveClusters(count, found, config);
}
template <typename... P>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, cellgen_kernel<P...> kernel, P... arguments)
{
    return kernel.launch_as(*config, arguments...);
}

#endif /* CELLGEN_CUDA_DRIVER_KERNELS_H */
