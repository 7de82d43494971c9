/* Row blocks: their dimensions, and what the workspace holds of each. Part of cellgen_driver.inc.h. */


#define CELLGEN_TILE_BYTES (32 << 10) /* of all tiles that one buffer holds */

/* Where an array's rows lie at a step: `step` elements from one step to the next, in as many places as
 * `turns` says if it is not 0; at step `edge` elsewhere. `apart`: from step to step for rows of many
 * steps, each where it belongs. */
typedef struct {
    real *rows;
    int64_t step, row, turns, shift, edge, edge_row, apart;
    real *edge_rows;
} cg_walk;

/* How long everything of a row block is: its dimensions, and where time is cut. `cg_shape_row_block` sets it; `first` and
 * `band` move with the steps. */
typedef struct {
    const int64_t *extent;
    int64_t T, B;
    int64_t batch; /* rows of a step in saved arrays */
    int64_t chunk_rows, chunk_steps, hoist_rows, hoist_steps; /* of what is deferred; of what is formed ahead */
    int64_t segment, first; /* steps that are resident, 0: all; the one before them */
    int64_t band_rows, band; /* rows of each of these steps, 0: all; the first of them, of the batch */
    int64_t every, lead;     /* outputs of every so many-th step alone are the caller's, the first after `lead` */
    int64_t truncated;       /* no gradient passes back from steps that are multiples of it, 0: from all */
    int64_t n[CELLGEN_DIMS_MAX];
} cg_shape;

/* Where its arrays are: the caller's, and those of the workspace. `cg_place_all` and `cg_aim` set it. */
typedef struct {
    char *args;
    const unsigned char *banded; /* by member: which arrays have the rows of a band alone */
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
    real *carried;                 /* rows of weight gradients whose group of 32 the next chunk completes, on AMX */
    int64_t widest_rounded[2];     /* words from one of them to the next, of each part */
} cg_memory;

/* One row block as if it were all of a batch; a forward pass has one. */
typedef struct {
    const cg_function *f;
    cg_modes modes;
    cg_memory at;
    cg_shape shape;
    cellgen_options options;
    cellgen_team *team;
    cg_stop stop;
} cg_row_block;

CELLGEN_INLINE int64_t cg_length(const cg_row_block *b, int number)
{
    return b->shape.extent[number];
}

/* An array of the caller's: a word of the argument struct. */
CELLGEN_INLINE real *cg_member(const cg_row_block *b, int number)
{
    real *found;
    memcpy(&found, b->at.args + CELLGEN_WORD * number, sizeof found);
    return found;
}

CELLGEN_INLINE real *cg_either(const cg_row_block *b, int member, int memory)
{
    return member != CELLGEN_NONE ? cg_member(b, member) : b->at.memory[memory];
}

/* Whether the caller wants something of what a stage or a sum is for; that of 0 members is always wanted. */
CELLGEN_INLINE int cg_is_any_there(const cg_row_block *b, int members, const int16_t *member)
{
    int found = members == 0;
    for (int i = 0; i < members; ++i) found |= cg_member(b, member[i]) != 0;
    return found;
}

CELLGEN_INLINE int64_t cg_slot_vectors(int slots)
{
    return CELLGEN_SLOT_VECTORS(slots);
}

/* --- outputs of every so many-th step alone --- */

/* Whether an array over time is the gradient of an output. */
CELLGEN_STATIC int cg_is_upstream(const cg_function *f, int number)
{
    if (!f->is_backward) return 0;
    if (f->over_time[number].flags & CELLGEN_REPEATED) return 1;
    for (int i = 0; i < f->links; ++i)
        if (f->link[i].upstream == number) return 1;
    return 0;
}

/* Elements of a row of all gradients of outputs, or of all outputs that are no states. */
CELLGEN_STATIC int64_t cg_sparse_width(const cg_row_block *b)
{
    int64_t width = 0;
    for (int i = 0; i < b->f->series; ++i)
        if (cg_is_upstream(b->f, i) || b->f->over_time[i].flags & CELLGEN_SHOWN) width += cg_length(b, b->f->over_time[i].width);
    return width;
}

/* Where a step lies in an array of every so many-th step, -1: nowhere. */
CELLGEN_INLINE int64_t cg_sparse_at(const cg_row_block *b, int64_t step)
{
    const int64_t past = step - b->shape.lead;
    return past >= 0 && past % b->shape.every == 0 ? past / b->shape.every : -1;
}

/* --- checkpoints: states at every so many-th step in place of what every step saves --- */

/* Whether a forward pass keeps the states before every so many-th step. */
CELLGEN_INLINE int cg_keeps_states(const cellgen_options *options)
{
    return options && options->checkpoint > 0 && options->checkpoints;
}

/* Steps of which a backward pass holds what a forward pass makes, 0: of all. */
CELLGEN_INLINE int64_t cg_segment_steps(const cellgen_options *options, int64_t T)
{
    const int64_t wanted = options && options->checkpoint > 0 ? options->checkpoint : 0;
    return wanted < T ? wanted : T;
}

/* Elements of one array of the workspace. */
CELLGEN_STATIC int64_t cg_count(const cg_row_block *b, const cellgen_memory *item)
{
    const int64_t width = item->width == CELLGEN_NONE ? 1 : cg_length(b, item->width);
    const int64_t heads = item->heads == CELLGEN_NONE ? 1 : cg_length(b, item->heads);
    const int64_t units = item->units == CELLGEN_NONE ? 1 : cg_length(b, item->units);
    switch (item->rows) {
    case CELLGEN_BATCH_ROWS: return b->shape.B * width;
    case CELLGEN_TWO_BATCHES: return 2 * b->shape.B * width;
    case CELLGEN_CHUNK_OF_ROWS: return b->shape.chunk_rows * width;
    case CELLGEN_SUM_GROUPS: return cellgen_sum_groups(b->shape.chunk_rows) * cellgen_sum_stride(width);
    case CELLGEN_PANELS:
        return heads * cg_panels_size(width, item->slots, units, cg_slot_vectors(item->widest));
    case CELLGEN_AHEAD:
        return b->shape.hoist_rows * heads * cg_panels_size(1, item->slots, units, cg_slot_vectors(item->widest));
    case CELLGEN_BATCH_SLOTS: return b->shape.B * item->slots * units;
    case CELLGEN_CHUNK_SLOTS: return b->shape.chunk_rows * item->slots * units;
    default: return width;
    }
}

/* Bytes of one array of packed weights. */
CELLGEN_STATIC int64_t cg_packed_bytes(const cg_row_block *b, const cellgen_memory *item)
{
    if (item->rows != CELLGEN_PANELS) return CELLGEN_BYTES(cg_count(b, item));
    const int64_t heads = item->heads == CELLGEN_NONE ? 1 : cg_length(b, item->heads);
    const int64_t inner = cg_length(b, item->width), units = cg_length(b, item->units), vectors = cg_slot_vectors(item->widest);
    if (b->modes.products == CG_INT8) return heads * cellgen_panels_bytes_int8(inner, item->slots, units, vectors);
    return CELLGEN_BYTES(heads * cg_panels_size(b->modes.bf16_way ? cellgen_bf16_words(b->modes.bf16_way, inner) : inner, item->slots, units, vectors));
}

/* Give the packed weights their places from `address` on; tell how many bytes they take. */
CELLGEN_STATIC int64_t cg_place_packed(cg_row_block *b, uintptr_t address)
{
    int64_t bytes = 0;
    for (int i = 0; i < b->f->memories; ++i) {
        const cellgen_memory *item = b->f->memory + i;
        if (!item->is_packed) continue;
        if (address) b->at.memory[i] = (real *)(address + (uintptr_t)bytes);
        bytes += cg_packed_bytes(b, item);
    }
    return bytes;
}

/* Whether an array of the workspace is needed. */
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
CELLGEN_INLINE int cg_rounds_rows(const cg_row_block *b)
{
    return b->modes.bf16_way || (b->modes.products == CG_INT8 && CELLGEN_FIXED_ROWS);
}

CELLGEN_STATIC int64_t cg_rounded_count(const cg_row_block *b);
CELLGEN_STATIC int64_t cg_widest_rounded(const cg_row_block *b, int number);

/* Elements for each row of a weight gradient in the block that its product packs. */
CELLGEN_INLINE int64_t cg_product_depth(const cg_row_block *b)
{
    const int64_t rows = b->shape.chunk_steps * b->shape.B;
    return cellgen_depth_of(b->modes.bf16_way == CELLGEN_BF16_TILES ? cellgen_bf16_words(CELLGEN_BF16_TILES, rows + 31) : rows);
}

/* Whether a chunk may end within a group of 32 rows, which the next one completes. */
CELLGEN_INLINE int cg_carries(const cg_row_block *b)
{
    return b->f->is_backward && b->modes.bf16_way == CELLGEN_BF16_TILES && b->shape.B % 32 != 0;
}

/* Elements that one head of a stage of weight gradients carries at the most. */
CELLGEN_STATIC int64_t cg_carried_of_stage(const cg_row_block *b, const cg_stage *stage)
{
    int64_t width = 0;
    for (int i = 0; i < stage->lefts; ++i) width += cg_length(b, stage->left[i].rows);
    for (int i = 0; i < stage->rights; ++i) width += cg_length(b, stage->right[i].columns);
    return 32 * width;
}

/* The same of the first `stages` of them, all heads. */
CELLGEN_STATIC int64_t cg_carried_before(const cg_row_block *b, int stages)
{
    int64_t count = 0;
    for (int i = 0; i < stages; ++i) {
        const cg_stage *const stage = b->f->part[1].stage + i;
        const int64_t heads = stage->heads == CELLGEN_NONE ? 1 : cg_length(b, stage->heads);
        if (stage->kind == CELLGEN_IS_PRODUCTS) count += heads * cg_carried_of_stage(b, stage);
    }
    return count;
}

/* Bytes of the pointers to the arrays of the workspace, which are its first. */
#define CELLGEN_POINTERS(f) (((f)->memories + 1) * (int64_t)sizeof(real *))

/* Give every array but packed weights its place from `address` on (0: none); tell how many bytes that
 * takes. `own`: a row block whose sums are its own. */
#define CELLGEN_TAKE(pointer, type, when, count)                                     \
    do {                                                                             \
        const int64_t size = ((int64_t)(count) * (int64_t)sizeof(type) + 63) / 64 * 64; \
        (pointer) = (when) && address ? (type *)(address + (uintptr_t)bytes) : 0;    \
        bytes += (when) ? size : 0;                                                  \
    } while (0)
CELLGEN_STATIC int64_t cg_place_all(cg_row_block *b, const cellgen_options *options, const cellgen_plan *plan,
                                    int own, uintptr_t address)
{
    const cg_function *const f = b->f;
    const int tables = cg_is_needed(CELLGEN_WITH_TABLES, options, plan, own);
    int64_t bytes = 0;
    CELLGEN_TAKE(b->at.memory, real *, 1, f->memories + 1); /* CELLGEN_POINTERS: all that is written here */
    CELLGEN_TAKE(b->at.series, cg_series, 1, 3 * f->series + 1);
    b->at.staged = b->at.series ? b->at.series + f->series : 0;
    b->at.across = b->at.series ? b->at.series + 2 * f->series : 0;
    for (int part = 0; part < f->parts; ++part)
        CELLGEN_TAKE(b->at.walks[part], cg_walk, 1, f->part[part].places + 1);
    CELLGEN_TAKE(b->at.strides, int64_t, 1, f->flag_strides + 4);
    CELLGEN_TAKE(b->at.args, char, f->is_backward, CELLGEN_WORD * (f->members + 4));
    for (int i = 0; i < f->memories; ++i) {
        const cellgen_memory *item = f->memory + i;
        real *place;
        if (item->is_packed) continue;
        CELLGEN_TAKE(place, real, cg_is_needed(item->when, options, plan, own), cg_count(b, item));
        if (address) b->at.memory[i] = place;
    }
    CELLGEN_TAKE(b->at.product_block, real, f->product_rows != CELLGEN_NONE,
                 f->product_rows == CELLGEN_NONE ? 0 : cg_length(b, f->product_rows) * cg_product_depth(b));
    CELLGEN_TAKE(b->at.carried, real, cg_carries(b), cg_carries(b) && f->parts > 1 ? cg_carried_before(b, f->part[1].stages) : 0);
    CELLGEN_TAKE(b->at.validity, unsigned char, tables, b->shape.T * b->shape.B);
    CELLGEN_TAKE(b->at.resets, unsigned char, tables, b->shape.T * b->shape.B);
    CELLGEN_TAKE(b->at.before, int32_t, tables && f->is_backward, b->shape.T * b->shape.B);
    CELLGEN_TAKE(b->at.sparse, cg_series, b->shape.every > 1, f->series + 1);
    CELLGEN_TAKE(b->at.whole, real, b->shape.every > 1 && f->is_backward, (b->shape.segment ? b->shape.segment : b->shape.T) * b->shape.B * cg_sparse_width(b));
    CELLGEN_TAKE(b->at.shown, real, (b->shape.every > 1 || (tables && cg_keeps_states(options))) && !f->is_backward, b->shape.B * cg_sparse_width(b));
    const int rounds = cg_rounds_rows(b);
    for (int part = 0; part < f->parts && rounds; ++part) b->at.widest_rounded[part] = cg_widest_rounded(b, part);
    CELLGEN_TAKE(b->at.rounded, cellgen_pair, rounds, rounds ? cg_rounded_count(b) : 0);
    CELLGEN_TAKE(b->at.zeros, real, 1, f->zeros == CELLGEN_NONE ? 0 : cg_length(b, f->zeros));
    return bytes;
}

CELLGEN_STATIC int64_t cg_band_rows(const cg_function *f, const int64_t *n, const int64_t *extent,
                                    const cellgen_options *options);

/* Steps of a resident window of such arrays: a multiple of `unit`, or all. */
CELLGEN_STATIC int64_t cg_resident_steps(const cg_function *f, const int64_t *n, const int64_t *extent,
                                          const cellgen_options *options, int64_t unit);

/* What a row block is before it has memory: dimensions, chunks, windows. Chunks of a row block are of the same steps
 * as those of the longest one. */
CELLGEN_STATIC void cg_shape_row_block(cg_row_block *b, const cg_function *f, const int64_t *n, const int64_t *extent,
                                       int64_t rows, const cellgen_plan *plan, const cellgen_options *options)
{
    const int64_t most = f->is_backward ? (n[1] + plan->row_blocks - 1) / plan->row_blocks : n[1];
    memset(b, 0, sizeof *b);
    b->f = f;
    b->shape.extent = extent;
    memcpy(b->shape.n, n, (size_t)f->dims * sizeof *n);
    b->shape.n[1] = rows;
    b->shape.T = n[0];
    b->shape.B = rows;
    b->shape.batch = n[1];
    b->shape.chunk_steps = n[1] > 0 && n[0] > 0 ? cellgen_chunk_rows(n[0], most, plan->chunk_rows) / most : 1;
    b->shape.chunk_rows = b->shape.chunk_steps * rows;
    b->shape.hoist_rows = cellgen_chunk_rows(n[0], rows, plan->window_rows);
    b->shape.hoist_steps = rows > 0 && n[0] > 0 ? b->shape.hoist_rows / rows : 1;
    b->shape.segment = f->is_backward ? cg_segment_steps(options, n[0]) : 0;
    if (b->shape.segment && cg_band_rows(f, n, extent, options)) { /* a segment is a chunk: bands keep what it defers */
        b->shape.chunk_steps = b->shape.segment;
        b->shape.chunk_rows = b->shape.chunk_steps * rows;
    }
    b->shape.truncated = options ? options->window : 0;
    const unsigned granted = cg_granted(f, options, plan->unpacked != 0);
    cg_take_products(&b->modes, f, options);
    b->modes.weights = granted & CG_ASKS_IN_PLACE ? CG_IN_PLACE : granted & CG_HAS_PACKED ? CG_PACKED : CG_TO_PACK;
    b->modes.rows = rows < n[1] ? CG_BLOCK : CG_BATCH;
    b->modes.sharing = plan->by_units ? CG_BY_UNITS : CG_BY_ROWS;
    if (granted & CG_ASKS_RESIDENT && f->is_backward && !b->shape.segment)
        b->shape.segment = cg_resident_steps(f, n, extent, options, options->per_row ? 1 : b->shape.chunk_steps);
    b->modes.residency = granted & CG_ASKS_RESIDENT ? CG_RESIDENT_WINDOW : b->shape.segment ? CG_SEGMENT : CG_ALL_STEPS;
    b->shape.first = b->modes.residency == CG_ALL_STEPS ? 0 : -1;
    b->shape.every = granted & CG_ASKS_EVERY ? options->every : 1;
    b->shape.lead = options && options->reverse ? n[0] % b->shape.every : b->shape.every - 1;
}

/* The same where what is deferred waits for all steps. */
CELLGEN_STATIC void cg_shape_whole(cg_row_block *b, const cg_function *f, const int64_t *n, const int64_t *extent,
                                   int64_t rows, const cellgen_plan *plan, const cellgen_options *options)
{
    cg_shape_row_block(b, f, n, extent, rows, plan, options);
    b->shape.chunk_steps = b->shape.segment ? b->shape.segment : n[0] > 0 ? n[0] : 1;
    b->shape.chunk_rows = b->shape.chunk_steps * rows;
}
