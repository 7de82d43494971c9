/* Kernels that run all steps in one launch: what they share, and when the host chooses them.
 *
 * The model compares nanoseconds of a step. Its constants are taken from published anchors of
 * Hopper (docs/cuda.md names them) and are not fitted to a measurement:
 *     step by step   launches * 1300 + rows * products / 20000
 *     in blocks      stages * 300 + (rows of a block) * products / 64
 * where `products` counts multiply-adds of a row, of one head where there are several, and blocks of
 * all heads run at once or in as many turns as it takes. A block takes as many rows as it must for all
 * rows to run at once; its weights have to fit the shared memory that the device grants a block. */
#ifndef CELLGEN_CUDA_TIERS_CUH
#define CELLGEN_CUDA_TIERS_CUH

#include "cellgen_cuda.cuh"

enum { CELLGEN_TIER_CHOOSE = 0, CELLGEN_TIER_STEPS = 1, CELLGEN_TIER_WHOLE = 2 };
enum { CELLGEN_TIER_DOES_NOT_FIT = 2998 };

#define CELLGEN_NS_LAUNCH 1300.0
#define CELLGEN_NS_STAGE 300.0
#define CELLGEN_DEVICE_PRODUCTS_PER_NS 20000.0
#define CELLGEN_BLOCK_PRODUCTS_PER_NS 64.0

/* A launch in blocks: how many for each head, their rows, threads and bytes of shared memory. */
struct cellgen_blocks {
    int64_t count, heads, rows, threads, shared;
};

inline int64_t cellgen_larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Whether to run all steps in blocks that hold the `products` weights, of `bytes` each, of a head. */
inline int cellgen_choose_blocks(
    cellgen_run *run, int tier, int64_t steps, int64_t rows, int64_t heads, int64_t widest,
    int64_t products, size_t bytes, int64_t stages, cellgen_blocks *blocks)
{
    if (run->error || tier == CELLGEN_TIER_STEPS) return 0;
    if (steps == 0 || rows == 0 || heads == 0 || widest == 0) return 0;
    int device = 0, most = 0, processors = 1;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) {
        run->error = cellgen_cuda_code(error);
        return 0;
    }
    const int64_t share = processors > heads ? processors / heads : 1; /* blocks that a head may have */
    blocks->heads = heads;
    blocks->rows = (rows + share - 1) / share;
    blocks->count = (rows + blocks->rows - 1) / blocks->rows;
    blocks->shared = products * (int64_t)bytes;
    const int64_t threads = (blocks->rows * widest + 31) / 32 * 32;
    blocks->threads = threads < 256 ? threads : 256; /* any kernel has registers for so many */
    if (blocks->shared > most) {
        if (tier == CELLGEN_TIER_WHOLE) run->error = CELLGEN_TIER_DOES_NOT_FIT;
        return 0;
    }
    const double one_by_one = (double)stages * CELLGEN_NS_LAUNCH
        + (double)rows * (double)heads * (double)products / CELLGEN_DEVICE_PRODUCTS_PER_NS;
    const int64_t turns = (blocks->count * heads + processors - 1) / processors;
    const double in_blocks = (double)turns * ((double)stages * CELLGEN_NS_STAGE
        + (double)blocks->rows * (double)products / CELLGEN_BLOCK_PRODUCTS_PER_NS);
    return tier == CELLGEN_TIER_WHOLE || in_blocks < one_by_one;
}

#define CELLGEN_STREAM(run, kernel, rows, units, ...)                                              \
    do {                                                                                           \
        if ((rows) > 0 && (units) > 0)                                                             \
            CELLGEN_LAUNCH(run, kernel, cellgen_element_grid(rows, units),                         \
                           cellgen_element_block(units), __VA_ARGS__);                             \
    } while (0)

#define CELLGEN_IN_BLOCKS(run, kernel, blocks, ...)                                                \
    CELLGEN_LAUNCH_SHARED(run, kernel, dim3((unsigned)(blocks).count, (unsigned)(blocks).heads),   \
                          dim3((unsigned)(blocks).threads), (size_t)(blocks).shared,               \
                          (blocks).rows, __VA_ARGS__)

/* What the next step would read from memory. */
template <typename E, typename R> inline __device__ R cg_as_stored(R x)
{
    E stored;
    cellgen_put(&stored, x);
    return cellgen_widen(stored);
}

/* Put a matrix (or its transpose) of inner rows into shared memory. */
template <typename E>
inline __device__ void cg_hold(
    cellgen_rows<const E> weights, int turned, int64_t inner, int64_t width, E *shared)
{
    for (int64_t at = threadIdx.x; at < inner * width; at += blockDim.x) {
        const int64_t k = at / width, column = at % width;
        shared[at] = turned ? weights.at[column * weights.stride + k]
                            : weights.at[k * weights.stride + column];
    }
}

/* The same for one head of each slot, out of [slot][head][inner][units], or [units][inner] if turned. */
template <typename E>
inline __device__ void cg_hold_head(
    const E *weights, int turned, int64_t heads, int64_t head, int64_t slots, int64_t inner,
    int64_t units, E *shared)
{
    for (int64_t at = threadIdx.x; at < inner * slots * units; at += blockDim.x) {
        const int64_t k = at / (slots * units), slot = at / units % slots, unit = at % units;
        const E *const own = weights + (slot * heads + head) * inner * units;
        shared[at] = turned ? own[unit * inner + k] : own[k * units + unit];
    }
}

/* sums[row][slot * apart + unit] (+)= operand[row] . weights[][slot * units + unit]: a thread forms
 * all slots of a unit, the contracted index ascending. */
template <int slots, typename E, typename C>
inline __device__ void cg_block_product(
    int64_t top, int64_t rows, int64_t units, int64_t inner, cellgen_rows<const E> operand,
    const E *weights, cellgen_rows<C> sums, int64_t apart, int onto)
{
    typedef decltype(cellgen_widen(E())) R;
    for (int64_t at = threadIdx.x; at < rows * units; at += blockDim.x) {
        const int64_t row = top + at / units, unit = at % units;
        R sum[slots];
        for (int slot = 0; slot < slots; ++slot) sum[slot] = 0;
        for (int64_t k = 0; k < inner; ++k) {
            const R x = cg_load(operand, row, k);
            for (int slot = 0; slot < slots; ++slot)
                sum[slot] += x * cellgen_widen(weights[(k * slots + slot) * units + unit]);
        }
        for (int slot = 0; slot < slots; ++slot) {
            const int64_t column = slot * apart + unit;
            cg_store(sums, row, column, onto ? cg_load(sums, row, column) + sum[slot] : sum[slot]);
        }
    }
}

#endif /* CELLGEN_CUDA_TIERS_CUH */
