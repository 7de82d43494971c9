/* What the shape of a call decides: tiles, partitions of threads, row blocks, and the plan. Part of
 * cellgen_over_time.inc.h. */
#ifndef CELLGEN_PLAN_H
#define CELLGEN_PLAN_H

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

/* Rows of weights that are packed together, of all blocks of units: each row is read from its begin to its end, and
 * panels are written some lines at a time. */
#define CELLGEN_PACKED_TOGETHER INT64_C(8)

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
 * is bound by reading weights, a hoist window of steps is not. More rows fill a tile by themselves. Where
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
/* Rows of a hoist window, of products formed ahead: enough for full tiles, few enough to stay in cache. */
#ifndef CELLGEN_WINDOW_ROWS
#define CELLGEN_WINDOW_ROWS 192
#endif
/* On AMX products take a fifth of the time, so that weights which a core's caches do not hold are waited for:
 * so many steps of a hoist window share them at least. One thread of an Emerald Rapids server, forward, 128 rows of 1024
 * units and inputs, by windows of a single step: LSTM 0.81, GRU 0.80. */
#ifndef CELLGEN_AMX_WINDOW_STEPS
#define CELLGEN_AMX_WINDOW_STEPS 4
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

#endif
