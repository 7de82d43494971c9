/* Sums of products in layers that stay: each warp has an octet of units and a share of the factors; shares are
 * added up in their order. Part of cellgen_persist.cuh. */
#ifndef CELLGEN_PERSIST_SUMS_CUH
#define CELLGEN_PERSIST_SUMS_CUH

#include "cellgen_persist.cuh"

/* Numbers of all slots, side by side: read and written at once. */
template <int slots> struct alignas(slots % 4 == 0 ? 16 : slots % 2 == 0 ? 8 : 4) cellgen_slots {
    float of[slots];
};

/* Sums of shares in their order: a warp has an octet and a share of the factors, `place` is the row and unit,
 * out of 128, of each of a lane's four numbers. */
template <typename layer, int slots, typename P>
inline __device__ void cellgen_total(
    const layer &my, const cellgen_tile &tile, const float (&own)[slots][4], float (&sums)[slots], const P &place)
{
    const int shares = (int)blockDim.x / 32 / tile.each;
    cellgen_slots<slots> *const partial = (cellgen_slots<slots> *)(void *)my.partial;
    if (my.warp / tile.each < shares)
        CELLGEN_UNROLL
        for (int at = 0; at < 4; ++at) {
            cellgen_slots<slots> to;
            CELLGEN_UNROLL
            for (int slot = 0; slot < slots; ++slot) to.of[slot] = own[slot][at];
            partial[my.warp * CELLGEN_OCTET_THREADS + place(at)] = to;
        }
    __syncthreads(); /* all have read: the next group may come */
    CELLGEN_UNROLL
    for (int slot = 0; slot < slots; ++slot) sums[slot] = 0;
    if (!tile.is_there) return;
    const int octet = (int)threadIdx.x / CELLGEN_OCTET_THREADS, at = (int)threadIdx.x % CELLGEN_OCTET_THREADS;
    CELLGEN_UNROLL_4
    for (int one = 0; one < shares; ++one) {
        const cellgen_slots<slots> from = partial[(one * tile.each + octet) * CELLGEN_OCTET_THREADS + at];
        CELLGEN_UNROLL
        for (int slot = 0; slot < slots; ++slot) sums[slot] += from.of[slot];
    }
}

/* The row and unit of a lane's numbers, as matrix units leave them. */
struct cellgen_place_of_fragment {
    int lane;
    inline __device__ int operator()(int at) const
    {
        return ((lane >> 2) + at / 2 * 8) * CELLGEN_OCTET + 2 * (lane & 3) + at % 2;
    }
};

/* What a lane has of a product: four sums a slot, of rows and units that follow from how it is multiplied. */
template <int slots> struct cellgen_lane_sums {
    float own[slots][4];

    inline __device__ cellgen_lane_sums()
    {
        CELLGEN_UNROLL
        for (int slot = 0; slot < slots; ++slot)
            for (int at = 0; at < 4; ++at) own[slot][at] = 0;
    }
};

/* An octet of units and a share of the factors, a warp's own. */
struct cellgen_share {
    int octet, share, shares;
    bool is_there;

    inline __device__ cellgen_share(int warp, const cellgen_tile &tile)
        : octet(warp % tile.each), share(warp / tile.each), shares((int)blockDim.x / 32 / tile.each),
          is_there(octet < tile.here && share < shares)
    {
    }
    /* Where a share of so many pieces begins, and where it ends. */
    inline __device__ int begin(int pieces) const { return pieces * share / shares; }
    inline __device__ int end(int pieces) const { return pieces * (share + 1) / shares; }
};

/* Sums of a product for a unit of a row: of 2-byte elements those that a lane has of a warp's share. */
template <typename E, int products, int slots> struct cellgen_sums : cellgen_lane_sums<slots> {
    /* Add the factors of one channel: a warp has an octet and a share of the factors. */
    template <typename layer>
    inline __device__ void add(const layer &my, const cellgen_channel<E> &from, const E *held, const cellgen_tile &tile)
    {
        const cellgen_share mine(my.warp, tile);
        if (!mine.is_there) return;
        const int blocks = from.factors / CELLGEN_FACTORS, end = mine.end(blocks);
        const uint4 *const rows = my.rows(from);
        for (int block = mine.begin(blocks); block < end; ++block) {
            const int at = block * 64 + (((my.lane >> 2) ^ (block & 1)) << 2) + (my.lane & 3);
            const uint4 low = rows[at], high = rows[at + 32];
            const uint4 *const weights =
                (const uint4 *)(const void *)held + (mine.octet * blocks + block) * slots * 32 + my.lane;
            CELLGEN_UNROLL
            for (int slot = 0; slot < slots; ++slot)
                cellgen_multiply<E>(this->own[slot], low, high, weights[slot * 32]);
        }
    }

    /* The sums of a thread's unit and row, shares added up in their order. */
    template <typename layer>
    inline __device__ void total(const layer &my, const cellgen_tile &tile, float (&sums)[slots]) const
    {
        cellgen_total(my, tile, this->own, sums, cellgen_place_of_fragment{my.lane});
    }
};

/* Of float on matrix units, as of 2-byte elements: a lane splits what it multiplies. */
template <int products, int slots> struct cellgen_sums<float, products, slots> : cellgen_lane_sums<slots> {
    typedef cellgen_fragments<products> fragments;

    template <typename layer>
    inline __device__ void add(
        const layer &my, const cellgen_channel<float> &from, const uint4 *held, const cellgen_tile &tile)
    {
        const cellgen_share mine(my.warp, tile);
        if (!mine.is_there) return;
        enum { of_block = slots * fragments::pieces * 32 };
        const int blocks = from.factors / CELLGEN_FACTORS, begin = mine.begin(blocks);
        const int further = cellgen_staged<float>::at(CELLGEN_OCTET, 0, from.factors);
        const uint4 *rows = my.rows(from) + cellgen_staged<float>::at(my.lane >> 2, (my.lane & 3) * 2, from.factors);
        const uint4 *const end = rows + mine.end(blocks) * 8;
        const uint4 *weights = held + (mine.octet * blocks + begin) * of_block + my.lane;
        CELLGEN_NO_UNROLL
        for (rows += begin * 8; rows < end; rows += 8, weights += of_block) {
            CELLGEN_UNROLL
            for (int turn = 0; turn < fragments::pieces; turn += fragments::at_once) {
                uint4 low[fragments::at_once], high[fragments::at_once];
                fragments::take(rows, turn, low);
                fragments::take(rows + further, turn, high);
                CELLGEN_UNROLL
                for (int slot = 0; slot < slots; ++slot) {
                    uint4 w[fragments::at_once];
                    CELLGEN_UNROLL
                    for (int i = 0; i < fragments::at_once; ++i)
                        w[i] = weights[(slot * fragments::pieces + turn + i) * 32];
                    fragments::add(this->own[slot], low, high, w);
                }
            }
        }
    }

    template <typename layer>
    inline __device__ void total(const layer &my, const cellgen_tile &tile, float (&sums)[slots]) const
    {
        cellgen_total(my, tile, this->own, sums, cellgen_place_of_fragment{my.lane});
    }
};

/* Of float by multiply-adds, a lane has a unit and four rows of a warp's share. */
template <int slots> struct cellgen_sums<float, CELLGEN_FMA, slots> : cellgen_lane_sums<slots> {
    template <typename layer>
    inline __device__ void add(
        const layer &my, const cellgen_channel<float> &from, const float *held, const cellgen_tile &tile)
    {
        const cellgen_share mine(my.warp, tile);
        if (!mine.is_there) return;
        const int pieces = from.factors / 4, begin = mine.begin(pieces), end = mine.end(pieces);
        const uint4 *rows[4];
        CELLGEN_UNROLL
        for (int at = 0; at < 4; ++at)
            rows[at] = my.rows(from) + cellgen_staged<float>::at((my.lane >> 3) + at * 4, 0, from.factors);
        const cellgen_slots<slots> *weights = (const cellgen_slots<slots> *)(const void *)held
            + ((int64_t)mine.octet * from.factors + begin * 4) * CELLGEN_OCTET + (my.lane & 7);
        CELLGEN_NO_UNROLL
        for (int piece = begin; piece < end; ++piece) {
            float x[4][4];
            CELLGEN_UNROLL
            for (int at = 0; at < 4; ++at) {
                const uint4 bits = rows[at][piece];
                memcpy(x[at], &bits, sizeof bits);
            }
            CELLGEN_UNROLL
            for (int k = 0; k < 4; ++k, weights += CELLGEN_OCTET) {
                const cellgen_slots<slots> w = *weights;
                CELLGEN_UNROLL
                for (int slot = 0; slot < slots; ++slot)
                    CELLGEN_UNROLL
                    for (int at = 0; at < 4; ++at) this->own[slot][at] = fmaf(x[at][k], w.of[slot], this->own[slot][at]);
            }
        }
    }

    template <typename layer>
    inline __device__ void total(const layer &my, const cellgen_tile &tile, float (&sums)[slots]) const
    {
        cellgen_total(my, tile, this->own, sums, [&](int at) {
            return ((my.lane >> 3) + at * 4) * CELLGEN_OCTET + (my.lane & 7);
        });
    }
};

#endif /* CELLGEN_PERSIST_SUMS_CUH */
