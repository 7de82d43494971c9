/* What the time loops share: packing of gates side by side, shares of threads. Included after
 * cellgen_real.h and cellgen_gemm.h, once per precision; deliberately without an include guard. */

#if defined(__GNUC__)
#pragma GCC system_header
#endif

#undef cg_tile
#undef cg_pack_slot
#undef cg_panels_size
#undef CELLGEN_REAL_LANES
#define cg_tile CELLGEN_NAME(cellgen_tile)
#define cg_pack_slot CELLGEN_NAME(cellgen_pack_slot)
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

/* Pack the weights of one slot, (K, units) or transposed (units, K), into panels whose rows hold
 * `slots` slots: [block][k][slot][unit]. Units beyond the last are zeros. */
CELLGEN_STATIC void cg_pack_slot(int64_t K, const real *w, int64_t ldw, int transposed,
                                 int64_t units, int64_t vectors, int64_t slots, int64_t slot,
                                 real *panels)
{
    const int64_t width = vectors * CELLGEN_REAL_LANES;
    real *out = panels + slot * width;
    for (int64_t unit = 0; unit < units; unit += width, out += K * slots * width) {
        const int64_t columns = units - unit < width ? units - unit : width;
        if (transposed)
            CELLGEN_NAME(cellgen_pack_transposed)
            (K, vectors, columns, w + unit * ldw, ldw, out, slots * width);
        else
            CELLGEN_NAME(cellgen_pack_rows)(K, vectors, columns, w + unit, ldw, out, slots * width);
    }
}
