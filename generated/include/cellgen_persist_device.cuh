/* Waits and stores between blocks that are on a device together.
 *
 * Data says itself that it is there: a place is filled with ones before the launch, 16 bytes are
 * published by one store of 128 bits, which memory takes as one access, and a reader looks until the
 * last word is not all ones. No fence, flag or atomic is needed, since no order of anything else is.
 * All ones is a NaN of every element type; what is published has its NaN in another form (cellgen_sent).
 *
 * Within a cluster (sm_90) 16 bytes go straight into the shared memory of each block, counted by an
 * mbarrier there.
 *
 * A wait that does not end traps: the launch fails, the device does not hang. */
#ifndef CELLGEN_PERSIST_DEVICE_CUH
#define CELLGEN_PERSIST_DEVICE_CUH

#include "cellgen_cuda.cuh"

#define CELLGEN_NOT_THERE 0xffffffffu
#define CELLGEN_MOST_LOOKS 8000000u /* seconds: any step takes microseconds */

/* Accesses of 128 bits are of PTX 8.3: CUDA 12.3. With an older toolkit no kernel of this kind is chosen. */
#if defined(CELLGEN_EMULATED)
#define CELLGEN_HAS_PIECES 1
#include "cellgen_persist_emulation.h"
#else
#if !defined(CELLGEN_TOOLKIT)
#define CELLGEN_TOOLKIT CUDART_VERSION
#endif
#define CELLGEN_HAS_PIECES (CELLGEN_TOOLKIT >= 12030)
#if CELLGEN_HAS_PIECES
#define CELLGEN_ON_PIECES(...) asm volatile(__VA_ARGS__)
#else
#define CELLGEN_ON_PIECES(...) __trap()
#endif

inline __device__ uint4 cellgen_read_piece(const void *from)
{
    uint64_t low = 0, high = 0;
    CELLGEN_ON_PIECES("{ .reg .b128 piece;\n"
                      "ld.relaxed.gpu.global.b128 piece, [%2]; mov.b128 {%0, %1}, piece; }"
                      : "=l"(low), "=l"(high)
                      : "l"(from)
                      : "memory");
    return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32));
}

inline __device__ void cellgen_send_piece(void *to, uint4 piece)
{
    const uint64_t low = (uint64_t)piece.y << 32 | piece.x, high = (uint64_t)piece.w << 32 | piece.z;
    (void)to, (void)low, (void)high; /* an older toolkit reads none of them */
    CELLGEN_ON_PIECES("{ .reg .b128 piece;\n"
                      "mov.b128 piece, {%1, %2}; st.relaxed.gpu.global.b128 [%0], piece; }"
                      :: "l"(to), "l"(low), "l"(high)
                      : "memory");
}

inline __device__ void cellgen_look_again(uint32_t *looks)
{
    if (++*looks > CELLGEN_MOST_LOOKS) __trap();
}

inline __device__ void cellgen_prefetch(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" :: "l"(at));
}

/* ------------------------------------------------------------------------------- of a cluster */

#if CELLGEN_HAS_PIECES && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
#define CELLGEN_ON_CLUSTERS(...) asm volatile(__VA_ARGS__)
#else
#define CELLGEN_ON_CLUSTERS(...) __trap() /* the host launches no clusters there */
#endif

inline __device__ uint32_t cellgen_shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

inline __device__ unsigned cellgen_cluster_rank()
{
    unsigned rank = 0;
    CELLGEN_ON_CLUSTERS("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

inline __device__ void cellgen_make_mbarrier(uint32_t at)
{
    CELLGEN_ON_CLUSTERS("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;"
                        :: "r"(at)
                        : "memory");
}

/* One arrival, and so many bytes that are to come. */
inline __device__ void cellgen_arm(uint32_t at, uint32_t bytes)
{
    CELLGEN_ON_CLUSTERS("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                        :: "r"(at), "r"(bytes)
                        : "memory");
}

inline __device__ void cellgen_wait_for(uint32_t at, int phase)
{
    uint32_t looks = 0, is_there = 0;
    while (!is_there) {
        CELLGEN_ON_CLUSTERS("{ .reg .pred there;\n"
                            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 there, [%1], %2;\n"
                            "selp.u32 %0, 1, 0, there; }"
                            : "=r"(is_there)
                            : "r"(at), "r"(phase)
                            : "memory");
        cellgen_look_again(&looks);
    }
}

/* 16 bytes into the shared memory of a block of the cluster, counted by its mbarrier. */
inline __device__ void cellgen_send_to(unsigned rank, uint32_t to, uint32_t barrier, uint4 piece)
{
    CELLGEN_ON_CLUSTERS("{ .reg .b32 place, counts;\n"
                        "mapa.shared::cluster.u32 place, %0, %2;\n"
                        "mapa.shared::cluster.u32 counts, %1, %2;\n"
                        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                        "[place], {%3, %4, %5, %6}, [counts]; }"
                        :: "r"(to), "r"(barrier), "r"(rank), "r"(piece.x), "r"(piece.y), "r"(piece.z),
                           "r"(piece.w)
                        : "memory");
}

/* All threads of all blocks of a cluster. */
inline __device__ void cellgen_cluster_barrier()
{
    CELLGEN_ON_CLUSTERS("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
                        ::: "memory");
}

#endif

/* What is published of a number: never all ones, whatever NaN it is. */
inline __device__ float cellgen_sent(float x) { return x == x ? x : __builtin_nanf(""); }

/* Pieces behind `base`, looked at until they are there; below 0 none is wanted. */
template <int count>
inline __device__ void cellgen_await(uint4 (&pieces)[count], const uint4 *base, const int (&from)[count])
{
    CELLGEN_UNROLL
    for (int at = 0; at < count; ++at)
        if (from[at] >= 0) pieces[at] = cellgen_read_piece(base + from[at]);
    for (uint32_t looks = 0;;) {
        bool is_there = true;
        CELLGEN_UNROLL
        for (int at = 0; at < count; ++at) is_there &= from[at] < 0 || pieces[at].w != CELLGEN_NOT_THERE;
        if (is_there) return;
        cellgen_look_again(&looks);
        CELLGEN_UNROLL
        for (int at = 0; at < count; ++at)
            if (from[at] >= 0 && pieces[at].w == CELLGEN_NOT_THERE)
                pieces[at] = cellgen_read_piece(base + from[at]);
    }
}

#endif /* CELLGEN_PERSIST_DEVICE_CUH */
