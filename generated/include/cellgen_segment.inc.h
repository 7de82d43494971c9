/* Segments of a backward pass: where a forward pass kept states at every so many-th step, each segment from
 * one of them to the next is run forward once more, into memory that holds what its steps save, and then
 * backward. The same equations on the same states give the same bits. Part of cellgen_driver.inc.h. */

/* The forward pass of a segment: a row block of all rows, whose results go to arrays of the segment. */
typedef struct {
    cg_row_block row_block;
    cellgen_options options; /* of the forward pass, which shows every step here */
    cellgen_plan plan;
    cg_stored stored; /* what it reads, where arrays over time have types of their own */
    int64_t extent[CELLGEN_EXTENTS_MAX];
    char *args; /* of the backward pass, with arrays of the segment in place of those of all steps */
    int64_t band_rows;
    unsigned char *banded, *banded_forward; /* by member of the backward and of the forward pass */
} cg_segment;

/* The dimensions, options and plan of the forward pass; `args`: its own, as its caller gives them. */
CELLGEN_STATIC void cg_shape_segment(cg_segment *segment, const cg_function *f, const int64_t *n, int64_t threads,
                                     const cellgen_options *options)
{
    const cg_function *const forward = f->forward;
    const cellgen_options *const own = cg_options_of(forward, options->forward);
    memset(segment, 0, sizeof *segment);
    if (own) segment->options = *own;
    segment->options.last = segment->options.every = segment->options.partial = segment->options.checkpoint = 0;
    segment->options.checkpoints = options->checkpoints;
    segment->options.stop = options->stop;
    cg_choose_for(forward, n, threads, 0, &segment->options, &segment->plan);
    if (segment->options.plan) segment->plan = *segment->options.plan;
    f->extent(n, segment->extent);
    segment->band_rows = cg_band_rows(f, n, segment->extent, options);
    if (segment->band_rows && threads == 1 && !segment->plan.unpacked) segment->plan.hoist = 1;
    if (segment->band_rows) segment->plan.window_rows = cg_segment_steps(options, n[0]) * n[1]; /* ahead of all bands */
    if (threads > 1) segment->band_rows = 0;
    forward->extent(n, segment->extent);
    cg_shape_row_block(&segment->row_block, forward, n, segment->extent, n[1], &segment->plan, &segment->options);
    segment->row_block.shape.segment = cg_segment_steps(options, n[0]);
    segment->row_block.shape.first = -1;
    if (segment->row_block.modes.residency == CG_ALL_STEPS) segment->row_block.modes.residency = CG_SEGMENT;
}

/* Say which arrays hold the rows of a band alone. */
CELLGEN_STATIC void cg_mark_bands(cg_segment *segment, const cg_function *f)
{
    cg_row_block *const b = &segment->row_block;
    memset(segment->banded, 0, (size_t)f->members);
    for (int i = 0; i < f->forward->members; ++i)
        segment->banded_forward[i] = (unsigned char)(cg_width_made(b, i) != 0 && cg_is_of_band(f, i));
    for (int i = 0; i < f->mades; ++i) segment->banded[f->made[i].member] = segment->banded_forward[f->made[i].by];
    b->at.banded = segment->banded_forward;
    b->shape.band_rows = segment->band_rows;
}

/* Give a segment its memory from `address` on (0: none); tell how many bytes that takes. Of each array there is
 * a step more than a segment has: what it starts from. */
CELLGEN_STATIC int64_t cg_place_segment(cg_segment *segment, const cg_function *f, const cellgen_options *options,
                                        const void *args, uintptr_t address)
{
    cg_row_block *const b = &segment->row_block;
    const cg_function *const forward = f->forward;
    const uintptr_t packed = segment->options.packed ? (uintptr_t)segment->options.packed : address;
    int64_t bytes = cg_own_packed_size(forward, b->shape.n, &segment->options);
    bytes += cg_place_all(b, &segment->options, &segment->plan, 0, address ? address + (uintptr_t)bytes : 0);
    if (address) cg_place_packed(b, packed);
    CELLGEN_TAKE(b->at.args, char, 1, CELLGEN_WORD * (forward->members + 4));
    CELLGEN_TAKE(segment->args, char, 1, CELLGEN_WORD * (f->members + 4));
    if (address) {
        memcpy(b->at.args, options->forward, (size_t)(CELLGEN_WORD * (forward->members + 4)));
        memcpy(segment->args, args, (size_t)(CELLGEN_WORD * (f->members + 4)));
    }
    CELLGEN_TAKE(segment->banded, unsigned char, 1, f->members);
    CELLGEN_TAKE(segment->banded_forward, unsigned char, 1, forward->members);
    if (address) cg_mark_bands(segment, f);
    for (int i = 0; i < forward->members; ++i) {
        const int64_t width = cg_width_made(b, i);
        real *resident;
        if (!width) continue;
        CELLGEN_TAKE(resident, real, 1, (b->shape.segment + 1) * b->shape.B * width);
        if (address) memcpy(b->at.args + CELLGEN_WORD * i, &resident, sizeof resident);
    }
    if (b->modes.residency == CG_RESIDENT_WINDOW) {
        bytes += cg_place_stored(&segment->stored, forward, b->shape.n, segment->extent, &segment->options, b->shape.segment, 1, b->at.args,
                                 address ? address + (uintptr_t)bytes : 0);
        if (address) b->at.args = segment->stored.args;
    }
    for (int i = 0; i < forward->links && address; ++i) /* final states are there: no segment writes them */
        memcpy(b->at.args + CELLGEN_WORD * forward->link[i].last, b->at.args + CELLGEN_WORD * forward->link[i].initial, sizeof(real *));
    for (int i = 0; i < f->mades && address; ++i)
        memcpy(segment->args + CELLGEN_WORD * f->made[i].member, b->at.args + CELLGEN_WORD * f->made[i].by, sizeof(real *));
    return bytes;
}

/* Bytes of the workspace of a backward pass that goes over segments. */
CELLGEN_STATIC int64_t cg_segment_bytes(const cg_function *f, const int64_t *n, const cellgen_options *options)
{
    cg_segment segment;
    if (!f->is_backward || !f->forward || !options || !options->forward || !cg_segment_steps(options, n[0])) return 0;
    cg_shape_segment(&segment, f, n, 1, options);
    return cg_place_segment(&segment, f, options, 0, 0);
}

/* Begin a backward pass over segments; an error where something lacks. */
CELLGEN_STATIC int cg_begin_segment(cg_segment *segment, const cg_function *f, const int64_t *n, const void *args,
                                    cellgen_team *team, uintptr_t address)
{
    const cellgen_options *const options = cg_options_of(f, args);
    cg_row_block *const b = &segment->row_block;
    if (!f->forward || !options->forward || (n[0] > options->checkpoint && !options->checkpoints)) return CELLGEN_NULL_POINTER;
    cg_shape_segment(segment, f, n, cellgen_team_size(team), options);
    cg_place_segment(segment, f, options, args, address);
    if (cg_missing(f->forward, b->at.args, CELLGEN_REQUIRED, 0)) return CELLGEN_NULL_POINTER;
    if (cg_packs_less(f->forward, n, &segment->options)) return CELLGEN_PACKED_TOO_SMALL;
    if (!cellgen_plan_fits(&segment->plan, cellgen_team_size(team), f->forward->part->can_split, 1)) return CELLGEN_PLAN_UNFIT;
    b->options = segment->options;
    b->options.checkpoint = options->checkpoint;
    b->team = team;
    return cg_begin(b, &segment->options, &segment->plan);
}

/* What the first step of a segment starts from: some rows of the states, and of what steps repeat. */
CELLGEN_STATIC void cg_load_states(const cg_row_block *b, int64_t step, int64_t begin, int64_t end)
{
    const cg_function *const f = b->f;
    int number = 0;
    if (step == 0 || begin == end) return; /* the initial states are the caller's */
    for (; number < f->links; ++number) {
        const cellgen_link *const link = f->link + number;
        const int64_t width = cg_length(b, link->width), at = begin * width, count = (end - begin) * width;
        const real *const from = cg_checkpoint(b, number, step, width) + at;
        if (b->modes.guarded) cg_copy_row(b->at.memory[link->now] + at, from, count);
        if (link->flags & CELLGEN_STATE_OUTPUT)
            cg_copy_row(b->at.series[link->series].rows + at, from, count);
        else if (link->saved != CELLGEN_NONE)
            cg_copy_row(cg_saved_start(b, link->saved, width) + at, from, count);
        else
            cg_copy_row(b->at.memory[link->pair] + (cg_is_in_place(b, link) ? 0 : (step - 1) % 2) * b->shape.B * width + at, from, count);
    }
    for (int i = 0; i < f->series && b->at.validity; ++i) {
        const int64_t width = cg_length(b, f->over_time[i].width), at = begin * width;
        if (!(f->over_time[i].flags & CELLGEN_SHOWN)) continue;
        cg_copy_row(b->at.series[i].rows + at, cg_checkpoint(b, number++, step, width) + at, (end - begin) * width);
    }
}

/* Let a thread whose modes are those of a pass count denormal numbers as another pass does, and back. `modes`:
 * those that it had before, where it counts them as zeros; gives those to go back to. */
CELLGEN_INLINE unsigned cg_switch_denormals(int from, int to, unsigned modes)
{
    if (from && !to) cellgen_restore_denormals(1, modes);
    return from == to ? modes : cellgen_flush_denormals(to);
}

/* Let a window of the steps first <= step < last have what it reads, where arrays over time have types of their
 * own; by all threads of a call. */
CELLGEN_STATIC void cg_read_window(const cg_stored *stored, cg_row_block *row_blocks, int64_t count, const cellgen_plan *plan,
                                   cellgen_team *team, int64_t first, int64_t last, int thread, int threads)
{
    for (int64_t number = thread; number < count && row_blocks[number].shape.first != first - 1; number += threads) {
        row_blocks[number].shape.first = first - 1;
        cg_aim(row_blocks + number, &row_blocks[number].options, plan);
    }
    cg_widen_window(stored, first, last, stored->batch * thread / threads, stored->batch * (thread + 1) / threads);
    for (int64_t number = 0; number < count; ++number)
        cg_widen_starts(stored, row_blocks + number, stored->batch * number / count, first, thread, threads);
    cellgen_team_barrier(team, thread);
}

/* Run forward over the steps first <= step < last once more, by all threads of a call; the `count` row blocks of its
 * backward pass read them then. Whether all threads have agreed to stop. */
CELLGEN_STATIC int cg_run_segment(cg_segment *segment, cg_row_block *row_blocks, int64_t count, const cellgen_plan *plan,
                                  int64_t first, int64_t last, int thread, int threads, unsigned modes,
                                  int64_t *turn)
{
    cg_row_block *const b = &segment->row_block;
    const cg_partition own = cg_partition_steps(b, thread, threads);
    cellgen_team_barrier(b->team, thread); /* all have left the segment before */
    for (int64_t number = thread; number <= count; number += threads) {
        cg_row_block *const row_block = number < count ? row_blocks + number : b;
        row_block->shape.first = first - 1;
        cg_aim(row_block, number < count ? &row_block->options : &segment->options, number < count ? plan : &segment->plan);
    }
    cellgen_team_barrier(b->team, thread);
    for (int64_t number = 0; number < count; ++number)
        if (row_blocks[number].at.whole) cg_spread_upstream(thread, threads, row_blocks + number, first, last);
    const unsigned own_modes = cg_switch_denormals(row_blocks->modes.flush, b->modes.flush, modes);
    if (b->modes.residency == CG_RESIDENT_WINDOW) cg_widen_window(&segment->stored, first, last, own.own_begin, own.own_end);
    cg_load_states(b, first, own.own_begin, own.own_end);
    if (own.partitions > 1) cellgen_team_barrier(b->team, thread);
    const int stopped = cg_forward_steps(b, &own, first, last, thread, turn);
    (void)cg_switch_denormals(b->modes.flush, row_blocks->modes.flush, own_modes);
    cellgen_team_barrier(b->team, thread);
    return stopped;
}

/* Form what is formed ahead of the steps of a segment, for all of its bands. */
CELLGEN_STATIC void cg_form_segment(cg_row_block *b, const cellgen_options *options, const cellgen_plan *plan, int64_t first, int64_t last)
{
    const cg_part *const part = b->f->part;
    b->shape.first = first - 1;
    cg_aim(b, options, plan);
    for (int i = 0; b->modes.hoist && i < part->stages; ++i)
        if (part->stage[i].runs && part->stage[i].run->ahead != CELLGEN_NONE) cg_form_ahead(b, part->stage + i, first, last, 0, 1);
}

/* The rows begin <= row < end of the batch over the steps first <= step < last of a segment, forward and back. `from`:
 * the first row of the row block. Whether the thread is asked to stop. `modes`: see cg_switch_denormals. */
CELLGEN_STATIC int cg_run_band(cg_segment *segment, cg_row_block *row_block, const cellgen_plan *plan, int64_t from, int64_t begin,
                               int64_t end, int64_t first, int64_t last, unsigned modes)
{
    cg_row_block *const b = &segment->row_block;
    const cg_partition rows = {0, 1, begin, end, begin, end}, own = {0, 1, begin - from, end - from, begin - from, end - from};
    b->shape.band = row_block->shape.band = begin;
    b->shape.first = row_block->shape.first = first - 1;
    cg_aim(b, &segment->options, &segment->plan);
    cg_aim(row_block, &row_block->options, plan);
    const unsigned own_modes = cg_switch_denormals(row_block->modes.flush, b->modes.flush, modes);
    int stopped = 0;
    cg_load_states(b, first, begin, end);
    for (int64_t step = first; step < last && !stopped; ++step) {
        stopped = step % CELLGEN_STOP_STEPS == 0 && cg_stops(&b->stop, b->team, 0, 0);
        if (!stopped) cg_step(b, &rows, step, 0);
    }
    (void)cg_switch_denormals(b->modes.flush, row_block->modes.flush, own_modes);
    return stopped || cg_reverse_loop(row_block, &own, first, last, 0);
}

/* The steps first <= step < last of a segment by one thread, which takes some rows of a row block after the other over
 * them, forward and back; whether it is asked to stop. */
CELLGEN_STATIC int cg_run_bands(cg_segment *segment, cg_row_block *row_blocks, int64_t count, const cellgen_plan *plan,
                                int64_t first, int64_t last, unsigned modes)
{
    cg_row_block *const b = &segment->row_block;
    const unsigned own_modes = cg_switch_denormals(row_blocks->modes.flush, b->modes.flush, modes);
    cg_form_segment(b, &segment->options, &segment->plan, first, last);
    (void)cg_switch_denormals(b->modes.flush, row_blocks->modes.flush, own_modes);
    for (int64_t number = 0, from = 0; number < count; from += row_blocks[number++].shape.B) {
        const int64_t all = from + row_blocks[number].shape.B;
        row_blocks[number].at.banded = segment->banded;
        row_blocks[number].shape.band_rows = segment->band_rows;
        for (int64_t begin = from, end; begin < all; begin = end) {
            end = begin + segment->band_rows < all ? begin + segment->band_rows : all;
            if (cg_run_band(segment, row_blocks + number, plan, from, begin, end, first, last, modes)) return 1;
        }
    }
    return 0;
}
