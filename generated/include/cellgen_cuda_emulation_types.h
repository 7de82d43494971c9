/* Types of CUDA that hold sizes and errors; what is a thread's; launches. Part of
 * cellgen_cuda_emulation.h. */
#ifndef CELLGEN_CUDA_EMULATION_TYPES_H
#define CELLGEN_CUDA_EMULATION_TYPES_H

#include <vector>

#include "cellgen_cuda_numbers.h"

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorSymbolNotFound = 500,
    cudaErrorStreamCaptureUnsupported = 900
};

/* What the runtime keeps for each thread of the process. */
struct cellgen_emulated_thread {
    int last_error = 0, device = 0;
    std::vector<double> told, told_together; /* by CELLGEN_TELL and its kin */
};

/* A kernel with its arguments: what one thread does. Arguments are bytes, so that little is compiled for
 * each kernel. */
struct cellgen_thread_work {
    void run() const { with_(arguments_.data()); }
    void (*with_)(const unsigned char *arguments);
    std::vector<unsigned char> arguments_;
};

template <typename Body> inline void cellgen_run_body(const unsigned char *body) { (*(const Body *)body)(); }
template <typename Body> inline cellgen_thread_work cellgen_work_of(const Body &body)
{
    static_assert(std::is_trivially_copy_constructible<Body>::value, "arguments are bytes");
    static_assert(alignof(Body) <= alignof(max_align_t), "as allocators align");
    const unsigned char *const bytes = (const unsigned char *)&body;
    return {cellgen_run_body<Body>, {bytes, bytes + sizeof body}};
}

/* What a stream was told while it was captured, and the memory that it was told to free. */
struct cellgen_emulated_launch {
    bool barrier;
    dim3 grid, block;
    size_t bytes;
    cellgen_thread_work work;
    unsigned together = 1; /* blocks, one behind the other, that are there at once */
};
struct cellgen_emulated_graph {
    std::vector<cellgen_emulated_launch> nodes;
    std::vector<void *> freed;
};

#endif /* CELLGEN_CUDA_EMULATION_TYPES_H */
