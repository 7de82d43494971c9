/* Work along units, one after the other, a thread for each head of a row. Written by `cellgen build` from the table
 * cellgen/language/ops/running.py; edit that, not this file.
 * Part of cellgen_cuda.cuh. */
#ifndef CELLGEN_CUDA_RUNNING_CUH
#define CELLGEN_CUDA_RUNNING_CUH

CELLGEN_MATH float cellgen_log1p_of(float x) { return cellgen_log1p_f32(x); }
CELLGEN_MATH double cellgen_log1p_of(double x) { return cellgen_log1p_f64(x); }
CELLGEN_MATH float cellgen_exp_of(float x) { return cellgen_exp_f32(x); }
CELLGEN_MATH double cellgen_exp_of(double x) { return cellgen_exp_f64(x); }
CELLGEN_MATH float cellgen_abs_of(float x) { return cellgen_abs_f32(x); }
CELLGEN_MATH double cellgen_abs_of(double x) { return cellgen_abs_f64(x); }

/* cumsum: each unit the sum of those up to it */
template <typename A, typename Y>
__global__ void cellgen_cumsum_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = 0;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + k * after;
        const R a_unit = cg_load(a, row, unit);
        const R y_unit = total + a_unit;
        total = y_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename Y>
void cg_cumsum(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_cumsum_heads<A, Y>), rows, width, units, after, a, y);
}

/* cumsum_reversed: each unit the sum of those from it on */
template <typename A, typename Y>
__global__ void cellgen_cumsum_reversed_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = 0;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + (units - 1 - k) * after;
        const R a_unit = cg_load(a, row, unit);
        const R y_unit = total + a_unit;
        total = y_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename Y>
void cg_cumsum_reversed(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_cumsum_reversed_heads<A, Y>), rows, width, units, after, a, y);
}

/* shifted: each unit that before it */
template <typename A, typename Y>
__global__ void cellgen_shifted_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = 0;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + k * after;
        const R a_unit = cg_load(a, row, unit);
        const R y_unit = total;
        total = a_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename Y>
void cg_shifted(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_shifted_heads<A, Y>), rows, width, units, after, a, y);
}

/* shifted_from_1: each unit that before it */
template <typename A, typename Y>
__global__ void cellgen_shifted_from_1_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = 1;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + k * after;
        const R a_unit = cg_load(a, row, unit);
        const R y_unit = total;
        total = a_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename Y>
void cg_shifted_from_1(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_shifted_from_1_heads<A, Y>), rows, width, units, after, a, y);
}

/* shifted_from_least: each unit that before it */
template <typename A, typename Y>
__global__ void cellgen_shifted_from_least_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = -INFINITY;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + k * after;
        const R a_unit = cg_load(a, row, unit);
        const R y_unit = total;
        total = a_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename Y>
void cg_shifted_from_least(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_shifted_from_least_heads<A, Y>), rows, width, units, after, a, y);
}

/* shifted_back: each unit that after it, the last 0 */
template <typename A, typename Y>
__global__ void cellgen_shifted_back_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = 0;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + (units - 1 - k) * after;
        const R a_unit = cg_load(a, row, unit);
        const R y_unit = total;
        total = a_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename Y>
void cg_shifted_back(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_shifted_back_heads<A, Y>), rows, width, units, after, a, y);
}

/* linear_scan: y_k = a_k y_(k-1) + b_k; an a_k of 0 begins anew */
template <typename A, typename B, typename Y>
__global__ void cellgen_linear_scan_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<const B> b, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = 0;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + k * after;
        const R a_unit = cg_load(a, row, unit);
        const R b_unit = cg_load(b, row, unit);
        const R y_unit = a_unit == 0 ? b_unit : a_unit * total + b_unit;
        total = y_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename B, typename Y>
void cg_linear_scan(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<const B> b, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_linear_scan_heads<A, B, Y>), rows, width, units, after, a, b, y);
}

/* linear_scan_transposed: y_k = b_k + a_(k+1) y_(k+1), from the last on */
template <typename A, typename B, typename Y>
__global__ void cellgen_linear_scan_transposed_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<const B> b, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = 0;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + (units - 1 - k) * after;
        const R a_unit = cg_load(a, row, unit);
        const R b_unit = cg_load(b, row, unit);
        const R y_unit = total + b_unit;
        total = a_unit == 0 ? 0 : a_unit * y_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename B, typename Y>
void cg_linear_scan_transposed(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<const B> b, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_linear_scan_transposed_heads<A, B, Y>), rows, width, units, after, a, b, y);
}

/* cumprod: each unit the product of those up to it */
template <typename A, typename Y>
__global__ void cellgen_cumprod_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = 1;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + k * after;
        const R a_unit = cg_load(a, row, unit);
        const R y_unit = total * a_unit;
        total = y_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename Y>
void cg_cumprod(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_cumprod_heads<A, Y>), rows, width, units, after, a, y);
}

/* cummax: each unit the largest of those up to it; a NaN counts as the largest */
template <typename A, typename Y>
__global__ void cellgen_cummax_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = -INFINITY;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + k * after;
        const R a_unit = cg_load(a, row, unit);
        const R y_unit = a_unit >= total || a_unit != a_unit ? a_unit : total;
        total = y_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename Y>
void cg_cummax(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_cummax_heads<A, Y>), rows, width, units, after, a, y);
}

/* logcumsumexp: log(exp(y_(k-1)) + exp(a_k)), with no overflow */
template <typename A, typename Y>
__global__ void cellgen_logcumsumexp_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    R total = -INFINITY;
    for (int64_t k = 0; k < units; ++k) {
        const int64_t unit = first + k * after;
        const R a_unit = cg_load(a, row, unit);
        const R y_unit = (a_unit > total ? a_unit : total) + cellgen_log1p_of(cellgen_exp_of(a_unit == total ? 0 : -cellgen_abs_of(a_unit - total)));
        total = y_unit;
        cg_store(y, row, unit, y_unit);
    }
}

template <typename A, typename Y>
void cg_logcumsumexp(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_logcumsumexp_heads<A, Y>), rows, width, units, after, a, y);
}

#endif
