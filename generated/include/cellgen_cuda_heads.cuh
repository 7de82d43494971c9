/* Sums and products of heads of the units of a row. Part of cellgen_cuda.cuh. */
#ifndef CELLGEN_CUDA_HEADS_CUH
#define CELLGEN_CUDA_HEADS_CUH

/* Of each head so many units, of each so many elements, `after`: the first element of a thread. */
#define CELLGEN_FIRST_OF(each, units, after) ((each) / (after) * (units) * (after) + (each) % (after))

/* 1 where a head's largest unit stands, the first of equal ones, else 0; a NaN counts as the largest */
template <typename A, typename Y>
__global__ void cellgen_first_max_heads(
    int64_t rows, int64_t width, int64_t units, int64_t after, cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t row = CELLGEN_MY_ROW, each = CELLGEN_MY_UNIT;
    if (row >= rows || each >= width) return;
    typedef decltype(cellgen_widen(A())) R;
    const int64_t first = CELLGEN_FIRST_OF(each, units, after);
    int64_t best = 0;
    for (int64_t unit = 1; unit < units; ++unit) {
        const R x = cg_load(a, row, first + unit * after), most = cg_load(a, row, first + best * after);
        if (x > most || (x != x && most == most)) best = unit;
    }
    for (int64_t unit = 0; unit < units; ++unit)
        cg_store(y, row, first + unit * after, R(unit == best ? 1 : 0));
}

template <typename A, typename Y>
void cg_first_max(cellgen_run *run, int64_t rows, int64_t heads, int64_t units, int64_t after,
    cellgen_rows<const A> a, cellgen_rows<Y> y)
{
    const int64_t width = heads * after;
    CELLGEN_ELEMENTS(run, (cellgen_first_max_heads<A, Y>), rows, width, units, after, a, y);
}

#include "cellgen_cuda_running.cuh"

#endif
