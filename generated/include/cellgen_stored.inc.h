/* Arrays over time that a caller stores in 16 bits (`stored` of the options). The loops read and write float
 * arrays of a resident window of steps: what it reads is widened before its first step, what it makes is rounded
 * after its last one. States go on from window to window as they are. Part of cellgen_driver.inc.h, for float32. */

#ifndef CELLGEN_STORED_BYTES
#define CELLGEN_STORED_BYTES (256 << 10) /* of a window, which stays in a second-level cache */
#endif

/* One array over time of a call and its window. */
typedef struct {
    char *rows;        /* of the first step that is computed; of every so many-th one, if it has those alone */
    int64_t step, row; /* bytes from step to step, from row to row */
    int64_t width;     /* of a row */
    int kind;          /* cellgen_stored */
    int is_written, is_sparse;
    int starts; /* backward: the states from which steps start: before the first step of a window, too */
    real *resident; /* the step before a window, then its steps */
} cg_stored_array;

/* --- which arrays, and where --- */

/* The row of an array over time that a member is, NONE: of none. */
CELLGEN_STATIC int cg_series_of_member(const cg_function *f, int member)
{
    for (int i = 0; i < f->series; ++i)
        if (f->over_time[i].member == member) return i;
    return CELLGEN_NONE;
}

/* Elements of a row of a member that has one for each step, 0: it has not. `again`: where steps are run forward
 * once more, what they make has memory of its own. */
CELLGEN_STATIC int64_t cg_width_over_time(const cg_function *f, const int64_t *extent, const cellgen_options *options,
                                          int again, int member)
{
    const int series = cg_series_of_member(f, member), flags = f->member[member].flags;
    const int made = flags & CELLGEN_MADE || (series != CELLGEN_NONE && f->over_time[series].flags & CELLGEN_AGAIN);
    if (again && (made || (!f->is_backward && flags & CELLGEN_RESULT))) return 0;
    if (series == CELLGEN_NONE) return flags & CELLGEN_MADE ? extent[f->member[member].width] : 0;
    if (!f->is_backward && options->last && f->over_time[series].flags & CELLGEN_OUTPUT) return 0; /* of one step */
    return extent[f->over_time[series].width];
}

CELLGEN_STATIC int64_t cg_resident_steps(const cg_function *f, const int64_t *n, const int64_t *extent,
                                          const cellgen_options *options, int64_t unit)
{
    int64_t bytes = 0, steps;
    for (int i = 0; i < f->members; ++i) bytes += n[1] * (int64_t)sizeof(real) * cg_width_over_time(f, extent, options, 0, i);
    steps = CELLGEN_STORED_BYTES / (bytes > 0 ? bytes : 1) / unit * unit;
    if (steps < unit) steps = unit;
    return steps < n[0] ? steps : n[0];
}

/* The arrays of a call, of windows of `steps`. */
typedef struct {
    int arrays;
    cg_stored_array *array;
    int64_t steps, batch, T, every, lead;
    cellgen_options options; /* of the loops, which show every step */
    char *args;              /* of the loops: windows in the place of arrays */
} cg_stored;

/* Where the caller has an array. */
CELLGEN_STATIC void cg_aim_stored(const cg_stored *stored, const cg_function *f, const cellgen_options *options,
                                  int member, char *given, cg_stored_array *array)
{
    const int series = cg_series_of_member(f, member);
    const int strided = series != CELLGEN_NONE && f->over_time[series].strides != CELLGEN_NONE;
    const int64_t *const strides = strided && options->strides ? options->strides + f->over_time[series].strides : 0;
    array->kind = options->stored[member];
    const int64_t size = array->kind == CELLGEN_STORED_REAL ? (int64_t)sizeof(real) : 2;
    const cg_distances lies = cg_distances_of(strides, stored->batch, array->width);
    array->step = size * lies.step;
    array->row = size * lies.row;
    array->is_written = f->member[member].flags & CELLGEN_RESULT ? 1 : 0;
    array->is_sparse = stored->every > 1 && strided &&
                       (f->is_backward ? cg_is_upstream(f, series) : f->over_time[series].flags & CELLGEN_OUTPUT);
    for (int i = 0; i < f->links && f->is_backward && series != CELLGEN_NONE; ++i)
        if (f->link[i].series == series) array->starts = 1;
    const int64_t steps = array->is_sparse ? stored->T / stored->every : stored->T;
    array->rows = given;
    if (!strided || !options->reverse || steps == 0) return;
    array->rows += (steps - 1) * array->step;
    array->step = -array->step;
}

/* Give the windows of a call memory from `address` on (0: none); tell how many bytes that takes. */
CELLGEN_STATIC int64_t cg_place_stored(cg_stored *stored, const cg_function *f, const int64_t *n, const int64_t *extent,
                                       const cellgen_options *options, int64_t steps, int again, const void *args,
                                       uintptr_t address)
{
    int64_t bytes = 0;
    memset(stored, 0, sizeof *stored);
    stored->steps = steps;
    stored->T = n[0];
    stored->batch = n[1];
    stored->options = *options;
    stored->options.every = 0;
    const unsigned granted = cg_exclude(cg_asked(f, options, 0) & ~(unsigned)CG_ASKS_RESIDENT); /* as of float arrays */
    stored->every = granted & CG_ASKS_EVERY ? options->every : 1;
    stored->lead = options->reverse ? n[0] % stored->every : stored->every - 1;
    CELLGEN_TAKE(stored->array, cg_stored_array, 1, f->members + 1);
    CELLGEN_TAKE(stored->args, char, 1, CELLGEN_WORD * (f->members + 4));
    if (address) memcpy(stored->args, args, (size_t)(CELLGEN_WORD * (f->members + 4)));
    for (int i = 0; i < f->members; ++i) {
        const int64_t width = cg_width_over_time(f, extent, options, again, i);
        cg_stored_array array;
        char *given = 0;
        if (!width) continue;
        memset(&array, 0, sizeof array);
        array.width = width;
        CELLGEN_TAKE(array.resident, real, 1, (steps + 1) * n[1] * width);
        if (address) memcpy(&given, stored->args + CELLGEN_WORD * i, sizeof given);
        if (!given) continue;
        cg_aim_stored(stored, f, options, i, given, &array);
        memcpy(stored->args + CELLGEN_WORD * i, &array.resident, sizeof array.resident);
        stored->array[stored->arrays++] = array;
    }
    if (address) {
        const cellgen_options *const own = &stored->options;
        memcpy(stored->args + CELLGEN_WORD * (f->members + 3), &own, sizeof own);
    }
    return bytes;
}

/* --- windows --- */

/* Where a step lies in an array of the caller's, NULL: nowhere. */
CELLGEN_INLINE char *cg_stored_at(const cg_stored *stored, const cg_stored_array *array, int64_t step)
{
    if (!array->is_sparse) return array->rows + step * array->step;
    const int64_t past = step - stored->lead;
    return past >= 0 && past % stored->every == 0 ? array->rows + past / stored->every * array->step : 0;
}

/* Let a window of the steps first <= step < last have what it reads: rows begin <= row < end. */
CELLGEN_STATIC void cg_widen_window(const cg_stored *stored, int64_t first, int64_t last, int64_t begin, int64_t end)
{
#if CELLGEN_PRECISION == 32
    for (int i = 0; i < stored->arrays; ++i) {
        const cg_stored_array *const array = stored->array + i;
        const int64_t width = array->width, size = array->kind == CELLGEN_STORED_REAL ? 4 : 2;
        if (array->is_written) continue;
        for (int64_t step = first; step < last; ++step) {
            const char *const from = cg_stored_at(stored, array, step);
            real *const to = array->resident + (step - first + 1) * stored->batch * width;
            const int64_t together = !from || array->row == size * width ? end - begin : 1;
            for (int64_t row = begin; row < end; row += together) {
                if (from)
                    cellgen_widen(to + row * width, from + row * array->row, together * width, array->kind);
                else
                    cg_copy_row(to + row * width, 0, together * width);
            }
        }
    }
#else
    (void)stored, (void)first, (void)last, (void)begin, (void)end;
#endif
}

/* Round what a window has made. */
CELLGEN_STATIC void cg_narrow_window(const cg_stored *stored, int64_t first, int64_t last, int64_t begin, int64_t end)
{
#if CELLGEN_PRECISION == 32
    for (int i = 0; i < stored->arrays; ++i) {
        const cg_stored_array *const array = stored->array + i;
        const int64_t width = array->width, size = array->kind == CELLGEN_STORED_REAL ? 4 : 2;
        if (!array->is_written) continue;
        for (int64_t step = first; step < last; ++step) {
            char *const to = cg_stored_at(stored, array, step);
            const real *const from = array->resident + (step - first + 1) * stored->batch * width;
            const int64_t together = array->row == size * width ? end - begin : 1;
            for (int64_t row = begin; row < end && to; row += together)
                cellgen_narrow(to + row * array->row, from + row * width, together * width, array->kind);
        }
    }
#else
    (void)stored, (void)first, (void)last, (void)begin, (void)end;
#endif
}

/* What the next window starts from: the last step of this one. */
CELLGEN_STATIC void cg_pass_window(const cg_stored *stored, int64_t steps, int64_t begin, int64_t end)
{
    for (int i = 0; i < stored->arrays; ++i) {
        const cg_stored_array *const array = stored->array + i;
        if (array->is_written && end > begin)
            cg_copy_row(array->resident + begin * array->width,
                        array->resident + (steps * stored->batch + begin) * array->width, (end - begin) * array->width);
    }
}

/* A thread's share of the states from which the first step of a window starts, of a row block of a backward pass whose
 * rows are those from `from` on: those after the last valid step before it. */
CELLGEN_STATIC void cg_widen_starts(const cg_stored *stored, const cg_row_block *b, int64_t from, int64_t first, int thread, int threads)
{
#if CELLGEN_PRECISION == 32
    for (int i = 0; i < stored->arrays && first > 0; ++i) {
        const cg_stored_array *const array = stored->array + i;
        for (int64_t row = b->shape.B * thread / threads; array->starts && row < b->shape.B * (thread + 1) / threads; ++row) {
            const int64_t source = b->at.before ? b->at.before[first * b->shape.B + row] : first - 1;
            if (source >= 0)
                cellgen_widen(array->resident + (from + row) * array->width,
                              array->rows + source * array->step + (from + row) * array->row, array->width, array->kind);
        }
    }
#else
    (void)stored, (void)b, (void)from, (void)first, (void)thread, (void)threads;
#endif
}

/* Steps of a window. */
CELLGEN_STATIC int64_t cg_stored_steps(const cg_function *f, const int64_t *n, const int64_t *extent,
                                       const cellgen_options *options, const cellgen_plan *plan)
{
    cg_row_block b;
    cg_shape_row_block(&b, f, n, extent, n[1], plan, options);
    return f->is_backward ? b.shape.segment : cg_resident_steps(f, n, extent, options, b.shape.hoist_steps);
}

CELLGEN_STATIC int64_t cg_stored_bytes(const cg_function *f, const int64_t *n, const int64_t *extent,
                                       const cellgen_options *options, const cellgen_plan *plan)
{
    cg_stored stored;
    if (!cg_is_stored(options)) return 0;
    return cg_place_stored(&stored, f, n, extent, options, cg_stored_steps(f, n, extent, options, plan),
                           f->is_backward && options->checkpoint > 0, 0, 0);
}

/* Begin a call whose arrays over time have types of their own; the windows are at the end of its workspace. The
 * arguments and options of its loops. */
CELLGEN_STATIC void cg_begin_stored(cg_stored *stored, const cg_function *f, const int64_t *n, const int64_t *extent,
                                    const cellgen_plan *plan, const cg_space *space, const void **args, const cellgen_options **options)
{
    stored->arrays = 0;
    if (!cg_is_stored(*options)) return;
    const int64_t bytes = cg_stored_bytes(f, n, extent, *options, plan);
    const uintptr_t end = space->address + (uintptr_t)(cg_space_behind(space->packed, f, n, *options) - bytes - 64);
    cg_place_stored(stored, f, n, extent, *options, cg_stored_steps(f, n, extent, *options, plan),
                    f->is_backward && (*options)->checkpoint > 0, *args, end);
    *args = stored->args;
    *options = &stored->options;
}
