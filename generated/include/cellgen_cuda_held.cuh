/* Kernels that keep the memory of a head in registers through all steps: frames, sums, their launch.
 *
 * A block takes one head of a row. Entry (axis1, axis2) of a memory belongs to warp axis1 % warps and
 * lane axis2 % 32; a thread has `rows` times `columns` of them, in registers. A sum over the last axis is
 * one of a warp; of a sum over the first one, each warp has a share in shared memory.
 *
 * Sums have the order of `cellgen_entry_total`: places 32 apart one after the other, then halves. For a
 * sum over the first axis these are the classes of a thread, its places of one remainder by 32, then
 * the warps. So the bits are those of the kernels of one step; sums over both axes have an order of
 * their own. */
#ifndef CELLGEN_CUDA_HELD_CUH
#define CELLGEN_CUDA_HELD_CUH

#include "cellgen_cuda_tiers.cuh"

/* How many warps a block has, and how many entries along each axis a thread. `ahead`: memories that a
 * step reads lie in registers too, those of the next step are under way; else they are read in place. */
template <int warps_, int rows_, int columns_, bool ahead_> struct cellgen_frame {
    enum {
        warps = warps_,
        rows = rows_,
        columns = columns_,
        ahead = ahead_,
        threads = 32 * warps_,
        classes = 32 / warps_,
        first = warps_ * rows_,
        last = 32 * columns_,
        most = first > last ? first : last, /* units of a vector */
        share = warps_ * last
    };
};
/* 64 by 64, 16 entries a thread; 128 by 128, 32 entries. A double takes two registers. */
template <typename R> using cellgen_small = cellgen_frame<8, 8, 2, sizeof(R) == 4>;
template <typename R> using cellgen_large = cellgen_frame<16, 8, 4, false>;

#define CELLGEN_OF_FRAME __launch_bounds__(frame::threads, 1) /* registers of a whole multiprocessor */

struct cellgen_my {
    int lane, warp;
    inline __device__ explicit cellgen_my(int thread) : lane(thread % 32), warp(thread / 32) {}
};

inline __device__ int64_t cellgen_later(int64_t a, int64_t b) { return a > b ? a : b; }

/* Sum over the lanes of a warp: halves, in a fixed order. Each of them gets it. */
template <typename R> inline __device__ R cellgen_warp_total(R mine)
{
    CELLGEN_UNROLL
    for (int half = 16; half > 0; half /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, half);
    return mine;
}

/* Sum of the classes of a thread, in one column. */
template <typename R, int classes, int columns>
inline __device__ R cellgen_classes_total(const R (&sums)[classes][columns], int column)
{
    R part[classes];
    CELLGEN_UNROLL
    for (int at = 0; at < classes; ++at) part[at] = sums[at][column];
    CELLGEN_UNROLL
    for (int half = classes / 2; half > 0; half /= 2) {
        CELLGEN_UNROLL
        for (int at = 0; at < half; ++at) part[at] += part[at + half];
    }
    return part[0];
}

/* Sum of the shares of all warps, so many elements apart. */
template <int warps, typename R> inline __device__ R cellgen_shares_total(const R *shares, int apart)
{
    R part[warps];
    CELLGEN_UNROLL
    for (int at = 0; at < warps; ++at) part[at] = shares[at * apart];
    CELLGEN_UNROLL
    for (int half = warps / 2; half > 0; half /= 2) {
        CELLGEN_UNROLL
        for (int at = 0; at < half; ++at) part[at] += part[at + half];
    }
    return part[0];
}

/* Whether memories of (first, last) lie in registers through all steps, and in which frame. */
enum { CELLGEN_NOT_HELD = 0, CELLGEN_HELD_SMALL = 1, CELLGEN_HELD_LARGE = 2 };

template <typename frame> inline bool cellgen_holds(int64_t first, int64_t last, int64_t longest)
{
    return first <= frame::first && last <= frame::last && longest <= frame::most;
}

/* Bytes of shared memory for so many vectors and shares of sums. */
template <typename frame> inline int64_t cellgen_held_bytes(int64_t vectors, int64_t shares, int64_t size)
{
    return (vectors * frame::most + shares * frame::share) * size;
}

template <typename R>
inline int cellgen_choose_held(
    cellgen_run *run, int tier, int64_t steps, int64_t rows, int64_t heads, int64_t first, int64_t last,
    int64_t longest, int64_t large_bytes)
{
    if (run->error || tier == CELLGEN_TIER_STEPS) return CELLGEN_NOT_HELD;
    if (steps == 0 || rows == 0 || heads == 0) return CELLGEN_NOT_HELD;
    int device = 0, most = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) {
        run->error = cellgen_cuda_code(error);
        return CELLGEN_NOT_HELD;
    }
    if (heads <= 65535) { /* blocks along the second axis of a launch */
        if (cellgen_holds<cellgen_small<R>>(first, last, longest)) return CELLGEN_HELD_SMALL;
        if (cellgen_holds<cellgen_large<R>>(first, last, longest) && large_bytes <= most)
            return CELLGEN_HELD_LARGE;
    }
    if (!cellgen_leaves_open(tier)) run->error = CELLGEN_TIER_DOES_NOT_FIT;
    return CELLGEN_NOT_HELD;
}

#define CELLGEN_HELD(run, kernel, frame, rows, heads, bytes, ...)                                  \
    CELLGEN_LAUNCH_SHARED(run, kernel, dim3((unsigned)(rows), (unsigned)(heads)),                  \
                          dim3(frame::threads), (size_t)(bytes), __VA_ARGS__)

#endif /* CELLGEN_CUDA_HELD_CUH */
