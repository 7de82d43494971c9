/* Arrays over time, which of their steps are valid, what is fetched soon, and packing of gates side by side.
 * Included after cellgen_real.h and cellgen_gemm.h. */

#include "cellgen_driver.h"
#include "cellgen_plan.h"

#define cg_tile CELLGEN_NAME(cellgen_tile)
#define cg_tile_of CELLGEN_NAME(cellgen_tile_of)
#define cg_term CELLGEN_NAME(cellgen_term)
#define cg_panels_size CELLGEN_NAME(cellgen_panels_size)

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

/* Elements from step to step and from row to row of an array: a pair of `strides`, or as nothing has gaps. */
typedef struct {
    int64_t step, row;
} cg_distances;
CELLGEN_INLINE cg_distances cg_distances_of(const int64_t *pair, int64_t rows, int64_t width)
{
    const int is_dense = !pair || pair[0] == CELLGEN_NO_GAPS;
    const cg_distances found = {is_dense ? rows * width : pair[0], is_dense ? width : pair[1]};
    return found;
}

/* Fill the tables: validity[step][row], resets[step][row] (whether it starts anew), and, unless NULL,
 * before[step][row]: the step whose state it starts from, CELLGEN_INITIAL or CELLGEN_ZERO. */
enum { CELLGEN_INITIAL = -1, CELLGEN_ZERO = -2 };
CELLGEN_STATIC int cellgen_fill_tables(const cellgen_options *options, const int64_t *strides,
                                       int64_t T, int64_t B, unsigned char *validity,
                                       unsigned char *resets, int32_t *before)
{
    const cg_distances mask = cg_distances_of(strides, B, 1), reset = cg_distances_of(strides ? strides + 2 : 0, B, 1);
    for (int64_t row = 0; row < B && options->lengths; ++row)
        if (options->lengths[row] < 0 || options->lengths[row] > T) return CELLGEN_LENGTH_OUT_OF_RANGE;
    for (int64_t row = 0; row < B; ++row) {
        int32_t last = CELLGEN_INITIAL;
        for (int64_t step = 0; step < T; ++step) {
            const int64_t t = options->reverse ? T - 1 - step : step;
            const int inside = !options->lengths || t < options->lengths[row];
            const int is_valid =
                inside && (!options->mask || options->mask[t * mask.step + row * mask.row]);
            const int is_reset =
                is_valid && options->reset && options->reset[t * reset.step + row * reset.row];
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
    for (int64_t k = 0, rows; k < K; k += rows) {
        rows = transposed || K - k < CELLGEN_PACKED_TOGETHER ? K - k : CELLGEN_PACKED_TOGETHER;
        for (int64_t first = own.begin; first < own.end; first += width) {
            const int64_t count = own.end - first < width ? own.end - first : width;
            real *const panel = panels + first * K * slots + (k * slots + slot) * width;
            if (transposed)
                CELLGEN_NAME(cellgen_pack_transposed)(K, vectors, count, w + first * ldw, ldw, panel, slots * width);
            else
                CELLGEN_NAME(cellgen_pack_rows)(rows, vectors, count, w + k * ldw + first, ldw, panel, slots * width);
        }
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
CELLGEN_INLINE real *cg_from_start(cg_series series)
{
    if (!series.rows) return 0;
    return (real *)((uintptr_t)series.rows - (uintptr_t)(series.first * series.step) * sizeof(real));
}

/* The array that starts at `base`; in reverse, its last step is the first. */
CELLGEN_INLINE cg_series cg_series_of(const real *base, int64_t T, int64_t B, int64_t width,
                                      const int64_t *strides, int64_t reverse)
{
    const cg_distances lies = cg_distances_of(strides, B, width);
    cg_series series = {(real *)(uintptr_t)base, lies.step, lies.row, 0};
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
