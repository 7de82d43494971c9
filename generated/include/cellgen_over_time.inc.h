/* What the time loops share: packing of gates side by side, partitions of threads. Included after
 * cellgen_real.h and cellgen_gemm.h, once per precision; deliberately without an include guard. */

#include "cellgen_driver.h"

#undef cg_tile
#undef cg_tile_of
#undef cg_term
#undef cg_ahead
#undef cg_pack_slot
#undef cg_panels_size
#undef cg_series
#undef cg_series_of
#undef cg_at_step
#undef cg_across
#undef cg_own
#undef cg_copy_row
#undef cg_add_sums
#undef cg_add_row_block
#undef cg_add_steps
#undef cg_clear_sums
#undef cg_run
#undef cg_prefetch_rows
#undef cg_prefetch_to_write
#undef cg_gather_steps
#undef cg_gather_before
#undef cg_start_rows
#undef cg_gather_shown
#undef cg_scatter_steps
#undef cg_prefetch_series
#undef cg_prefetch_saved
#define cg_tile CELLGEN_NAME(cellgen_tile)
#define cg_tile_of CELLGEN_NAME(cellgen_tile_of)
#define cg_term CELLGEN_NAME(cellgen_term)
#define cg_ahead CELLGEN_NAME(cellgen_ahead)
#define cg_pack_slot CELLGEN_NAME(cellgen_pack_slot)
#define cg_panels_size CELLGEN_NAME(cellgen_panels_size)
#define cg_series CELLGEN_NAME(cellgen_series)
#define cg_series_of CELLGEN_NAME(cellgen_series_of)
#define cg_at_step CELLGEN_NAME(cellgen_at_step)
#define cg_across CELLGEN_NAME(cellgen_across)
#define cg_own CELLGEN_NAME(cellgen_own)
#define cg_copy_row CELLGEN_NAME(cellgen_copy_row)
#define cg_prefetch_series CELLGEN_NAME(cellgen_prefetch_series)
#define cg_prefetch_saved CELLGEN_NAME(cellgen_prefetch_saved)
#define cg_add_sums CELLGEN_NAME(cellgen_add_sums)
#define cg_add_row_block CELLGEN_NAME(cellgen_add_row_block)
#define cg_add_steps CELLGEN_NAME(cellgen_add_steps)
#define cg_clear_sums CELLGEN_NAME(cellgen_clear_sums)
#define cg_run CELLGEN_NAME(cellgen_run)
#define cg_prefetch_rows CELLGEN_NAME(cellgen_prefetch_rows)
#define cg_prefetch_to_write CELLGEN_NAME(cellgen_prefetch_to_write)
#define cg_gather_steps CELLGEN_NAME(cellgen_gather_steps)
#define cg_gather_before CELLGEN_NAME(cellgen_gather_before)
#define cg_start_rows CELLGEN_NAME(cellgen_start_rows)
#define cg_gather_shown CELLGEN_NAME(cellgen_gather_shown)
#define cg_scatter_steps CELLGEN_NAME(cellgen_scatter_steps)

#ifndef CELLGEN_SEQUENCE_H
#define CELLGEN_SEQUENCE_H

#include "cellgen_team.h"

#define CELLGEN_TILE_HEIGHT 8 /* the most rows that a tile kernel takes */
/* Rows that a tile buffer of 16 KB holds, each of so many vectors: 64 of an LSTM's. */
#define CELLGEN_GROUP_ROWS(vectors) ((vectors) < 32 ? 256 / (vectors) : CELLGEN_TILE_HEIGHT)
/* Panels of one block of units that stay in a second-level cache beside the rows and what is fetched. */
#ifndef CELLGEN_DEEP_BYTES
#define CELLGEN_DEEP_BYTES (512 << 10)
#endif

/* Units of which threads take whole multiples: the widest block of units of a step's tiles, whose
 * widest panel has that many slots (0: no tile), and no less than a cache line of floats. */
#define CELLGEN_GRANULARITY(slots) ((slots) == 0 ? 16 : CELLGEN_SLOT_VECTORS(slots) * CELLGEN_REAL_LANES)

/* Let denormal numbers count as zeros in this thread, if asked to; gives what restores its modes. */
CELLGEN_INLINE unsigned cellgen_flush_denormals(int flush)
{
    unsigned modes = 0;
    if (flush) {
#if CELLGEN_GNU && defined(__SSE__)
        modes = __builtin_ia32_stmxcsr();
        __builtin_ia32_ldmxcsr(modes | 0x8040u); /* results and operands */
#elif CELLGEN_GNU && defined(__aarch64__)
        uint64_t control;
        __asm__ volatile("mrs %0, fpcr" : "=r"(control));
        modes = (unsigned)control;
        __asm__ volatile("msr fpcr, %0" : : "r"(control | (UINT64_C(1) << 24)));
#endif
    }
    return modes;
}
CELLGEN_INLINE void cellgen_restore_denormals(int flush, unsigned modes)
{
    (void)modes;
    if (flush) {
#if CELLGEN_GNU && defined(__SSE__)
        __builtin_ia32_ldmxcsr(modes);
#elif CELLGEN_GNU && defined(__aarch64__)
        __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)modes));
#endif
    }
}

/* Steps of a time loop between two questions whether the caller wants the call to stop. */
#define CELLGEN_STOP_STEPS 16

/* Whether a call is to stop. All threads get the same answer: what one of them has seen before the
 * meeting counts. Answers alternate in place, since a thread may ask again before another has read. */
typedef struct {
    const int *asked; /* the caller's, NULL: nobody can ask */
    int found[2];
} cg_stop;
CELLGEN_INLINE int cg_stops(cg_stop *stop, cellgen_team *team, int thread, int64_t turn)
{
    if (!stop->asked) return 0;
    if (CELLGEN_READ_SHARED(stop->asked)) CELLGEN_WRITE_SHARED(&stop->found[turn & 1], 1);
    cellgen_team_barrier(team, thread);
    return CELLGEN_READ_SHARED(&stop->found[turn & 1]);
}

/* Who makes a call: its team, or the caller alone while that is faster. A caller's plan is followed. */
CELLGEN_INLINE cellgen_team *cg_team_of_call(cellgen_team *team, const cellgen_options *options)
{
    return options && options->plan ? team : cellgen_team_worth(team);
}

/* Where partition `part` of `parts` begins in `count` units. */
CELLGEN_INLINE int64_t cellgen_partition(int64_t count, int64_t part, int64_t parts, int64_t granularity)
{
    const int64_t begin = (count + granularity - 1) / granularity * part / parts * granularity;
    return begin < count ? begin : count;
}

/* The units of weights `turn` that a thread packs: those that it computes in each step where threads
 * share units, since they stay in its cache, else all of every so many-th weights. 100 steps of one row
 * and 128 units, two threads that share units, by the same that take turns: forward pass with saving
 * 0.85 to 0.94, backward pass 0.94 to 0.98 (LSTM, GRUs; Zen 4). */
typedef struct {
    int64_t begin, end;
} cellgen_units;
CELLGEN_INLINE cellgen_units cellgen_units_to_pack(int by_units, int64_t turn, int64_t units,
                                                   int64_t granularity, int thread, int threads)
{
    const cellgen_units own = {cellgen_partition(units, thread, threads, granularity),
                               cellgen_partition(units, thread + 1, threads, granularity)};
    const cellgen_units all = {0, turn % threads == thread ? units : 0};
    return by_units ? own : all;
}

/* Rows of one chunk of steps, about `wanted`, and no more than there are. */
CELLGEN_INLINE int64_t cellgen_chunk_rows(int64_t steps, int64_t batch, int64_t wanted)
{
    const int64_t fitting = batch > 0 && wanted > batch ? wanted / batch : 1;
    return (fitting < steps ? fitting : steps) * batch;
}

/* --- row blocks: what the order of additions depends on --- */

/* Where threads share the rows of a batch, what a backward pass sums over rows takes every row's
 * adjoints through the caches of all cores, and threads meet twice a chunk. So a batch is passed in
 * row blocks, each by one thread that meets none and sums by itself; the sums of the row blocks are added
 * at the end. How many depends on shape and precision alone, not on a plan, since the order of additions
 * depends on it: two from twice CELLGEN_ROW_BLOCK_ROWS rows on, more from twice as many for each; each with
 * CELLGEN_ROW_BLOCK_ROWS_OF_ALL rows over all steps at least; and no more than let the gradients of weights of
 * all but the first fit CELLGEN_ROW_BLOCK_BYTES. Backward pass of an LSTM, two threads by the same without
 * row blocks: 0.80 to 0.83 (1000 steps, 16 rows, 64 units), 0.77 (32 units), 0.82 (32 rows), 1.00 (128
 * units); one thread, whose tiles are lower and which copies inputs of a row block side by side: 1.04 to 1.10. */
#define CELLGEN_MOST_ROW_BLOCKS CELLGEN_TEAM_PARTS
#define CELLGEN_ROWS_AT_ONCE 16 /* the most threads that defer a row each */
#ifndef CELLGEN_ROW_BLOCK_ROWS
#define CELLGEN_ROW_BLOCK_ROWS 8
#endif
#ifndef CELLGEN_ROW_BLOCK_ROWS_OF_ALL
#define CELLGEN_ROW_BLOCK_ROWS_OF_ALL 192
#endif
#ifndef CELLGEN_ROW_BLOCK_BYTES
#define CELLGEN_ROW_BLOCK_BYTES (512 * 1024)
#endif
CELLGEN_INLINE int64_t cellgen_row_blocks(int64_t steps, int64_t rows, int64_t gradient_bytes)
{
    const int64_t high = rows / (2 * CELLGEN_ROW_BLOCK_ROWS); /* so many have twice the rows */
    const int64_t long_ones = steps * rows / CELLGEN_ROW_BLOCK_ROWS_OF_ALL; /* enough over all steps */
    int64_t row_blocks = high > 2 ? high : rows < 2 * CELLGEN_ROW_BLOCK_ROWS ? 1 : 2;
    if (row_blocks > long_ones) row_blocks = long_ones;
    if (row_blocks > CELLGEN_MOST_ROW_BLOCKS) row_blocks = CELLGEN_MOST_ROW_BLOCKS;
    while (row_blocks > 1 && (row_blocks - 1) * gradient_bytes > CELLGEN_ROW_BLOCK_BYTES) --row_blocks;
    return steps > 1 && row_blocks > 1 ? row_blocks : 1;
}

/* The threads of a row block and which of them asks, or the row blocks of a thread that has whole ones. */
typedef struct {
    int64_t begin, end;  /* row blocks */
    int thread, threads; /* in each of them */
} cellgen_row_block_partition;
CELLGEN_INLINE cellgen_row_block_partition cellgen_partition_row_blocks(int64_t row_blocks, int thread, int threads)
{
    cellgen_row_block_partition own = {row_blocks * thread / threads, row_blocks * (thread + 1) / threads, 0, 1};
    if (threads <= row_blocks) return own;
    for (int64_t row_block = 0; row_block < row_blocks; ++row_block) {
        const int first = (int)(threads * row_block / row_blocks), last = (int)(threads * (row_block + 1) / row_blocks);
        if (first <= thread && thread < last) {
            own.begin = row_block;
            own.end = row_block + 1;
            own.thread = thread - first;
            own.threads = last - first;
        }
    }
    return own;
}
CELLGEN_INLINE int cellgen_threads_of_row_block(int64_t row_block, int64_t row_blocks, int threads)
{
    return threads <= row_blocks ? 1 : (int)(threads * (row_block + 1) / row_blocks - threads * row_block / row_blocks);
}

/* A call's options for a row block of its rows: arrays at distances of their own, weights packed once. */
CELLGEN_INLINE cellgen_options cellgen_options_of_row_block(const cellgen_options *options, int64_t row_block,
                                                            int64_t row_blocks, const int64_t *strides,
                                                            const void *packed)
{
    cellgen_options own;
    memset(&own, 0, sizeof own);
    if (options) own = *options;
    if (row_blocks > 1) own.strides = strides;
    if (row_block > 0) own.packed = packed;
    return own;
}

/* --- the plan: choices that depend on the shape, none of which changes a bit of the results --- */

/* Up to so many rows, products of inputs are formed ahead of the loop over steps: a tile of few rows
 * is bound by reading weights, a window of steps is not. More rows fill a tile by themselves. Where
 * weights exceed what cores share, x, h and one panel of the weights of both exceed a second-level
 * cache: those of one at a time take 0.85 to 0.99 of the time (H = I = 1024, 64 and 128 rows). */
#ifndef CELLGEN_HOIST_ROWS
#define CELLGEN_HOIST_ROWS 3
#endif
/* Where no product waits for a state, the same with fewer rows than these for each thread: two threads
 * that share rows instead, with the product in each step, take 1.06 to 1.4 of the time with 2 or 4 rows
 * each, 0.78 to 1.0 with 8, 0.88 to 1.0 with 16, 0.90 to 0.95 with 32 (minGRU, SRU, QRNN, LRU, minLSTM;
 * 64 to 512 units); one thread with the product in each step 0.78 to 1.0 with 8 rows and more. */
#ifndef CELLGEN_FREE_ROWS
#define CELLGEN_FREE_ROWS 8
#endif
#ifndef CELLGEN_ROWS_PER_THREAD
#define CELLGEN_ROWS_PER_THREAD 3
#endif
#ifndef CELLGEN_WEIGHTS_IN_CACHE
#define CELLGEN_WEIGHTS_IN_CACHE (768 * 1024)
#endif
/* With so many rows a tile of weights that come from a further cache runs as fast as the tile of one
 * whose weights are near; two cores of an Ice Lake server, LSTM, threads that share rows by threads
 * that share units: 1.18 with 8 rows each and 1.5 MB of weights, 0.93 with 12, 0.96 with 16; 1.32 with 8
 * rows and 8 MB, 1.14 with 12, 0.89 with 16, 0.92 with 32; 1.04 with 64 rows and 32 MB. */
#ifndef CELLGEN_FULL_ROWS
#define CELLGEN_FULL_ROWS 16
#endif
/* A single step uses packed weights once: with fewer rows than these for each thread, threads share units
 * and read weights where they lie. Two threads of a Sapphire Rapids server that do, by two that pack and
 * share rows, GRUs, forward and backward: 0.67 to 0.79 and 0.77 with 16 rows each and 64 units, 0.59
 * backward with 256; 0.99 to 1.13 and 0.94 to 0.97 with 64 rows and 128 units; 1.3 to 2 with 512 rows. */
#ifndef CELLGEN_ONCE_ROWS
#define CELLGEN_ONCE_ROWS 64
#endif
/* Rows of one window of products formed ahead: enough for full tiles, few enough to stay in cache. */
#ifndef CELLGEN_WINDOW_ROWS
#define CELLGEN_WINDOW_ROWS 192
#endif
/* Rows of one chunk of what is deferred: operands and adjoints stay in a second-level cache. Where the
 * gradients of weights do not, a chunk reads and writes all of them: there it has four times the rows.
 * Twice the rows, and half the meetings, where threads are soon done with those of few weights (backward
 * pass of an LSTM, 16 rows, two threads, without row blocks: 32 units 0.93, 64 units 0.96 to 0.98,
 * 128 units 1.00; one thread, 64 units: 1.00). Not where none of them stand in the time loop: all weights are deferred then
 * (SRU, 256 units: 1.04 with twice the rows). */
#ifndef CELLGEN_CHUNK_ROWS
#define CELLGEN_CHUNK_ROWS 192
#endif
#ifndef CELLGEN_FEW_WEIGHTS
#define CELLGEN_FEW_WEIGHTS (64 * 1024) /* bytes */
#endif

#define CELLGEN_OR(name, own) (given && given->name >= 0 ? given->name : (own))
CELLGEN_INLINE cellgen_constants cellgen_all_constants(const cellgen_constants *given)
{
    cellgen_constants all;
    all.hoist_rows = CELLGEN_OR(hoist_rows, CELLGEN_HOIST_ROWS);
    all.rows_per_thread = CELLGEN_OR(rows_per_thread, CELLGEN_ROWS_PER_THREAD);
    all.weights_in_cache = CELLGEN_OR(weights_in_cache, CELLGEN_WEIGHTS_IN_CACHE);
    all.window_rows = CELLGEN_OR(window_rows, CELLGEN_WINDOW_ROWS);
    all.chunk_rows = CELLGEN_OR(chunk_rows, CELLGEN_CHUNK_ROWS);
    return all;
}

/* Threads share the units of each step, and meet after every stage, where there are few rows, and
 * where a thread's partition of the weights stays in a core's second-level cache, all of them do not, and rows are
 * too few to hide that, or weights too many for the next cache; else they share the rows and never
 * meet. A single step reads weights where they lie, once, which takes partitions of units and not many
 * rows. `can_split`: no sum over units needs whole rows. Where no product waits for a state and rows
 * are few, products run ahead of the loop, which is pointwise, and threads that share units do not meet
 * either: among so many threads as there are `free_partitions` of units. A chunk of what is deferred reads
 * and writes the gradients of all weights; it is longer where those leave every cache that a core has a
 * fair share of, and where threads would meet after little work. Where one thread has a row block
 * it meets none; a thread of several takes a chunk of each in turn, whose rows are neighbours: 1.02 to
 * 1.08 of a backward pass's time with twice the rows (one thread, 16 rows, 64 units). */
CELLGEN_INLINE cellgen_plan cellgen_choose_plan(int64_t steps, int64_t rows, int64_t threads,
                                                int64_t weight_bytes, int can_split,
                                                int64_t free_partitions, int64_t row_blocks,
                                                const cellgen_constants *constants)
{
    const cellgen_constants by = cellgen_all_constants(constants);
    const int far = weight_bytes > by.weights_in_cache;
    const int farther = weight_bytes > 16 * by.weights_in_cache;
    const int crowded =
        rows < by.rows_per_thread * threads ||
        (steps == 1 && weight_bytes > 0 && rows < CELLGEN_ONCE_ROWS * threads) ||
        (far && (farther || steps == 1 || rows < CELLGEN_FULL_ROWS * threads));
    const int64_t free_units = rows < CELLGEN_FREE_ROWS * threads ? free_partitions : 0;
    const int by_units = can_split && threads > 1 && (crowded || free_units >= threads);
    const int shared = threads == 1 || by_units; /* each panel of weights has one thread that packs it */
    cellgen_plan plan;
    plan.threads = threads;
    plan.by_units = by_units;
    const int free = free_units > 0 || (by_units && free_partitions > 0);
    plan.hoist = shared && steps > 1 && (rows <= by.hoist_rows || free || farther);
    plan.unpacked = shared && steps == 1;
    plan.window_rows = cellgen_chunk_rows(steps, rows, by.window_rows);
    const int few = 0 < weight_bytes && weight_bytes <= CELLGEN_FEW_WEIGHTS;
    const int64_t chunks = farther ? 4 : few ? 2 : 1;
    plan.chunk_rows = row_blocks > 1 ? cellgen_chunk_rows(steps, (rows + row_blocks - 1) / row_blocks, by.chunk_rows)
                                : cellgen_chunk_rows(steps, rows, chunks * by.chunk_rows);
    plan.row_blocks = row_blocks;
    plan.weight_bytes = weight_bytes;
    plan.by = by;
    return plan;
}

/* Whether a caller's plan can be followed: what is formed ahead reads weights packed ahead. */
CELLGEN_INLINE int cellgen_plan_fits(const cellgen_plan *plan, int64_t threads, int can_split,
                                     int64_t row_blocks)
{
    const int shared = threads == 1 || plan->by_units;
    return plan->row_blocks == row_blocks && (can_split || !plan->by_units) &&
           (shared || (!plan->hoist && !plan->unpacked)) && !(plan->hoist && plan->unpacked);
}

/* --- which steps are valid: steps are numbered in the order in which they are computed --- */

/* Whether some step of some row may be masked or start anew, so that states need a look each step. */
CELLGEN_INLINE int cellgen_is_guarded(const cellgen_options *options)
{
    return options && (options->lengths || options->mask || options->reset || options->last || options->every > 1 || options->partial);
}

/* Whether rows of neighbouring steps may lie unevenly, so that products over many steps need copies. */
CELLGEN_INLINE int cellgen_is_gathered(const cellgen_options *options)
{
    return cellgen_is_guarded(options) || (options && (options->strides || options->reverse));
}

/* Fill the tables: validity[step][row], resets[step][row] (whether it starts anew), and, unless NULL,
 * before[step][row]: the step whose state it starts from, CELLGEN_INITIAL or CELLGEN_ZERO. */
enum { CELLGEN_INITIAL = -1, CELLGEN_ZERO = -2 };
CELLGEN_STATIC int cellgen_fill_tables(const cellgen_options *options, const int64_t *strides,
                                       int64_t T, int64_t B, unsigned char *validity,
                                       unsigned char *resets, int32_t *before)
{
    const int64_t step_of[2] = {strides ? strides[0] : B, strides ? strides[2] : B};
    const int64_t row_of[2] = {strides ? strides[1] : 1, strides ? strides[3] : 1};
    for (int64_t row = 0; row < B && options->lengths; ++row)
        if (options->lengths[row] < 0 || options->lengths[row] > T) return CELLGEN_LENGTH_OUT_OF_RANGE;
    for (int64_t row = 0; row < B; ++row) {
        int32_t last = CELLGEN_INITIAL;
        for (int64_t step = 0; step < T; ++step) {
            const int64_t t = options->reverse ? T - 1 - step : step;
            const int inside = !options->lengths || t < options->lengths[row];
            const int is_valid =
                inside && (!options->mask || options->mask[t * step_of[0] + row * row_of[0]]);
            const int is_reset =
                is_valid && options->reset && options->reset[t * step_of[1] + row * row_of[1]];
            const int is_hold = inside && options->hold && last != CELLGEN_INITIAL;
            validity[step * B + row] = is_valid ? CELLGEN_VALID : is_hold ? CELLGEN_MASKED_HOLD : CELLGEN_MASKED_ZERO;
            resets[step * B + row] = (unsigned char)is_reset;
            if (before) before[step * B + row] = is_reset ? (int32_t)CELLGEN_ZERO : last;
            if (is_valid) last = (int32_t)step;
        }
    }
    return CELLGEN_OK;
}

/* Elements for each row of a weight gradient in the block that its product packs: as deep as one
 * chunk of rows, or one depth of a product. */
CELLGEN_INLINE int64_t cellgen_depth_of(int64_t rows)
{
    return rows < CELLGEN_DEPTH ? rows : CELLGEN_DEPTH;
}

/* Rows per tile: as few tiles of at most `most` rows as will do, all about equally high. */
CELLGEN_INLINE int64_t cellgen_even_rows(int64_t rows, int64_t most)
{
    const int64_t tiles = (rows + most - 1) / most;
    return tiles > 0 ? (rows + tiles - 1) / tiles : 1;
}

/* Whether the panels of a block of units, `terms` deep, would drive each other and the rows out of the
 * second-level cache: rows then go through them in groups, a slice of k at a time. */
CELLGEN_INLINE int cellgen_is_deep(int64_t terms, int64_t vectors)
{
    return terms * vectors * CELLGEN_VECTOR_BYTES > CELLGEN_DEEP_BYTES;
}

/* Sums over the rows of all steps are formed in groups of so many rows, each from its last row to its
 * first, and groups are added from the last: the same additions for any number of threads, which share
 * groups, and any length of a chunk, which may end within one. */
enum { CELLGEN_SUM_ROWS = 16 };

/* Groups that so many neighbouring rows may touch. */
CELLGEN_INLINE int64_t cellgen_sum_groups(int64_t rows)
{
    return rows / CELLGEN_SUM_ROWS + 2;
}

/* From one group's sums to the next: whole cache lines, since threads sum neighbouring groups. */
CELLGEN_INLINE int64_t cellgen_sum_stride(int64_t count)
{
    return (count + 15) / 16 * 16;
}

/* Where partition `part` of `parts` begins in the `rows` rows from row `first` of all on: whole groups. */
CELLGEN_INLINE int64_t cellgen_partition_rows(int64_t first, int64_t rows, int64_t part, int64_t parts)
{
    const int64_t group = first / CELLGEN_SUM_ROWS;
    const int64_t groups = (first + rows + CELLGEN_SUM_ROWS - 1) / CELLGEN_SUM_ROWS - group;
    const int64_t begin = (group + groups * part / parts) * CELLGEN_SUM_ROWS - first;
    return begin < 0 ? 0 : begin < rows ? begin : rows;
}

/* Where the last group before row `end` begins, at row `begin` at the earliest; both are counted from row
 * `first` of all on. */
CELLGEN_INLINE int64_t cellgen_group_begin(int64_t first, int64_t begin, int64_t end)
{
    const int64_t found = (first + end - 1) / CELLGEN_SUM_ROWS * CELLGEN_SUM_ROWS - first;
    return found > begin ? found : begin;
}

/* Blocks of units whose tiles of all `rows` rows one buffer holds: with few rows their functions are
 * computed one after the other, so that the latency of one hides behind the next. */
CELLGEN_INLINE int64_t cellgen_blocks_of_tile(int64_t rows)
{
    return rows > 0 && rows < CELLGEN_TILE_HEIGHT ? CELLGEN_TILE_HEIGHT / rows : 1;
}

/* --- what is needed soon is fetched while the products of a step run: what the next one reads or
 * writes. Without that, its lines come one by one from wherever the step or the call before left them:
 * docs/lab/0002-where-the-time-goes.md. */

/* The fewest bytes for each k: what is fetched later stays nearer, and fewer fetches are of the same line.
 * Forward pass of an LSTM and backward pass of FastGRNN and of the LSTM at 1000,16,64,64, by 4, 16 and 32
 * bytes: 0.99, 1.01, 0.98; 0.92, 0.93, 0.94; 0.96, 0.97, 0.97; at 100,32,128,256: 0.97, 0.97, 0.96; 0.98,
 * 1.00, 0.99; 1.02, 1.01, 1.01 of the code that shared out otherwise (two threads, Zen 4). */
#ifndef CELLGEN_PREFETCH_SHIFT
#define CELLGEN_PREFETCH_SHIFT 5
#endif
enum { CELLGEN_PREFETCH_BYTES = 512 * 1024 }; /* more would not be in the second-level cache when its step comes */

CELLGEN_INLINE void cellgen_prefetch_nothing(cellgen_prefetch *prefetch)
{
    prefetch->arrays = prefetch->array = prefetch->wait = prefetch->done = prefetch->total = 0;
    prefetch->shift = CELLGEN_PREFETCH_SHIFT;
}

/* An array that would be too much beside those before it is left out. */
CELLGEN_INLINE void cellgen_prefetch_add(cellgen_prefetch *prefetch, const void *rows, int64_t bytes)
{
    if (prefetch->arrays == CELLGEN_PREFETCH_ARRAYS || bytes <= 0 || prefetch->total + bytes > CELLGEN_PREFETCH_BYTES)
        return;
    prefetch->rows[prefetch->arrays] = (const char *)rows;
    prefetch->bytes[prefetch->arrays++] = bytes;
    prefetch->total += bytes;
}

/* Tiles of rows that fetch, of those that `rows` rows make (`cellgen_even_rows`). */
CELLGEN_INLINE int64_t cellgen_fetching_tiles(int64_t rows, int64_t most)
{
    const int64_t tiles = (rows + most - 1) / most, least = tiles > 0 ? rows / tiles : 0;
    return CELLGEN_FETCHES(least, 2) ? tiles : CELLGEN_FETCHES(least + 1, 2) ? rows - least * tiles : 0;
}

/* Once all are known: share them out among the k of the tiles that some rows make in each of so many
 * blocks, the last ones where there are more than it takes; no panel is next in the last block. */
CELLGEN_INLINE void cellgen_share_out(cellgen_prefetch *prefetch, int64_t blocks, int64_t rows,
                                      int64_t most, int64_t depth)
{
    const int64_t room = (blocks + 1) * cellgen_fetching_tiles(rows, most) * depth;
    int64_t pieces = 0;
    if (room == 0) prefetch->arrays = 0;
    while (prefetch->shift < 6 && room << prefetch->shift < prefetch->total) ++prefetch->shift;
    for (int64_t array = 0; array < prefetch->arrays; ++array)
        pieces += ((prefetch->bytes[array] - 1) >> prefetch->shift) + 2;
    prefetch->wait = room - pieces;
}

#endif

/* What tile number `tile` of a block of rows fetches while it runs: its part of the next panel, so
 * that the third-level cache is read evenly; nothing where the next one is this one. */
CELLGEN_INLINE cellgen_fetch cg_ahead(const real *panels, int64_t block, int64_t next, int64_t tile,
                                      int64_t pace, int64_t K, int64_t vectors)
{
    const real *const panel = panels + next * K * vectors * CELLGEN_REAL_LANES;
    cellgen_fetch found = cellgen_part(panel, tile, pace, K, vectors);
    if (next == block) found.step = 0;
    return found;
}

/* Pack the blocks of some units of one slot's weights, (K, units) or transposed (units, K), into panels
 * whose rows hold `slots` slots: [block][k][slot][unit]. Units beyond the last are zeros. */
CELLGEN_STATIC void cg_pack_slot(int64_t K, const real *w, int64_t ldw, int transposed,
                                 cellgen_units own, int64_t vectors, int64_t slots, int64_t slot,
                                 real *panels)
{
    const int64_t width = vectors * CELLGEN_REAL_LANES;
    if (K == 0) return; /* panels without rows, of however many units */
    for (int64_t first = own.begin; first < own.end; first += width) {
        const int64_t count = own.end - first < width ? own.end - first : width;
        real *const panel = panels + first * K * slots;
        if (transposed)
            CELLGEN_NAME(cellgen_pack_transposed)
            (K, vectors, count, w + first * ldw, ldw, panel + slot * width, slots * width);
        else
            CELLGEN_NAME(cellgen_pack_rows)
            (K, vectors, count, w + first, ldw, panel + slot * width, slots * width);
    }
}

/* --- arrays over time: (step, row, units), units side by side, steps and rows at any distance --- */

typedef struct {
    real *rows;        /* of step `first`: the first one that is computed, or that is resident */
    int64_t step, row; /* elements from step to step, from row to row */
    int64_t first;
} cg_series;

/* The rows of a step. */
CELLGEN_INLINE real *cg_at_step(cg_series series, int64_t step)
{
    return series.rows + (step - series.first) * series.step;
}

/* Where step 0 would be. */
#undef cg_from_start
#define cg_from_start CELLGEN_NAME(cellgen_from_start)
CELLGEN_INLINE real *cg_from_start(cg_series series)
{
    if (!series.rows) return 0;
    return (real *)((uintptr_t)series.rows - (uintptr_t)(series.first * series.step) * sizeof(real));
}

/* The array that starts at `base`; in reverse, its last step is the first. */
CELLGEN_INLINE cg_series cg_series_of(const real *base, int64_t T, int64_t B, int64_t width,
                                      const int64_t *strides, int64_t reverse)
{
    cg_series series = {(real *)(uintptr_t)base, B * width, width, 0};
    if (strides) {
        series.step = strides[0];
        series.row = strides[1];
    }
    if (reverse && base && T > 0) {
        series.rows += (T - 1) * series.step;
        series.step = -series.step;
    }
    return series;
}

/* One buffer of rows that serves every step. */
CELLGEN_INLINE cg_series cg_own(real *rows, int64_t width)
{
    const cg_series series = {rows, 0, width, 0};
    return series;
}

/* The rows of many steps as the rows of one matrix: from `buffer` if there is one, else in place, which
 * takes rows that lie evenly over all steps (`cellgen_is_evenly_strided`). */
CELLGEN_INLINE cg_series cg_across(cg_series series, int64_t B, real *buffer, int64_t width)
{
    if (buffer && series.rows) return cg_own(buffer, width);
    if (B == 1) series.row = series.step;
    return series;
}

#undef cg_is_evenly_strided
#define cg_is_evenly_strided CELLGEN_NAME(cellgen_is_evenly_strided)
CELLGEN_INLINE int cg_is_evenly_strided(cg_series series, int64_t B)
{
    return !series.rows || B == 1 || series.step == B * series.row;
}

/* Rows of one step, of an array over time, and of a saved one that the call may lack, are to come. */
CELLGEN_INLINE void cg_prefetch_series(cellgen_prefetch *prefetch, cg_series series, int64_t width,
                                     int64_t step, int64_t begin, int64_t end)
{
    if (step >= 0 && step >= series.first && series.rows && series.row == width && series.step != 0) /* 0: one step alone is kept */
        cellgen_prefetch_add(prefetch, cg_at_step(series, step) + begin * width,
                       (end - begin) * width * (int64_t)sizeof(real));
}
CELLGEN_INLINE void cg_prefetch_saved(cellgen_prefetch *prefetch, const real *saved, int64_t width,
                                    int64_t batch, int64_t step, int64_t begin, int64_t end)
{
    if (step >= 0 && saved)
        cellgen_prefetch_add(prefetch, saved + (step * batch + begin) * width,
                       (end - begin) * width * (int64_t)sizeof(real));
}

/* Copy a row, or zeros where there is none. */
CELLGEN_INLINE void cg_copy_row(real *to, const real *from, int64_t width)
{
    if (from)
        memcpy(to, from, (size_t)width * sizeof(real));
    else
        memset(to, 0, (size_t)width * sizeof(real));
}

/* Rows from `row` on that lie side by side in one step of B rows, no further than `end`. */
CELLGEN_INLINE int64_t cg_run(cg_series from, int64_t B, int64_t width, int64_t row, int64_t end)
{
    const int64_t left = B - row % B;
    return from.row != width ? 1 : left < end - row ? left : end - row;
}

/* Let the lines of a run of rows come, which is read or written after the one before. */
CELLGEN_INLINE void cg_prefetch_rows(const real *rows, int64_t count)
{
    for (int64_t at = 0; at < count; at += 64 / (int64_t)sizeof(real)) CELLGEN_FETCH_NEAR(rows + at);
}

/* Let the lines of a row come that is written soon. */
CELLGEN_INLINE void cg_prefetch_to_write(const real *row, int64_t count)
{
    for (int64_t at = 0; at < count; at += 64 / (int64_t)sizeof(real)) CELLGEN_FETCH_TO_WRITE(row + at);
}

/* Rows begin <= row < end of the steps from `step` on, one after the other; zeros where `validity` says
 * that a step is masked (NULL: none is). */
CELLGEN_STATIC void cg_gather_steps(real *to, cg_series from, int64_t B, int64_t width, int64_t step,
                               int64_t begin, int64_t end, const unsigned char *validity)
{
    for (int64_t row = begin, run; row < end && from.rows; row += run) {
        const int64_t at = step + row / B, of = row % B;
        const int is_valid = !validity || validity[at * B + of] == CELLGEN_VALID;
        run = validity ? 1 : cg_run(from, B, width, row, end);
        if (run > 1 && row + run < end) cg_prefetch_rows(cg_at_step(from, at + 1), run * width);
        cg_copy_row(to + row * width, is_valid ? cg_at_step(from, at) + of * from.row : 0, run * width);
    }
}

/* The same for the states from which the steps start; `before` NULL: the step before, the first time
 * the initial state. Where steps are resident from `first` on, that one has the states of those before. */
CELLGEN_STATIC void cg_gather_before(real *to, cg_series from, const real *initial, int64_t B,
                                      int64_t width, int64_t step, int64_t begin, int64_t end,
                                      const int32_t *before)
{
    for (int64_t row = begin, run; row < end; row += run) {
        const int64_t at = step + row / B, of = row % B;
        const int64_t source = before ? before[at * B + of] : at - 1;
        run = before ? 1 : cg_run(from, B, width, row, end);
        if (run > 1 && row + run < end) cg_prefetch_rows(cg_at_step(from, at), run * width);
        cg_copy_row(to + row * width,
                    source == CELLGEN_ZERO ? 0
                    : source < 0           ? initial + of * width
                                           : cg_at_step(from, source > from.first ? source : from.first) + of * from.row,
                    run * width);
    }
}

/* States that start from `initial` where a step starts anew; `resets` NULL: none does. */
CELLGEN_STATIC void cg_start_rows(real *to, real initial, int64_t B, int64_t width, int64_t step,
                                  int64_t begin, int64_t end, const unsigned char *resets)
{
    for (int64_t row = begin; row < end && resets; ++row)
        for (int64_t unit = 0; resets[step * B + row] && unit < width; ++unit)
            to[row * width + unit] = initial;
}

/* The gradients that reach one step's rows of an output that is no state: a step that repeats an
 * earlier one leaves its own in `later`, which is added where the output was made. Steps come from the
 * last to the first; beyond the edge of a window nothing is added. */
CELLGEN_STATIC void cg_gather_shown(real *to, real *later, cg_series from, int64_t T, int64_t B,
                                     int64_t width, int64_t step, int64_t begin, int64_t end,
                                     int64_t window, const unsigned char *validity)
{
    const int cut = window > 0 && step > 0 && step % window == 0;
    for (int64_t row = begin; row < end; ++row) {
        const int found = validity[step * B + row];
        const real *given = cg_at_step(from, step) + row * from.row;
        real *sum = later + row * width, *own = to + row * width;
        if (step == T - 1) cg_copy_row(sum, 0, width);
        cg_copy_row(own, found == CELLGEN_VALID ? given : 0, width);
        for (int64_t unit = 0; unit < width && found == CELLGEN_VALID; ++unit) own[unit] += sum[unit];
        for (int64_t unit = 0; unit < width && found == CELLGEN_MASKED_HOLD; ++unit) sum[unit] += given[unit];
        if (cut || found == CELLGEN_VALID) cg_copy_row(sum, 0, width);
    }
}

/* Begin the sums of the groups of rows whose last row is one of begin <= row < end, of `all` rows. The
 * groups of a chunk have `ring` places. */
CELLGEN_STATIC void cg_clear_sums(real *sums, int64_t count, int64_t ring, int64_t begin, int64_t end,
                                  int64_t all)
{
    for (int64_t group = begin / CELLGEN_SUM_ROWS; begin < end && group * CELLGEN_SUM_ROWS < end; ++group)
        if ((group + 1) * CELLGEN_SUM_ROWS <= end || end == all)
            cg_copy_row(sums + group % ring * cellgen_sum_stride(count), 0, count);
}

/* Add the sums of the groups whose first row is one of begin <= row < end to a total, from the last
 * group to the first; a thread's partition of the units. */
CELLGEN_STATIC void cg_add_sums(real *total, const real *sums, int64_t count, int64_t ring,
                                int64_t begin, int64_t end, int64_t part, int64_t parts)
{
    const int64_t first = cellgen_partition(count, part, parts, CELLGEN_REAL_LANES);
    const int64_t units = cellgen_partition(count, part + 1, parts, CELLGEN_REAL_LANES) - first;
    for (int64_t group = (end - 1) / CELLGEN_SUM_ROWS; end > begin && group * CELLGEN_SUM_ROWS >= begin; --group) {
        const real *from = sums + group % ring * cellgen_sum_stride(count) + first;
        for (int64_t unit = 0; unit < units; ++unit) total[first + unit] += from[unit];
    }
}

/* Add what a row block summed to a total; a thread's partition. */
CELLGEN_STATIC void cg_add_row_block(real *total, const real *sums, int64_t count, int64_t part, int64_t parts)
{
    const int64_t end = cellgen_partition(count, part + 1, parts, CELLGEN_REAL_LANES);
    for (int64_t unit = cellgen_partition(count, part, parts, CELLGEN_REAL_LANES); unit < end; ++unit)
        total[unit] += sums[unit];
}

/* Add the summands of some steps to a total, which has a row for each of B, from the last step on; a
 * masked step has none. A thread's rows, whole ones: the same bits for any threads. */
CELLGEN_STATIC void cg_add_steps(real *total, const real *summands, const unsigned char *validity,
                                 int64_t steps, int64_t B, int64_t width, int64_t part, int64_t parts)
{
    for (int64_t step = steps - 1; step >= 0; --step)
        for (int64_t row = B * part / parts; row < B * (part + 1) / parts; ++row) {
            const real *from = summands + (step * B + row) * width;
            real *to = total + row * width;
            if (validity && validity[step * B + row] != CELLGEN_VALID) continue;
            for (int64_t unit = 0; unit < width; ++unit) to[unit] += from[unit];
        }
}

/* The reverse of `cg_gather_steps`: rows of many steps to where they belong. */
CELLGEN_STATIC void cg_scatter_steps(cg_series to, const real *from, int64_t B, int64_t width, int64_t step,
                               int64_t begin, int64_t end)
{
    for (int64_t row = begin, run; row < end; row += run) {
        run = cg_run(to, B, width, row, end);
        if (run > 1 && row + run < end) cg_prefetch_rows(cg_at_step(to, step + row / B + 1), run * width);
        cg_copy_row(cg_at_step(to, step + row / B) + row % B * to.row, from + row * width, run * width);
    }
}
