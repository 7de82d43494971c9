/* Kernels in which a block takes some rows through all steps: how its threads share the work.
 *
 * A kernel is a template over one of two ways:
 *     cellgen_by_thread     a thread forms all sums of one unit of a row, the contracted index
 *                           ascending as in products step by step: equal bits
 *     cellgen_by_fragment   a warp forms the sums of 8 units of 8 rows with the matrix units
 *                           (mma.sync m16n8k16): factors of 16 bits, sums in float
 * In both, the thread that forms the sums of a unit of a row also does what follows for it, so that no
 * barrier is needed between. Shapes of matrices need not be multiples of anything: what is beyond them
 * counts as zero.
 *
 * Fragments, per lane as PTX has them for m16n8k16, with g = lane / 4 and t = lane % 4:
 *     a (16 x 16, weights)   a0 = [g][2t, 2t+1]   a1 = [g+8][2t, 2t+1]   a2, a3: columns 8 further
 *     b (16 x 8, operand)    b0 = [2t, 2t+1][g]   b1 = [2t+8, 2t+9][g]
 *     c (16 x 8, sums)       c0, c1 = [g][2t, 2t+1]   c2, c3 = [g+8][2t, 2t+1]
 * Weights are the left factor, so that a lane ends up with all sums of its unit: rows 0 to 7 of `a` are
 * one slot of 8 units, rows 8 to 15 the next slot of the same units, columns of `b` and `c` are rows
 * of the batch. */
#ifndef CELLGEN_CUDA_BLOCKS_CUH
#define CELLGEN_CUDA_BLOCKS_CUH

#include "cellgen_cuda.cuh"

/* What the next step would read from memory. */
template <typename E, typename R> inline __device__ R cg_as_stored(R x)
{
    E stored;
    cellgen_put(&stored, x);
    return cellgen_widen(stored);
}

/* Weights of a product: those of (k, slot, unit) lie so many elements from the first. */
template <typename E> struct cellgen_panel {
    const E *at;
    int64_t by_k, by_slot, by_unit;
};

/* Out of [k][slot][unit], or [slot][unit][k] if transposed. */
template <typename E>
inline __device__ cellgen_panel<E> cg_panel(cellgen_rows<const E> weights, int transposed, int64_t units)
{
    if (transposed) return {weights.at, 1, units * weights.stride, weights.stride};
    return {weights.at, weights.stride, units, 1};
}

/* One head, out of [slot][head][k][unit], or [slot][head][unit][k] if transposed. */
template <typename E>
inline __device__ cellgen_panel<E> cg_panel_of_head(
    const E *weights, int transposed, int64_t heads, int64_t head, int64_t inner, int64_t units)
{
    const E *const own = weights + head * inner * units;
    if (transposed) return {own, 1, heads * inner * units, inner};
    return {own, units, heads * inner * units, 1};
}

/* --------------------------------------------------------------------------- thread by thread */

struct cellgen_by_thread {
    /* Elements of shared memory in which the weights of a product are resident. */
    static inline __host__ __device__ int64_t resident(int64_t slots, int64_t units, int64_t inner)
    {
        return slots * units * inner;
    }

    /* Put weights into shared memory: [k][slot][unit]. */
    template <typename E>
    static inline __device__ void hold(
        cellgen_panel<E> panel, int64_t slots, int64_t units, int64_t inner, E *shared)
    {
        for (int64_t at = threadIdx.x; at < inner * slots * units; at += blockDim.x) {
            const int64_t k = at / (slots * units), slot = at / units % slots, unit = at % units;
            shared[at] = panel.at[k * panel.by_k + slot * panel.by_slot + unit * panel.by_unit];
        }
    }

    /* The rows and units of a thread, one after the other. */
    struct walk {
        int64_t rows, units, at, row, unit;

        inline __device__ walk(int64_t rows_, int64_t units_)
            : rows(rows_), units(units_), at(threadIdx.x), row(0), unit(0)
        {
        }
        inline __device__ bool more()
        {
            if (at >= rows * units) return false;
            row = at / units, unit = at % units;
            return true;
        }
        inline __device__ void next() { at += blockDim.x; }
    };

    /* sums[row][slot * apart + unit] (+)= operand[row] . weights[][slot][unit] */
    template <int slots, typename E, typename C>
    static inline __device__ void product(
        int64_t top, int64_t rows, int64_t units, int64_t inner, cellgen_rows<const E> operand,
        const E *weights, cellgen_rows<C> sums, int64_t apart, int onto)
    {
        typedef decltype(cellgen_widen(E())) R;
        enum { ahead = slots <= 4 ? 8 : 4 }; /* factors of so many, in registers */
        for (walk my(rows, units); my.more(); my.next()) {
            const int64_t row = top + my.row, unit = my.unit;
            R sum[slots];
            for (int slot = 0; slot < slots; ++slot) sum[slot] = 0;
            const E *weight = weights + unit;
            int64_t k = 0;
            for (; k + ahead <= inner; k += ahead) { /* loads first, which wait for no sum */
                R x[ahead], w[ahead][slots];
                CELLGEN_UNROLL
                for (int at = 0; at < ahead; ++at) {
                    x[at] = cg_load(operand, row, k + at);
                    CELLGEN_UNROLL
                    for (int slot = 0; slot < slots; ++slot, weight += units)
                        w[at][slot] = cellgen_widen(*weight);
                }
                CELLGEN_UNROLL
                for (int at = 0; at < ahead; ++at)
                    CELLGEN_UNROLL
                    for (int slot = 0; slot < slots; ++slot) sum[slot] += x[at] * w[at][slot];
            }
            for (; k < inner; ++k) {
                const R x = cg_load(operand, row, k);
                for (int slot = 0; slot < slots; ++slot, weight += units)
                    sum[slot] += x * cellgen_widen(*weight);
            }
            for (int slot = 0; slot < slots; ++slot) {
                const int64_t column = slot * apart + unit;
                cg_store(sums, row, column, onto ? cg_load(sums, row, column) + sum[slot] : sum[slot]);
            }
        }
    }
};

/* -------------------------------------------------------------------------- with matrix units */

enum { CELLGEN_FRAGMENT_UNITS = 8, CELLGEN_FRAGMENT_ROWS = 8, CELLGEN_FRAGMENT_INNER = 16 };

/* Two neighbours of a row, the first in the lower half; zero beyond `inner` and for rows that are
 * not there. */
template <typename E>
inline __device__ uint32_t cellgen_two(
    cellgen_rows<const E> from, int64_t row, int64_t k, int64_t inner, bool is_row)
{
    if (!is_row || k >= inner) return 0;
    const uint16_t *const at = (const uint16_t *)(const void *)(from.at + (row * from.stride + k));
    if (k + 1 == inner) return at[0];
    if ((uintptr_t)at % 4 == 0) return *(const uint32_t *)(const void *)at;
    return (uint32_t)at[1] << 16 | at[0];
}

struct cellgen_by_fragment {
    static inline __host__ __device__ int64_t resident(int64_t slots, int64_t units, int64_t inner)
    {
        return slots * cellgen_whole(units, CELLGEN_FRAGMENT_UNITS)
            * cellgen_whole(inner, CELLGEN_FRAGMENT_INNER);
    }

    /* Put weights into shared memory: [8 units][16 k][slot][lane][4], where a lane's four are those of
     * its unit at k = 2t, 2t+1, 2t+8, 2t+9. */
    template <typename E>
    static inline __device__ void hold(
        cellgen_panel<E> panel, int64_t slots, int64_t units, int64_t inner, E *shared)
    {
        const int64_t k_tiles = cellgen_whole(inner, CELLGEN_FRAGMENT_INNER) / CELLGEN_FRAGMENT_INNER;
        for (int64_t at = threadIdx.x; at < resident(slots, units, inner); at += blockDim.x) {
            const int64_t lane = at / 4 % 32, slot = at / 128 % slots, tile = at / 128 / slots;
            const int64_t unit = tile / k_tiles * CELLGEN_FRAGMENT_UNITS + lane / 4;
            const int64_t k = tile % k_tiles * CELLGEN_FRAGMENT_INNER + lane % 4 * 2 + at % 2
                + at % 4 / 2 * 8;
            const bool is_there = unit < units && k < inner;
            if (is_there)
                shared[at] = panel.at[k * panel.by_k + slot * panel.by_slot + unit * panel.by_unit];
            else
                cellgen_put(shared + at, 0.0f);
        }
    }

    /* Tiles of 8 rows and 8 units, a warp's one after the other. */
    struct tiles {
        int64_t groups, count;

        inline __device__ tiles(int64_t rows, int64_t units)
            : groups(cellgen_whole(units, CELLGEN_FRAGMENT_UNITS) / CELLGEN_FRAGMENT_UNITS),
              count(groups * (cellgen_whole(rows, CELLGEN_FRAGMENT_ROWS) / CELLGEN_FRAGMENT_ROWS))
        {
        }
        inline __device__ int64_t first() const { return threadIdx.x / 32; }
        inline __device__ int64_t apart() const { return blockDim.x / 32; }
        inline __device__ int64_t unit(int64_t tile) const
        {
            return tile % groups * CELLGEN_FRAGMENT_UNITS + threadIdx.x % 32 / 4;
        }
        /* The first of two rows whose sums a lane gets. */
        inline __device__ int64_t row(int64_t tile) const
        {
            return tile / groups * CELLGEN_FRAGMENT_ROWS + threadIdx.x % 4 * 2;
        }
    };

    /* The rows and units whose sums a thread gets, one after the other. */
    struct walk {
        tiles mine;
        int64_t rows, units, tile, row, unit;
        int second;

        inline __device__ walk(int64_t rows_, int64_t units_)
            : mine(rows_, units_), rows(rows_), units(units_), tile(mine.first()), row(0), unit(0),
              second(0)
        {
        }
        inline __device__ bool more()
        {
            for (; tile < mine.count; next()) {
                row = mine.row(tile) + second, unit = mine.unit(tile);
                if (row < rows && unit < units) return true;
            }
            return false;
        }
        inline __device__ void next()
        {
            if (second) tile += mine.apart();
            second = !second;
        }
    };

    /* Add the products of 16 factors, two slots at once. */
    template <typename E, int slots>
    static inline __device__ void add_tile(
        float (&sum)[(slots + 1) / 2][4], const uint2 *fragments, const uint32_t (&b)[2])
    {
        CELLGEN_UNROLL
        for (int slot = 0; slot < slots; slot += 2) {
            const uint2 low = fragments[slot * 32];
            const uint2 high = slot + 1 < slots ? fragments[(slot + 1) * 32] : uint2{0, 0};
            const uint32_t a[4] = {low.x, high.x, low.y, high.y};
            cellgen_mma<E>(sum[slot / 2], a, b);
        }
    }

    /* sums[row][slot * apart + unit] (+)= operand[row] . weights[][slot][unit] */
    template <int slots, typename E, typename C>
    static inline __device__ void product(
        int64_t top, int64_t rows, int64_t units, int64_t inner, cellgen_rows<const E> operand,
        const E *weights, cellgen_rows<C> sums, int64_t apart, int onto)
    {
        const tiles mine(rows, units);
        const int64_t k_tiles = cellgen_whole(inner, CELLGEN_FRAGMENT_INNER) / CELLGEN_FRAGMENT_INNER;
        const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        for (int64_t tile = mine.first(); tile < mine.count; tile += mine.apart()) {
            const int64_t group = tile % mine.groups;
            const int64_t column = tile / mine.groups * CELLGEN_FRAGMENT_ROWS + g; /* of b */
            const uint2 *const fragments =
                (const uint2 *)(const void *)weights + group * k_tiles * slots * 32 + lane;
            float sum[(slots + 1) / 2][4];
            for (int pair = 0; pair < (slots + 1) / 2; ++pair)
                for (int at = 0; at < 4; ++at) sum[pair][at] = 0;
            __syncwarp();
            const bool is_row = column < rows;
            const E *const factors = operand.at + (top + column) * operand.stride;
            if (inner % CELLGEN_FRAGMENT_INNER == 0 && (uintptr_t)factors % 4 == 0) {
                const uint32_t *const twos = (const uint32_t *)(const void *)factors + t;
                CELLGEN_UNROLL_4
                for (int64_t k_tile = 0; k_tile < k_tiles; ++k_tile) {
                    const uint32_t b[2] = {
                        is_row ? twos[k_tile * (CELLGEN_FRAGMENT_INNER / 2)] : 0,
                        is_row ? twos[k_tile * (CELLGEN_FRAGMENT_INNER / 2) + 4] : 0,
                    };
                    add_tile<E, slots>(sum, fragments + k_tile * slots * 32, b);
                }
            } else {
                for (int64_t k_tile = 0; k_tile < k_tiles; ++k_tile) {
                    const int64_t k = k_tile * CELLGEN_FRAGMENT_INNER + 2 * t;
                    const uint32_t b[2] = {
                        cellgen_two(operand, top + column, k, inner, is_row),
                        cellgen_two(operand, top + column, k + 8, inner, is_row),
                    };
                    add_tile<E, slots>(sum, fragments + k_tile * slots * 32, b);
                }
            }
            for (int second = 0; second < 2; ++second) {
                const int64_t row = mine.row(tile) + second, unit = mine.unit(tile);
                if (row >= rows || unit >= units) continue;
                for (int slot = 0; slot < slots; ++slot) {
                    const int64_t at = slot * apart + unit;
                    const float own = sum[slot / 2][slot % 2 * 2 + second];
                    cg_store(sums, top + row, at, onto ? cg_load(sums, top + row, at) + own : own);
                }
            }
        }
    }
};

/* How blocks multiply where the host chooses matrix units: by them, of types that they take. */
template <bool on_units> struct cellgen_matrix_units {
    typedef cellgen_by_thread way;
};
template <> struct cellgen_matrix_units<true> {
    typedef cellgen_by_fragment way;
};
template <typename E> using cellgen_on_units = typename cellgen_matrix_units<cellgen_element<E>::on_units>::way;

#endif /* CELLGEN_CUDA_BLOCKS_CUH */
