/* What a call needs: its arguments, a plan that fits, bytes of workspace. Part of cellgen_driver.inc.h. */

/* Everything about a row block but where its memory is. */
CELLGEN_STATIC int cg_begin(cg_row_block *b, const cellgen_options *options, const cellgen_plan *plan)
{
    const cg_function *const f = b->f;
    const int64_t *const strides = options ? options->strides : 0;
    b->modes.guarded = cellgen_is_guarded(options);
    b->modes.flush = options && options->flush;
    b->stop.asked = options ? options->stop : 0;
    b->stop.found[0] = b->stop.found[1] = 0;
    if (b->at.validity) {
        const int bad = cellgen_fill_tables(options, strides ? strides + f->flag_strides : 0, b->shape.T, b->shape.B,
                                            b->at.validity, b->at.resets, b->at.before);
        if (bad) return bad;
    }
    for (int i = 0; i < f->totals; ++i) /* a sum that leads to nothing wanted has no memory */
        if (!cg_is_any_there(b, f->total[i].wants, f->total[i].want)) b->at.memory[f->total[i].memory] = 0;
    if (f->zeros != CELLGEN_NONE) cg_copy_row(b->at.zeros, 0, cg_length(b, f->zeros));
    cg_aim(b, options, plan);
    return CELLGEN_OK;
}

/* Whether a backward pass takes a member that the forward pass makes. */
CELLGEN_STATIC int cg_is_made(const cg_function *f, int member)
{
    for (int i = 0; i < f->mades; ++i)
        if (f->made[i].member == member) return 1;
    return 0;
}

/* What a call lacks; with `options`, of what it needs with them. */
CELLGEN_STATIC int cg_missing(const cg_function *f, const void *args, int asked, const cellgen_options *options)
{
    const int last = options && (options->last || options->partial);
    const int again = options && options->checkpoint > 0;
    for (int i = 0; i < f->members; ++i) {
        const int flags = f->member[i].flags;
        const void *given;
        if (!(flags & asked) || (last && flags & CELLGEN_UNLESS_LAST) || (again && cg_is_made(f, i))) continue;
        memcpy(&given, (const char *)args + CELLGEN_WORD * i, sizeof given);
        if (!given) return 1;
    }
    return 0;
}

/* Whether packed weights are smaller than those of these dimensions. */
CELLGEN_INLINE int cg_packs_less(const cg_function *f, const int64_t *n, const cellgen_options *options)
{
    return options && options->packed && options->packed_bytes < cg_packed_size(f, n, options);
}

CELLGEN_STATIC int cg_is_negative(const cg_function *f, const int64_t *n)
{
    for (int i = 0; i < f->dims; ++i)
        if (n[i] < 0) return 1;
    return 0;
}

/* Members of the argument struct that every function over time has. */
CELLGEN_INLINE const cellgen_options *cg_options_of(const cg_function *f, const void *args)
{
    const cellgen_options *found;
    memcpy(&found, (const char *)args + CELLGEN_WORD * (f->members + 3), sizeof found);
    return found;
}
CELLGEN_INLINE cellgen_team *cg_team_of(const cg_function *f, const void *args)
{
    void *found;
    memcpy(&found, (const char *)args + CELLGEN_WORD * (f->members + 2), sizeof found);
    return (cellgen_team *)found;
}

/* Row blocks that are passed apart from each other. */
CELLGEN_STATIC int64_t cg_row_blocks(const cg_function *f, const int64_t *n, const int64_t *extent)
{
    int64_t count = 0;
    if (!f->is_backward) return 1;
    for (int i = 0; i < f->totals; ++i)
        if (!f->total[i].is_batched) count += extent[f->total[i].count];
    return cellgen_row_blocks(n[0], n[1], (int64_t)sizeof(real) * count);
}

/* The dimensions of a call: without rows there are no steps. */
CELLGEN_INLINE const int64_t *cg_dims(const cg_function *f, const int64_t *n, int64_t *own)
{
    memcpy(own, n, (size_t)f->dims * sizeof *n);
    if (n[1] == 0) own[0] = 0;
    return own;
}

CELLGEN_STATIC void cg_choose_for(const cg_function *f, const int64_t *given, int64_t threads,
                                  const cellgen_constants *constants, const cellgen_options *options, cellgen_plan *plan)
{
    int64_t dims[CELLGEN_DIMS_MAX];
    const int64_t *const n = cg_dims(f, given, dims);
    const cg_part *const part = f->part;
    int64_t extent[CELLGEN_EXTENTS_MAX], weights = 0, free_partitions = 0;
    cg_row_block b;
    f->extent(n, extent);
    memset(&b, 0, sizeof b);
    b.f = f;
    b.shape.extent = extent;
    for (int stage = 0; stage < part->stages; ++stage)
        for (int run = 0; run < part->stage[stage].runs; ++run)
            weights += cg_count(&b, f->memory + part->stage[stage].run[run].panel);
    if (part->free_units != CELLGEN_NONE) {
        const int64_t granularity = CELLGEN_GRANULARITY(part->free_granularity);
        free_partitions = (extent[part->free_units] + granularity - 1) / granularity;
    }
    cg_take_products(&b.modes, f, options);
    const int halves = b.modes.bf16_way && b.modes.bf16_way != CELLGEN_BF16_FLOATS;
    const int64_t bytes = b.modes.products == CG_INT8 ? 1 : halves ? 2 : (int64_t)sizeof(real);
    *plan = cellgen_choose_plan(n[0], n[1], threads, bytes * weights, part->can_split,
                                free_partitions, cg_row_blocks(f, n, extent), constants);
    if (b.modes.bf16_way == CELLGEN_BF16_TILES && CELLGEN_AMX_WINDOW_STEPS * n[1] > plan->window_rows)
        plan->window_rows = cellgen_chunk_rows(n[0], n[1], CELLGEN_AMX_WINDOW_STEPS * n[1]);
}

void cg_choose(const cg_function *f, const int64_t *n, int64_t threads, const cellgen_constants *constants,
               cellgen_plan *plan)
{
    cg_choose_for(f, n, threads, constants, 0, plan);
}

int64_t cg_packed_size(const cg_function *f, const int64_t *n, const cellgen_options *options)
{
    int64_t extent[CELLGEN_EXTENTS_MAX];
    cg_row_block b;
    f->extent(n, extent);
    memset(&b, 0, sizeof b);
    b.f = f;
    b.shape.extent = extent;
    cg_take_products(&b.modes, f, options);
    return cg_place_packed(&b, 0);
}

/* Shape a row block, of `row_blocks`, and give it its places from `address` on (0: none); tell how many bytes that takes. */
CELLGEN_STATIC int64_t cg_place_row_block(cg_row_block *b, const cg_function *f, const int64_t *n, const int64_t *extent,
                                          const cellgen_options *options, const cellgen_plan *plan, int64_t row_block,
                                          int64_t row_blocks, uintptr_t address)
{
    cellgen_options of_row_block = cellgen_options_of_row_block(options, row_block, row_blocks, &row_blocks, &row_blocks);
    cg_shape_row_block(b, f, n, extent, n[1] * (row_block + 1) / row_blocks - n[1] * row_block / row_blocks, plan, options);
    of_row_block.every = 0; /* a backward pass forms the gradients of all steps */
    return cg_place_all(b, f->is_backward ? &of_row_block : options, plan, row_block > 0, address);
}

/* Bytes of one row that is deferred by itself: its own arrays and, for the squares' sums, its gradients. */
CELLGEN_STATIC int64_t cg_row_bytes(const cg_function *f, const int64_t *n, const int64_t *extent,
                                    const cellgen_options *options, const cellgen_plan *plan)
{
    cellgen_options of_row = cellgen_options_of_row_block(options, 1, 2, n, options);
    cg_row_block b;
    of_row.every = 0;
    cg_shape_whole(&b, f, n, extent, 1, plan, options);
    int64_t bytes = cg_place_all(&b, &of_row, plan, 0, 0);
    for (int i = 0; i < f->members && options->per_row > 1; ++i)
        if (f->member[i].flags & CELLGEN_SUMMED) bytes += CELLGEN_BYTES(extent[f->member[i].width]);
    return bytes;
}

CELLGEN_INLINE int64_t cg_together(int64_t rows)
{
    return rows < CELLGEN_ROWS_AT_ONCE ? rows : CELLGEN_ROWS_AT_ONCE;
}

/* Bytes of a pass whose gradients are each row's: all rows', and those of the rows that threads defer; of all
 * rows where each goes on from segment to segment. */
CELLGEN_STATIC int64_t cg_per_row_bytes(const cg_function *f, const int64_t *n, const int64_t *extent,
                                        const cellgen_options *options, const cellgen_plan *plan)
{
    cellgen_options of_all = *options;
    cg_row_block b;
    cg_shape_whole(&b, f, n, extent, n[1], plan, options);
    of_all.every = 0;
    return cg_place_all(&b, &of_all, plan, 0, 0) +
           (b.shape.segment ? n[1] : cg_together(n[1])) * cg_row_bytes(f, n, extent, options, plan);
}

CELLGEN_STATIC int64_t cg_segment_bytes(const cg_function *f, const int64_t *n, const cellgen_options *options);
CELLGEN_STATIC int64_t cg_stored_bytes(const cg_function *f, const int64_t *n, const int64_t *extent,
                                       const cellgen_options *options, const cellgen_plan *plan);

/* Bytes of the weights that a call packs itself. */
CELLGEN_INLINE int64_t cg_own_packed_size(const cg_function *f, const int64_t *n, const cellgen_options *options)
{
    return options && options->packed ? 0 : cg_packed_size(f, n, options);
}

/* Bytes of a workspace that begins with `packed` bytes of weights. */
CELLGEN_STATIC int64_t cg_space_behind(int64_t packed, const cg_function *f, const int64_t *given, const cellgen_options *options)
{
    int64_t extent[CELLGEN_EXTENTS_MAX], dims[CELLGEN_DIMS_MAX];
    const int64_t *const n = cg_dims(f, given, dims);
    int64_t bytes = 64 + packed;
    cellgen_plan plan;
    f->extent(n, extent);
    cg_choose_for(f, n, 1, 0, options, &plan);
    if (options && options->plan) plan = *options->plan;
    const int64_t row_blocks = cg_row_blocks(f, n, extent);
    plan.row_blocks = row_blocks;
    bytes += cg_segment_bytes(f, n, options) + cg_stored_bytes(f, n, extent, options, &plan);
    if (f->is_backward && options && options->per_row) return bytes + cg_per_row_bytes(f, n, extent, options, &plan);
    for (int64_t row_block = 0; row_block < row_blocks; ++row_block) {
        cg_row_block b;
        bytes += cg_place_row_block(&b, f, n, extent, options, &plan, row_block, row_blocks, 0);
    }
    return bytes;
}

int64_t cg_workspace_size(const cg_function *f, const int64_t *given, const cellgen_options *options)
{
    int64_t dims[CELLGEN_DIMS_MAX];
    return cg_space_behind(cg_own_packed_size(f, cg_dims(f, given, dims), options), f, given, options);
}

/* The workspace of a call. */
typedef struct {
    uintptr_t address;
    int64_t bytes;  /* that its caller gave it */
    int64_t packed; /* of them, at its begin, for the weights that it packs */
} cg_space;

/* Where packed weights are: the caller's, or at the begin of the workspace. */
CELLGEN_INLINE uintptr_t cg_packed_at(const cg_space *space, const cellgen_options *options)
{
    return options && options->packed ? (uintptr_t)options->packed : space->address;
}

/* Find the workspace of a call; not 0: it is too small. One of a single thread that holds row blocks alone is looked at
 * as these take their places. */
CELLGEN_STATIC int cg_find_space(cg_space *space, const cg_function *f, const int64_t *n, const void *args,
                                 const cellgen_options *options, int64_t threads)
{
    const int has_more = cg_is_stored(options) || (f->is_backward && options && (options->checkpoint || options->per_row));
    memcpy(&space->address, (const char *)args + CELLGEN_WORD * f->members, sizeof space->address);
    memcpy(&space->bytes, (const char *)args + CELLGEN_WORD * (f->members + 1), sizeof space->bytes);
    space->packed = cg_own_packed_size(f, n, options);
    return !space->address || ((has_more || threads > 1) && space->bytes < cg_space_behind(space->packed, f, n, options));
}

/* Give the row blocks of a call their places; not 0: the workspace is too small, and nothing else of it is written. */
CELLGEN_STATIC int cg_place_row_blocks(cg_row_block *b, const cg_space *space, const cg_function *f, const int64_t *n,
                                       const int64_t *extent, const cellgen_options *options, const cellgen_plan *plan,
                                       int64_t row_blocks)
{
    int64_t bytes = space->packed;
    for (int64_t number = 0; number < row_blocks; ++number) {
        if (space->bytes < 64 + bytes + CELLGEN_POINTERS(f)) return 1;
        bytes += cg_place_row_block(b + number, f, n, extent, options, plan, number, row_blocks, space->address + (uintptr_t)bytes);
    }
    return space->bytes < 64 + bytes;
}
