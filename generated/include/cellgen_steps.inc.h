/* What surrounds the stages of a step: steps that may be masked, rows copied side by side, what is deferred,
 * sums over rows. Part of cellgen_driver.inc.h. */

/* The rows of a step that are a thread's, and its partition of the units. */
typedef struct {
    int64_t partition, partitions; /* of the units */
    int64_t row_begin, row_end;       /* in stages */
    int64_t own_begin, own_end;       /* around them */
} cg_partition;
CELLGEN_INLINE cg_partition cg_partition_steps(const cg_row_block *b, int thread, int threads)
{
    const int64_t begin = b->shape.B * thread / threads, end = b->shape.B * (thread + 1) / threads;
    const cg_partition by_rows = {0, 1, begin, end, begin, end};
    const cg_partition by_units = {thread, threads, 0, b->shape.B, begin, end};
    return b->modes.sharing == CG_BY_UNITS ? by_units : by_rows;
}

/* What steps read where some are masked: states before them, inputs without padding, gradients of outputs
 * that steps repeat. */
CELLGEN_STATIC void cg_prepare_states(const cg_row_block *b, const cellgen_link *link, int64_t step, int64_t begin,
                                      int64_t end)
{
    const int64_t width = cg_length(b, link->width);
    real *const now = b->at.memory[link->now], *const initial = cg_member(b, link->initial);
    if (b->f->is_backward) {
        cg_gather_before(now, b->at.series[link->series], initial, b->shape.B, width, step, begin, end, b->at.before);
    } else {
        for (int64_t row = begin; row < end; ++row) {
            const int is_reset = b->at.resets && b->at.resets[step * b->shape.B + row];
            if (is_reset || step == 0) cg_copy_row(now + row * width, is_reset ? 0 : initial + row * width, width);
        }
    }
    if (link->start != 0) cg_start_rows(now, (real)link->start, b->shape.B, width, step, begin, end, b->at.resets);
}

CELLGEN_OUTLINE void cg_prepare(const cg_row_block *b, int64_t step, int64_t begin, int64_t end)
{
    const cg_function *const f = b->f;
    for (int i = 0; i < f->links; ++i)
        if (f->link[i].flags & CELLGEN_STATE_NOW) cg_prepare_states(b, f->link + i, step, begin, end);
    for (int i = 0; i < f->series && b->at.validity; ++i) {
        const cellgen_series_row *row = f->over_time + i;
        const int64_t width = cg_length(b, row->width);
        if (row->flags & CELLGEN_REPEATED) {
            if (!b->at.series[i].rows) continue;
            real *const many = row->rows == CELLGEN_NONE ? 0 : b->at.memory[row->rows] + step % b->shape.chunk_steps * b->shape.B * width;
            real *const own = row->flags & CELLGEN_STAGED ? b->at.memory[row->stage] : many;
            cg_gather_shown(own, b->at.memory[row->later], b->at.series[i], b->shape.T, b->shape.B, width, step, begin, end, b->shape.truncated, b->at.validity);
            if (row->flags & CELLGEN_STAGED && row->flags & CELLGEN_ACROSS)
                cg_gather_steps(many, b->at.staged[i], b->shape.B, width, 0, begin, end, 0);
        } else if (row->flags & CELLGEN_STAGED) {
            cg_gather_steps(b->at.memory[row->stage], b->at.series[i], b->shape.B, width, step, begin, end, b->at.validity);
        }
    }
}

/* Hand a row of a step to a caller who has the outputs of every so many-th one alone. */
CELLGEN_INLINE void cg_show(const cg_row_block *b, int number, int64_t step, int64_t row, const real *shown)
{
    const int64_t at = cg_sparse_at(b, step);
    const cg_series to = b->at.sparse[number];
    if (at >= 0 && to.rows) cg_copy_row(to.rows + at * to.step + row * to.row, shown, cg_length(b, b->f->over_time[number].width));
}

/* Gradients of the outputs of every so many-th step as those of the steps first <= step < last: zeros at the
 * others. A thread's partition. */
CELLGEN_STATIC void cg_spread_upstream(int thread, int threads, const cg_row_block *b, int64_t first, int64_t last)
{
    const int64_t rows = (last - first) * b->shape.B;
    for (int i = 0; i < b->f->series; ++i) {
        if (!cg_is_upstream(b->f, i) || !b->at.sparse[i].rows) continue;
        const cg_series from = b->at.sparse[i], to = b->at.series[i];
        for (int64_t row = rows * thread / threads; row < rows * (thread + 1) / threads; ++row) {
            const int64_t step = first + row / b->shape.B, at = cg_sparse_at(b, step);
            cg_copy_row(cg_at_step(to, step) + row % b->shape.B * to.row, at < 0 ? 0 : from.rows + at * from.step + row % b->shape.B * from.row, to.row);
        }
    }
}

/* What a masked step of a forward pass leaves: the state as it was, outputs as they were or zeros. */
CELLGEN_STATIC void cg_masked_select_forward(const cg_row_block *b, int64_t step, int64_t row, int found)
{
    const cg_function *const f = b->f;
    const int is_valid = found == CELLGEN_VALID;
    for (int i = 0; i < f->links; ++i) {
        const cellgen_link *link = f->link + i;
        const int64_t width = cg_length(b, link->width);
        real *const now = b->at.memory[link->now] + row * width;
        if (cg_is_in_place(b, link)) continue;
        if (link->flags & CELLGEN_STATE_OUTPUT) {
            const cg_series series = b->at.series[link->series];
            real *const next = cg_at_step(series, step) + row * series.row;
            if (is_valid)
                cg_copy_row(now, next, width);
            else
                cg_copy_row(next, found == CELLGEN_MASKED_HOLD ? now : 0, width);
            if (b->shape.every > 1) cg_show(b, link->series, step, row, next);
        } else if (is_valid) {
            cg_copy_row(now, b->at.memory[link->pair] + step % 2 * b->shape.B * width + row * width, width);
        }
    }
    real *shown = b->at.shown;
    for (int i = 0; i < f->series; ++i) {
        const cellgen_series_row *over = f->over_time + i;
        if (!(over->flags & CELLGEN_SHOWN)) continue;
        const cg_series series = b->at.series[i];
        const int64_t width = cg_length(b, over->width);
        const int only = cg_is_of_last_step(b, over);
        real *const made = cg_at_step(series, step) + row * series.row, *const given = cg_member(b, over->member);
        if (shown && is_valid) cg_copy_row(shown + row * width, made, width);
        if (b->shape.every > 1) cg_show(b, i, step, row, is_valid || found == CELLGEN_MASKED_HOLD ? shown + row * width : 0);
        shown += shown ? b->shape.B * width : 0;
        if (b->shape.every > 1) continue;
        if (!is_valid) cg_copy_row(made, found == CELLGEN_MASKED_HOLD && !only ? made - series.step : 0, width);
        if (only && given && (is_valid || step == 0)) cg_copy_row(given + row * width, made, width);
    }
}

/* The same of a reverse step: the gradient of a state passes as it came; where a state starts anew, or a
 * window ends, none does. */
CELLGEN_STATIC void cg_masked_select_reverse(const cg_row_block *b, int64_t step, int64_t row, int found)
{
    const cg_function *const f = b->f;
    const int cut = b->shape.truncated > 0 && step > 0 && step % b->shape.truncated == 0;
    const int stop = cut || (b->at.resets && b->at.resets[step * b->shape.B + row]);
    for (int i = 0; i < f->links; ++i) {
        const cellgen_link *link = f->link + i;
        const int64_t width = cg_length(b, link->width);
        real *const pair = b->at.memory[link->pair], *const last = cg_member(b, link->last);
        real *const first = step == 0 ? cg_member(b, link->passed) : 0; /* NULL: not wanted */
        real *const passed = (first ? first : pair + step % 2 * b->shape.B * width) + row * width;
        const real *const carry = step < b->shape.T - 1 ? pair + (step + 1) % 2 * b->shape.B * width + row * width
                                  : last          ? last + row * width
                                                  : 0;
        if (stop || found != CELLGEN_VALID) cg_copy_row(passed, stop ? 0 : carry, width);
        if (link->upstream == CELLGEN_NONE || stop || found != CELLGEN_MASKED_HOLD) continue;
        const cg_series given = b->at.series[link->upstream];
        if (given.rows) cg_add_row_block(passed, cg_at_step(given, step) + row * given.row, width, 0, 1);
    }
    for (int i = 0; i < f->kept && found != CELLGEN_VALID; ++i) {
        const int64_t width = cg_length(b, f->keep[i].width);
        cg_copy_row(b->at.memory[f->keep[i].memory] + (step % b->shape.chunk_steps * b->shape.B + row) * width, 0, width);
    }
}

CELLGEN_OUTLINE void cg_masked_select(const cg_row_block *b, int64_t step, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; ++row) {
        const int found = b->at.validity ? (int)b->at.validity[step * b->shape.B + row] : (int)CELLGEN_VALID;
        if (b->f->is_backward)
            cg_masked_select_reverse(b, step, row, found);
        else
            cg_masked_select_forward(b, step, row, found);
    }
}

/* One step by one thread. */
CELLGEN_INLINE void cg_step(const cg_row_block *b, const cg_partition *own, int64_t step, int thread)
{
    const cg_part *const part = b->f->part;
    const int watched = b->modes.guarded || (b->f->is_backward && b->shape.truncated > 0), barrier = own->partitions > 1;
    if (b->modes.guarded) {
        cg_prepare(b, step, own->own_begin, own->own_end);
        if (barrier) cellgen_team_barrier(b->team, thread);
    }
    for (int i = 0; i < part->stages; ++i) {
        const cg_stage *const stage = part->stage + i;
        cg_run_stage(b, 0, stage, step, own->row_begin, own->row_end, own->partition, own->partitions);
        if (barrier && (stage->barrier || (watched && i + 1 == part->stages))) cellgen_team_barrier(b->team, thread);
    }
    if (watched) {
        cg_masked_select(b, step, own->own_begin, own->own_end);
        if (barrier) cellgen_team_barrier(b->team, thread);
    }
}

/* --- what is deferred: rows of many steps --- */

/* Copy the rows of many steps, which lie apart, side by side. */
CELLGEN_OUTLINE void cg_gather(const cg_row_block *b, int64_t step, int64_t begin, int64_t end)
{
    const cg_function *const f = b->f;
    for (int i = 0; i < f->series; ++i) {
        const cellgen_series_row *row = f->over_time + i;
        if (!(row->flags & CELLGEN_ACROSS) || (row->flags & CELLGEN_REPEATED && b->at.validity)) continue;
        cg_gather_steps(b->at.memory[row->rows], b->at.series[i], b->shape.B, cg_length(b, row->width), step, begin, end,
                   row->strides != CELLGEN_NONE ? b->at.validity : 0);
    }
    for (int i = 0; i < f->links; ++i) {
        const cellgen_link *link = f->link + i;
        const int64_t width = cg_length(b, link->width);
        if (!(link->flags & CELLGEN_STATE_ACROSS)) continue;
        cg_gather_before(b->at.memory[link->rows], b->at.series[link->series], cg_member(b, link->initial), b->shape.B, width,
                          step, begin, end, b->at.before);
        if (link->start != 0)
            cg_start_rows(b->at.memory[link->rows], (real)link->start, b->shape.B, width, step, begin, end, b->at.resets);
    }
}

/* And back. */
CELLGEN_STATIC void cg_scatter(const cg_row_block *b, int64_t step, int64_t begin, int64_t end)
{
    for (int i = 0; i < b->f->series; ++i) {
        const cellgen_series_row *row = b->f->over_time + i;
        if (row->flags & CELLGEN_SCATTERED && b->at.series[i].rows)
            cg_scatter_steps(b->at.series[i], b->at.memory[row->rows], b->shape.B, cg_length(b, row->width), step, begin, end);
    }
}

CELLGEN_STATIC int cg_has_scattered(const cg_function *f)
{
    for (int i = 0; i < f->series; ++i)
        if (f->over_time[i].flags & CELLGEN_SCATTERED) return 1;
    return 0;
}

/* Neighbouring deferred stages by one thread. Of weight gradients it has rows of the results; where weights
 * are not packed, units of a group's; else rows, by groups of rows from the last where sums are formed. */
CELLGEN_STATIC void cg_deferred_stages(const cg_row_block *b, const cellgen_stage_rows *run, int64_t step, int64_t rows,
                                       int thread, int threads)
{
    const cg_stage *const stage = b->f->part[1].stage + run->first;
    const int64_t begin = rows * thread / threads, end = rows * (thread + 1) / threads;
    if (run->by_rows && b->f->sums) {
        const int64_t first = step * b->shape.B; /* of all rows */
        const int64_t from = cellgen_partition_rows(first, rows, thread, threads);
        const int64_t to = cellgen_partition_rows(first, rows, thread + 1, threads);
        for (int64_t top = to, low; top > from; top = low) { /* a group of rows, while it is near */
            low = cellgen_group_begin(first, from, top);
            for (int i = 0; i < run->stages; ++i) cg_run_stage(b, 1, stage + i, step, low, top, 0, 1);
        }
    } else if (run->by_rows) {
        for (int i = 0; i < run->stages; ++i) cg_run_stage(b, 1, stage + i, step, begin, end, 0, 1);
    } else if (stage->kind == CELLGEN_IS_GROUP && (stage->heads != CELLGEN_NONE || b->modes.weights != CG_IN_PLACE)) {
        cg_run_stage(b, 1, stage, step, begin, end, 0, 1);
    } else {
        cg_run_stage(b, 1, stage, step, 0, rows, thread, threads);
    }
}

CELLGEN_STATIC void cg_deferred(const cg_row_block *b, int64_t step, int64_t steps, int thread, int threads)
{
    const cg_function *const f = b->f;
    const cg_part *const part = f->part + 1;
    const int64_t rows = steps * b->shape.B, begin = rows * thread / threads, end = rows * (thread + 1) / threads;
    const int64_t first = step * b->shape.B, ring = cellgen_sum_groups(b->shape.chunk_rows);
    for (int i = 0; i < f->sums; ++i)
        if (cg_either(b, f->sum[i].member, f->sum[i].memory))
            cg_clear_sums(b->at.memory[f->sum[i].groups], cg_length(b, f->sum[i].count), ring,
                          first + cellgen_partition_rows(first, rows, thread, threads),
                          first + cellgen_partition_rows(first, rows, thread + 1, threads), b->shape.T * b->shape.B);
    if (b->modes.gather) {
        cg_gather(b, step, begin, end);
        cellgen_team_barrier(b->team, thread);
    }
    for (int i = 0; i < part->runs; ++i) {
        const cellgen_stage_rows *run = part->run + i;
        cg_deferred_stages(b, run, step, rows, thread, threads);
        /* Rounded rows have one place, and rows are shared in another way in the next run, or in the steps. */
        if (b->modes.bf16_way || part->stage[run->first + run->stages - 1].barrier) cellgen_team_barrier(b->team, thread);
    }
    if (f->steps_totals) cellgen_team_barrier(b->team, thread);
    for (int i = 0; i < f->steps_totals; ++i) {
        const cellgen_steps_total *total = f->steps_total + i;
        real *const sum = cg_either(b, total->member, total->memory);
        if (!sum) continue;
        cg_add_steps(sum, b->at.memory[total->summand],
                     b->at.validity ? b->at.validity + first : 0, steps, b->shape.B, cg_length(b, total->width), thread, threads);
    }
    if (b->modes.gather && cg_has_scattered(f)) {
        cellgen_team_barrier(b->team, thread);
        cg_scatter(b, step, begin, end);
    }
}

/* A thread's partition of the sums over rows, of steps whose deferred stages all threads have left. */
CELLGEN_STATIC void cg_add_row_sums(const cg_row_block *b, int64_t step, int64_t steps, int thread, int threads)
{
    for (int i = 0; i < b->f->sums; ++i) {
        const cellgen_sum *sum = b->f->sum + i;
        real *const whole = cg_either(b, sum->member, sum->memory);
        if (!whole) continue;
        cg_add_sums(whole, b->at.memory[sum->groups], cg_length(b, sum->count),
                    cellgen_sum_groups(b->shape.chunk_rows), step * b->shape.B, (step + steps) * b->shape.B, thread, threads);
    }
}

/* What one thread does once a sequence, on weights alone. */
CELLGEN_STATIC void cg_once(const cg_row_block *b, void (*work)(const cg_frame *))
{
    const cg_frame frame = {b->shape.n, b->at.args, b->at.memory, 0, 0, 0, 0};
    work(&frame);
}

/* What the steps first <= step < last of a row block run, from the last one on, by one of its threads;
 * whether all threads of the row block have agreed to stop. */
CELLGEN_STATIC int cg_reverse_loop(cg_row_block *b, const cg_partition *own, int64_t first, int64_t last, int thread)
{
    for (int64_t step = last - 1; step >= first; --step) {
        const int64_t done = b->shape.T - 1 - step;
        if (done % CELLGEN_STOP_STEPS == 0 && cg_stops(&b->stop, b->team, thread, done / CELLGEN_STOP_STEPS)) return 1;
        cg_step(b, own, step, thread);
    }
    return 0;
}
