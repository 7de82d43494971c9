/* Groups of a step: tiles of products with equations on each, and products of inputs ahead of the loop.
 * Part of cellgen_stage.inc.h. */

#include "cellgen_in_place.inc.h"

/* Whole vectors of a row of a tile. */
CELLGEN_INLINE void cg_copy_vectors(real *to, const real *from, int64_t units)
{
    for (int64_t unit = 0; unit < units; unit += CELLGEN_REAL_LANES)
        memcpy(to + unit, from + unit, CELLGEN_VECTOR_BYTES);
}

CELLGEN_INLINE void cg_zero_vectors(real *to, int64_t units)
{
    for (int64_t unit = 0; unit < units; unit += CELLGEN_REAL_LANES) memset(to + unit, 0, CELLGEN_VECTOR_BYTES);
}

/* Name the rows that tiles fetch while they run. */
CELLGEN_STATIC void cg_prefetch_stage(const cg_row_block *b, const cg_stage *stage, cellgen_prefetch *prefetch, int64_t step,
                                   int64_t row_begin, int64_t row_end)
{
    for (int i = 0; i < stage->prefetches; ++i) {
        const cellgen_prefetch_row *prefetched = stage->prefetched + i;
        const int64_t width = cg_length(b, prefetched->width);
        if (prefetched->series != CELLGEN_NONE)
            cg_prefetch_series(prefetch, b->at.series[prefetched->series], width, step + prefetched->later, row_begin, row_end);
        else
            cg_prefetch_saved(prefetch, cg_member(b, prefetched->member), width, b->shape.batch, step + prefetched->later - b->shape.first, row_begin, row_end);
    }
}

/* One group of a step: tiles of products, and equations on each. */
typedef struct {
    const cg_row_block *b;
    const cg_stage *stage;
    const cg_frame *frame;
    cg_blocks own;
    int64_t step, row_end, pace;
    int deep, ahead;
    cellgen_prefetch *prefetch;
    const cellgen_rounded *rounded; /* operands in bfloat16 or in fixed point; NULL: as they are */
    cellgen_amx *amx;
} cg_tiles;

/* The product of an input for a hoist window, where it was formed ahead. */
CELLGEN_INLINE real *cg_formed_ahead(const cg_tiles *tiles, const cellgen_run *run, int64_t block, int64_t row)
{
    const cg_row_block *const b = tiles->b;
    const int64_t at = block * b->shape.hoist_rows + tiles->step % b->shape.hoist_steps * b->shape.B + row;
    return b->at.memory[run->ahead] + at * run->slots * tiles->own.width;
}

/* An operand's rows of a tile, and elements from one to the next: where they lie, or rounded. */
CELLGEN_INLINE const real *cg_operand_rows(const cg_tiles *tiles, const cg_block *at, int64_t top, const cellgen_run *run, int64_t *row)
{
#if CELLGEN_PRECISION == 32
    if (tiles->rounded) {
        *row = tiles->rounded->stride;
        return (const real *)(const void *)cg_rounded_row(tiles->b, tiles->stage, tiles->rounded, (int)(run - tiles->stage->run), top, at->head);
    }
#endif
    *row = tiles->frame->at[run->use].row;
    return cg_operand(tiles->b, tiles->frame->at, run, at->head) + top * *row;
}

/* Some operands of a chain of products: up to four. */
CELLGEN_INLINE void cg_terms_of(const cg_tiles *tiles, const cg_block *at, int64_t top, int64_t rows,
                                int64_t tile_number, int64_t next, const cellgen_run *run, int done, int some,
                                real *out, int accumulate)
{
    const cg_row_block *const b = tiles->b;
    const int64_t slots = tiles->stage->slots, width = tiles->own.width, vectors = width / CELLGEN_REAL_LANES;
    cg_term terms[4];
    for (int i = 0; i < some; ++i) {
        const cellgen_run *own = run + done + i;
        const int64_t inner = cg_length(b, own->inner);
        int64_t row;
        const real *const from = cg_operand_rows(tiles, at, top, own, &row), *const panel = b->at.memory[own->panel];
        const cg_term term = {inner,
                              from,
                              row,
                              1,
                              panel + at->block * inner * own->slots * width,
                              own->slots * width,
                              cg_ahead(panel, at->block, next, tile_number, tiles->pace, inner, own->slots * vectors),
                              tiles->prefetch};
        terms[i] = term;
    }
    cg_tile_of(rows, run->slots * vectors, terms, some, out, slots * width, accumulate);
}

#if CELLGEN_PRECISION == 32
#if CELLGEN_AMX
/* The same on AMX. */
CELLGEN_INLINE void cg_terms_amx(const cg_tiles *tiles, const cg_block *at, int64_t top, int64_t rows, int64_t next,
                                 const cellgen_run *run, int done, int some, real *out, int accumulate)
{
    const cg_row_block *const b = tiles->b;
    const int64_t slots = tiles->stage->slots, width = tiles->own.width;
    cellgen_term_tiles terms[4];
    for (int i = 0; i < some; ++i) {
        const cellgen_run *own = run + done + i;
        const int64_t words = cellgen_bf16_words(CELLGEN_BF16_TILES, cg_length(b, own->inner)), columns = own->slots * width;
        const cellgen_pair *const panel = (const cellgen_pair *)(const void *)b->at.memory[own->panel];
        const int is_far = !b->f->is_backward && next != at->block &&
                           (tiles->own.end - tiles->own.begin) * words * columns * 4 > CELLGEN_WEIGHTS_IN_CACHE;
        const cellgen_term_tiles term = {words / 16,
                                         cg_rounded_row(b, tiles->stage, tiles->rounded, (int)(own - tiles->stage->run), top, at->head),
                                         tiles->rounded->stride,
                                         panel + at->block * words * columns,
                                         columns,
                                         is_far ? panel + next * words * columns : 0};
        terms[i] = term;
    }
    cellgen_amx_product(tiles->amx, rows, run->slots * width, terms, some, out, slots * width, accumulate);
}
#endif

#if CELLGEN_AVX512BF16
/* The same in pairs. */
CELLGEN_INLINE void cg_terms_pairs(const cg_tiles *tiles, const cg_block *at, int64_t top, int64_t rows,
                                   int64_t tile_number, int64_t next, const cellgen_run *run, int done, int some,
                                   real *out, int accumulate)
{
    const cg_row_block *const b = tiles->b;
    const int64_t slots = tiles->stage->slots, width = tiles->own.width, vectors = width / CELLGEN_REAL_LANES;
    cellgen_term_pairs terms[4];
    for (int i = 0; i < some; ++i) {
        const cellgen_run *own = run + done + i;
        const int64_t pairs = CELLGEN_PAIRS(cg_length(b, own->inner));
        const real *const panel = b->at.memory[own->panel]; /* of pairs, which are as long */
        const cellgen_term_pairs term = {pairs,
                                         cg_rounded_row(b, tiles->stage, tiles->rounded, (int)(own - tiles->stage->run), top, at->head),
                                         tiles->rounded->stride,
                                         1,
                                         (const cellgen_pair *)(const void *)panel + at->block * pairs * own->slots * width,
                                         own->slots * width,
                                         cg_ahead(panel, at->block, next, tile_number, tiles->pace, pairs, own->slots * vectors),
                                         tiles->prefetch};
        terms[i] = term;
    }
    cellgen_tile_of_pairs(rows, run->slots * vectors, terms, some, out, slots * width, accumulate);
}
#endif

/* The same of weights in int8, one operand after the other: each has scales of its own. */
CELLGEN_INLINE void cg_terms_int8(const cg_tiles *tiles, const cg_block *at, int64_t top, int64_t rows, const cellgen_run *run,
                                  int some, real *out, int accumulate)
{
    const cg_row_block *const b = tiles->b;
    const int64_t slots = tiles->stage->slots, width = tiles->own.width, vectors = width / CELLGEN_REAL_LANES;
    for (int i = 0; i < some; ++i, accumulate = 1) {
        const cellgen_run *own = run + i;
        const int64_t row = tiles->frame->at[own->use].row, columns = own->slots * width;
        const int8_t *const panel = cg_block_int8(b, own, at->block, columns);
        const cellgen_term_int8 term = {cg_length(b, own->inner),
                                        cg_operand(b, tiles->frame->at, own, at->head) + top * row,
                                        row,
                                        1,
                                        panel,
                                        columns,
                                        {panel, 0},
                                        tiles->prefetch};
        const cellgen_rounded *const of = tiles->rounded;
        const cellgen_pair *const fixed = of ? cg_rounded_row(b, tiles->stage, of, (int)(own - tiles->stage->run), top, at->head) : 0;
        cg_product_int8(tiles->amx, rows, own->slots * vectors, &term, fixed, of ? of->stride : 0, out, slots * width, accumulate);
    }
}
#endif

CELLGEN_INLINE void cg_fill_tile(const cg_tiles *tiles, const cg_block *at, int64_t top, int64_t rows,
                                 int64_t tile_number, int64_t next, real *tile)
{
    const cg_row_block *const b = tiles->b;
    const cg_stage *const stage = tiles->stage;
    const int64_t slots = stage->slots, width = tiles->own.width;
    if (b->modes.weights == CG_IN_PLACE) { /* the product is there */
        const int64_t all = cg_length(b, stage->all_units);
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t slot = 0; slot < slots; ++slot)
                memcpy(tile + (row * slots + slot) * width,
                       b->at.memory[stage->whole] + ((top + row) * slots + slot) * all + at->first,
                       (size_t)at->units * sizeof(real));
        return;
    }
    for (int i = 0; i < stage->zeroed; ++i)
        for (int64_t row = 0; row < rows; ++row) cg_zero_vectors(tile + (row * slots + stage->zero[i]) * width, width);
    for (int i = 0; i < stage->chains; ++i) {
        const cellgen_run *run = stage->run + stage->chain[i].first;
        const int count = stage->chain[i].runs, ahead = tiles->ahead && run->ahead != CELLGEN_NONE;
        real *const out = tile + run->first_slot * width;
        if (ahead)
            for (int64_t row = 0; row < rows; ++row)
                cg_copy_vectors(out + row * slots * width, cg_formed_ahead(tiles, run, at->block, top + row), run->slots * width);
        int accumulate = ahead || i > 0;
        for (int done = ahead, some; done < count; done += some, accumulate = 1) {
            some = count - done < 4 ? count - done : 4;
#if CELLGEN_PRECISION == 32
#if CELLGEN_AMX
            if (b->modes.bf16_way == CELLGEN_BF16_TILES) {
                cg_terms_amx(tiles, at, top, rows, next, run, done, some, out, accumulate);
                continue;
            }
#endif
#if CELLGEN_AVX512BF16
            if (b->modes.bf16_way == CELLGEN_BF16_PAIRS) {
                cg_terms_pairs(tiles, at, top, rows, tile_number, next, run, done, some, out, accumulate);
                continue;
            }
#endif
            if (b->modes.products == CG_INT8) {
                cg_terms_int8(tiles, at, top, rows, run + done, some, out, accumulate);
                continue;
            }
#endif
            cg_terms_of(tiles, at, top, rows, tile_number, next, run, done, some, out, accumulate);
        }
    }
}

/* Fetch the rows that the equations of a tile write in place. */
CELLGEN_INLINE void cg_prefetch_places(const cg_tiles *tiles, const cg_block *at, int64_t top, int64_t rows)
{
    const cg_row_block *const b = tiles->b;
    for (int i = 0; i < tiles->stage->in_places; ++i) {
        const int16_t *const place = tiles->stage->in_place + 2 * i;
        const int64_t offset = at->first + (place[1] == CELLGEN_NONE ? 0 : cg_length(b, place[1]));
        for (int64_t row = top; row < top + rows; ++row)
            cg_prefetch_to_write(cg_place_row(tiles->frame->at + place[0], b->shape.B, tiles->step, row) + offset, at->units);
    }
}

/* Blocks of units that are computed together: their tiles of `rows` rows, of `high` at the most, fit where there is
 * room for that many rows. */
CELLGEN_INLINE int64_t cg_blocks_together(int64_t room, int64_t rows, int64_t high)
{
    const int64_t tall = rows < high ? rows : high, wanted = cellgen_blocks_of_tile(rows);
    if (tall <= 0 || room / tall >= wanted) return wanted;
    return room < tall ? 1 : room / tall;
}

/* Rows of a panel as deep as an extent says. */
CELLGEN_INLINE int64_t cg_panel_rows(const cg_row_block *b, int number)
{
    const int64_t depth = cg_length(b, number);
    return b->modes.bf16_way ? cellgen_bf16_words(b->modes.bf16_way, depth) : depth;
}

CELLGEN_OUTLINE void cg_group(const cg_row_block *b, int of_part, const cg_stage *stage, const cg_frame *frame,
                              int64_t row_begin, int64_t row_end, int64_t part, int64_t parts)
{
    CELLGEN_ALIGNED real here[CELLGEN_TILE_BYTES / sizeof(real)];
    const int64_t step = frame->step;
    cellgen_amx amx = {0};
    cg_tiles tiles = {b, stage, frame, cg_partition_blocks(b, stage, part, parts), step, row_end, 0, 0, 0, 0, 0, &amx};
    const int64_t begin = tiles.own.begin, end = tiles.own.end, width = tiles.own.width, slots = stage->slots;
    const int64_t vectors = width / CELLGEN_REAL_LANES;
    tiles.deep = b->modes.bf16_way == CELLGEN_BF16_TILES || (b->modes.products == CG_INT8 && cellgen_int8_on_amx()) || (b->modes.products != CG_INT8 && cellgen_is_deep(cg_panel_rows(b, stage->depth), vectors));
    const int64_t most = tiles.deep ? CELLGEN_GROUP_ROWS(slots * vectors) : cellgen_tile_rows(stage->widest * vectors);
    const int64_t room = CELLGEN_TILE_BYTES / (slots * width * (int64_t)sizeof(real));
    const int64_t high = most < room ? most : room;
    tiles.pace = cellgen_pace((row_end - row_begin + high - 1) / high, stage->widest * vectors);
    tiles.ahead = b->modes.hoist && stage->run->ahead != CELLGEN_NONE;
#if CELLGEN_PRECISION == 32
    CELLGEN_ALIGNED cellgen_pair rows_here[CELLGEN_ROUNDED_HERE];
    cellgen_rounded rounded;
    if (cg_rounds_rows(b)) {
        const int64_t stride = parts > 1 ? cg_rounded_stride(b, stage, stage->runs) : b->at.widest_rounded[of_part];
        rounded = cg_round_rows(b, stage, stage->runs, stride, frame->at, row_begin, row_end, part, parts, rows_here);
        tiles.rounded = &rounded;
    }
#else
    (void)of_part;
#endif
    if (b->modes.weights == CG_IN_PLACE) cg_products_in_place(b, stage, frame->at, tiles.rounded, &amx, &tiles.own, row_begin, row_end);
    cellgen_prefetch prefetch;
    if (stage->prefetches && parts == 1 && !tiles.deep && b->modes.weights != CG_IN_PLACE &&
        (b->f->is_backward || (!b->modes.hoist && step + 1 < b->shape.T))) {
        cellgen_prefetch_nothing(&prefetch);
        cg_prefetch_stage(b, stage, &prefetch, step, row_begin, row_end);
        cellgen_share_out(&prefetch, end - begin, row_end - row_begin, high, cg_panel_rows(b, stage->fetching_depth));
        tiles.prefetch = prefetch.arrays ? &prefetch : 0;
    }
    const int in_ahead = stage->is_free && tiles.ahead; /* nothing but what was formed ahead: equations read it there */
    const int64_t fitting = cg_blocks_together(room, row_end - row_begin, high);
    for (int64_t pass = begin, blocks; pass < end; pass += blocks) {
        blocks = end - pass < fitting ? end - pass : fitting;
        for (int64_t top = row_begin, rows, number = 0; top < row_end; top += rows, number += !tiles.deep) {
            rows = cellgen_even_rows(row_end - top, high);
            for (int64_t turn = pass; turn < pass + blocks; ++turn) {
                const cg_block at = cg_block_at(&tiles.own, step, turn);
                const int64_t next = turn + 1 == end || (tiles.deep && top + rows < row_end) ? at.block
                                     : step % 2                                          ? at.block - 1
                                                                                         : at.block + 1;
                cg_prefetch_places(&tiles, &at, top, rows);
                if (!in_ahead) cg_fill_tile(&tiles, &at, top, rows, number, next, here + (turn - pass) * rows * slots * width);
            }
            for (int64_t turn = pass; turn < pass + blocks; ++turn) {
                const cg_block at = cg_block_at(&tiles.own, step, turn);
                real *const tile = in_ahead ? cg_formed_ahead(&tiles, stage->run, at.block, top)
                                            : here + (turn - pass) * rows * slots * width;
                stage->equations(frame, top, top + rows, at.first, at.units, tile);
            }
        }
    }
    cellgen_amx_end(&amx);
}

#if CELLGEN_PRECISION == 32
/* The product of an input for some steps of a hoist window, in bfloat16 or of weights in int8; `at` are their rows, `first`
 * the place of the first one in the window. */
CELLGEN_STATIC void cg_form_ahead_narrow(const cg_row_block *b, const cg_stage *stage, const cg_rows *at, const cg_blocks *own,
                                         int64_t first, int64_t rows, int64_t part, int64_t parts)
{
    CELLGEN_ALIGNED cellgen_pair here[CELLGEN_ROUNDED_HERE];
    const cellgen_run *const run = stage->run;
    const int64_t inner = cg_length(b, run->inner), words = b->modes.products == CG_INT8 ? 0 : cellgen_bf16_words(b->modes.bf16_way, inner);
    const int64_t columns = run->slots * own->width, vectors = columns / CELLGEN_REAL_LANES;
    cellgen_run operand = *run;
    cg_stage alone = *stage;
    operand.use = 0;
    alone.run = &operand;
    cellgen_rounded rounded = {0, 0, 0};
    cellgen_amx amx = {0};
    if (cg_rounds_rows(b)) rounded = cg_round_rows(b, &alone, 1, cg_rounded_stride(b, &alone, 1), at, 0, rows, part, parts, here);
    for (int64_t block = own->begin; block < own->end; ++block) {
        const int64_t head = own->of_head ? block / own->of_head : 0;
        const cellgen_pair *const row = rounded.rows ? cg_rounded_row(b, &alone, &rounded, 0, 0, head) : 0;
        real *const out = b->at.memory[run->ahead] + (block * b->shape.hoist_rows + first) * columns;
        if (b->modes.products == CG_INT8) {
            const int8_t *const panel = cg_block_int8(b, run, block, columns);
            const cellgen_term_int8 term = {inner, cg_operand(b, at, &operand, head), at->row, 1, panel, columns, {panel, 0}, 0};
            cg_product_int8(&amx, rows, vectors, &term, row, rounded.stride, out, columns, 0);
        } else {
            const real *const panel = b->at.memory[run->panel] + block * words * columns; /* of words, which are as long */
            const real *const next = block + 1 < own->end ? panel + words * columns : panel;
#if CELLGEN_AMX
            if (b->modes.bf16_way == CELLGEN_BF16_TILES) {
                const cellgen_term_tiles term = {words / 16, row, rounded.stride, (const cellgen_pair *)(const void *)panel, columns, 0};
                cellgen_amx_product(&amx, rows, columns, &term, 1, out, columns, 0);
                continue;
            }
#endif
#if CELLGEN_AVX512BF16
            if (b->modes.bf16_way == CELLGEN_BF16_PAIRS) {
                const cellgen_term_pairs term = {words, row, rounded.stride, 1, (const cellgen_pair *)(const void *)panel, columns, {next, 0}, 0};
                cellgen_tile_of_pairs(rows, vectors, &term, 1, out, columns, 0);
                continue;
            }
#endif
            const cg_term term = {words, (const real *)(const void *)row, rounded.stride, 1, panel, columns, {next, 0}, 0};
            cg_tile_of(rows, vectors, &term, 1, out, columns, 0);
        }
    }
    cellgen_amx_end(&amx);
}
#endif

/* The product of an input for the steps step <= s < last of a hoist window, ahead of the loop: memory holds those of one. */
CELLGEN_STATIC void cg_form_ahead(const cg_row_block *b, const cg_stage *stage, int64_t step, int64_t last, int64_t part, int64_t parts)
{
    const cellgen_run *const run = stage->run;
    const cellgen_place *const place = b->f->part->place + stage->use[run->use];
    const cg_series series = place->how == CELLGEN_AT_STAGED ? b->at.staged[place->of] : b->at.series[place->of];
    const int64_t row = b->shape.B == 1 ? series.step : series.row;
    const cg_rows rows = {cg_at_step(series, step), row, 0};
    const cg_blocks own = cg_partition_blocks(b, stage, part, parts);
    const int64_t inner = cg_length(b, run->inner), width = own.width, vectors = width / CELLGEN_REAL_LANES;
    const int64_t first = step % b->shape.hoist_steps * b->shape.B, left = b->shape.hoist_steps - step % b->shape.hoist_steps;
    const int64_t steps = last - step < left ? last - step : left;
    cellgen_run operand = *run;
    operand.use = 0;
#if CELLGEN_PRECISION == 32
    if (b->modes.bf16_way || b->modes.products == CG_INT8) {
        cg_form_ahead_narrow(b, stage, &rows, &own, first, steps * b->shape.B, part, parts);
        return;
    }
#endif
    for (int64_t block = own.begin; block < own.end; ++block) {
        const real *const panel = b->at.memory[run->panel] + block * inner * run->slots * width;
        const cg_term term = {inner,
                              cg_operand(b, &rows, &operand, own.of_head ? block / own.of_head : 0),
                              row,
                              1,
                              panel,
                              run->slots * width,
                              {block + 1 < own.end ? panel + inner * run->slots * width : panel, 0},
                              0};
        cg_tile_of(steps * b->shape.B, run->slots * vectors, &term, 1,
                   b->at.memory[run->ahead] + (block * b->shape.hoist_rows + first) * run->slots * width, run->slots * width, 0);
    }
}
