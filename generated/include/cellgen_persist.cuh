/* Layers that stay on a device: kernels whose blocks share the units of a layer and take rows through
 * all steps together, the recurrent weights in shared memory.
 *
 * A block has octets of units (8) with all slots of them, a thread one unit of one row out of 16, a
 * group. What a unit's equations read of that unit is the thread's own; what products read of all units
 * goes through a channel: each octet of a row is published as pieces of 16 bytes and received by every
 * block. Blocks of several sets have groups of rows of their own.
 *     over the device    pieces lie in memory, one place for each step, and say themselves that they are
 *                        there (cellgen_persist_device.cuh)
 *     in a cluster       pieces go into the shared memory of each block, in two buffers by turns: who
 *                        sends for step n + 2 has received step n + 1 of every warp, which published that
 *                        after a barrier behind its reading of step n: what is published
 *                        a step ahead is published behind the last product that reads it
 * Products of 2-byte elements run on matrix units (m16n8k16, sums in float): factors come in blocks of 32,
 * ordered so that lane (g, t) has 8 neighbours of row g, 16 bytes as they lie in a row; the order of
 * factors in a sum is fixed, whatever arrives first. Products of float are fused multiply-adds in
 * ascending order of a thread's share of the factors, or on matrix units where CELLGEN_PRODUCTS names it
 * (cellgen_persist_products.cuh); shares are added up in order.
 * Sums over units go through memory in either way: each octet tells its part, every thread adds up all parts.
 * What no step writes is read a step before it is needed, while blocks wait for each other. */
#ifndef CELLGEN_PERSIST_CUH
#define CELLGEN_PERSIST_CUH

#include "cellgen_cuda_blocks.cuh"
#include "cellgen_cuda_options.cuh"
#include "cellgen_persist_device.cuh"
#include "cellgen_persist_products.cuh"

/* What no device has timed yet; CELLGEN_CUDA_TRY takes it (nvcc.py), and without it code is as if it were not here. */
#if defined(CELLGEN_TRY_ENDS) /* a group without a valid row receives and multiplies nothing */
#define CELLGEN_WORKS(my, ...) (my).works(__VA_ARGS__)
#else
#define CELLGEN_WORKS(...) true
#endif
#if !defined(CELLGEN_TRY_PREFETCH) /* what a step reads is brought into the second cache some steps ahead */
#define CELLGEN_TRY_PREFETCH 0
#endif
#if !defined(CELLGEN_TRY_WIDE) /* a thread receives twice as many pieces at once */
#define CELLGEN_TRY_WIDE 0
#endif
enum { CELLGEN_STEPS_AHEAD = 4 };

enum { CELLGEN_GROUP = 16, CELLGEN_OCTET = 8, CELLGEN_FACTORS = 32, CELLGEN_OCTET_THREADS = 128 };
enum { CELLGEN_MOST_OCTETS = 4 }; /* of a block: its threads then have 128 registers each; of 3 octets 168, of 2 255 */
#define CELLGEN_TOGETHER_BOUNDS(octets) __launch_bounds__((octets) * CELLGEN_OCTET_THREADS, 1)

/* How a kernel is there: blocks of a layer, heads, sets of blocks that have rows of their own, threads,
 * bytes of shared memory, blocks of a cluster (1: over the device), how float is multiplied. */
struct cellgen_together {
    int blocks, heads, sets, threads, shared, cluster, products;
};

inline __host__ __device__ int cellgen_octets(int64_t units)
{
    return (int)((units + CELLGEN_OCTET - 1) / CELLGEN_OCTET);
}

/* Octets of units that a block has. */
inline __host__ __device__ int cellgen_octets_each(int64_t units, int blocks)
{
    return (cellgen_octets(units) + blocks - 1) / blocks;
}

/* Whether every block has octets of a width. In a cluster all must: one that publishes nothing would not
 * hold back the others, which could be steps ahead of it. */
inline __host__ __device__ bool cellgen_all_have(int64_t units, int blocks)
{
    return (blocks - 1) * cellgen_octets_each(units, blocks) < cellgen_octets(units);
}

/* Factors of an operand, in whole blocks of products. */
inline __host__ __device__ int cellgen_factors(int64_t units)
{
    return (int)cellgen_whole(units, CELLGEN_FACTORS);
}

/* The rows of a group in shared memory, in pieces of 16 bytes: by element type. */
template <typename E> struct cellgen_staged { /* in the order of fragments, without bank conflicts */
    enum { of_octet = 1 };                    /* pieces */
    static inline __host__ __device__ int pieces(int factors) { return factors * 2; }
    static inline __device__ int at(int row, int piece, int)
    {
        const int block = piece >> 2;
        return (block * 2 + (row >> 3)) * 32 + (((row & 7) ^ (block & 1)) << 2) + (piece & 3);
    }
};
template <> struct cellgen_staged<float> { /* row after row, 16 bytes apart for the banks */
    enum { of_octet = 2 };
    static inline __host__ __device__ int pieces(int factors) { return CELLGEN_GROUP * (factors / 4 + 1); }
    static inline __device__ int at(int row, int piece, int factors)
    {
        return row * (factors / 4 + 1) + piece;
    }
};

/* Bytes of shared memory: of a channel's buffer, of the weights of a product of one channel, of its
 * partial sums; of what waits to be published. */
template <typename E> inline __host__ __device__ int64_t cellgen_channel_bytes(int64_t units)
{
    return (int64_t)cellgen_staged<E>::pieces(cellgen_factors(units)) * 16;
}
template <typename E>
inline __host__ __device__ int64_t cellgen_weight_bytes(
    int products, int slots, int64_t units, int blocks, int64_t inner)
{
    return (int64_t)cellgen_octets_each(units, blocks) * CELLGEN_OCTET * slots * cellgen_factors(inner)
        * cellgen_held_bytes<E>(products);
}
inline __host__ __device__ int64_t cellgen_partial_bytes(int slots, int64_t threads)
{
    return threads / 32 * CELLGEN_OCTET_THREADS * slots * 4;
}
inline __host__ __device__ int64_t cellgen_in_lines(int64_t bytes) { return (bytes + 127) / 128 * 128; }
template <typename E> inline __host__ __device__ int64_t cellgen_layer_bytes(int slots, int64_t threads)
{
    return cellgen_in_lines(cellgen_partial_bytes(slots, threads))
        + cellgen_in_lines(threads * (int64_t)sizeof(E)) + 128; /* and to begin a line */
}

/* The unit and the row of a group that a thread has of a width. */
struct cellgen_tile {
    int each, here;     /* octets of every block, of this one */
    int octet, row;     /* of the layer, of a group */
    int64_t unit, last; /* beyond the last unit: the last one, which may be read */
    bool is_there, owns;

    /* Whether a thread is the one that stores what all threads of its row have. */
    inline __device__ bool is_first(int rows) const { return owns && unit == 0 && row < rows; }
};

/* What goes from each block to all of them, step by step. */
template <typename E> struct cellgen_channel {
    E *sent;            /* [step][head][group][16][factors] */
    uint4 *buffer;
    uint32_t barriers;
    int octets, factors, received, published;
};

/* The sum of what eight neighbours have; all of them get the same bits. */
inline __device__ float cellgen_sum_of_octet(float x)
{
    CELLGEN_UNROLL
    for (int apart = 1; apart < CELLGEN_OCTET; apart *= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

/* Parts of sums over units, of each octet for each row: up to four numbers, a piece of 16 bytes. */
struct cellgen_told {
    float *sent; /* [step][group][16][octets][4] */
    int octets;
};

template <typename E, bool in_cluster, int products> struct cellgen_layer {
    typedef cellgen_staged<E> staged;
    int blocks, rank, heads, head, set, groups, warp, lane;
    unsigned char *free;
    float *partial;
    E *waiting;

    /* Takes shared memory; `slots` is the largest number of sums that a product has. */
    inline __device__ cellgen_layer(const cellgen_together &how, int64_t rows, int slots, unsigned char *shared)
        : blocks(how.blocks), rank((int)blockIdx.x), heads(how.heads), head((int)blockIdx.y),
          set((int)blockIdx.z), groups((int)((rows + CELLGEN_GROUP - 1) / CELLGEN_GROUP)), warp((int)threadIdx.x / 32),
          lane((int)threadIdx.x % 32), free(shared)
    {
        free += -(uintptr_t)free % 128;
        partial = (float *)(void *)take(cellgen_partial_bytes(slots, how.threads));
        waiting = (E *)(void *)take((int64_t)how.threads * (int64_t)sizeof(E));
    }

    inline __device__ unsigned char *take(int64_t bytes)
    {
        unsigned char *const own = free;
        free += cellgen_in_lines(bytes);
        return own;
    }

    inline __device__ cellgen_tile tile(int64_t units) const
    {
        cellgen_tile own;
        const int octets = cellgen_octets(units), at = (int)threadIdx.x / CELLGEN_OCTET_THREADS;
        own.each = cellgen_octets_each(units, blocks);
        const int first = rank * own.each, rest = octets - first;
        own.here = rest < 0 ? 0 : rest < own.each ? rest : own.each;
        own.is_there = at < own.here;
        own.octet = first + (own.is_there ? at : 0); /* others help: what they read, the first octet reads too */
        own.row = (int)threadIdx.x % CELLGEN_OCTET_THREADS / CELLGEN_OCTET;
        own.unit = (int64_t)own.octet * CELLGEN_OCTET + threadIdx.x % CELLGEN_OCTET;
        own.owns = own.is_there && own.unit < units;
        own.last = own.unit < units ? own.unit : units - 1;
        return own;
    }

    inline __device__ cellgen_channel<E> channel(E *sent, int64_t units)
    {
        cellgen_channel<E> own;
        own.sent = sent;
        own.octets = cellgen_octets(units), own.factors = cellgen_factors(units);
        own.received = own.published = 0;
        const int pieces = staged::pieces(own.factors) * (in_cluster ? 2 : 1);
        own.buffer = (uint4 *)(void *)take((int64_t)pieces * 16);
        for (int at = (int)threadIdx.x; at < pieces; at += (int)blockDim.x) own.buffer[at] = uint4{0, 0, 0, 0};
        own.barriers = 0;
        if (in_cluster) {
            own.barriers = cellgen_shared_address(take(16));
            if (threadIdx.x == 0) {
                cellgen_make_mbarrier(own.barriers), cellgen_make_mbarrier(own.barriers + 8);
                cellgen_arm(own.barriers, bytes(own)), cellgen_arm(own.barriers + 8, bytes(own));
            }
        }
        return own;
    }

    /* All that comes through a channel in a step. */
    static inline __device__ uint32_t bytes(const cellgen_channel<E> &from)
    {
        return (uint32_t)from.octets * CELLGEN_OCTET * CELLGEN_GROUP * (uint32_t)sizeof(E);
    }

    /* Put weights of a product into shared memory, those of the factors of one channel: of 2-byte
     * elements [octet][32 factors][slot][lane][8], of float [octet][factor][unit][slot]; where matrix units
     * multiply float [octet][32 factors][slot][piece][lane]. */
    inline __device__ auto hold(
        cellgen_panel<E> panel, int slots, int64_t units, int64_t first, int64_t inner)
    {
        if constexpr (products == CELLGEN_FMA) return hold_numbers(panel, slots, units, first, inner);
        else return hold_fragments(panel, slots, units, first, inner);
    }
    inline __device__ const uint4 *hold_fragments(
        cellgen_panel<E> panel, int slots, int64_t units, int64_t first, int64_t inner)
    {
        typedef cellgen_fragments<products> fragments;
        const int each = cellgen_octets_each(units, blocks), wide = cellgen_factors(inner) / CELLGEN_FACTORS;
        uint4 *const held =
            (uint4 *)(void *)take(cellgen_weight_bytes<E>(products, slots, units, blocks, inner));
        for (int at = (int)threadIdx.x; at < each * wide * slots * 32; at += (int)blockDim.x) {
            const int own = at % 32, slot = at / 32 % slots, block = at / 32 / slots;
            const int unit = (rank * each + block / wide) * CELLGEN_OCTET + own / 4;
            const int k = block % wide * CELLGEN_FACTORS + own % 4 * 8;
            float x[8];
            uint4 pieces[fragments::pieces];
            CELLGEN_UNROLL
            for (int i = 0; i < 8; ++i) {
                x[i] = 0;
                if (k + i < inner && unit < units)
                    x[i] = panel.at[(first + k + i) * panel.by_k + slot * panel.by_slot + unit * panel.by_unit];
            }
            fragments::split(x, pieces);
            CELLGEN_UNROLL
            for (int i = 0; i < fragments::pieces; ++i)
                held[(at / 32 * fragments::pieces + i) * 32 + own] = pieces[i];
        }
        return held;
    }
    inline __device__ const E *hold_numbers(
        cellgen_panel<E> panel, int slots, int64_t units, int64_t first, int64_t inner)
    {
        const cellgen_tile own = tile(units);
        const int factors = cellgen_factors(inner);
        E *const held = (E *)(void *)take(cellgen_weight_bytes<E>(products, slots, units, blocks, inner));
        enum { at_once = sizeof(E) == 2 ? 8 : 4 }; /* 16 bytes */
        const int all = own.each * CELLGEN_OCTET * slots * factors / at_once;
        for (int piece = (int)threadIdx.x; piece < all; piece += (int)blockDim.x) {
            E loaded[at_once];
            CELLGEN_UNROLL
            for (int i = 0; i < at_once; ++i) {
                const int at = piece * at_once + i;
                int k, slot, unit;
                if (sizeof(E) == 2) {
                    const int of = at / 256, block = of / slots;
                    k = block % (factors / CELLGEN_FACTORS) * CELLGEN_FACTORS + at % 32;
                    slot = of % slots;
                    unit = block / (factors / CELLGEN_FACTORS) * CELLGEN_OCTET + at % 256 / 32;
                } else {
                    slot = at % slots, unit = at / slots % CELLGEN_OCTET;
                    k = at / slots / CELLGEN_OCTET % factors;
                    unit += at / slots / CELLGEN_OCTET / factors * CELLGEN_OCTET;
                }
                unit += rank * own.each * CELLGEN_OCTET;
                cellgen_put(loaded + i, 0.0f);
                if (k < inner && unit < units)
                    loaded[i] = panel.at[(first + k) * panel.by_k + slot * panel.by_slot + unit * panel.by_unit];
            }
            memcpy(held + (int64_t)piece * at_once, loaded, sizeof loaded);
        }
        return held;
    }

    /* Where a group of a step lies in a channel. */
    inline __device__ E *place(const cellgen_channel<E> &from, int64_t step, int group) const
    {
        return from.sent + ((step * heads + head) * groups + group) * CELLGEN_GROUP * from.factors;
    }

    /* Whether a row of a group is valid at a step; `validity` is that of the group, NULL where all are. Where none
     * is, sums change nothing that is kept. In a cluster each block is held back by what it receives. */
    inline __device__ bool works(const unsigned char *validity, int rows) const
    {
        if (in_cluster || !validity) return true;
        int valid = lane < rows && validity[lane] == CELLGEN_VALID;
        for (int half = 16; half > 0; half /= 2) valid |= __shfl_xor_sync(0xffffffffu, valid, half);
        return valid != 0;
    }

    /* Bring the places of a group into the second cache, some lines by each block. */
    inline __device__ void bring(const cellgen_channel<E> &from, int64_t step, int group) const
    {
        if (in_cluster) return;
        const int lines = CELLGEN_GROUP * from.factors * (int)sizeof(E) / 128;
        const char *const base = (const char *)(const void *)place(from, step, group);
        for (int line = rank + (int)threadIdx.x * blocks; line < lines; line += blocks * (int)blockDim.x)
            cellgen_prefetch(base + (int64_t)line * 128);
    }

    /* Bring what all blocks have published of a group into shared memory: by the warps that have no
     * units, if there are such, while the others still store and read. Where `teams` channels are received at
     * once, warps share them: it is the wait of one. */
    inline __device__ void receive(
        cellgen_channel<E> &from, int64_t step, int group, const cellgen_tile &own, int number, int teams)
    {
        if (in_cluster) {
            const uint32_t barrier = from.barriers + (from.received & 1) * 8;
            cellgen_wait_for(barrier, from.received >> 1 & 1);
            if (threadIdx.x == 0) cellgen_arm(barrier, bytes(from));
            ++from.received;
            return;
        }
        enum { at_once = CELLGEN_TRY_WIDE ? 8 : 4 };
        const int all = (int)blockDim.x / 32, of_units = own.each * CELLGEN_OCTET_THREADS / 32;
        const int before = all > of_units ? of_units : 0, receiving = all - before, mine = warp - before;
        if (teams > receiving) teams = receiving;
        const int team = number % teams, warps = (receiving - team + teams - 1) / teams;
        if (mine < 0 || mine % teams != team) return;
        const int pieces = from.octets * staged::of_octet;
        const uint4 *const base = (const uint4 *)(const void *)place(from, step, group);
        const int apart = from.factors * (int)sizeof(E) / 16;
        for (int row = mine / teams, piece = lane; row < CELLGEN_GROUP;) {
            int at[at_once], to[at_once];
            uint4 own[at_once];
            CELLGEN_UNROLL
            for (int i = 0; i < at_once; ++i) {
                at[i] = row < CELLGEN_GROUP && piece < pieces ? row * apart + piece : -1;
                to[i] = staged::at(row, piece, from.factors);
                piece += 32;
                if (piece >= pieces) piece = lane, row += warps;
            }
            cellgen_await<at_once>(own, base, at);
            CELLGEN_UNROLL
            for (int i = 0; i < at_once; ++i)
                if (at[i] >= 0) from.buffer[to[i]] = own[i];
        }
    }

    /* The rows of a channel that were received last. */
    inline __device__ const uint4 *rows(const cellgen_channel<E> &from) const
    {
        const int turn = in_cluster ? (from.received - 1) & 1 : 0;
        return from.buffer + turn * staged::pieces(from.factors);
    }

    /* Publish a number of each thread of a tile, of every row of a group, there or not. */
    template <typename R>
    inline __device__ void publish(
        cellgen_channel<E> &to, int64_t step, int group, const cellgen_tile &own, R x)
    {
        const int turn = to.published & 1;
        ++to.published;
        if (!own.is_there) return;
        enum { of_warp = 32 * sizeof(E) / 16, of_octet = staged::of_octet };
        cellgen_put(waiting + threadIdx.x, cellgen_sent(x));
        __syncwarp();
        const int mine = lane % of_warp, row = own.row / 4 * 4 + mine / of_octet;
        const int piece = own.octet * of_octet + mine % of_octet;
        const uint4 value = ((const uint4 *)(const void *)(waiting + warp * 32))[mine];
        if (in_cluster) {
            const uint4 *const at = to.buffer + turn * staged::pieces(to.factors)
                + staged::at(row, piece, to.factors);
            for (int block = lane / of_warp; block < blocks; block += 32 / of_warp)
                cellgen_send_to((unsigned)block, cellgen_shared_address(at), to.barriers + turn * 8, value);
        } else if (lane < of_warp) {
            E *const at = place(to, step, group) + row * to.factors;
            cellgen_send_piece((uint4 *)(void *)at + piece, value);
        }
        __syncwarp();
    }

    static inline __device__ cellgen_told told(float *sent, int64_t units)
    {
        return {sent, cellgen_octets(units)};
    }

    /* The pieces of a row of a group in a step. */
    inline __device__ uint4 *pieces_of(const cellgen_told &of, int64_t step, int group, int row) const
    {
        return (uint4 *)(void *)of.sent + ((step * groups + group) * CELLGEN_GROUP + row) * of.octets;
    }

    /* Tell the sums of an octet's numbers, of every row of a group, there or not: over the device, in a cluster
     * too. All eight threads have them; each adds in an order that follows from the units alone. */
    template <int count>
    inline __device__ void tell(
        const cellgen_told &to, int64_t step, int group, const cellgen_tile &own, const float (&terms)[count]) const
    {
        if (!own.is_there) return;
        float sums[4] = {0, 0, 0, 0};
        CELLGEN_UNROLL
        for (int i = 0; i < count; ++i) sums[i] = cellgen_sent(cellgen_sum_of_octet(terms[i]));
        if (lane % CELLGEN_OCTET) return;
        uint4 piece;
        memcpy(&piece, sums, sizeof piece);
        cellgen_send_piece(pieces_of(to, step, group, own.row) + own.octet, piece);
    }

    /* Sums over all units of a thread's row: its eight threads take octets by turns. `works` as of a product. */
    template <int count>
    inline __device__ void add_up(
        const cellgen_told &from, int64_t step, int group, const cellgen_tile &own, bool works,
        float (&sums)[count]) const
    {
        enum { at_once = 4 };
        CELLGEN_UNROLL
        for (int i = 0; i < count; ++i) sums[i] = 0;
        if (!own.is_there || !works) return;
        const uint4 *const base = pieces_of(from, step, group, own.row);
        for (int octet = lane % CELLGEN_OCTET; octet < from.octets; octet += CELLGEN_OCTET * at_once) {
            int at[at_once];
            uint4 pieces[at_once];
            CELLGEN_UNROLL
            for (int i = 0; i < at_once; ++i)
                at[i] = octet + i * CELLGEN_OCTET < from.octets ? octet + i * CELLGEN_OCTET : -1;
            cellgen_await<at_once>(pieces, base, at);
            CELLGEN_UNROLL
            for (int one = 0; one < at_once; ++one) {
                float parts[4];
                memcpy(parts, pieces + one, sizeof parts);
                CELLGEN_UNROLL
                for (int i = 0; i < count; ++i)
                    if (at[one] >= 0) sums[i] += parts[i];
            }
        }
        __syncwarp();
        CELLGEN_UNROLL
        for (int i = 0; i < count; ++i) sums[i] = cellgen_sum_of_octet(sums[i]);
    }

    /* Everything is ready, in this block and in all of its cluster. */
    inline __device__ void meet() const
    {
        if (in_cluster) cellgen_cluster_barrier();
        else __syncthreads();
    }
};

/* Bring a number of an octet of units into the second cache, where it is there. */
template <typename E> inline __device__ void cellgen_bring(cellgen_rows<E> rows, int64_t row, int64_t unit)
{
    if (rows.at && unit % CELLGEN_OCTET == 0) cellgen_prefetch(rows.at + row * rows.stride + unit);
}

#include "cellgen_persist_sums.cuh"

#endif /* CELLGEN_PERSIST_CUH */
