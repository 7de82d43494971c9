/* Options over time: which steps of a row are valid, in which order they are computed, and how arrays lie.
 *
 * Where a step may be masked, tables say so, filled on the device from what the caller gives; steps
 * then read states from copies, and what they leave for such a row is put right after each of them.
 * Arrays over time are used where they are, at their strides. Those that products or sums over all
 * steps read or write are copied into the order of computation and back unless one row follows the
 * other; where steps may be masked, all are, zeros in the place of such steps. Meaning and names are those of cellgen_over_time.inc.h. A length outside 0..T counts as the
 * nearer of the two: looking at it on the host would wait for the device. */
#ifndef CELLGEN_CUDA_OPTIONS_CUH
#define CELLGEN_CUDA_OPTIONS_CUH

#include "cellgen_cuda.cuh"

/* What a call's options need: tables of the valid steps, and which arrays over time are moved. */
#define CELLGEN_GUARDED ((int64_t)1)
#define CELLGEN_MOVED(place) ((int64_t)2 << (place))
#define CELLGEN_IF_MOVED(place, count) (how & CELLGEN_MOVED(place) ? (int64_t)(count) : 0)
#define CELLGEN_IF_GUARDED(count) (how & CELLGEN_GUARDED ? (int64_t)(count) : 0)

inline int64_t cellgen_how(const void *lengths, const void *mask, const void *reset, int arrays)
{
    const int64_t all = CELLGEN_MOVED(arrays) - CELLGEN_MOVED(0);
    return lengths || mask || reset ? CELLGEN_GUARDED | all : 0;
}

/* The bit of an array whose steps and rows lie so far apart, if that is not one row after the other in
 * the order of computation. */
inline int64_t cellgen_moves(
    int place, const int64_t *strides, int reverse, int64_t steps, int64_t batch, int64_t units)
{
    if (reverse && steps > 1) return CELLGEN_MOVED(place);
    if (!strides) return 0;
    const bool even = (steps <= 1 || strides[0] == batch * units) && (batch <= 1 || strides[1] == units);
    return even ? 0 : CELLGEN_MOVED(place);
}

/* Of the strides of a call, those of an array by its place; NULL: it has no gaps. */
inline const int64_t *cellgen_layout(const int64_t *strides, int place)
{
    return strides && strides[2 * place] != CELLGEN_NO_GAPS ? strides + 2 * place : nullptr;
}

/* Strides of an array in which one row follows the other. */
inline void cellgen_lay(int64_t *strides, int64_t batch, int64_t units)
{
    strides[0] = batch * units;
    strides[1] = units;
}

/* The first step in the order of computation of an array of the caller, and its strides in that order;
 * NULL stays NULL. */
template <typename E>
inline E *cellgen_first(E *at, const int64_t *layout, int reverse, int64_t steps, int64_t batch,
    int64_t units, int64_t *strides)
{
    cellgen_lay(strides, batch, units);
    if (layout) strides[0] = layout[0], strides[1] = layout[1];
    if (!reverse || !at || steps < 1) return at;
    at += (steps - 1) * strides[0];
    strides[0] = -strides[0];
    return at;
}

/* An array over time of the caller: elements from step to step, and from row to row; `every`: it has
 * the steps n * every - 1 alone, in the caller's order. */
template <typename E> struct cellgen_series {
    E *at;
    int64_t step, row, every;
};

template <typename E>
inline cellgen_series<E> cg_series(E *at, const int64_t *strides, int64_t batch, int64_t units)
{
    if (strides) return {at, strides[0], strides[1], 1};
    return {at, batch * units, units, 1};
}

/* The same of every so many-th step alone; 0 and 1: of all. */
template <typename E>
inline cellgen_series<E> cg_every(cellgen_series<E> series, int64_t every)
{
    if (every > 1) series.every = every;
    return series;
}

template <typename E>
inline __host__ __device__ bool cellgen_has_step(cellgen_series<E> series, int64_t step)
{
    return (step + 1) % series.every == 0;
}

template <typename E>
inline __host__ __device__ cellgen_rows<E> cellgen_at_step(cellgen_series<E> series, int64_t step)
{
    return {series.at + ((step + 1) / series.every - 1) * series.step, series.row};
}

/* The same, or none: of an array that is not there, or at a step that it leaves out. */
template <typename E>
inline __host__ __device__ cellgen_rows<E> cellgen_shown_at(cellgen_series<E> series, int64_t step)
{
    if (series.at && cellgen_has_step(series, step)) return cellgen_at_step(series, step);
    return {nullptr, 0};
}

/* A valid step; a masked one whose outputs repeat the states as they are; one whose outputs are zeros. */
enum { CELLGEN_MASKED_ZERO = 0, CELLGEN_VALID = 1, CELLGEN_MASKED_HOLD = 2 };
/* The step whose state a step starts from, if not one of the sequence. */
enum { CELLGEN_INITIAL = -1, CELLGEN_ZERO = -2 };

/* validity[step][row], resets[step][row] (whether it starts anew), and, unless NULL, before[step][row];
 * a thread takes a row. A template, as all kernels of headers: compiled in the image that launches it alone. */
template <typename flag>
__global__ void cellgen_fill_tables_of_rows(
    int64_t one, int64_t rows, int64_t steps, const int64_t *lengths, cellgen_series<const flag> mask,
    cellgen_series<const flag> reset, int reverse, int hold, flag *validity, flag *resets, int32_t *before)
{
    const int64_t row = CELLGEN_MY_UNIT;
    if (CELLGEN_MY_ROW >= one || row >= rows) return;
    int32_t last = CELLGEN_INITIAL;
    for (int64_t step = 0; step < steps; ++step) {
        const int64_t at = reverse ? steps - 1 - step : step;
        const bool inside = !lengths || at < lengths[row];
        const bool is_valid = inside && (!mask.at || mask.at[at * mask.step + row * mask.row]);
        const bool is_reset = is_valid && reset.at && reset.at[at * reset.step + row * reset.row];
        const bool is_hold = inside && hold && last != CELLGEN_INITIAL;
        validity[step * rows + row] = is_valid ? CELLGEN_VALID : is_hold ? CELLGEN_MASKED_HOLD : CELLGEN_MASKED_ZERO;
        resets[step * rows + row] = is_reset;
        if (before) before[step * rows + row] = is_reset ? (int32_t)CELLGEN_ZERO : last;
        if (is_valid) last = (int32_t)step;
    }
}

inline void cg_fill_tables(
    cellgen_run *run, int64_t steps, int64_t rows, const int64_t *lengths,
    cellgen_series<const unsigned char> mask, cellgen_series<const unsigned char> reset, int reverse, int hold, unsigned char *validity, unsigned char *resets,
    int32_t *before)
{
    const int64_t one = 1;
    CELLGEN_ELEMENTS(run, cellgen_fill_tables_of_rows<unsigned char>, one, rows, steps, lengths, mask, reset, reverse,
                     hold, validity, resets, before);
}

/* `to` in the order of computation, one row after the other. */
template <typename E>
__global__ void cellgen_gather_step_rows(
    int64_t rows, int64_t units, int64_t steps, int64_t batch, cellgen_rows<E> to,
    cellgen_series<const E> from, int reverse, const unsigned char *validity)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    const int64_t step = reverse ? steps - 1 - row / batch : row / batch;
    const bool is_valid = cellgen_has_step(from, step) && (!validity || validity[row] == CELLGEN_VALID);
    cg_store(to, row, unit, is_valid ? cg_load(cellgen_at_step(from, step), row % batch, unit) : R(0));
}

template <typename E>
void cg_gather_steps(cellgen_run *run, int64_t steps, int64_t batch, int64_t units, E *to,
    cellgen_series<const E> from, int reverse, const unsigned char *validity)
{
    const int64_t rows = steps * batch;
    CELLGEN_ELEMENTS(run, cellgen_gather_step_rows<E>, rows, units, steps, batch, cg_rows(to, units), from,
                     reverse, validity);
}

/* The reverse: rows in the order of computation to where they belong. */
template <typename E>
__global__ void cellgen_scatter_step_rows(
    int64_t rows, int64_t units, int64_t steps, int64_t batch, cellgen_series<E> to,
    cellgen_rows<const E> from, int reverse, const unsigned char *validity)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    const int64_t step = reverse ? steps - 1 - row / batch : row / batch;
    const bool is_valid = !validity || validity[row] == CELLGEN_VALID;
    if (!cellgen_has_step(to, step)) return;
    cg_store(cellgen_at_step(to, step), row % batch, unit, is_valid ? cg_load(from, row, unit) : R(0));
}

template <typename E>
void cg_scatter_steps(cellgen_run *run, int64_t steps, int64_t batch, int64_t units, cellgen_series<E> to,
    const E *from, int reverse, const unsigned char *validity)
{
    const int64_t rows = steps * batch;
    CELLGEN_ELEMENTS(run, cellgen_scatter_step_rows<E>, rows, units, steps, batch, to, cg_in(from, units),
                     reverse, validity);
}

/* Whether the gradient stops between a step and the one before it: a window of steps begins there. */
inline __host__ __device__ bool cellgen_cuts(int64_t window, int64_t step)
{
    return window > 0 && step > 0 && step % window == 0;
}

/* The earlier of two steps. */
inline __host__ __device__ int64_t cellgen_earlier(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* out[row][unit] = sum of the shares of all steps, from the last one on; a masked step
 * has none */
template <typename E, typename S>
__global__ void cellgen_add_shares(int64_t rows, int64_t units, int64_t steps, cellgen_rows<S> shares,
    const unsigned char *validity, cellgen_rows<E> out)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typename cellgen_element<E>::real sum = 0;
    for (int64_t at = (steps - 1) * rows + row; at >= 0; at -= rows)
        if (!validity || validity[at] == CELLGEN_VALID) sum += cg_load(shares, at, unit);
    cg_store(out, row, unit, sum);
}

template <typename E, typename S>
void cg_add_steps(cellgen_run *run, int64_t rows, int64_t units, int64_t steps, cellgen_rows<S> shares,
    const unsigned char *validity, cellgen_rows<E> out)
{
    CELLGEN_ELEMENTS(run, (cellgen_add_shares<E, S>), rows, units, steps, shares, validity, out);
}

/* `cg_scatter_steps` of an output that is no state: a step that repeats one shows the row of step `before`. */
template <typename E>
__global__ void cellgen_scatter_shown_rows(
    int64_t rows, int64_t units, int64_t steps, int64_t batch, cellgen_series<E> to,
    cellgen_rows<const E> from, int reverse, const unsigned char *validity, const int32_t *before)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    const int64_t step = reverse ? steps - 1 - row / batch : row / batch;
    const int found = validity ? validity[row] : CELLGEN_VALID;
    const int64_t source = found == CELLGEN_MASKED_HOLD ? before[row] * batch + row % batch : row;
    if (!cellgen_has_step(to, step)) return;
    const R shown = found == CELLGEN_MASKED_ZERO ? R(0) : cg_load(from, source, unit);
    cg_store(cellgen_at_step(to, step), row % batch, unit, shown);
}

template <typename E>
void cg_scatter_shown(cellgen_run *run, int64_t steps, int64_t batch, int64_t units,
    cellgen_series<E> to, const E *from, int reverse, const unsigned char *validity, const int32_t *before)
{
    const int64_t rows = steps * batch;
    CELLGEN_ELEMENTS(run, cellgen_scatter_shown_rows<E>, rows, units, steps, batch, to,
                     cg_in(from, units), reverse, validity, before);
}

/* What the last valid step of each row shows, zeros where none is. */
template <typename E>
__global__ void cellgen_show_last_rows(
    int64_t batch, int64_t units, int64_t steps, cellgen_rows<E> to, cellgen_rows<const E> from,
    const unsigned char *validity)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= batch || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    int64_t step = steps - 1;
    while (step >= 0 && validity && validity[step * batch + row] != CELLGEN_VALID) --step;
    cg_store(to, row, unit, step < 0 ? R(0) : cg_load(from, step * batch + row, unit));
}

template <typename E>
void cg_show_last(cellgen_run *run, int64_t steps, int64_t batch, int64_t units, E *to, const E *from,
    const unsigned char *validity)
{
    CELLGEN_ELEMENTS(run, cellgen_show_last_rows<E>, batch, units, steps, cg_rows(to, units),
                     cg_in(from, units), validity);
}

/* Gradients of such an output in the order of computation: those of steps that repeat one are added
 * to its own, but for those beyond the edge of a window. A thread takes a unit of one row of the batch. */
template <typename E>
__global__ void cellgen_gather_shown_rows(
    int64_t batch, int64_t units, int64_t steps, cellgen_rows<E> to, cellgen_series<const E> from,
    int reverse, int64_t window, const unsigned char *validity)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= batch || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    R later = 0;
    for (int64_t step = steps - 1; step >= 0; --step) {
        const int found = validity ? validity[step * batch + row] : CELLGEN_VALID;
        const int64_t at = reverse ? steps - 1 - step : step;
        R sum = 0;
        if (found != CELLGEN_MASKED_ZERO)
            sum = later + (cellgen_has_step(from, at) ? cg_load(cellgen_at_step(from, at), row, unit) : R(0));
        cg_store(to, step * batch + row, unit, found == CELLGEN_VALID ? sum : R(0));
        later = found == CELLGEN_MASKED_HOLD && !cellgen_cuts(window, step) ? sum : R(0);
    }
}

template <typename E>
void cg_gather_shown(cellgen_run *run, int64_t steps, int64_t batch, int64_t units, E *to,
    cellgen_series<const E> from, int reverse, int64_t window, const unsigned char *validity)
{
    CELLGEN_ELEMENTS(run, cellgen_gather_shown_rows<E>, batch, units, steps, cg_rows(to, units), from,
                     reverse, window, validity);
}

/* The states from which all steps start. */
template <typename E>
__global__ void cellgen_gather_before_rows(
    int64_t rows, int64_t units, int64_t steps, int64_t batch, cellgen_rows<E> to,
    cellgen_series<const E> from, cellgen_rows<const E> initial, const int32_t *before, int reverse)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    const int64_t step = before[row], of = row % batch, at = reverse ? steps - 1 - step : step;
    R state = 0;
    if (step >= 0) state = cg_load(cellgen_at_step(from, at), of, unit);
    else if (step != CELLGEN_ZERO) state = cg_load(initial, of, unit);
    cg_store(to, row, unit, state);
}

template <typename E>
void cg_gather_before(cellgen_run *run, int64_t steps, int64_t batch, int64_t units, E *to,
    cellgen_series<const E> from, const E *initial, const int32_t *before, int reverse)
{
    const int64_t rows = steps * batch;
    CELLGEN_ELEMENTS(run, cellgen_gather_before_rows<E>, rows, units, steps, batch, cg_rows(to, units),
                     from, cg_in(initial, units), before, reverse);
}

/* now = the state before the first step */
template <typename E>
__global__ void cellgen_begin_rows(
    int64_t rows, int64_t units, cellgen_rows<E> now, cellgen_rows<const E> initial,
    const unsigned char *resets)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    cg_store(now, row, unit, resets && resets[row] ? R(0) : cg_load(initial, row, unit));
}

template <typename E>
void cg_begin_state(cellgen_run *run, int64_t rows, int64_t units, E *now, const E *initial,
    const unsigned char *resets)
{
    CELLGEN_ELEMENTS(run, cellgen_begin_rows<E>, rows, units, cg_rows(now, units), cg_in(initial, units),
                     resets);
}

/* States that start from `initial` where `resets` says that a step starts anew. */
template <typename E, typename R>
__global__ void cellgen_start_rows_anew(
    int64_t rows, int64_t units, cellgen_rows<E> now, R initial, const unsigned char *resets)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    if (resets[row]) cg_store(now, row, unit, initial);
}

template <typename E, typename R>
void cg_start_rows(cellgen_run *run, int64_t rows, int64_t units, E *now, R initial,
    const unsigned char *resets)
{
    if (resets)
        CELLGEN_ELEMENTS(run, (cellgen_start_rows_anew<E, R>), rows, units, cg_rows(now, units), initial,
                         resets);
}

/* A number of a state behind a step that may be masked: what the next step begins with, also put in the
 * place of what this one began with. Behind a reset that is `start`. */
template <typename E, typename R>
inline __device__ R cellgen_mask_state(
    cellgen_rows<E> now, cellgen_rows<E> next, int64_t row, int64_t unit, int is_output,
    const unsigned char *validity, const unsigned char *resets, R start)
{
    const bool is_valid = validity[row] == CELLGEN_VALID;
    R state = is_valid ? cg_load(next, row, unit) : cg_load(now, row, unit);
    if (is_output && !is_valid) cg_store(next, row, unit, validity[row] == CELLGEN_MASKED_HOLD ? state : R(0));
    if (resets && resets[row]) state = start;
    cg_store(now, row, unit, state);
    return state;
}

/* The gradient of one for the step before: nothing behind a reset, what came at a masked step, and what
 * reached an output that repeats the state. */
template <typename E, typename R>
inline __device__ void cellgen_mask_gradient(
    cellgen_rows<R> passed, cellgen_rows<const R> carry, cellgen_rows<const E> upstream, int64_t row,
    int64_t unit, const unsigned char *validity, const unsigned char *resets)
{
    if (resets[row]) {
        cg_store(passed, row, unit, R(0));
    } else if (validity[row] != CELLGEN_VALID) {
        R sum = cg_load(carry, row, unit);
        if (validity[row] == CELLGEN_MASKED_HOLD) sum += cg_load_or_zero(upstream, row, unit);
        cg_store(passed, row, unit, sum);
    }
}

/* now = the state before the following step, of which `resets` tells (NULL: there is none); an output
 * shows what its step is to show. */
template <typename E>
__global__ void cellgen_masked_select_rows(
    int64_t rows, int64_t units, cellgen_rows<E> now, cellgen_rows<E> next, int is_output,
    const unsigned char *validity, const unsigned char *resets)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    typedef decltype(cellgen_widen(E())) R;
    if (row < rows && unit < units)
        (void)cellgen_mask_state(now, next, row, unit, is_output, validity, resets, R(0));
}

template <typename E>
void cg_masked_select(cellgen_run *run, int64_t rows, int64_t units, E *now, E *next, int is_output,
    const unsigned char *validity, const unsigned char *resets)
{
    CELLGEN_ELEMENTS(run, cellgen_masked_select_rows<E>, rows, units, cg_rows(now, units), cg_rows(next, units),
                     is_output, validity, resets);
}

/* The gradient for the step before: nothing behind a reset, what came at a masked step,
 * and what reached an output that repeats the state. */
template <typename E, typename R>
__global__ void cellgen_masked_select_gradient_rows(
    int64_t rows, int64_t units, cellgen_rows<R> passed, cellgen_rows<const R> carry,
    cellgen_rows<const E> upstream, const unsigned char *validity, const unsigned char *resets)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row < rows && unit < units) cellgen_mask_gradient(passed, carry, upstream, row, unit, validity, resets);
}

template <typename E, typename R>
void cg_masked_select_gradient(cellgen_run *run, int64_t rows, int64_t units, R *passed, const R *carry,
    cellgen_series<const E> upstream, int64_t step, const unsigned char *validity,
    const unsigned char *resets)
{
    CELLGEN_ELEMENTS(run, (cellgen_masked_select_gradient_rows<E, R>), rows, units, cg_rows(passed, units),
                     cg_in(carry, units), cellgen_shown_at(upstream, step), validity, resets);
}

/* Zeros in the rows of masked steps. */
template <typename E>
__global__ void cellgen_leave_out_rows(
    int64_t rows, int64_t units, cellgen_rows<E> kept, const unsigned char *validity)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units || validity[row] == CELLGEN_VALID) return;
    typedef decltype(cellgen_widen(E())) R;
    cg_store(kept, row, unit, R(0));
}

template <typename E>
void cg_leave_out(cellgen_run *run, int64_t rows, int64_t units, E *kept, const unsigned char *validity)
{
    CELLGEN_ELEMENTS(run, cellgen_leave_out_rows<E>, rows, units, cg_rows(kept, units), validity);
}

#endif /* CELLGEN_CUDA_OPTIONS_CUH */
