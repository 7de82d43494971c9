/* Products in bfloat16 (`products` of the options): operands are rows that are rounded once a stage, for all
 * blocks of units, and weights that are rounded as they are packed. Rows in fixed point, beside weights in int8, are
 * rounded in the same way. Part of cellgen_driver.inc.h, for float32. */

#if CELLGEN_PRECISION == 32

#define CELLGEN_ROUNDED_HERE 4096 /* words of rows that each of several threads rounds for itself */

/* Words that an operand takes in a row of one head. */
CELLGEN_INLINE int64_t cg_words_of_head(const cg_row_block *b, const cellgen_run *run)
{
    const int64_t inner = cg_length(b, run->inner);
    return b->modes.products == CG_INT8 ? cellgen_fixed_words(inner) : cellgen_bf16_words(b->modes.bf16_way, inner);
}

/* Words that an operand of a stage takes in a row. */
CELLGEN_INLINE int64_t cg_operand_words(const cg_row_block *b, const cg_stage *stage, const cellgen_run *run)
{
    const int64_t heads = run->by_head && stage->heads != CELLGEN_NONE ? cg_length(b, stage->heads) : 1;
    return heads * cg_words_of_head(b, run);
}

/* Whole cache lines for the first `runs` operands of a row. */
CELLGEN_STATIC int64_t cg_rounded_stride(const cg_row_block *b, const cg_stage *stage, int runs)
{
    int64_t words = 0;
    for (int i = 0; i < runs; ++i) words += cg_operand_words(b, stage, stage->run + i);
    return (words + 15) / 16 * 16;
}

/* The widest of a part's stages. Threads that share rows are not all in the same stage: where a row lies is the
 * same for all of them, so that no thread writes to another's rows. */
CELLGEN_STATIC int64_t cg_widest_rounded(const cg_row_block *b, int number)
{
    int64_t widest = 0;
    for (int i = 0; i < b->f->part[number].stages; ++i) {
        const cg_stage *const stage = b->f->part[number].stage + i;
        const int64_t stride = cg_rounded_stride(b, stage, stage->runs);
        widest = stride > widest ? stride : widest;
    }
    return widest;
}

/* Words of memory that the stages of a call need, one after the other. */
CELLGEN_STATIC int64_t cg_rounded_count(const cg_row_block *b)
{
    int64_t most = 0;
    for (int number = 0; number < b->f->parts; ++number) {
        const int64_t of_step = (number ? b->shape.chunk_rows : b->shape.B) * b->at.widest_rounded[number];
        most = of_step > most ? of_step : most;
        for (int i = 0; i < b->f->part[number].stages; ++i) {
            const cg_stage *const stage = b->f->part[number].stage + i;
            const int ahead = stage->runs && stage->run->ahead != CELLGEN_NONE;
            const int64_t of_window = ahead ? b->shape.hoist_rows * cg_rounded_stride(b, stage, 1) : 0;
            most = of_window > most ? of_window : most;
        }
    }
    return most;
}

/* Round some rows of the first `runs` operands of a stage. */
CELLGEN_STATIC void cg_round_some(const cg_row_block *b, const cg_stage *stage, int runs, const cg_rows *at,
                                  const cellgen_rounded *rounded, int64_t begin, int64_t end)
{
    cellgen_pair *to = rounded->rows;
    for (int i = 0; i < runs; ++i) {
        const cellgen_run *const run = stage->run + i;
        const int64_t inner = cg_length(b, run->inner), words = cg_words_of_head(b, run), row = at[run->use].row;
        const int64_t heads = run->by_head && stage->heads != CELLGEN_NONE ? cg_length(b, stage->heads) : 1;
        for (int64_t head = 0; head < heads; ++head, to += words) {
            const float *const from = cg_operand(b, at, run, head);
            for (int64_t r = begin; r < end && words; ++r) {
                cellgen_pair *const there = to + (r - rounded->first) * rounded->stride;
#if CELLGEN_FIXED_ROWS
                if (b->modes.products == CG_INT8) {
                    cellgen_fix_row(from + r * row, inner, there);
                    continue;
                }
#endif
                cellgen_round_row(b->modes.bf16_way, from + r * row, inner, there);
            }
        }
    }
}

/* Round the rows of a stage's operands, `stride` words apart; a thread that shares units with others rounds few
 * rows itself, into `here`, and of many its partition, for all of them. */
CELLGEN_STATIC cellgen_rounded cg_round_rows(const cg_row_block *b, const cg_stage *stage, int runs, int64_t stride, const cg_rows *at,
                                        int64_t begin, int64_t end, int64_t part, int64_t parts, cellgen_pair *here)
{
    cellgen_rounded rounded = {b->at.rounded, 0, stride};
    const int64_t rows = end - begin;
    if (parts > 1 && rows * rounded.stride > CELLGEN_ROUNDED_HERE) {
        cellgen_team_barrier(b->team, (int)part); /* until all have read what was there */
        cg_round_some(b, stage, runs, at, &rounded, begin + rows * part / parts, begin + rows * (part + 1) / parts);
        cellgen_team_barrier(b->team, (int)part);
        return rounded;
    }
    if (parts > 1) {
        rounded.rows = here;
        rounded.first = begin;
    }
    cg_round_some(b, stage, runs, at, &rounded, begin, end);
    return rounded;
}

/* An operand's first row of a tile, of a head. */
CELLGEN_INLINE const cellgen_pair *cg_rounded_row(const cg_row_block *b, const cg_stage *stage, const cellgen_rounded *rounded,
                                                  int number, int64_t row, int64_t head)
{
    const cellgen_run *const run = stage->run + number;
    int64_t at = run->by_head ? head * cg_words_of_head(b, run) : 0;
    for (int i = 0; i < number; ++i) at += cg_operand_words(b, stage, stage->run + i);
    return rounded->rows + (row - rounded->first) * rounded->stride + at;
}

/* Pack the blocks of some units of one slot's weights, as cg_pack_slot does; `narrow`: of weights that are bfloat16
 * already, NULL: they are floats. */
CELLGEN_STATIC void cg_pack_slot_bf16(int way, int64_t K, const float *w, const uint16_t *narrow, int64_t ldw, int transposed, cellgen_units own,
                                      int64_t vectors, int64_t slots, int64_t slot, cellgen_pair *panels)
{
    const int64_t width = vectors * CELLGEN_REAL_LANES, step = slots * width, words = cellgen_bf16_words(way, K);
    const int64_t filled = cellgen_bf16_words(way == CELLGEN_BF16_TILES ? CELLGEN_BF16_PAIRS : way, K);
    for (int64_t k = 0, rows; k < K; k += rows) {
        rows = transposed || K - k < CELLGEN_PACKED_TOGETHER ? K - k : CELLGEN_PACKED_TOGETHER;
        for (int64_t first = own.begin; first < own.end; first += width) {
            const int64_t count = own.end - first < width ? own.end - first : width, at = transposed ? first * ldw : k * ldw + first;
            cellgen_pair *const panel = panels + first * words * slots + slot * width + k / (way == CELLGEN_BF16_FLOATS ? 1 : 2) * step;
            if (transposed)
                cellgen_pack_transposed_bf16(way, K, vectors, count, narrow ? 0 : w + at, narrow ? narrow + at : 0, ldw, panel, step);
            else if (narrow)
                cellgen_pack_rows_of_bf16(way, rows, vectors, count, narrow + at, ldw, panel, step);
            else
                cellgen_pack_rows_bf16(way, rows, vectors, count, w + at, ldw, panel, step);
        }
    }
    for (int64_t first = own.begin; first < own.end && filled < words; first += width)
        for (int64_t word = filled; word < words; ++word)
            memset(panels + first * words * slots + slot * width + word * step, 0, (size_t)width * sizeof(cellgen_pair));
}

#else

CELLGEN_STATIC int64_t cg_widest_rounded(const cg_row_block *b, int number)
{
    (void)b, (void)number;
    return 0;
}

CELLGEN_STATIC int64_t cg_rounded_count(const cg_row_block *b)
{
    (void)b;
    return 0;
}

#endif
