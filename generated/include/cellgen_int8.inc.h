/* Products of weights in int8 (`products` of the options): weights are rounded as they are packed; rows are in fixed
 * point where there are instructions for that, else as they are. Part of cellgen_driver.inc.h, for float32 and functions
 * that are not backward. */

#if CELLGEN_PRECISION == 32

/* A block of units of a run's panel, of a head among others. */
CELLGEN_INLINE const int8_t *cg_block_int8(const cg_row_block *b, const cellgen_run *run, int64_t block, int64_t columns)
{
    const int8_t *const panels = (const int8_t *)(const void *)b->at.memory[run->panel];
    return panels + block * cellgen_block_bytes_int8(cg_length(b, run->inner), columns);
}

/* The product of one operand for a tile, or for any number of rows where nothing is there yet; `fixed`: its rows in
 * fixed point, `stride` words apart, where they are. */
CELLGEN_OUTLINE void cg_product_int8(cellgen_amx *amx, int64_t rows, int64_t vectors, const cellgen_term_int8 *term, const cellgen_pair *fixed,
                                     int64_t stride, float *out, int64_t ldc, int accumulate)
{
#if CELLGEN_AMX_INT8
    if (rows >= CELLGEN_FIXED_ROWS_ON_AMX && cellgen_is_fixed(term->K) && cellgen_int8_on_amx()) {
        cellgen_fixed_product_amx(amx, rows, vectors, term->K, fixed, stride, term->b, out, ldc, accumulate);
        return;
    }
#endif
#if CELLGEN_FIXED_ROWS
    if (cellgen_is_fixed(term->K)) {
        cellgen_fixed_product(rows, vectors, term->K, fixed, stride, term->b, out, ldc, accumulate);
        return;
    }
#endif
    (void)amx, (void)fixed, (void)stride;
    CELLGEN_ALIGNED float sums[CELLGEN_TILE_BYTES / sizeof(float)];
    const float *const scale = (const float *)(const void *)(term->b + term->K * term->b_step);
    float *const to = accumulate ? sums : out;
    const int64_t step = accumulate ? term->b_step : ldc;
    cellgen_column_int8(rows, vectors, term, 1, to, step, CELLGEN_LANES_F32, CELLGEN_LANES_F32, 0);
    cellgen_scale_int8(rows, vectors, to, step, scale, out, ldc, accumulate);
}

/* Pack the blocks of some units of one slot's weights, as cg_pack_slot does. */
CELLGEN_STATIC void cg_pack_slot_int8(int64_t K, const float *w, int64_t ldw, int transposed, cellgen_units own, int64_t vectors,
                                      int64_t slots, int64_t slot, int8_t *panels)
{
    const int64_t width = vectors * CELLGEN_LANES_F32, columns = slots * width;
    for (int64_t first = own.begin; first < own.end; first += width) {
        const int64_t count = own.end - first < width ? own.end - first : width;
        int8_t *const block = panels + first / width * cellgen_block_bytes_int8(K, columns);
        const float *const from = K > 0 ? w + (transposed ? first * ldw : first) : w;
        cellgen_pack_int8(K, width, count, from, ldw, transposed, block, slot * width, columns);
    }
}

#endif
