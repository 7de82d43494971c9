/* A backward pass: row blocks, steps from the last one on, and what is deferred a chunk behind. Part of
 * cellgen_driver.inc.h. */

typedef struct {
    int64_t row_blocks;
    cellgen_team *team;
    int stopped; /* before its end, as asked */
    const cellgen_plan *plan;
    int64_t segment_steps; /* steps that arrays hold at a time, 0: all */
    int again;             /* which are run forward once more: else what all of them save is there */
    cg_segment segment;
    cg_stored stored;
    cg_row_block row_block[CELLGEN_MOST_ROW_BLOCKS];
} cg_call;

/* What a row block sums starts from zero, what is the same at every step is copied for those of a chunk; without
 * a step, gradients of the states pass as they are. */
CELLGEN_STATIC void cg_clear(int thread, int threads, const cg_row_block *b)
{
    const cg_function *const f = b->f;
    if (b->at.whole && !b->shape.segment) cg_spread_upstream(thread, threads, b, 0, b->shape.T);
    for (int i = 0; i < f->totals; ++i) {
        const cellgen_total *total = f->total + i;
        const int64_t count = cg_length(b, total->count) * (total->is_batched ? b->shape.B : 1);
        real *const sum = cg_either(b, total->member, total->memory);
        if (sum && (b->shape.T == 0 || !total->begun) && i % threads == thread) cg_copy_row(sum, 0, count);
    }
    const int64_t copies = b->shape.T > 0 ? b->shape.chunk_rows : 0;
    for (int i = 0; i < f->constants; ++i) {
        const int64_t width = cg_length(b, f->constant[i].width);
        for (int64_t row = copies * thread / threads; row < copies * (thread + 1) / threads; ++row)
            cg_copy_row(b->at.memory[f->constant[i].memory] + row * width,
                        cg_member(b, f->constant[i].member) + row % b->shape.B * width, width);
    }
    for (int i = 0; i < f->links && b->shape.T == 0 && thread == 0; ++i)
        if (cg_member(b, f->link[i].passed)) cg_copy_row(cg_member(b, f->link[i].passed), cg_member(b, f->link[i].last), b->shape.B * cg_length(b, f->link[i].width));
    cellgen_team_barrier(b->team, thread);
}

/* The steps first <= step < last of a row block, unless bands have run them, and what they defer. */
CELLGEN_STATIC int cg_reverse_steps(int thread, int threads, cg_row_block *b, int64_t first, int64_t last)
{
    const cg_partition own = cg_partition_steps(b, thread, threads);
    if (!b->shape.band_rows && cg_reverse_loop(b, &own, first, last, thread)) return 1;
    cellgen_team_barrier(b->team, thread);
    const int later = b->f->reads_before && first == 0 && !b->modes.gather; /* the initial state stands in an array of its own */
    if (later && last > 1) {
        cg_deferred(b, 1, last - 1, thread, threads);
        cellgen_team_barrier(b->team, thread); /* the rows of one step are shared anew */
    }
    cg_deferred(b, first, later ? 1 : last - first, thread, threads);
    cellgen_team_barrier(b->team, thread);
    cg_add_row_sums(b, first, last - first, thread, threads);
    return 0;
}

/* The sums of all row blocks, in order: the same bits for any threads. */
CELLGEN_STATIC void cg_add_row_blocks(const cg_call *call, int thread, int threads)
{
    const cg_row_block *const b = call->row_block;
    for (int64_t row_block = 1; row_block < call->row_blocks; ++row_block)
        for (int i = 0; i < b->f->totals; ++i) {
            const cellgen_total *total = b->f->total + i;
            if (!total->is_batched && cg_either(b, total->member, total->memory))
                cg_add_row_block(cg_either(b, total->member, total->memory),
                                 cg_either(call->row_block + row_block, total->member, total->memory), cg_length(b, total->count),
                                 thread, threads);
        }
}

/* What is made of weights alone: by one thread what all of them read, panels by all. */
CELLGEN_STATIC void cg_prepare_weights(const cg_row_block *b, int thread, int threads)
{
    if (b->f->prologue) {
        if (b->modes.weights != CG_PACKED && thread == 0) cg_once(b, b->f->prologue);
        cellgen_team_barrier(b->team, thread);
    }
    for (int part = 0; part < b->f->parts && b->modes.weights == CG_TO_PACK; ++part) cg_pack_panels(b, part, thread, threads, 0);
}

CELLGEN_STATIC int cg_has_stopped(const cg_call *call)
{
    int found = 0;
    for (int64_t row_block = 0; row_block < call->row_blocks; ++row_block)
        found = found || call->row_block[row_block].stop.found[0] || call->row_block[row_block].stop.found[1];
    return found;
}

CELLGEN_STATIC void cg_backward_task(int thread, int threads, void *context)
{
    cg_call *const call = (cg_call *)context;
    cg_row_block *const b = call->row_block;
    const unsigned modes = cellgen_flush_denormals(b->modes.flush);
    cg_prepare_weights(b, thread, threads);
    if (call->again) cg_prepare_forward(&call->segment.row_block, thread, threads);
    for (int64_t row_block = 0; row_block < call->row_blocks && thread == 0; ++row_block)
        call->row_block[row_block].team = call->row_blocks == 1 ? call->team
            : cellgen_team_part(call->team, (int)row_block, cellgen_threads_of_row_block(row_block, call->row_blocks, threads));
    cellgen_team_barrier(call->team, thread);

    const cellgen_row_block_partition own = cellgen_partition_row_blocks(call->row_blocks, thread, threads);
    int stopped = 0;
    int64_t turn = 0;
    for (int64_t row_block = own.begin; row_block < own.end; ++row_block) cg_clear(own.thread, own.threads, call->row_block + row_block);
    for (int64_t end = b->shape.T, begin; end > 0 && !stopped; end = begin) {
        begin = call->segment_steps ? (end - 1) / call->segment_steps * call->segment_steps : 0;
        if (call->again && call->segment.band_rows)
            stopped = cg_run_bands(&call->segment, call->row_block, call->row_blocks, call->plan, begin, end, modes);
        else if (call->again)
            stopped = cg_run_segment(&call->segment, call->row_block, call->row_blocks, call->plan, begin, end, thread, threads, modes, &turn);
        if (b->modes.residency == CG_RESIDENT_WINDOW && !stopped)
            cg_read_window(&call->stored, call->row_block, call->row_blocks, call->plan, call->team, begin, end, thread, threads);
        for (int64_t last = end, first; last > begin && !stopped; last = first) { /* a chunk of each row block in turn: their rows are neighbours */
            first = (last - 1) / b->shape.chunk_steps * b->shape.chunk_steps;
            if (first < begin) first = begin;
            for (int64_t row_block = own.begin; row_block < own.end; ++row_block)
                stopped = cg_reverse_steps(own.thread, own.threads, call->row_block + row_block, first, last) || stopped;
        }
        cellgen_team_barrier(call->team, thread);
        stopped = stopped || cg_has_stopped(call); /* a row block may have seen what others have not */
        if (b->modes.residency == CG_RESIDENT_WINDOW && !stopped) cg_narrow_window(&call->stored, begin, end, b->shape.batch * thread / threads, b->shape.batch * (thread + 1) / threads);
    }
    if (thread == 0) call->stopped = stopped;
    if (!stopped) cg_add_row_blocks(call, thread, threads);
    if (b->f->epilogue) {
        if (call->row_blocks > 1) cellgen_team_barrier(call->team, thread);
        if (thread == 0 && !stopped) cg_once(b, b->f->epilogue);
    }
    cellgen_restore_denormals(b->modes.flush, modes);
}

/* The rows of a row block from `from` on: where they lie in the arrays of a call. */
CELLGEN_STATIC void cg_rows_of_row_block(cg_row_block *b, const void *args, const cellgen_options *options, int64_t from)
{
    const cg_function *const f = b->f;
    const int64_t *const strides = options ? options->strides : 0;
    memcpy(b->at.args, args, (size_t)(CELLGEN_WORD * (f->members + 4)));
#define CELLGEN_SHIFT(number, elements)                                        \
    do {                                                                       \
        real *given = cg_member(b, number);                                    \
        if (given) given += (elements);                                        \
        memcpy(b->at.args + CELLGEN_WORD * (number), &given, sizeof given);       \
    } while (0)
    for (int i = 0; i < f->series; ++i) {
        const cellgen_series_row *row = f->over_time + i;
        const int64_t width = cg_length(b, row->width);
        const int is_given = strides && !cg_is_resident(b, row);
        if (row->strides == CELLGEN_NONE) continue;
        const cg_distances lies = cg_distances_of(is_given ? strides + row->strides : 0, b->shape.batch, width);
        b->at.strides[row->strides] = lies.step;
        b->at.strides[row->strides + 1] = lies.row;
        CELLGEN_SHIFT(row->member, from * lies.row);
    }
    for (int i = 0; i < f->members; ++i)
        if (f->member[i].flags & CELLGEN_BY_ROW) CELLGEN_SHIFT(i, from * cg_length(b, f->member[i].width));
#undef CELLGEN_SHIFT
    for (int flag = 0; flag < 2; ++flag) { /* of mask and of reset */
        const int at = f->flag_strides + 2 * flag;
        const cg_distances lies = cg_distances_of(strides ? strides + at : 0, b->shape.batch, 1);
        b->at.strides[at] = lies.step;
        b->at.strides[at + 1] = lies.row;
    }
    if (b->options.lengths) b->options.lengths += from;
    if (b->options.mask) b->options.mask += from * b->at.strides[f->flag_strides + 1];
    if (b->options.reset) b->options.reset += from * b->at.strides[f->flag_strides + 3];
}

/* Begin a row block that has its places; not 0: an error. */
CELLGEN_STATIC int cg_begin_row_block(cg_call *call, int64_t number, const void *args, uintptr_t packed)
{
    cg_row_block *const b = call->row_block + number;
    const cg_function *const f = b->f;
    const cellgen_options *const options = cg_options_of(f, args);
    b->options = cellgen_options_of_row_block(options, number, call->row_blocks, b->at.strides, (const void *)packed);
    b->options.every = 0; /* its steps are those of all gradients */
    cg_place_packed(b, packed);
    cg_rows_of_row_block(b, args, options, b->shape.batch * number / call->row_blocks);
    b->team = call->team;
    for (int i = 0; i < f->totals && number > 0; ++i)
        if (f->total[i].own != CELLGEN_NONE && cg_member(b, f->total[i].member))
            memcpy(b->at.args + CELLGEN_WORD * f->total[i].member, b->at.memory + f->total[i].own, sizeof(real *));
    return cg_begin(b, &b->options, call->plan);
}

CELLGEN_STATIC int cg_run_per_row(const cg_function *f, const int64_t *n, const int64_t *extent, const void *args,
                                  const cellgen_plan *given, const cg_space *space, cg_call *call);

int cg_run_backward(const cg_function *f, const int64_t *dims, const void *args)
{
    int64_t of_call[CELLGEN_DIMS_MAX];
    const int64_t *const n = cg_dims(f, dims, of_call);
    const cellgen_options *options = cg_options_of(f, args);
    int64_t extent[CELLGEN_EXTENTS_MAX];
    cellgen_plan plan;
    cg_space space;
    cg_call call;
    if (cg_is_negative(f, dims)) return CELLGEN_NEGATIVE_DIMENSION;
    call.segment_steps = cg_segment_steps(options, n[0]);
    if (!call.segment_steps && cg_missing(f, args, CELLGEN_REQUIRED, options)) return CELLGEN_NULL_POINTER;
    if (cg_packs_less(f, n, options)) return CELLGEN_PACKED_TOO_SMALL;

    call.team = cg_team_of_call(cg_team_of(f, args), options);
    const int64_t threads = cellgen_team_size(call.team);
    if (cg_find_space(&space, f, n, args, options, threads)) return CELLGEN_WORKSPACE_TOO_SMALL;
    f->extent(n, extent);
    call.row_blocks = cg_row_blocks(f, n, extent);
    call.stopped = 0;
    cg_choose_for(f, n, threads, 0, options, &plan);
    if (options && options->plan) plan = *options->plan;
    if (!cellgen_plan_fits(&plan, threads, f->part->can_split, call.row_blocks)) return CELLGEN_PLAN_UNFIT;
    call.plan = &plan;
    call.again = call.segment_steps > 0;
    if (call.again) { /* at the end of the workspace */
        const int64_t bytes = cg_segment_bytes(f, n, options);
        const uintptr_t end = space.address + (uintptr_t)(cg_space_behind(space.packed, f, n, options) - bytes - cg_stored_bytes(f, n, extent, options, &plan) - 64);
        const int bad = cg_begin_segment(&call.segment, f, n, args, call.team, end);
        args = call.segment.args;
        if (bad) return bad;
        if (cg_missing(f, args, CELLGEN_REQUIRED, 0)) return CELLGEN_NULL_POINTER;
    }
    cg_begin_stored(&call.stored, f, n, extent, &plan, &space, &args, &options);
    if (cg_is_stored(options)) call.segment_steps = call.stored.steps;
    if (options && options->per_row)
        return cg_run_per_row(f, n, extent, args, &plan, &space, &call);

    if (cg_place_row_blocks(call.row_block, &space, f, n, extent, options, &plan, call.row_blocks)) return CELLGEN_WORKSPACE_TOO_SMALL;
    for (int64_t number = 0; number < call.row_blocks; ++number) {
        const int bad = cg_begin_row_block(&call, number, args, cg_packed_at(&space, options));
        if (bad) return bad;
    }
    cellgen_team_run(call.team, cg_backward_task, &call);
    return call.stopped ? CELLGEN_STOPPED : CELLGEN_OK;
}

/* Pack the weights of either kind of function. */
int cg_pack(const cg_function *f, const int64_t *n, const void *args, void *packed, int64_t packed_bytes)
{
    int64_t extent[CELLGEN_EXTENTS_MAX];
    real *memory[CELLGEN_MEMORY_MAX];
    cg_row_block b;
    if (cg_is_negative(f, n)) return CELLGEN_NEGATIVE_DIMENSION;
    if (cg_missing(f, args, CELLGEN_PACKED, 0) || !packed) return CELLGEN_NULL_POINTER;
    if (packed_bytes < cg_packed_size(f, n, cg_options_of(f, args))) return CELLGEN_PACKED_TOO_SMALL;
    memset(&b, 0, sizeof b);
    f->extent(n, extent);
    b.f = f;
    b.shape.extent = extent;
    b.at.memory = memory;
    memcpy(b.shape.n, n, (size_t)f->dims * sizeof *n);
    b.at.args = (char *)(uintptr_t)args;
    cg_take_products(&b.modes, f, cg_options_of(f, args));
    cg_place_packed(&b, (uintptr_t)packed);
    if (f->prologue) cg_once(&b, f->prologue);
    for (int part = 0; part < f->parts; ++part) cg_pack_panels(&b, part, 0, 1, 1);
    return CELLGEN_OK;
}
