/* Options over time: which steps of a row count, and in which order they are computed.
 *
 * Where a step may not count, tables say so, filled on the device from what the caller gives; steps
 * then read states from copies, and what they leave for such a row is put right after each of them.
 * Arrays over time are copied into the order of computation and back, zeros where a step does not
 * count. Meaning and names are those of cellgen_sequence.h. A length outside 0..T counts as the
 * nearer of the two: looking at it on the host would wait for the device. */
#ifndef CELLGEN_CUDA_OPTIONS_CUH
#define CELLGEN_CUDA_OPTIONS_CUH

#include "cellgen_cuda.cuh"

/* What a call's options need: arrays in the order of computation, tables of the steps that count. */
enum { CELLGEN_ORDERED = 1, CELLGEN_GUARDED = 2 };
#define CELLGEN_IF_ORDERED(count) (how & CELLGEN_ORDERED ? (int64_t)(count) : 0)
#define CELLGEN_IF_GUARDED(count) (how & CELLGEN_GUARDED ? (int64_t)(count) : 0)

inline int cellgen_how(const void *lengths, const void *mask, const void *reset, int reverse)
{
    if (lengths || mask || reset) return CELLGEN_ORDERED | CELLGEN_GUARDED;
    return reverse ? CELLGEN_ORDERED : 0;
}

/* A step that counts; one whose outputs repeat the states as they are; one whose outputs are zeros. */
enum { CELLGEN_LEFT_OUT = 0, CELLGEN_COUNTS = 1, CELLGEN_HELD = 2 };
/* The step whose state a step starts from, if not one of the sequence. */
enum { CELLGEN_INITIAL = -1, CELLGEN_ZERO = -2 };

/* counts[step][row], fresh[step][row] (the state before it is zero), and, unless NULL, before[step][row];
 * a thread takes a row. */
__global__ void cellgen_fill_tables_of_rows(
    int64_t one, int64_t rows, int64_t steps, const int64_t *lengths, const unsigned char *mask,
    const unsigned char *reset, int reverse, int hold, unsigned char *counts, unsigned char *fresh,
    int32_t *before)
{
    const int64_t row = CELLGEN_MY_UNIT;
    if (CELLGEN_MY_ROW >= one || row >= rows) return;
    int32_t last = CELLGEN_INITIAL;
    for (int64_t step = 0; step < steps; ++step) {
        const int64_t at = (reverse ? steps - 1 - step : step) * rows + row;
        const bool inside = !lengths || at / rows < lengths[row];
        const bool count = inside && (!mask || mask[at]), anew = count && reset && reset[at];
        const bool held = inside && hold && last != CELLGEN_INITIAL;
        counts[step * rows + row] = count ? CELLGEN_COUNTS : held ? CELLGEN_HELD : CELLGEN_LEFT_OUT;
        fresh[step * rows + row] = anew;
        if (before) before[step * rows + row] = anew ? (int32_t)CELLGEN_ZERO : last;
        if (count) last = (int32_t)step;
    }
}

inline void cg_fill_tables(
    cellgen_run *run, int64_t steps, int64_t rows, const int64_t *lengths, const unsigned char *mask,
    const unsigned char *reset, int reverse, int hold, unsigned char *counts, unsigned char *fresh,
    int32_t *before)
{
    const int64_t one = 1;
    CELLGEN_ELEMENTS(run, cellgen_fill_tables_of_rows, one, rows, steps, lengths, mask, reset, reverse,
                     hold, counts, fresh, before);
}

/* Arrays over time lie (step, row, units) without gaps; `to` in the order of computation. */
template <typename E>
__global__ void cellgen_collect_rows(
    int64_t rows, int64_t units, int64_t steps, int64_t batch, cellgen_rows<E> to,
    cellgen_rows<const E> from, int reverse, const unsigned char *counts)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    const int64_t source = reverse ? (steps - 1 - row / batch) * batch + row % batch : row;
    const bool count = !counts || counts[row] == CELLGEN_COUNTS;
    cg_store(to, row, unit, count ? cg_load(from, source, unit) : R(0));
}

template <typename E>
void cg_collect(cellgen_run *run, int64_t steps, int64_t batch, int64_t units, E *to, const E *from,
    int reverse, const unsigned char *counts)
{
    const int64_t rows = steps * batch;
    CELLGEN_ELEMENTS(run, cellgen_collect_rows<E>, rows, units, steps, batch, cg_rows(to, units),
                     cg_in(from, units), reverse, counts);
}

/* The reverse: rows in the order of computation to where they belong. */
template <typename E>
__global__ void cellgen_deliver_rows(
    int64_t rows, int64_t units, int64_t steps, int64_t batch, cellgen_rows<E> to,
    cellgen_rows<const E> from, int reverse, const unsigned char *counts)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    const int64_t target = reverse ? (steps - 1 - row / batch) * batch + row % batch : row;
    const bool count = !counts || counts[row] == CELLGEN_COUNTS;
    cg_store(to, target, unit, count ? cg_load(from, row, unit) : R(0));
}

template <typename E>
void cg_deliver(cellgen_run *run, int64_t steps, int64_t batch, int64_t units, E *to, const E *from,
    int reverse, const unsigned char *counts)
{
    const int64_t rows = steps * batch;
    CELLGEN_ELEMENTS(run, cellgen_deliver_rows<E>, rows, units, steps, batch, cg_rows(to, units),
                     cg_in(from, units), reverse, counts);
}

/* The states from which all steps start. */
template <typename E>
__global__ void cellgen_collect_before_rows(
    int64_t rows, int64_t units, int64_t steps, int64_t batch, cellgen_rows<E> to,
    cellgen_rows<const E> from, cellgen_rows<const E> initial, const int32_t *before, int reverse)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    const int64_t step = before[row], of = row % batch, at = reverse ? steps - 1 - step : step;
    cg_store(to, row, unit, step == CELLGEN_ZERO ? R(0) : step < 0 ? cg_load(initial, of, unit)
                                                                   : cg_load(from, at * batch + of, unit));
}

template <typename E>
void cg_collect_before(cellgen_run *run, int64_t steps, int64_t batch, int64_t units, E *to,
    const E *from, const E *initial, const int32_t *before, int reverse)
{
    const int64_t rows = steps * batch;
    CELLGEN_ELEMENTS(run, cellgen_collect_before_rows<E>, rows, units, steps, batch, cg_rows(to, units),
                     cg_in(from, units), cg_in(initial, units), before, reverse);
}

/* now = the state before the first step */
template <typename E>
__global__ void cellgen_begin_rows(
    int64_t rows, int64_t units, cellgen_rows<E> now, cellgen_rows<const E> initial,
    const unsigned char *fresh)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    cg_store(now, row, unit, fresh && fresh[row] ? R(0) : cg_load(initial, row, unit));
}

template <typename E>
void cg_begin_state(cellgen_run *run, int64_t rows, int64_t units, E *now, const E *initial,
    const unsigned char *fresh)
{
    CELLGEN_ELEMENTS(run, cellgen_begin_rows<E>, rows, units, cg_rows(now, units), cg_in(initial, units),
                     fresh);
}

/* now = the state before the following step, of which `fresh` tells (NULL: there is none); an output
 * shows what its step is to show. */
template <typename E>
__global__ void cellgen_settle_rows(
    int64_t rows, int64_t units, cellgen_rows<E> now, cellgen_rows<E> next, int is_output,
    const unsigned char *counts, const unsigned char *fresh)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    typedef decltype(cellgen_widen(E())) R;
    const bool count = counts[row] == CELLGEN_COUNTS;
    const R state = count ? cg_load(next, row, unit) : cg_load(now, row, unit);
    if (is_output && !count) cg_store(next, row, unit, counts[row] == CELLGEN_HELD ? state : R(0));
    cg_store(now, row, unit, fresh && fresh[row] ? R(0) : state);
}

template <typename E>
void cg_settle(cellgen_run *run, int64_t rows, int64_t units, E *now, E *next, int is_output,
    const unsigned char *counts, const unsigned char *fresh)
{
    CELLGEN_ELEMENTS(run, cellgen_settle_rows<E>, rows, units, cg_rows(now, units), cg_rows(next, units),
                     is_output, counts, fresh);
}

/* The gradient for the step before: nothing behind a reset, what came where a step does not count,
 * and what reached an output that repeats the state. */
template <typename E, typename R>
__global__ void cellgen_settle_gradient_rows(
    int64_t rows, int64_t units, cellgen_rows<R> passed, cellgen_rows<const R> carry,
    cellgen_rows<const E> upstream, const unsigned char *counts, const unsigned char *fresh)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    if (fresh[row]) {
        cg_store(passed, row, unit, R(0));
    } else if (counts[row] != CELLGEN_COUNTS) {
        R sum = cg_load(carry, row, unit);
        if (counts[row] == CELLGEN_HELD) sum += cg_load_or_zero(upstream, row, unit);
        cg_store(passed, row, unit, sum);
    }
}

template <typename E, typename R>
void cg_settle_gradient(cellgen_run *run, int64_t rows, int64_t units, R *passed, const R *carry,
    const E *upstream, const unsigned char *counts, const unsigned char *fresh)
{
    CELLGEN_ELEMENTS(run, (cellgen_settle_gradient_rows<E, R>), rows, units, cg_rows(passed, units),
                     cg_in(carry, units), cg_in(upstream, units), counts, fresh);
}

/* Zeros in the rows whose step does not count. */
template <typename E>
__global__ void cellgen_leave_out_rows(
    int64_t rows, int64_t units, cellgen_rows<E> kept, const unsigned char *counts)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units || counts[row] == CELLGEN_COUNTS) return;
    typedef decltype(cellgen_widen(E())) R;
    cg_store(kept, row, unit, R(0));
}

template <typename E>
void cg_leave_out(cellgen_run *run, int64_t rows, int64_t units, E *kept, const unsigned char *counts)
{
    CELLGEN_ELEMENTS(run, cellgen_leave_out_rows<E>, rows, units, cg_rows(kept, units), counts);
}

#endif /* CELLGEN_CUDA_OPTIONS_CUH */
