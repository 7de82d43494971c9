/* A forward pass: all steps of a sequence. Part of cellgen_driver.inc.h. */

/* The state after a step, from row to row. */
CELLGEN_STATIC cg_rows cg_state_after(const cg_row_block *b, const cellgen_link *link, int64_t step)
{
    const int64_t width = cg_length(b, link->width);
    cg_rows found = {b->at.memory[link->now], width, 0};
    if (b->modes.guarded) return found;
    if (link->flags & CELLGEN_STATE_OUTPUT) {
        found.rows = cg_at_step(b->at.series[link->series], step);
        found.row = b->at.series[link->series].row;
    } else {
        real *const saved = link->saved == CELLGEN_NONE ? 0 : cg_member(b, link->saved);
        const int64_t turn = cg_is_in_place(b, link) ? 0 : step % 2;
        found.rows = saved ? saved + (step - b->shape.first) * b->shape.B * width : b->at.memory[link->pair] + turn * b->shape.B * width;
    }
    return found;
}

/* The final states. */
CELLGEN_STATIC void cg_final_states(const cg_row_block *b, int64_t begin, int64_t end)
{
    for (int i = 0; i < b->f->links; ++i) {
        const cellgen_link *link = b->f->link + i;
        const int64_t width = cg_length(b, link->width);
        const cg_rows initial = {cg_member(b, link->initial), width, 0};
        const cg_rows from = b->shape.T > 0 ? cg_state_after(b, link, b->shape.T - 1) : initial;
        for (int64_t row = begin; row < end; ++row)
            cg_copy_row(cg_member(b, link->last) + row * width, from.rows + row * from.row, width);
    }
}

/* Where the caller has the states, or the outputs that are no states, before one of the steps that are kept. */
CELLGEN_INLINE real *cg_checkpoint(const cg_row_block *b, int number, int64_t step, int64_t width)
{
    return (real *)b->options.checkpoints[number] + (step / b->options.checkpoint - 1) * b->shape.B * width;
}

/* Keep what a forward pass goes on with at a step: states and, where steps may repeat them, outputs. Some rows. */
CELLGEN_OUTLINE void cg_keep_states(const cg_row_block *b, int64_t step, int64_t begin, int64_t end)
{
    const cg_function *const f = b->f;
    int number = 0;
    for (; number < f->links; ++number) {
        const cellgen_link *const link = f->link + number;
        const int64_t width = cg_length(b, link->width);
        const cg_rows from = cg_state_after(b, link, step - 1);
        real *const to = cg_checkpoint(b, number, step, width);
        for (int64_t row = begin; row < end; ++row) cg_copy_row(to + row * width, from.rows + row * from.row, width);
    }
    const real *shown = b->at.validity ? b->at.shown : 0;
    for (int i = 0; i < f->series && shown; ++i) {
        const int64_t width = cg_length(b, f->over_time[i].width);
        if (!(f->over_time[i].flags & CELLGEN_SHOWN)) continue;
        if (end > begin)
            cg_copy_row(cg_checkpoint(b, number, step, width) + begin * width, shown + begin * width, (end - begin) * width);
        shown += b->shape.B * width;
        ++number;
    }
}

/* What is made of weights alone: by one thread what all of them read, panels by all. */
CELLGEN_STATIC void cg_prepare_forward(const cg_row_block *b, int thread, int threads)
{
    if (b->f->prologue) {
        if (b->modes.weights != CG_PACKED && thread == 0) cg_once(b, b->f->prologue);
        cellgen_team_barrier(b->team, thread);
    }
    if (b->modes.weights == CG_TO_PACK) cg_pack_panels(b, 0, thread, threads, 1);
}

/* The steps first <= step < last by one of the threads; `turn`: how often was asked whether to stop; whether
 * all of them have agreed to. */
CELLGEN_STATIC int cg_forward_steps(cg_row_block *b, const cg_partition *own, int64_t first, int64_t last, int thread, int64_t *turn)
{
    const cg_part *const part = b->f->part;
    const int keeps = !b->shape.segment && cg_keeps_states(&b->options), barrier = own->partitions > 1;
    for (int64_t step = first; step < last; ++step) {
        if ((step % CELLGEN_STOP_STEPS == 0 || step == first) && cg_stops(&b->stop, b->team, thread, (*turn)++)) return 1;
        if (keeps && step > 0 && step % b->options.checkpoint == 0) {
            if (barrier) cellgen_team_barrier(b->team, thread);
            cg_keep_states(b, step, own->own_begin, own->own_end);
            if (barrier) cellgen_team_barrier(b->team, thread);
        }
        for (int i = 0; b->modes.hoist && (step % b->shape.hoist_steps == 0 || step == first) && i < part->stages; ++i)
            if (part->stage[i].runs && part->stage[i].run->ahead != CELLGEN_NONE)
                cg_form_ahead(b, part->stage + i, step, last, own->partition, own->partitions);
        cg_step(b, own, step, thread);
    }
    return 0;
}

/* A forward pass: a row block of all rows, and what its arrays over time are stored as. */
typedef struct {
    cg_row_block row_block;
    cg_stored stored;
    const cellgen_plan *plan;
} cg_pass;

/* All steps, a window of them after the other; whether all threads have agreed to stop. */
CELLGEN_STATIC int cg_forward_windows(cg_pass *pass, const cg_partition *own, int thread, int64_t *turn)
{
    cg_row_block *const b = &pass->row_block;
    const cg_stored *const stored = &pass->stored;
    const int64_t begin = own->own_begin, end = own->own_end;
    for (int64_t first = 0, last; first < b->shape.T; first = last) {
        last = first + stored->steps < b->shape.T ? first + stored->steps : b->shape.T;
        if (thread == 0) {
            b->shape.first = first - 1;
            cg_aim(b, &stored->options, pass->plan);
        }
        cg_widen_window(stored, first, last, begin, end);
        cellgen_team_barrier(b->team, thread);
        if (cg_forward_steps(b, own, first, last, thread, turn)) return 1;
        cellgen_team_barrier(b->team, thread);
        cg_narrow_window(stored, first, last, begin, end);
        if (last < b->shape.T) cg_pass_window(stored, last - first, begin, end);
    }
    return 0;
}

CELLGEN_STATIC void cg_forward_task(int thread, int threads, void *context)
{
    cg_pass *const pass = (cg_pass *)context;
    cg_row_block *const b = &pass->row_block;
    const cg_part *const part = b->f->part;
    const unsigned modes = cellgen_flush_denormals(b->modes.flush);
    const cg_partition own = cg_partition_steps(b, thread, threads);
    int64_t turn = 0;
    cg_prepare_forward(b, thread, threads);
    cellgen_team_barrier(b->team, thread);
    if (!(b->modes.residency == CG_RESIDENT_WINDOW ? cg_forward_windows(pass, &own, thread, &turn) : cg_forward_steps(b, &own, 0, b->shape.T, thread, &turn))) {
        if (own.partitions > 1 && !(part->stages && part->stage[part->stages - 1].barrier)) cellgen_team_barrier(b->team, thread);
        cg_final_states(b, own.own_begin, own.own_end);
    }
    cellgen_restore_denormals(b->modes.flush, modes);
}

int cg_run_forward(const cg_function *f, const int64_t *dims, const void *args)
{
    int64_t of_call[CELLGEN_DIMS_MAX];
    const int64_t *const n = cg_dims(f, dims, of_call);
    const cellgen_options *options = cg_options_of(f, args);
    int64_t extent[CELLGEN_EXTENTS_MAX];
    cellgen_plan plan;
    cg_space space;
    cg_pass pass;
    cg_row_block *const row_block = &pass.row_block;
    if (cg_is_negative(f, dims)) return CELLGEN_NEGATIVE_DIMENSION;
    if (cg_missing(f, args, CELLGEN_REQUIRED | CELLGEN_UNLESS_LAST, options)) return CELLGEN_NULL_POINTER;
    if (cg_packs_less(f, n, options)) return CELLGEN_PACKED_TOO_SMALL;

    cellgen_team *const team = cg_team_of_call(cg_team_of(f, args), options);
    const int64_t threads = cellgen_team_size(team);
    if (cg_find_space(&space, f, n, args, options, threads)) return CELLGEN_WORKSPACE_TOO_SMALL;
    cg_choose_for(f, n, threads, 0, options, &plan);
    if (options && options->plan) plan = *options->plan;
    if (!cellgen_plan_fits(&plan, threads, f->part->can_split, 1)) return CELLGEN_PLAN_UNFIT;

    f->extent(n, extent);
    pass.plan = &plan;
    cg_begin_stored(&pass.stored, f, n, extent, &plan, &space, &args, &options);
    if (cg_place_row_blocks(row_block, &space, f, n, extent, options, &plan, 1)) return CELLGEN_WORKSPACE_TOO_SMALL;
    cg_place_packed(row_block, cg_packed_at(&space, options));
    row_block->at.args = (char *)(uintptr_t)args;
    if (options) row_block->options = *options;
    row_block->team = team;
    const int bad = cg_begin(row_block, options, &plan);
    if (bad) return bad;
    if (row_block->at.shown) cg_copy_row(row_block->at.shown, 0, row_block->shape.B * cg_sparse_width(row_block));
    cellgen_team_run(team, cg_forward_task, &pass);
    return row_block->stop.found[0] || row_block->stop.found[1] ? CELLGEN_STOPPED : CELLGEN_OK;
}
