/* Kernels that run all steps in one launch: when the host chooses them.
 *
 * The model compares nanoseconds of a step. Its constants are fitted to times of four cells on an H100
 * (docs/lab/0014-cuda-on-a-device.md), where what it takes is compared with the best:
 *     step by step          launches * 2000 + rows * products / 20000, and 2000 more of float and double,
 *                           whose products need a second launch
 *     in blocks             stages * 600 + (rows of a block) * products * 10 / threads
 *     with matrix units     stages * 600 + (rows of a block, whole tiles) * (products, whole tiles) / 52,
 *                           and 700 more of two rows or more, since a lane has the sums of two
 * where `products` counts multiply-adds of a row, of one head where there are several, and blocks of
 * all heads run at once or in as many turns as it takes. A block takes as many rows as it must for all
 * rows to run at once; its weights have to fit the shared memory that the device grants a block.
 * A thread takes 10 ns for a multiply-add whose weight comes from shared memory, and has units of its
 * own, up to 256 threads. Matrix units multiply numbers of 16 bits only (cellgen_cuda_blocks.cuh). */
#ifndef CELLGEN_CUDA_TIERS_CUH
#define CELLGEN_CUDA_TIERS_CUH

#include "cellgen_cuda_blocks.cuh"

enum {
    CELLGEN_TIER_CHOOSE = 0,
    CELLGEN_TIER_STEPS = 1,
    CELLGEN_TIER_WHOLE = 2,
    CELLGEN_TIER_FRAGMENTS = 3,
    CELLGEN_TIER_DEVICE = 4,
    CELLGEN_TIER_CLUSTER = 5,
    CELLGEN_TIER_TOGETHER = 6,
    CELLGEN_TIER_HALF = 262 /* as TOGETHER; what stays takes half of the processors, beside another such call */
};
enum { CELLGEN_IN_HALF = 256 };
/* Whether a call leaves to the host how it runs. */
inline bool cellgen_leaves_open(int tier)
{
    return tier == CELLGEN_TIER_CHOOSE || tier == CELLGEN_TIER_TOGETHER;
}
enum { CELLGEN_TIER_DOES_NOT_FIT = 2998 };

#define CELLGEN_NS_LAUNCH 2000.0
#define CELLGEN_NS_PLAIN_PRODUCT 2000.0
#define CELLGEN_NS_STAGE 600.0
#define CELLGEN_DEVICE_PRODUCTS_PER_NS 20000.0
#define CELLGEN_THREAD_PRODUCTS_PER_NS 0.1
#define CELLGEN_BLOCK_THREADS 256 /* any kernel has registers for so many */
#define CELLGEN_FRAGMENT_PRODUCTS_PER_NS 52.0
#define CELLGEN_NS_SECOND_ROW 700.0

/* A launch in blocks: how many for each head, their rows, threads and bytes of shared memory. */
struct cellgen_blocks {
    int64_t count, heads, rows, threads, shared;
    double ns; /* of a step, by the model, in the way that it takes */
};

inline int64_t cellgen_larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* How all steps run: one launch after the other, or in blocks, with matrix units or without. */
enum { CELLGEN_ONE_BY_ONE = 0, CELLGEN_BY_THREAD = 1, CELLGEN_BY_FRAGMENT = 2 };

/* Threads of a block that has work for so many. */
inline int64_t cellgen_threads(int64_t wanted)
{
    return wanted < CELLGEN_BLOCK_THREADS ? cellgen_whole(wanted, 32) : CELLGEN_BLOCK_THREADS;
}

/* What the model says of a block that has so many `weights`: nanoseconds of a step. */
inline double cellgen_ns_in_blocks(
    const cellgen_blocks &blocks, int64_t processors, int64_t stages, int64_t rows, int64_t weights,
    double products_per_ns)
{
    const int64_t turns = (blocks.count * blocks.heads + processors - 1) / processors;
    return (double)turns
        * ((double)stages * CELLGEN_NS_STAGE + (double)rows * (double)weights / products_per_ns);
}

/* How to run all steps, where a head has `products` weights, `fragments` in whole tiles. */
template <typename E>
inline int cellgen_choose_blocks(
    cellgen_run *run, int tier, int64_t steps, int64_t rows, int64_t heads, int64_t widest,
    int64_t products, int64_t fragments, int64_t stages, cellgen_blocks *blocks)
{
    if (run->error || tier == CELLGEN_TIER_STEPS) return CELLGEN_ONE_BY_ONE;
    if (steps == 0 || rows == 0 || heads == 0 || widest == 0) return CELLGEN_ONE_BY_ONE;
    int device = 0, most = 0, processors = 1;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) {
        run->error = cellgen_cuda_code(error);
        return CELLGEN_ONE_BY_ONE;
    }
    const int64_t share = processors > heads ? processors / heads : 1; /* blocks that a head may have */
    blocks->heads = heads;
    blocks->rows = (rows + share - 1) / share;
    blocks->count = (rows + blocks->rows - 1) / blocks->rows;

    const bool asked = tier == CELLGEN_TIER_WHOLE || tier == CELLGEN_TIER_FRAGMENTS;
    const bool has_units = cellgen_element<E>::on_units;
    const bool thread_fits = products * (int64_t)sizeof(E) <= most;
    const bool fragment_fits = has_units && fragments * (int64_t)sizeof(E) <= most;
    const int64_t whole_rows = cellgen_whole(blocks->rows, CELLGEN_FRAGMENT_ROWS);
    const double by_steps = (double)stages * CELLGEN_NS_LAUNCH
        + (has_units ? 0.0 : CELLGEN_NS_PLAIN_PRODUCT)
        + (double)rows * (double)heads * (double)products / CELLGEN_DEVICE_PRODUCTS_PER_NS;
    double best = by_steps;
    const int64_t apart = cellgen_threads(blocks->rows * widest);
    const int64_t together = cellgen_threads(
        whole_rows / CELLGEN_FRAGMENT_ROWS * cellgen_whole(widest, CELLGEN_FRAGMENT_UNITS) * 4);
    const double by_thread = cellgen_ns_in_blocks(
        *blocks, processors, stages, blocks->rows, products,
        (double)apart * CELLGEN_THREAD_PRODUCTS_PER_NS);
    const double by_fragment = cellgen_ns_in_blocks(
        *blocks, processors, stages, whole_rows, fragments, CELLGEN_FRAGMENT_PRODUCTS_PER_NS)
        + (blocks->rows > 1 ? CELLGEN_NS_SECOND_ROW : 0.0);
    int way = CELLGEN_ONE_BY_ONE;
    if (thread_fits && (asked ? tier == CELLGEN_TIER_WHOLE : by_thread < best)) {
        way = CELLGEN_BY_THREAD;
        best = by_thread;
    }
    if (fragment_fits && (asked ? tier == CELLGEN_TIER_FRAGMENTS : by_fragment < best))
        way = CELLGEN_BY_FRAGMENT, best = by_fragment;
    blocks->ns = best;
    if (asked && way == CELLGEN_ONE_BY_ONE) run->error = CELLGEN_TIER_DOES_NOT_FIT;

    const int64_t resident = way == CELLGEN_BY_FRAGMENT ? fragments : products;
    blocks->shared = resident * (int64_t)sizeof(E);
    blocks->threads = way == CELLGEN_BY_FRAGMENT ? together : apart;
    CELLGEN_TELL((double)way, (double)blocks->count, (double)heads, (double)blocks->rows,
                 (double)blocks->threads, (double)(products * (int64_t)sizeof(E)),
                 has_units ? (double)(fragments * (int64_t)sizeof(E)) : 0.0, by_steps, by_thread,
                 by_fragment);
    return way;
}

/* Small blocks, since there are few threads, each with many steps: so every processor has some. */
#define CELLGEN_STREAM_THREADS 64
inline dim3 cellgen_stream_block(int64_t units)
{
    const unsigned wide = units > 32 ? CELLGEN_STREAM_THREADS : 32;
    return dim3(wide, CELLGEN_STREAM_THREADS / wide);
}

#define CELLGEN_STREAM(run, kernel, rows, units, ...)                                              \
    do {                                                                                           \
        const dim3 block_ = cellgen_stream_block(units);                                           \
        if ((rows) > 0 && (units) > 0)                                                             \
            CELLGEN_LAUNCH(run, kernel,                                                            \
                           dim3((unsigned)(((rows) + block_.y - 1) / block_.y),                    \
                                (unsigned)(((units) + block_.x - 1) / block_.x)),                  \
                           block_, __VA_ARGS__);                                                   \
    } while (0)

#define CELLGEN_IN_BLOCKS(run, kernel, blocks, ...)                                                \
    CELLGEN_LAUNCH_SHARED(run, kernel, dim3((unsigned)(blocks).count, (unsigned)(blocks).heads),   \
                          dim3((unsigned)(blocks).threads), (size_t)(blocks).shared,               \
                          (blocks).rows, __VA_ARGS__)

#endif /* CELLGEN_CUDA_TIERS_CUH */
