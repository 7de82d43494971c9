/* Memory of a call: what the workspace holds, and where the rows of every array lie at every step.
 * Part of cellgen_driver.c, once per precision. */

#define CELLGEN_TILE_BYTES (32 << 10) /* of all tiles that one buffer holds */

/* Where an array's rows lie at a step: `step` elements from one step to the next, in as many places as
 * `turns` says if it is not 0; at step `edge` elsewhere. `apart`: from step to step for rows of many
 * steps, each where it belongs. */
#undef cg_walk
#define cg_walk CELLGEN_NAME(cellgen_walk)
typedef struct {
    real *rows;
    int64_t step, row, turns, shift, edge, edge_row, apart;
    real *edge_rows;
} cg_walk;

/* One row block as if it were all of a batch; a forward pass has one. */
#undef cg_row_block
#define cg_row_block CELLGEN_NAME(cellgen_row_block)
typedef struct {
    const cg_function *f;
    const int64_t *extent;
    int64_t n[CELLGEN_DIMS_MAX];
    int64_t T, B;
    int64_t batch; /* rows of a step in saved arrays */
    int64_t chunk_rows, chunk_steps, window_rows, window_steps;
    int hoist;    /* products of inputs are formed ahead, for a window of steps */
    int by_units; /* threads share the units of a step, not its rows */
    int unpacked; /* weights are read where they lie */
    int in_bf16;  /* operands of products are rounded to bfloat16; in float32 alone */
    int in_int8;  /* weights of products are int8; in float32 alone, not backward */
    int packed;   /* weights are packed already */
    int guarded;  /* some steps may be masked, or start anew */
    int stored;   /* arrays over time are windows of steps, see cellgen_stored.inc.h */
    int gather;   /* rows of many steps are copied side by side before products over all of them */
    int64_t segment, first; /* steps of what a forward pass makes that are resident, 0: all; the one before them */
    int64_t band_rows, band; /* rows of each of these steps, 0: all; the first of them, of the batch */
    const unsigned char *banded; /* by member: which arrays have them */
    int64_t every, lead; /* outputs of every so many-th step alone are the caller's, the first after `lead` */
    int is_single; /* the row that is deferred by itself, of a batch */
    int64_t window;
    int flush; /* denormal numbers count as zeros */
    char *args;
    cellgen_options options;
    cellgen_team *team;
    cg_stop stop;
    /* in the workspace */
    real **memory;
    cg_series *series, *staged, *across; /* of every array over time: its own, for steps, for many */
    cg_walk *walks[2];                   /* of the places of the parts */
    int64_t *strides;
    real *zeros, *product_block;
    unsigned char *validity, *resets; /* [step][row]: CELLGEN_VALID or how it is masked; which start anew */
    int32_t *before;               /* [step][row]: the step whose state each starts from */
    cg_series *sparse;             /* of every array over time that has every so many-th step alone */
    real *whole;                   /* backward: gradients of outputs of all steps */
    real *shown;                   /* forward: what the last valid step shows, by output that is no state */
    cellgen_pair *rounded;         /* rows that products read, where those are in bfloat16 or in fixed point */
    int64_t widest_rounded[2];     /* pairs from one of them to the next, of each part */
} cg_row_block;

#undef cg_length
#define cg_length CELLGEN_NAME(cellgen_length)
CELLGEN_INLINE int64_t cg_length(const cg_row_block *b, int number)
{
    return b->extent[number];
}

/* An array of the caller's: a word of the argument struct. */
#undef cg_member
#define cg_member CELLGEN_NAME(cellgen_member_of)
CELLGEN_INLINE real *cg_member(const cg_row_block *b, int number)
{
    real *found;
    memcpy(&found, b->args + CELLGEN_WORD * number, sizeof found);
    return found;
}

#undef cg_either
#define cg_either CELLGEN_NAME(cellgen_either)
CELLGEN_INLINE real *cg_either(const cg_row_block *b, int member, int memory)
{
    return member != CELLGEN_NONE ? cg_member(b, member) : b->memory[memory];
}

#undef cg_slot_vectors
#define cg_slot_vectors CELLGEN_NAME(cellgen_slot_vectors)
CELLGEN_INLINE int64_t cg_slot_vectors(int slots)
{
    return CELLGEN_SLOT_VECTORS(slots);
}

/* --- outputs of every so many-th step alone --- */

/* Whether an array over time is the gradient of an output. */
#undef cg_is_upstream
#define cg_is_upstream CELLGEN_NAME(cellgen_is_upstream)
CELLGEN_STATIC int cg_is_upstream(const cg_function *f, int number)
{
    if (!f->is_backward) return 0;
    if (f->over_time[number].flags & CELLGEN_REPEATED) return 1;
    for (int i = 0; i < f->links; ++i)
        if (f->link[i].upstream == number) return 1;
    return 0;
}

/* Elements of a row of all gradients of outputs, or of all outputs that are no states. */
#undef cg_sparse_width
#define cg_sparse_width CELLGEN_NAME(cellgen_sparse_width)
CELLGEN_STATIC int64_t cg_sparse_width(const cg_row_block *b)
{
    int64_t width = 0;
    for (int i = 0; i < b->f->series; ++i)
        if (cg_is_upstream(b->f, i) || b->f->over_time[i].flags & CELLGEN_SHOWN) width += cg_length(b, b->f->over_time[i].width);
    return width;
}

/* Where a step lies in an array of every so many-th step, -1: nowhere. */
#undef cg_sparse_at
#define cg_sparse_at CELLGEN_NAME(cellgen_sparse_at)
CELLGEN_INLINE int64_t cg_sparse_at(const cg_row_block *b, int64_t step)
{
    const int64_t past = step - b->lead;
    return past >= 0 && past % b->every == 0 ? past / b->every : -1;
}

/* --- checkpoints: states at every so many-th step in place of what every step saves --- */

/* Whether a forward pass keeps the states before every so many-th step. */
#undef cg_keeps_states
#define cg_keeps_states CELLGEN_NAME(cellgen_keeps_states)
CELLGEN_INLINE int cg_keeps_states(const cellgen_options *options)
{
    return options && options->checkpoint > 0 && options->checkpoints;
}

/* Steps of which a backward pass holds what a forward pass makes, 0: of all. */
#undef cg_segment_steps
#define cg_segment_steps CELLGEN_NAME(cellgen_segment_steps)
CELLGEN_INLINE int64_t cg_segment_steps(const cellgen_options *options, int64_t T)
{
    const int64_t wanted = options && options->checkpoint > 0 ? options->checkpoint : 0;
    return wanted < T ? wanted : T;
}

/* Elements of one array of the workspace. */
#undef cg_count
#define cg_count CELLGEN_NAME(cellgen_count)
CELLGEN_STATIC int64_t cg_count(const cg_row_block *b, const cellgen_memory *item)
{
    const int64_t width = item->width == CELLGEN_NONE ? 1 : cg_length(b, item->width);
    const int64_t heads = item->heads == CELLGEN_NONE ? 1 : cg_length(b, item->heads);
    const int64_t units = item->units == CELLGEN_NONE ? 1 : cg_length(b, item->units);
    switch (item->rows) {
    case CELLGEN_BATCH_ROWS: return b->B * width;
    case CELLGEN_TWO_BATCHES: return 2 * b->B * width;
    case CELLGEN_CHUNK_OF_ROWS: return b->chunk_rows * width;
    case CELLGEN_SUM_GROUPS: return cellgen_sum_groups(b->chunk_rows) * cellgen_sum_stride(width);
    case CELLGEN_PANELS:
        return heads * cg_panels_size(width, item->slots, units, cg_slot_vectors(item->widest));
    case CELLGEN_AHEAD:
        return b->window_rows * heads * cg_panels_size(1, item->slots, units, cg_slot_vectors(item->widest));
    case CELLGEN_BATCH_SLOTS: return b->B * item->slots * units;
    case CELLGEN_CHUNK_SLOTS: return b->chunk_rows * item->slots * units;
    default: return width;
    }
}

/* Bytes of one array of packed weights. */
#undef cg_packed_bytes
#define cg_packed_bytes CELLGEN_NAME(cellgen_packed_bytes)
CELLGEN_STATIC int64_t cg_packed_bytes(const cg_row_block *b, const cellgen_memory *item)
{
    if (item->rows != CELLGEN_PANELS) return CELLGEN_BYTES(cg_count(b, item));
    const int64_t heads = item->heads == CELLGEN_NONE ? 1 : cg_length(b, item->heads);
    const int64_t inner = cg_length(b, item->width), units = cg_length(b, item->units), vectors = cg_slot_vectors(item->widest);
    if (b->in_int8) return heads * cellgen_panels_bytes_int8(inner, item->slots, units, vectors);
    return CELLGEN_BYTES(heads * cg_panels_size(b->in_bf16 ? CELLGEN_PAIRS(inner) : inner, item->slots, units, vectors));
}

/* Give the packed weights their places from `address` on; tell how many bytes they take. */
#undef cg_place_packed
#define cg_place_packed CELLGEN_NAME(cellgen_place_packed)
CELLGEN_STATIC int64_t cg_place_packed(cg_row_block *b, uintptr_t address)
{
    int64_t bytes = 0;
    for (int i = 0; i < b->f->memories; ++i) {
        const cellgen_memory *item = b->f->memory + i;
        if (!item->is_packed) continue;
        if (address) b->memory[i] = (real *)(address + (uintptr_t)bytes);
        bytes += cg_packed_bytes(b, item);
    }
    return bytes;
}

/* Whether an array of the workspace is needed. */
#undef cg_is_needed
#define cg_is_needed CELLGEN_NAME(cellgen_is_needed)
CELLGEN_STATIC int cg_is_needed(int when, const cellgen_options *options, const cellgen_plan *plan, int own)
{
    switch (when) {
    case CELLGEN_WITH_TABLES: return options && (options->lengths || options->mask || options->reset);
    case CELLGEN_IF_LAST: return options && (options->last || options->every > 1 || options->partial);
    case CELLGEN_IF_GUARDED: return cellgen_is_guarded(options);
    case CELLGEN_IF_GATHERED: return cellgen_is_gathered(options);
    case CELLGEN_OF_A_ROW_BLOCK: return own;
    case CELLGEN_IF_UNPACKED: return plan->unpacked != 0;
    default: return 1;
    }
}

/* Whether rows are rounded before products read them. */
#undef cg_rounds_rows
#define cg_rounds_rows CELLGEN_NAME(cellgen_rounds_rows)
CELLGEN_INLINE int cg_rounds_rows(const cg_row_block *b)
{
    return b->in_bf16 || (b->in_int8 && CELLGEN_FIXED_ROWS);
}

#undef cg_rounded_count
#define cg_rounded_count CELLGEN_NAME(cellgen_rounded_count)
CELLGEN_STATIC int64_t cg_rounded_count(const cg_row_block *b);
#undef cg_widest_rounded
#define cg_widest_rounded CELLGEN_NAME(cellgen_widest_rounded)
CELLGEN_STATIC int64_t cg_widest_rounded(const cg_row_block *b, int number);

/* Give every array but packed weights its place from `address` on (0: none); tell how many bytes that
 * takes. `own`: a row block whose sums are its own. */
#define CELLGEN_TAKE(pointer, type, when, count)                                     \
    do {                                                                             \
        const int64_t size = ((int64_t)(count) * (int64_t)sizeof(type) + 63) / 64 * 64; \
        (pointer) = (when) && address ? (type *)(address + (uintptr_t)bytes) : 0;    \
        bytes += (when) ? size : 0;                                                  \
    } while (0)
#undef cg_place_all
#define cg_place_all CELLGEN_NAME(cellgen_place_all)
CELLGEN_STATIC int64_t cg_place_all(cg_row_block *b, const cellgen_options *options, const cellgen_plan *plan,
                                    int own, uintptr_t address)
{
    const cg_function *const f = b->f;
    const int tables = cg_is_needed(CELLGEN_WITH_TABLES, options, plan, own);
    int64_t bytes = 0;
    CELLGEN_TAKE(b->memory, real *, 1, f->memories + 1);
    CELLGEN_TAKE(b->series, cg_series, 1, 3 * f->series + 1);
    b->staged = b->series ? b->series + f->series : 0;
    b->across = b->series ? b->series + 2 * f->series : 0;
    for (int part = 0; part < f->parts; ++part)
        CELLGEN_TAKE(b->walks[part], cg_walk, 1, f->part[part].places + 1);
    CELLGEN_TAKE(b->strides, int64_t, 1, f->flag_strides + 4);
    CELLGEN_TAKE(b->args, char, f->is_backward, CELLGEN_WORD * (f->members + 4));
    for (int i = 0; i < f->memories; ++i) {
        const cellgen_memory *item = f->memory + i;
        real *place;
        if (item->is_packed) continue;
        CELLGEN_TAKE(place, real, cg_is_needed(item->when, options, plan, own), cg_count(b, item));
        if (address) b->memory[i] = place;
    }
    CELLGEN_TAKE(b->product_block, real, f->product_rows != CELLGEN_NONE,
                 f->product_rows == CELLGEN_NONE ? 0 : cg_length(b, f->product_rows) * cellgen_depth_of(b->chunk_rows));
    CELLGEN_TAKE(b->validity, unsigned char, tables, b->T * b->B);
    CELLGEN_TAKE(b->resets, unsigned char, tables, b->T * b->B);
    CELLGEN_TAKE(b->before, int32_t, tables && f->is_backward, b->T * b->B);
    CELLGEN_TAKE(b->sparse, cg_series, b->every > 1, f->series + 1);
    CELLGEN_TAKE(b->whole, real, b->every > 1 && f->is_backward, (b->segment ? b->segment : b->T) * b->B * cg_sparse_width(b));
    CELLGEN_TAKE(b->shown, real, (b->every > 1 || (tables && cg_keeps_states(options))) && !f->is_backward, b->B * cg_sparse_width(b));
    const int rounds = cg_rounds_rows(b);
    for (int part = 0; part < f->parts && rounds; ++part) b->widest_rounded[part] = cg_widest_rounded(b, part);
    CELLGEN_TAKE(b->rounded, cellgen_pair, rounds, rounds ? cg_rounded_count(b) : 0);
    CELLGEN_TAKE(b->zeros, real, 1, f->zeros == CELLGEN_NONE ? 0 : cg_length(b, f->zeros));
    return bytes;
}

#undef cg_band_rows
#define cg_band_rows CELLGEN_NAME(cellgen_band_rows)
CELLGEN_STATIC int64_t cg_band_rows(const cg_function *f, const int64_t *n, const int64_t *extent,
                                    const cellgen_options *options);

/* Whether operands of products are rounded to bfloat16. */
#undef cg_is_in_bf16
#define cg_is_in_bf16 CELLGEN_NAME(cellgen_is_in_bf16)
CELLGEN_INLINE int cg_is_in_bf16(const cellgen_options *options)
{
    return CELLGEN_PRECISION == 32 && options && options->products == CELLGEN_PRODUCTS_BF16;
}

/* Whether weights of products are int8. */
#undef cg_is_in_int8
#define cg_is_in_int8 CELLGEN_NAME(cellgen_is_in_int8)
CELLGEN_INLINE int cg_is_in_int8(const cg_function *f, const cellgen_options *options)
{
    return CELLGEN_PRECISION == 32 && !f->is_backward && options && options->products == CELLGEN_PRODUCTS_INT8;
}

/* Whether arrays over time have types of their own. */
#undef cg_is_stored
#define cg_is_stored CELLGEN_NAME(cellgen_is_stored)
CELLGEN_INLINE int cg_is_stored(const cellgen_options *options)
{
    return CELLGEN_PRECISION == 32 && options && options->stored;
}

/* Steps of a window of such arrays: a multiple of `unit`, or all. */
#undef cg_window_of_steps
#define cg_window_of_steps CELLGEN_NAME(cellgen_window_of_steps)
CELLGEN_STATIC int64_t cg_window_of_steps(const cg_function *f, const int64_t *n, const int64_t *extent,
                                          const cellgen_options *options, int64_t unit);

/* What a row block is before it has memory: dimensions, chunks, windows. Chunks of a row block are of the same steps
 * as those of the longest one. */
#undef cg_shape_row_block
#define cg_shape_row_block CELLGEN_NAME(cellgen_shape_row_block)
CELLGEN_STATIC void cg_shape_row_block(cg_row_block *b, const cg_function *f, const int64_t *n, const int64_t *extent,
                                       int64_t rows, const cellgen_plan *plan, const cellgen_options *options)
{
    const int64_t most = f->is_backward ? (n[1] + plan->row_blocks - 1) / plan->row_blocks : n[1];
    memset(b, 0, sizeof *b);
    b->f = f;
    b->extent = extent;
    memcpy(b->n, n, (size_t)f->dims * sizeof *n);
    b->n[1] = rows;
    b->T = n[0];
    b->B = rows;
    b->batch = n[1];
    b->chunk_steps = n[1] > 0 && n[0] > 0 ? cellgen_chunk_rows(n[0], most, plan->chunk_rows) / most : 1;
    b->chunk_rows = b->chunk_steps * rows;
    b->window_rows = cellgen_chunk_rows(n[0], rows, plan->window_rows);
    b->window_steps = rows > 0 && n[0] > 0 ? b->window_rows / rows : 1;
    b->segment = f->is_backward ? cg_segment_steps(options, n[0]) : 0;
    if (b->segment && cg_band_rows(f, n, extent, options)) { /* a segment is a chunk: bands keep what it defers */
        b->chunk_steps = b->segment;
        b->chunk_rows = b->chunk_steps * rows;
    }
    b->in_bf16 = cg_is_in_bf16(options);
    b->in_int8 = cg_is_in_int8(f, options);
    b->stored = cg_is_stored(options);
    if (b->stored && f->is_backward && !b->segment) b->segment = cg_window_of_steps(f, n, extent, options, options->per_row ? 1 : b->chunk_steps);
    b->every = options && options->every > 1 && !options->last && !b->stored ? options->every : 1;
    b->lead = options && options->reverse ? n[0] % b->every : b->every - 1;
}

/* The same where what is deferred waits for all steps. */
#undef cg_shape_whole
#define cg_shape_whole CELLGEN_NAME(cellgen_shape_whole)
CELLGEN_STATIC void cg_shape_whole(cg_row_block *b, const cg_function *f, const int64_t *n, const int64_t *extent,
                                   int64_t rows, const cellgen_plan *plan, const cellgen_options *options)
{
    cg_shape_row_block(b, f, n, extent, rows, plan, options);
    b->chunk_steps = b->segment ? b->segment : n[0] > 0 ? n[0] : 1;
    b->chunk_rows = b->chunk_steps * rows;
}

/* --- where rows lie, for all steps of a call --- */

#undef cg_still
#define cg_still CELLGEN_NAME(cellgen_still)
CELLGEN_INLINE cg_walk cg_still(real *rows, int64_t row)
{
    const cg_walk walk = {rows, 0, row, 0, 0, -1, 0, 0, 0};
    return walk;
}

#undef cg_along
#define cg_along CELLGEN_NAME(cellgen_along)
CELLGEN_INLINE cg_walk cg_along(cg_series series)
{
    cg_walk walk = cg_still(series.rows, series.row);
    walk.step = series.step;
    walk.shift = -series.first;
    return walk;
}

/* Whether an array holds the rows of a band alone. */
#undef cg_is_banded
#define cg_is_banded CELLGEN_NAME(cellgen_is_banded)
CELLGEN_INLINE int cg_is_banded(const cg_row_block *b, int member)
{
    return b->band_rows && b->banded[member];
}

/* Where the first row of the batch is in a saved array, or would be in one of a band. */
#undef cg_saved_start
#define cg_saved_start CELLGEN_NAME(cellgen_saved_start)
CELLGEN_INLINE real *cg_saved_start(const cg_row_block *b, int member, int64_t width)
{
    real *const given = cg_member(b, member);
    return given && cg_is_banded(b, member) ? given - b->band * width : given;
}

/* The same of an array that is saved; `member`: of a (T, batch, width) array, or of resident steps. */
#undef cg_along_saved
#define cg_along_saved CELLGEN_NAME(cellgen_along_saved)
CELLGEN_INLINE cg_walk cg_along_saved(const cg_row_block *b, int member, int64_t width)
{
    cg_walk walk = cg_still(cg_saved_start(b, member, width), width);
    walk.step = (cg_is_banded(b, member) ? b->band_rows : b->batch) * width;
    walk.shift = -b->first;
    return walk;
}

/* Two steps of a value in turn; `shift`: the place of the step after. */
#undef cg_in_turn
#define cg_in_turn CELLGEN_NAME(cellgen_in_turn)
CELLGEN_INLINE cg_walk cg_in_turn(real *pair, int64_t B, int64_t width, int64_t turns, int64_t shift)
{
    cg_walk walk = cg_still(pair, width);
    walk.step = B * width;
    walk.turns = turns;
    walk.shift = shift;
    return walk;
}

/* Whether of an output over time one step alone is kept; where some are wanted, of those that are not. */
#undef cg_is_of_last_step
#define cg_is_of_last_step CELLGEN_NAME(cellgen_is_of_last_step)
CELLGEN_INLINE int cg_is_of_last_step(const cg_row_block *b, const cellgen_series_row *row)
{
    if (row->only == CELLGEN_NONE || !b->memory[row->only]) return 0;
    return b->every > 1 || b->options.last || !cg_member(b, row->member);
}

/* Whether steps write a state where the one before is: all of them are valid, and nobody wants to see it. Of a
 * backward pass, its gradient. */
#undef cg_is_in_place
#define cg_is_in_place CELLGEN_NAME(cellgen_is_in_place)
CELLGEN_STATIC int cg_is_in_place(const cg_row_block *b, const cellgen_link *link)
{
    if (!(link->flags & CELLGEN_STATE_IN_PLACE) || b->validity || b->resets || b->every > 1) return 0;
    if (b->f->is_backward) return b->window == 0;
    if (link->flags & CELLGEN_STATE_OUTPUT) return b->guarded && cg_is_of_last_step(b, b->f->over_time + link->series);
    return link->saved == CELLGEN_NONE || !cg_member(b, link->saved);
}

#undef cg_before
#define cg_before CELLGEN_NAME(cellgen_before)
CELLGEN_STATIC cg_walk cg_before(const cg_row_block *b, const cellgen_link *link, int deferred)
{
    const int64_t width = cg_length(b, link->width);
    cg_walk walk;
    if (deferred ? b->gather : b->guarded) return cg_still(b->memory[deferred ? link->rows : link->now], width);
    if (link->series != CELLGEN_NONE) {
        walk = cg_along(b->series[link->series]);
        if (deferred && b->B == 1 && b->f->over_time[link->series].strides != CELLGEN_NONE) walk.row = walk.step;
        --walk.shift;
    } else if (link->saved != CELLGEN_NONE && cg_member(b, link->saved)) {
        walk = cg_along_saved(b, link->saved, width);
        --walk.shift;
    } else {
        walk = cg_is_in_place(b, link) ? cg_still(b->memory[link->pair], width)
                                       : cg_in_turn(b->memory[link->pair], b->B, width, 2, 1); /* of two, the one before is the one after */
    }
    walk.edge = 0;
    walk.edge_rows = cg_member(b, link->initial);
    walk.edge_row = width;
    return walk;
}

#undef cg_walk_of
#define cg_walk_of CELLGEN_NAME(cellgen_walk_of)
CELLGEN_STATIC cg_walk cg_walk_of(const cg_row_block *b, const cellgen_place *place, int deferred)
{
    const int64_t width = place->width == CELLGEN_NONE ? 1 : cg_length(b, place->width);
    const cellgen_link *link = b->f->link + place->of;
    cg_walk walk;
    real *last;
    switch (place->how) {
    case CELLGEN_AT_MEMBER: return cg_still(cg_member(b, place->of), width);
    case CELLGEN_AT_SERIES: walk = cg_along(b->series[place->of]); break;
    case CELLGEN_AT_STAGED: walk = cg_along(b->staged[place->of]); break;
    case CELLGEN_AT_ACROSS:
        walk = cg_along(b->across[place->of]);
        if (b->validity && walk.rows && b->f->over_time[place->of].flags & CELLGEN_REPEATED) /* steps have put it there */
            walk = cg_in_turn(b->memory[b->f->over_time[place->of].rows], b->B, width, b->chunk_steps, 0);
        break;
    case CELLGEN_IN_PLACE:
        walk = cg_still(cg_from_start(b->series[place->of]), b->series[place->of].row);
        walk.apart = b->series[place->of].step;
        return walk;
    case CELLGEN_AT_BEFORE: return cg_before(b, link, deferred);
    case CELLGEN_AT_CARRY:
        walk = cg_is_in_place(b, link) ? cg_still(b->memory[link->pair], width)
                                       : cg_in_turn(b->memory[link->pair], b->B, width, 2, 1);
        last = cg_member(b, link->last);
        walk.edge = b->T - 1;
        walk.edge_rows = last ? last : b->zeros;
        walk.edge_row = last ? width : 0;
        return walk;
    case CELLGEN_AT_PASSED:
        walk = cg_is_in_place(b, link) ? cg_still(b->memory[link->pair], width)
                                       : cg_in_turn(b->memory[link->pair], b->B, width, 2, 0);
        if (!cg_member(b, link->passed)) return walk; /* not wanted: where those of later steps are */
        walk.edge = 0;
        walk.edge_rows = cg_member(b, link->passed);
        walk.edge_row = width;
        return walk;
    case CELLGEN_AT_SAVED:
        walk = cg_along_saved(b, place->of, width);
        return !walk.rows && place->other != CELLGEN_NONE ? cg_still(b->memory[place->other], width) : walk;
    case CELLGEN_AT_PAIR:
        if (cg_is_in_place(b, link)) return cg_still(b->memory[b->guarded ? link->now : link->pair], width);
        if (link->saved == CELLGEN_NONE || !cg_member(b, link->saved))
            return cg_in_turn(b->memory[link->pair], b->B, width, 2, 0);
        return cg_along_saved(b, link->saved, width);
    case CELLGEN_AT_KEPT: return cg_in_turn(b->memory[place->of], b->B, width, b->chunk_steps, 0);
    default: return cg_still(b->memory[place->of], width);
    }
    return place->is_optional && !walk.rows ? cg_still(b->zeros, 0) : walk;
}

/* The rows of a place at one step. */
#undef cg_rows_at
#define cg_rows_at CELLGEN_NAME(cellgen_rows_at)
CELLGEN_INLINE cg_rows cg_rows_at(const cg_walk *walk, int64_t step)
{
    const int64_t at = step + walk->shift;
    const int64_t turn = walk->turns == 0 ? at : walk->turns == 2 ? at & 1 : at % walk->turns;
    const int is_edge = step == walk->edge;
    const cg_rows found = {is_edge ? walk->edge_rows : walk->rows + turn * walk->step,
                           is_edge ? walk->edge_row : walk->row, walk->apart};
    return found;
}

/* An array of every so many-th step: its own series, and steps' rows in the workspace in its place. */
#undef cg_part_of_steps
#define cg_part_of_steps CELLGEN_NAME(cellgen_part_of_steps)
CELLGEN_STATIC void cg_part_of_steps(cg_row_block *b, int number, const int64_t *strides, int64_t reverse, real **whole)
{
    const cellgen_series_row *row = b->f->over_time + number;
    const int64_t width = cg_length(b, row->width);
    const int64_t steps = b->segment ? b->segment : b->T;
    const cg_series all = {*whole, b->B * width, width, b->segment ? b->first + 1 : 0};
    b->sparse[number] = cg_series_of(cg_member(b, row->member), b->T / b->every, b->B, width,
                                     strides ? strides + row->strides : 0, reverse);
    if (!cg_is_upstream(b->f, number)) return;
    if (b->sparse[number].rows) b->series[number] = all;
    *whole += steps * b->B * width;
}

/* Where one array over time lies: at the caller's distances; resident steps one after the other. */
#undef cg_lie
#define cg_lie CELLGEN_NAME(cellgen_lie)
CELLGEN_INLINE cg_series cg_lie(const cg_row_block *b, const cellgen_series_row *row, const int64_t *strides, int64_t reverse)
{
    const int is_resident = b->stored || (b->segment && row->flags & CELLGEN_AGAIN);
    const int64_t rows = is_resident && cg_is_banded(b, row->member) ? b->band_rows : b->batch;
    const int64_t width = cg_length(b, row->width), of_saved[] = {rows * width, width};
    real *const given = is_resident ? cg_saved_start(b, row->member, width) : cg_member(b, row->member);
    cg_series found;
    if (is_resident || row->strides == CELLGEN_NONE)
        found = cg_series_of(given, b->T, b->B, width, of_saved, 0);
    else
        found = cg_series_of(given, b->T, b->B, width, strides ? strides + row->strides : 0, reverse);
    if (is_resident) found.first = b->first;
    return found;
}

/* Where everything lies that a row block's steps read and write. */
#undef cg_aim
#define cg_aim CELLGEN_NAME(cellgen_aim)
CELLGEN_STATIC void cg_aim(cg_row_block *b, const cellgen_options *options, const cellgen_plan *plan)
{
    const cg_function *const f = b->f;
    const int64_t *const strides = options ? options->strides : 0;
    const int64_t reverse = options ? options->reverse : 0;
    real *whole = b->whole;
    int evenly_strided = 1;
    for (int i = 0; i < f->series; ++i) {
        const cellgen_series_row *row = f->over_time + i;
        const int64_t width = cg_length(b, row->width);
        real *const given = cg_member(b, row->member);
        b->series[i] = cg_lie(b, row, strides, reverse);
        if (b->every > 1 && row->strides != CELLGEN_NONE) cg_part_of_steps(b, i, strides, reverse, &whole);
        if (cg_is_of_last_step(b, row)) b->series[i] = cg_own(b->memory[row->only], width);
        b->staged[i] = row->flags & CELLGEN_STAGED && b->validity && (!(row->flags & CELLGEN_REPEATED) || given)
                           ? cg_own(b->memory[row->stage], width)
                           : b->series[i];
        evenly_strided = evenly_strided && (cg_is_banded(b, row->member) || cg_is_evenly_strided(b->series[i], b->B));
    }
    for (int i = 0; i < f->links && !f->is_backward; ++i) {
        const cellgen_link *link = f->link + i;
        if (link->flags & CELLGEN_STATE_OUTPUT && cg_is_in_place(b, link))
            b->series[link->series] = cg_own(b->memory[link->now], cg_length(b, link->width));
    }
    b->gather = b->validity || !evenly_strided || b->B < b->batch || b->is_single; /* rows of a row block lie apart */
    for (int i = 0; i < f->series; ++i) {
        const cellgen_series_row *row = f->over_time + i;
        if (row->flags & (CELLGEN_ACROSS | CELLGEN_SCATTERED))
            b->across[i] = cg_across(b->series[i], b->B, b->gather ? b->memory[row->rows] : 0, cg_length(b, row->width));
    }
    b->hoist = plan->hoist && !b->validity && (evenly_strided || b->B == 1); /* rows of a window lie evenly */
    for (int part = 0; part < f->parts; ++part)
        for (int i = 0; i < f->part[part].places; ++i)
            b->walks[part][i] = cg_walk_of(b, f->part[part].place + i, part == 1);
}

/* Everything about a row block but where its memory is. */
#undef cg_begin
#define cg_begin CELLGEN_NAME(cellgen_begin)
CELLGEN_STATIC int cg_begin(cg_row_block *b, const cellgen_options *options, const cellgen_plan *plan)
{
    const cg_function *const f = b->f;
    const int64_t *const strides = options ? options->strides : 0;
    b->guarded = cellgen_is_guarded(options);
    b->window = options ? options->window : 0;
    b->flush = options && options->flush;
    b->stop.asked = options ? options->stop : 0;
    b->stop.found[0] = b->stop.found[1] = 0;
    if (b->validity) {
        const int bad = cellgen_fill_tables(options, strides ? strides + f->flag_strides : 0, b->T, b->B,
                                            b->validity, b->resets, b->before);
        if (bad) return bad;
    }
    b->by_units = plan->by_units != 0;
    if (f->zeros != CELLGEN_NONE) cg_copy_row(b->zeros, 0, cg_length(b, f->zeros));
    cg_aim(b, options, plan);
    return CELLGEN_OK;
}

/* Whether a backward pass takes a member that the forward pass makes. */
#undef cg_is_made
#define cg_is_made CELLGEN_NAME(cellgen_is_made)
CELLGEN_STATIC int cg_is_made(const cg_function *f, int member)
{
    for (int i = 0; i < f->mades; ++i)
        if (f->made[i].member == member) return 1;
    return 0;
}

/* What a call lacks; with `options`, of what it needs with them. */
#undef cg_missing
#define cg_missing CELLGEN_NAME(cellgen_missing)
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
#undef cg_packs_less
#define cg_packs_less CELLGEN_NAME(cellgen_packs_less)
CELLGEN_INLINE int cg_packs_less(const cg_function *f, const int64_t *n, const cellgen_options *options)
{
    return options && options->packed && options->packed_bytes < cg_packed_size(f, n, options);
}

#undef cg_is_negative
#define cg_is_negative CELLGEN_NAME(cellgen_is_negative)
CELLGEN_STATIC int cg_is_negative(const cg_function *f, const int64_t *n)
{
    for (int i = 0; i < f->dims; ++i)
        if (n[i] < 0) return 1;
    return 0;
}

/* Members of the argument struct that every function over time has. */
#undef cg_options_of
#define cg_options_of CELLGEN_NAME(cellgen_options_in)
CELLGEN_INLINE const cellgen_options *cg_options_of(const cg_function *f, const void *args)
{
    const cellgen_options *found;
    memcpy(&found, (const char *)args + CELLGEN_WORD * (f->members + 3), sizeof found);
    return found;
}
#undef cg_team_of
#define cg_team_of CELLGEN_NAME(cellgen_team_in)
CELLGEN_INLINE cellgen_team *cg_team_of(const cg_function *f, const void *args)
{
    void *found;
    memcpy(&found, (const char *)args + CELLGEN_WORD * (f->members + 2), sizeof found);
    return (cellgen_team *)found;
}

/* Row blocks that are passed apart from each other. */
#undef cg_row_blocks
#define cg_row_blocks CELLGEN_NAME(cellgen_row_blocks_of)
CELLGEN_STATIC int64_t cg_row_blocks(const cg_function *f, const int64_t *n, const int64_t *extent)
{
    int64_t count = 0;
    if (!f->is_backward) return 1;
    for (int i = 0; i < f->totals; ++i)
        if (!f->total[i].is_batched) count += extent[f->total[i].count];
    return cellgen_row_blocks(n[0], n[1], (int64_t)sizeof(real) * count);
}

/* The dimensions of a call: without rows there are no steps. */
#undef cg_dims
#define cg_dims CELLGEN_NAME(cellgen_dims)
CELLGEN_INLINE const int64_t *cg_dims(const cg_function *f, const int64_t *n, int64_t *own)
{
    memcpy(own, n, (size_t)f->dims * sizeof *n);
    if (n[1] == 0) own[0] = 0;
    return own;
}

#undef cg_choose_for
#define cg_choose_for CELLGEN_NAME(cellgen_choose_for)
CELLGEN_STATIC void cg_choose_for(const cg_function *f, const int64_t *given, int64_t threads,
                                  const cellgen_constants *constants, const cellgen_options *options, cellgen_plan *plan)
{
    int64_t dims[CELLGEN_DIMS_MAX];
    const int64_t *const n = cg_dims(f, given, dims);
    const cg_part *const part = f->part;
    int64_t extent[CELLGEN_EXTENTS_MAX], weights = 0, free_partitions = 0;
    cg_row_block shape;
    f->extent(n, extent);
    memset(&shape, 0, sizeof shape);
    shape.f = f;
    shape.extent = extent;
    for (int stage = 0; stage < part->stages; ++stage)
        for (int run = 0; run < part->stage[stage].runs; ++run)
            weights += cg_count(&shape, f->memory + part->stage[stage].run[run].panel);
    if (part->free_units != CELLGEN_NONE) {
        const int64_t granularity = CELLGEN_GRANULARITY(part->free_granularity);
        free_partitions = (extent[part->free_units] + granularity - 1) / granularity;
    }
    const int64_t bytes = cg_is_in_int8(f, options) ? 1 : cg_is_in_bf16(options) ? 2 : (int64_t)sizeof(real);
    *plan = cellgen_choose_plan(n[0], n[1], threads, bytes * weights, part->can_split,
                                free_partitions, cg_row_blocks(f, n, extent), constants);
}

void cg_choose(const cg_function *f, const int64_t *n, int64_t threads, const cellgen_constants *constants,
               cellgen_plan *plan)
{
    cg_choose_for(f, n, threads, constants, 0, plan);
}

int64_t cg_packed_size(const cg_function *f, const int64_t *n, const cellgen_options *options)
{
    int64_t extent[CELLGEN_EXTENTS_MAX];
    cg_row_block shape;
    f->extent(n, extent);
    memset(&shape, 0, sizeof shape);
    shape.f = f;
    shape.extent = extent;
    shape.in_bf16 = cg_is_in_bf16(options);
    shape.in_int8 = cg_is_in_int8(f, options);
    return cg_place_packed(&shape, 0);
}

/* One row block's bytes, of `row_blocks`. */
#undef cg_row_block_bytes
#define cg_row_block_bytes CELLGEN_NAME(cellgen_row_block_bytes)
CELLGEN_STATIC int64_t cg_row_block_bytes(const cg_function *f, const int64_t *n, const int64_t *extent,
                                          const cellgen_options *options, const cellgen_plan *plan, int64_t row_block,
                                          int64_t row_blocks)
{
    cellgen_options of_row_block = cellgen_options_of_row_block(options, row_block, row_blocks, &row_blocks, &row_blocks);
    cg_row_block shape;
    cg_shape_row_block(&shape, f, n, extent, n[1] * (row_block + 1) / row_blocks - n[1] * row_block / row_blocks, plan, options);
    of_row_block.every = 0; /* a backward pass forms the gradients of all steps */
    return cg_place_all(&shape, f->is_backward ? &of_row_block : options, plan, row_block > 0, 0);
}

/* Bytes of one row that is deferred by itself: its own arrays and, for the squares' sums, its gradients. */
#undef cg_row_bytes
#define cg_row_bytes CELLGEN_NAME(cellgen_row_bytes)
CELLGEN_STATIC int64_t cg_row_bytes(const cg_function *f, const int64_t *n, const int64_t *extent,
                                    const cellgen_options *options, const cellgen_plan *plan)
{
    cellgen_options of_row = cellgen_options_of_row_block(options, 1, 2, n, options);
    cg_row_block shape;
    of_row.every = 0;
    cg_shape_whole(&shape, f, n, extent, 1, plan, options);
    int64_t bytes = cg_place_all(&shape, &of_row, plan, 0, 0);
    for (int i = 0; i < f->members && options->per_row > 1; ++i)
        if (f->member[i].flags & CELLGEN_SUMMED) bytes += CELLGEN_BYTES(extent[f->member[i].width]);
    return bytes;
}

#undef cg_together
#define cg_together CELLGEN_NAME(cellgen_together)
CELLGEN_INLINE int64_t cg_together(int64_t rows)
{
    return rows < CELLGEN_ROWS_AT_ONCE ? rows : CELLGEN_ROWS_AT_ONCE;
}

/* Bytes of a pass whose gradients are each row's: all rows', and those of the rows that threads defer; of all
 * rows where each goes on from segment to segment. */
#undef cg_per_row_bytes
#define cg_per_row_bytes CELLGEN_NAME(cellgen_per_row_bytes)
CELLGEN_STATIC int64_t cg_per_row_bytes(const cg_function *f, const int64_t *n, const int64_t *extent,
                                        const cellgen_options *options, const cellgen_plan *plan)
{
    cellgen_options of_all = *options;
    cg_row_block shape;
    cg_shape_whole(&shape, f, n, extent, n[1], plan, options);
    of_all.every = 0;
    return cg_place_all(&shape, &of_all, plan, 0, 0) +
           (shape.segment ? n[1] : cg_together(n[1])) * cg_row_bytes(f, n, extent, options, plan);
}

#undef cg_segment_bytes
#define cg_segment_bytes CELLGEN_NAME(cellgen_segment_bytes)
CELLGEN_STATIC int64_t cg_segment_bytes(const cg_function *f, const int64_t *n, const cellgen_options *options);
#undef cg_stored_bytes
#define cg_stored_bytes CELLGEN_NAME(cellgen_stored_bytes)
CELLGEN_STATIC int64_t cg_stored_bytes(const cg_function *f, const int64_t *n, const int64_t *extent,
                                       const cellgen_options *options, const cellgen_plan *plan);

int64_t cg_workspace_size(const cg_function *f, const int64_t *given, const cellgen_options *options)
{
    int64_t extent[CELLGEN_EXTENTS_MAX], dims[CELLGEN_DIMS_MAX];
    const int64_t *const n = cg_dims(f, given, dims);
    int64_t bytes = 64 + (options && options->packed ? 0 : cg_packed_size(f, n, options));
    cellgen_plan plan;
    f->extent(n, extent);
    cg_choose_for(f, n, 1, 0, options, &plan);
    if (options && options->plan) plan = *options->plan;
    const int64_t row_blocks = cg_row_blocks(f, n, extent);
    plan.row_blocks = row_blocks;
    bytes += cg_segment_bytes(f, n, options) + cg_stored_bytes(f, n, extent, options, &plan);
    if (f->is_backward && options && options->per_row) return bytes + cg_per_row_bytes(f, n, extent, options, &plan);
    for (int64_t row_block = 0; row_block < row_blocks; ++row_block)
        bytes += cg_row_block_bytes(f, n, extent, options, &plan, row_block, row_blocks);
    return bytes;
}

/* An operand's first row, of a head. */
#undef cg_operand
#define cg_operand CELLGEN_NAME(cellgen_operand)
CELLGEN_INLINE const real *cg_operand(const cg_row_block *b, const cg_rows *at, const cellgen_run *run, int64_t head)
{
    const int64_t offset = run->offset == CELLGEN_NONE ? 0 : cg_length(b, run->offset);
    return at[run->use].rows + offset + (run->by_head ? head * cg_length(b, run->inner) : 0);
}
