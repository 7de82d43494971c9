/* Words of CUDA in kernels and launches, as the emulation has them. Part of cellgen_cuda_emulation.h. */
#ifndef CELLGEN_CUDA_EMULATION_WORDS_H
#define CELLGEN_CUDA_EMULATION_WORDS_H

#define threadIdx (cellgen_emulator::one().thread_index)
#define blockIdx (cellgen_emulator::one().block_index)
#define blockDim (cellgen_emulator::one().block)
#define gridDim (cellgen_emulator::one().grid)

#define __syncthreads() cellgen_emulator::one().block_barrier(__LINE__)
#define __syncwarp() cellgen_emulator::one().warp_barrier(__LINE__)
#define __shfl_sync(mask, value, from)                                                             \
    cellgen_emulator::one().exchange(value, (unsigned)(from) % 32, __LINE__)
#define __shfl_xor_sync(mask, value, bits)                                                         \
    cellgen_emulator::one().exchange(value, cellgen_emulator::one().lane() ^ (unsigned)(bits), __LINE__)
#define __shfl_up_sync(mask, value, by)                                                            \
    cellgen_emulator::one().exchange(value, cellgen_emulator::one().lane() - (unsigned)(by), __LINE__)
#define __shfl_down_sync(mask, value, by)                                                          \
    cellgen_emulator::one().exchange(value, cellgen_emulator::one().lane() + (unsigned)(by), __LINE__)

#define CELLGEN_SHARED(type, name, count)                                                          \
    type *const name = (type *)cellgen_emulator::one().shared(__FILE__, __LINE__, sizeof(type) * (count))

#define CELLGEN_EMULATE(run, barrier, kernel, grid, block, bytes, ...)                               \
    do {                                                                                           \
        CELLGEN_EXPORT_KERNEL(barrier, kernel);                                                    \
        if (!(run)->error) {                                                                       \
            cellgen_emulator::one().launch((run)->stream, barrier, grid, block, bytes, 1, (kernel),  \
                                            __VA_ARGS__);                                           \
            (run)->error = cellgen_cuda_code(cudaGetLastError());                                  \
        }                                                                                          \
    } while (0)
#define CELLGEN_LAUNCH(run, kernel, grid, block, ...)                                              \
    CELLGEN_EMULATE(run, false, kernel, grid, block, 0, __VA_ARGS__)
#define CELLGEN_LAUNCH_BLOCKS(run, kernel, grid, block, ...)                                       \
    CELLGEN_EMULATE(run, true, kernel, grid, block, 0, __VA_ARGS__)
#define CELLGEN_LAUNCH_SHARED(run, kernel, grid, block, bytes, ...)                                \
    CELLGEN_EMULATE(run, true, kernel, grid, block, bytes, __VA_ARGS__)
#define CELLGEN_DYNAMIC_SHARED(type, name)                                                         \
    type *const name = (type *)cellgen_emulator::one().granted()
#define CELLGEN_TELL(...) (cellgen_emulator::one().here().told = {__VA_ARGS__})

#endif /* CELLGEN_CUDA_EMULATION_WORDS_H */
