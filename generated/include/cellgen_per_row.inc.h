/* A backward pass whose gradients of weights are those of each row of the batch, or their squares' sums. The
 * reverse loop is that of all rows and keeps what is deferred of all steps; then each row is deferred by one
 * thread, as a batch of one row: the same additions as a call with that row alone. Part of
 * cellgen_driver.inc.h. */

typedef struct {
    cg_row_block all, one[CELLGEN_ROWS_AT_ONCE];
    const void *args;
    const cellgen_options *options;
    const cellgen_plan *plan;
    cg_segment *segment; /* NULL: everything that steps save is there */
    const cg_stored *stored; /* NULL: arrays over time are as they are */
    uintptr_t packed, address; /* of weights; of the first of `one` */
    int64_t bytes, rows, together; /* of each of them; how many rows there are, and are deferred at once */
    int norms, stopped;
} cg_by_row;

/* What the reverse loop left for a row, of `steps` steps: what it kept at each, gradients of outputs that steps repeat. */
CELLGEN_STATIC void cg_take_row(const cg_row_block *all, const cg_row_block *one, int64_t row, int64_t steps)
{
    const cg_function *const f = all->f;
    for (int i = 0; i < f->kept; ++i) {
        const int64_t width = cg_length(all, f->keep[i].width);
        const real *const from = all->at.memory[f->keep[i].memory] + row * width;
        real *const to = one->at.memory[f->keep[i].memory];
        for (int64_t step = 0; step < steps; ++step) cg_copy_row(to + step * width, from + step * all->shape.B * width, width);
    }
    for (int i = 0; i < f->series && all->at.validity; ++i) {
        const cellgen_series_row *const series = f->over_time + i;
        const int64_t width = cg_length(all, series->width);
        if (!(series->flags & CELLGEN_REPEATED) || !(series->flags & CELLGEN_ACROSS)) continue;
        const real *const from = all->at.memory[series->rows] + row * width;
        real *const to = one->at.memory[series->rows];
        for (int64_t step = 0; step < steps; ++step) cg_copy_row(to + step * width, from + step * all->shape.B * width, width);
    }
}

/* Where a row's gradients go: its place in the caller's arrays, or memory of the thread's that `address` begins. */
CELLGEN_STATIC void cg_aim_row(const cg_row_block *one, int64_t row, uintptr_t address)
{
    const cg_function *const f = one->f;
    for (int i = 0; i < f->members; ++i) {
        if (!(f->member[i].flags & CELLGEN_SUMMED) || !cg_member(one, i)) continue; /* NULL: not wanted */
        const int64_t count = cg_length(one, f->member[i].width);
        real *const to = address ? (real *)address : cg_member(one, i) + row * count;
        memcpy(one->at.args + CELLGEN_WORD * i, &to, sizeof to);
        if (address) address += (uintptr_t)CELLGEN_BYTES(count);
    }
}

/* Sums of squares, in so many chains that a vector adds them. */
CELLGEN_STATIC void cg_square_row(const cg_by_row *call, const cg_row_block *one, int64_t row)
{
    const cg_function *const f = one->f;
    for (int i = 0; i < f->members; ++i) {
        if (!(f->member[i].flags & CELLGEN_SUMMED) || !cg_member(one, i)) continue;
        const int64_t count = cg_length(one, f->member[i].width);
        const real *const from = cg_member(one, i);
        real chains[16] = {0}, sum = 0;
        int64_t k = 0;
        for (; k + 16 <= count; k += 16)
            for (int lane = 0; lane < 16; ++lane) chains[lane] += from[k + lane] * from[k + lane];
        for (int lane = 0; lane < 16; ++lane) sum += chains[lane];
        for (; k < count; ++k) sum += from[k] * from[k];
        cg_member(&call->all, i)[row] = sum;
    }
}

/* Everything deferred of one row in the steps first <= step < last, by one thread, from the last steps on. */
CELLGEN_STATIC void cg_defer_row(cg_by_row *call, cg_row_block *one, uintptr_t address, int64_t row, int64_t first, int64_t last)
{
    const cg_row_block *const all = &call->all;
    const cg_function *const f = all->f;
    cellgen_options sized = cellgen_options_of_row_block(call->options, 1, 2, &row, (const void *)call->packed);
    int64_t n[CELLGEN_DIMS_MAX];
    sized.every = 0;
    memcpy(n, all->shape.n, (size_t)f->dims * sizeof *n);
    cg_shape_whole(one, f, n, all->shape.extent, 1, call->plan, call->options);
    one->shape.first = all->shape.first;
    address += (uintptr_t)cg_place_all(one, &sized, call->plan, 0, address);
    one->options = cellgen_options_of_row_block(call->options, 1, 2, one->at.strides, (const void *)call->packed);
    one->options.every = 0;
    cg_place_packed(one, call->packed);
    cg_rows_of_row_block(one, call->args, call->options, row);
    cg_aim_row(one, row, call->norms ? address : 0);
    one->modes.rows = CG_SINGLE;
    if (cg_begin(one, &one->options, call->plan)) return; /* lengths have been looked at */
    if (last == one->shape.T) cg_clear(0, 1, one);
    if (one->at.whole && one->shape.segment) cg_spread_upstream(0, 1, one, first, last);
    if (one->shape.T > 0) {
        cg_take_row(all, one, row, last - first);
        cg_deferred(one, first, last - first, 0, 1);
        cg_add_row_sums(one, first, last - first, 0, 1);
    }
    if (first > 0) return;
    if (f->epilogue) cg_once(one, f->epilogue);
    if (call->norms) cg_square_row(call, one, row);
}

/* The rows of a thread: everything that is deferred of some steps. */
CELLGEN_STATIC int cg_defer_rows(cg_by_row *call, int64_t first, int64_t last, int thread, int threads)
{
    const cg_row_block *const b = &call->all;
    const int active = (int)(threads < call->together ? threads : call->together);
    const int64_t end = thread < active ? call->rows * (thread + 1) / active : 0;
    for (int64_t row = thread < active ? call->rows * thread / active : 0; row < end; ++row) {
        const int64_t place = b->shape.segment ? row : thread; /* a row goes on in the next segment */
        if (b->stop.asked && CELLGEN_READ_SHARED(b->stop.asked)) return 1;
        cg_defer_row(call, call->one + thread, call->address + (uintptr_t)(call->bytes * place), row, first, last);
    }
    return 0;
}

CELLGEN_STATIC void cg_by_row_task(int thread, int threads, void *context)
{
    cg_by_row *const call = (cg_by_row *)context;
    cg_row_block *const b = &call->all;
    const unsigned modes = cellgen_flush_denormals(b->modes.flush);
    const cg_partition own = cg_partition_steps(b, thread, threads);
    const int64_t steps = b->shape.segment ? b->shape.segment : b->shape.T;
    int stopped = 0;
    int64_t turn = 0;
    cg_prepare_weights(b, thread, threads);
    if (call->segment) cg_prepare_forward(&call->segment->row_block, thread, threads);
    if (b->at.whole && !b->shape.segment) cg_spread_upstream(thread, threads, b, 0, b->shape.T);
    cellgen_team_barrier(b->team, thread);
    for (int64_t end = b->shape.T, begin = 0; !stopped; end = begin) {
        begin = end > 0 ? (end - 1) / steps * steps : 0;
        if (call->segment)
            stopped = cg_run_segment(call->segment, b, 1, call->plan, begin, end, thread, threads, modes, &turn);
        if (call->stored && !stopped) cg_read_window(call->stored, b, 1, call->plan, b->team, begin, end, thread, threads);
        stopped = stopped || cg_reverse_loop(b, &own, begin, end, thread);
        cellgen_team_barrier(b->team, thread);
        if (!stopped && cg_defer_rows(call, begin, end, thread, threads)) CELLGEN_WRITE_SHARED(&call->stopped, 1);
        if (begin == 0 && !call->stored) break;
        cellgen_team_barrier(b->team, thread);
        stopped = stopped || CELLGEN_READ_SHARED(&call->stopped);
        if (call->stored && !stopped) cg_narrow_window(call->stored, begin, end, own.own_begin, own.own_end);
        if (begin == 0) break;
    }
    if (stopped) CELLGEN_WRITE_SHARED(&call->stopped, 1);
    cellgen_restore_denormals(b->modes.flush, modes);
}

CELLGEN_STATIC int cg_run_per_row(const cg_function *f, const int64_t *n, const int64_t *extent, const void *args,
                                  const cellgen_plan *given, const cg_space *space, cg_call *whole)
{
    const cellgen_options *const options = cg_options_of(f, args);
    cellgen_plan plan = *given;
    cg_by_row call;
    if (n[1] == 0) return CELLGEN_OK; /* no row has a gradient */
    plan.row_blocks = 1;
    memset(&call, 0, sizeof call);
    call.args = args;
    call.options = options;
    call.plan = &plan;
    call.rows = n[1];
    call.segment = whole->again ? &whole->segment : 0;
    call.stored = cg_is_stored(options) ? &whole->stored : 0;
    call.together = cg_together(n[1]);
    call.norms = options->per_row > 1;
    call.packed = cg_packed_at(space, options);
    call.address = space->address + (uintptr_t)space->packed;
    cg_shape_whole(&call.all, f, n, extent, n[1], &plan, options);
    call.all.options = *options;
    call.all.options.every = 0; /* its steps are those of all gradients */
    call.address += (uintptr_t)cg_place_all(&call.all, &call.all.options, &plan, 0, call.address);
    call.bytes = cg_row_bytes(f, n, extent, options, &plan);
    cg_place_packed(&call.all, call.packed);
    cg_rows_of_row_block(&call.all, args, options, 0);
    call.all.team = whole->team;
    const int bad = cg_begin(&call.all, &call.all.options, &plan);
    if (bad) return bad;
    cellgen_team_run(whole->team, cg_by_row_task, &call);
    return call.stopped ? CELLGEN_STOPPED : CELLGEN_OK;
}
