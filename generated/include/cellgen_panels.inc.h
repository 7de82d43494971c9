/* Products with packed weights. Part of cellgen_gemm_real.inc.h. */

/* -------------------------------------------------------------------------- packed weights
 * The columns of a product that belong together are `slots` columns per unit (the gates):
 * column slot*slot_stride + unit. A panel holds a block of vectors*LANES units of every slot,
 * [block][k][slot][vectors*LANES], so that one tile holds all gates of its units; units beyond the
 * last are zeros. slots*vectors <= CELLGEN_TILE_VECTORS_MAX. */

/* blocks of units, and elements in all panels */
CELLGEN_STATIC int64_t CELLGEN_S(panels_blocks)(int64_t units, int64_t vectors)
{
    return (units + vectors * CELLGEN_LANES - 1) / (vectors * CELLGEN_LANES);
}
CELLGEN_STATIC int64_t CELLGEN_S(panels_size)(int64_t K, int64_t slots, int64_t units,
                                              int64_t vectors)
{
    return CELLGEN_S(panels_blocks)(units, vectors) * K * slots * vectors * CELLGEN_LANES;
}

#if !CELLGEN_ONLY_TILES
/* Pack w(K, columns), or w(columns, K) if `transposed`, into panels that are `block_stride`
 * elements apart: K*slots*vectors*LANES, or more where several operands share the panels
 * ([x; h]: the second matrix starts at out + I*slots*vectors*LANES). */
CELLGEN_STATIC void CELLGEN_S(pack_panels)(int64_t K, const CELLGEN_REAL *w, int64_t ldw,
                                           int transposed, int64_t slots, int64_t units,
                                           int64_t slot_stride, int64_t vectors, CELLGEN_REAL *out,
                                           int64_t block_stride)
{
    const int64_t width = vectors * CELLGEN_LANES;
    for (int64_t unit = 0; unit < units; unit += width, out += block_stride)
        for (int64_t slot = 0; slot < slots; ++slot) {
            const int64_t column = slot * slot_stride + unit;
            const int64_t columns = units - unit < width ? units - unit : width;
            if (transposed)
                CELLGEN_S(pack_transposed)
                (K, vectors, columns, w + column * ldw, ldw, out + slot * width, slots * width);
            else
                CELLGEN_S(pack_rows)
                (K, vectors, columns, w + column, ldw, out + slot * width, slots * width);
        }
}
#endif

/* c(rows, vectors*LANES) (+)= A(rows, K) panel: whole vectors of c are written. Any number of rows;
 * up to cellgen_tile_rows(vectors) it is one tile. Let `vectors` be a constant. */
CELLGEN_INLINE void CELLGEN_S(tile)(int64_t rows, int64_t vectors, int64_t K, const CELLGEN_REAL *a,
                                    int64_t lda, const CELLGEN_REAL *panel, CELLGEN_SUM *c,
                                    int64_t ldc, int accumulate)
{
    CELLGEN_S(column_of)
    (rows, vectors, K, a, lda, 1, panel, vectors * CELLGEN_LANES, c, ldc, CELLGEN_LANES,
     CELLGEN_LANES, accumulate);
}

/* More rows than a tile has, over panels that the second-level cache does not hold beside them: all
 * tiles take a slice of k after the other, which stays there meanwhile. The chain is the same. */
CELLGEN_OUTLINE void CELLGEN_S(tiles_deep)(int64_t rows, int64_t vectors,
                                           const CELLGEN_S(term) * term, int64_t terms,
                                           CELLGEN_SUM *c, int64_t ldc, int accumulate)
{
    const int64_t highest = cellgen_tile_rows(vectors), tiles = (rows + highest - 1) / highest;
    const int64_t pace = cellgen_pace(tiles, vectors);
    const void *const ahead = term->ahead.at;
    for (; terms > 0; --terms, ++term) {
        const int64_t slices = term->K > 0 ? (term->K + CELLGEN_SLICE - 1) / CELLGEN_SLICE : 1;
        for (int64_t slice = 0, k = 0, depth; slice < slices; ++slice, k += depth, accumulate = 1) {
            depth = (term->K - k + slices - slice - 1) / (slices - slice);
            const CELLGEN_REAL *const b = term->b + k * term->b_step;
            const void *const next = slice + 1 < slices ? b + depth * term->b_step
                                     : terms > 1        ? term[1].b
                                                        : ahead;
            for (int64_t tile = 0, top = 0, height; tile < tiles; ++tile, top += height) {
                height = (rows - top + tiles - tile - 1) / (tiles - tile);
                const CELLGEN_S(term) here = {
                    depth, term->a + top * term->a_row + k * term->a_step, term->a_row,
                    term->a_step, b, term->b_step,
                    cellgen_part(next, tile, pace, depth, vectors), 0};
                CELLGEN_S(column)
                (height, vectors, &here, 1, c + top * ldc, ldc, CELLGEN_LANES, CELLGEN_LANES,
                 accumulate);
            }
        }
    }
}

/* The same of several operands, each with its panel, in one chain that never leaves the registers
 * while the rows are one tile. */
CELLGEN_INLINE void CELLGEN_S(tile_of)(int64_t rows, int64_t vectors, const CELLGEN_S(term) * term,
                                       int64_t terms, CELLGEN_SUM *c, int64_t ldc, int accumulate)
{
    if (rows > cellgen_tile_rows(vectors))
        CELLGEN_S(tiles_deep)(rows, vectors, term, terms, c, ldc, accumulate);
    else
        CELLGEN_S(column)
        (rows, vectors, term, terms, c, ldc, CELLGEN_LANES, CELLGEN_LANES, accumulate);
}

#if !CELLGEN_ONLY_TILES
/* C(M,N) (+)= A(M,K) B(K,N), B packed with slots = 1, units = N */
CELLGEN_STATIC void CELLGEN_S(gemm_panels)(int64_t M, int64_t N, int64_t K, const CELLGEN_REAL *a,
                                           int64_t lda, const CELLGEN_REAL *panels, int64_t vectors,
                                           int64_t block_stride, CELLGEN_SUM *c, int64_t ldc,
                                           int accumulate)
{
    const int64_t width = vectors * CELLGEN_LANES;
    for (int64_t j = 0; j < N; j += width, panels += block_stride) {
        const int64_t columns = N - j < width ? N - j : width;
        /* a last panel that is not full is computed without its empty vectors */
        const int64_t used = (columns + CELLGEN_LANES - 1) / CELLGEN_LANES;
        CELLGEN_S(column_of)
        (M, used, K, a, lda, 1, panels, width, c + j, ldc, columns - (used - 1) * CELLGEN_LANES,
         CELLGEN_LANES, accumulate);
    }
}
#endif
