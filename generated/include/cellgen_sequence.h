/* What the time loops share: packing of gates side by side, shares of threads. Included after
 * cellgen_real.h and cellgen_gemm.h, once per precision; deliberately without an include guard. */

#if defined(__GNUC__)
#pragma GCC system_header
#endif

#undef cg_tile
#undef cg_pack_slot
#undef cg_pack_block
#undef cg_panels_size
#undef CELLGEN_REAL_LANES
#define cg_tile CELLGEN_NAME(cellgen_tile)
#define cg_pack_slot CELLGEN_NAME(cellgen_pack_slot)
#define cg_pack_block CELLGEN_NAME(cellgen_pack_block)
#define cg_panels_size CELLGEN_NAME(cellgen_panels_size)
#if CELLGEN_PRECISION == 32
#define CELLGEN_REAL_LANES CELLGEN_LANES_F32
#else
#define CELLGEN_REAL_LANES CELLGEN_LANES_F64
#endif

#ifndef CELLGEN_SEQUENCE_H
#define CELLGEN_SEQUENCE_H

#include "cellgen_team.h"

/* Vectors of units per slot, by the slots of the widest panel: a tile row is slots times that. */
#if CELLGEN_VECTOR_REGISTERS == 32
#define CELLGEN_SLOT_VECTORS(slots) ((slots) == 1 ? 4 : (slots) == 2 ? 2 : 1)
#else
#define CELLGEN_SLOT_VECTORS(slots) ((slots) == 1 ? 2 : 1)
#endif
#define CELLGEN_TILE_HEIGHT 8 /* rows a tile buffer holds: the most that a tile kernel takes */

#define CELLGEN_ALIGNED __attribute__((aligned(64)))

/* Where share `part` of `parts` begins in `count` units, in whole cache lines of floats. */
CELLGEN_INLINE int64_t cellgen_share(int64_t count, int64_t part, int64_t parts)
{
    if (part >= parts) return count;
    return count * part / parts / 16 * 16;
}

/* Whether threads share the units of each step and meet after every stage, or share the rows and
 * meet never: units where there are few rows, or where a share of the weights stays in a core's
 * second-level cache and all of them do not. Results are the same to the bit. */
#ifndef CELLGEN_WEIGHTS_IN_CACHE
#define CELLGEN_WEIGHTS_IN_CACHE (768 * 1024)
#endif
CELLGEN_INLINE int cellgen_split_units(int64_t rows, int64_t threads, int64_t weights)
{
    return threads > 1 && (rows < 3 * threads || weights > CELLGEN_WEIGHTS_IN_CACHE);
}

/* Up to so many rows, products of inputs are formed ahead of the loop over steps: a tile of few rows
 * is bound by reading weights, a window of steps is not. More rows fill a tile by themselves. */
#define CELLGEN_HOIST_ROWS 3

/* Rows of one chunk of steps, about `wanted`, and no more than there are. */
CELLGEN_INLINE int64_t cellgen_chunk_rows(int64_t steps, int64_t batch, int64_t wanted)
{
    const int64_t fitting = batch > 0 && wanted > batch ? wanted / batch : 1;
    return (fitting < steps ? fitting : steps) * batch;
}

/* Rows per tile: as few tiles of at most `most` rows as will do, all about equally high. */
CELLGEN_INLINE int64_t cellgen_even_rows(int64_t rows, int64_t most)
{
    const int64_t tiles = (rows + most - 1) / most;
    return tiles > 0 ? (rows + tiles - 1) / tiles : 1;
}

#endif

/* Pack one block of one slot's weights, (K, units) or transposed (units, K), from unit `first` on,
 * into a panel whose rows hold `slots` slots: [k][slot][unit]. Units beyond the last are zeros. */
CELLGEN_STATIC void cg_pack_block(int64_t K, const real *w, int64_t ldw, int transposed,
                                  int64_t first, int64_t units, int64_t vectors, int64_t slots,
                                  int64_t slot, real *panel)
{
    const int64_t width = vectors * CELLGEN_REAL_LANES;
    if (transposed)
        CELLGEN_NAME(cellgen_pack_transposed)
        (K, vectors, units, w + first * ldw, ldw, panel + slot * width, slots * width);
    else
        CELLGEN_NAME(cellgen_pack_rows)
        (K, vectors, units, w + first, ldw, panel + slot * width, slots * width);
}

/* Pack all blocks of one slot's weights: [block][k][slot][unit]. */
CELLGEN_STATIC void cg_pack_slot(int64_t K, const real *w, int64_t ldw, int transposed,
                                 int64_t units, int64_t vectors, int64_t slots, int64_t slot,
                                 real *panels)
{
    const int64_t width = vectors * CELLGEN_REAL_LANES;
    for (int64_t first = 0; first < units; first += width, panels += K * slots * width)
        cg_pack_block(K, w, ldw, transposed, first, units - first < width ? units - first : width,
                      vectors, slots, slot, panels);
}
