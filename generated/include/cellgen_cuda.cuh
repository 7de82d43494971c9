/* What generated CUDA shares: element types, launches, matrix products, sums, memory.
 *
 * The same text compiles with nvcc, in halves with NVRTC and a C++ compiler, and for the CPU
 * (cellgen_cuda_words.cuh). Everything is launched on the
 * caller's stream; nothing synchronises, nothing is allocated: functions can be captured in a CUDA
 * graph. Sums have an order that depends on dimensions only, and no atomics: results are bitwise
 * reproducible. Arithmetic is in `real`, memory of the caller in `store`. */
#ifndef CELLGEN_CUDA_CUH
#define CELLGEN_CUDA_CUH

#include "cellgen.h"
#include "cellgen_cuda_words.cuh"
#include "cellgen_cuda_elements.cuh"
#include "cellgen_math.h"

/* Codes above those of cellgen.h: a CUDA error, a status of cuBLAS. */
enum { CELLGEN_CUDA_ERROR = 1000, CELLGEN_CUBLAS_STATUS = 2000, CELLGEN_NO_CUBLAS = 2999 };

/* What a call of the runtime gave. The runtime keeps a failure until it is asked for the last one: it is
 * asked here, so that the next launch, which succeeds, does not report it. */
inline int cellgen_cuda_code(cudaError_t error)
{
    if (error == cudaSuccess) return CELLGEN_OK;
    (void)cudaGetLastError();
    return CELLGEN_CUDA_ERROR + (int)error;
}

/* Bytes that a workspace array takes. */
#define CELLGEN_CUDA_BYTES(count, type) (((int64_t)(count) * (int64_t)sizeof(type) + 255) / 256 * 256)

/* ---------------------------------------------------------------------------------- elements */

/* Rows of elements, `stride` elements apart; `at` is NULL for an array that is not there. */
template <typename E> struct cellgen_rows {
    E *at;
    int64_t stride;
};

template <typename E> inline __host__ __device__ cellgen_rows<E> cg_rows(E *at, int64_t stride)
{
    return {at, stride};
}
template <typename E> inline __host__ __device__ cellgen_rows<const E> cg_in(E *at, int64_t stride)
{
    return {at, stride};
}

template <typename E> inline __device__ auto cg_load(cellgen_rows<E> rows, int64_t row, int64_t unit)
{
    return cellgen_widen(rows.at[row * rows.stride + unit]);
}

/* An upstream gradient that is left out counts as zero. */
template <typename E>
inline __device__ auto cg_load_or_zero(cellgen_rows<E> rows, int64_t row, int64_t unit)
{
    return rows.at ? cg_load(rows, row, unit) : decltype(cg_load(rows, row, unit))(0);
}

/* A state before each of many steps: the initial one, then what the steps before made. */
template <typename E>
inline __device__ auto cg_load_previous(
    cellgen_rows<E> initial, cellgen_rows<E> rows, int64_t row, int64_t unit, int64_t batch)
{
    return row < batch ? cg_load(initial, row, unit) : cg_load(rows, row - batch, unit);
}

template <typename E, typename R>
inline __device__ void cg_store(cellgen_rows<E> rows, int64_t row, int64_t unit, R x)
{
    cellgen_put(rows.at + (row * rows.stride + unit), x);
}

template <typename E, typename R>
inline __device__ void cg_store_if(cellgen_rows<E> rows, int64_t row, int64_t unit, R x)
{
    if (rows.at) cg_store(rows, row, unit, x);
}

/* ---------------------------------------------------------------------------------- launches */

struct cellgen_blas;

/* What every launch of a call needs; the first error stops the rest. */
struct cellgen_run {
    cudaStream_t stream;
    const cellgen_blas *blas; /* NULL: the products of this header */
    int error;
    int refused; /* the error of CUDA by which a device refused blocks that are there together; 0: none */
};

/* Threads of an elementwise kernel: units along x, rows along y. */
inline dim3 cellgen_element_block(int64_t units)
{
    unsigned wide = 32;
    while (wide < 256 && wide < units) wide *= 2;
    return dim3(wide, 256 / wide);
}

inline dim3 cellgen_element_grid(int64_t rows, int64_t units)
{
    const dim3 block = cellgen_element_block(units);
    return dim3((unsigned)((rows + block.y - 1) / block.y), (unsigned)((units + block.x - 1) / block.x));
}

/* One thread per row and unit; in a block of its own for each row; by units for chunks of rows. */
#define CELLGEN_ELEMENTS(run, kernel, rows, units, ...)                                            \
    do {                                                                                           \
        if ((rows) > 0 && (units) > 0)                                                             \
            CELLGEN_LAUNCH(run, kernel, cellgen_element_grid(rows, units),                         \
                           cellgen_element_block(units), rows, units, __VA_ARGS__);                \
    } while (0)

#define CELLGEN_ROW_THREADS 128
#define CELLGEN_EACH_ROW(run, kernel, rows, units, ...)                                            \
    do {                                                                                           \
        if ((rows) > 0)                                                                            \
            CELLGEN_LAUNCH_BLOCKS(run, kernel, dim3((unsigned)(rows)), dim3(CELLGEN_ROW_THREADS),  \
                                  rows, units, __VA_ARGS__);                                       \
    } while (0)

#define CELLGEN_CHUNK_ROWS 256
#define CELLGEN_CHUNK_UNITS 32
#define CELLGEN_CHUNK_THREADS 8
#define CELLGEN_CHUNKS(rows) (((rows) + CELLGEN_CHUNK_ROWS - 1) / CELLGEN_CHUNK_ROWS)
#define CELLGEN_EACH_CHUNK(run, kernel, rows, units, ...)                                          \
    do {                                                                                           \
        if ((rows) > 0 && (units) > 0)                                                             \
            CELLGEN_LAUNCH_BLOCKS(                                                                 \
                run, kernel,                                                                       \
                dim3((unsigned)CELLGEN_CHUNKS(rows),                                               \
                     (unsigned)(((units) + CELLGEN_CHUNK_UNITS - 1) / CELLGEN_CHUNK_UNITS)),       \
                dim3(CELLGEN_CHUNK_UNITS, CELLGEN_CHUNK_THREADS), rows, units, __VA_ARGS__);       \
    } while (0)

/* Threads of a warp that share one entry of a sum, a power of two: as many as the axis that they lie
 * along has places. No count of rows or entries is in it, so a row's sums do not depend on others. */
inline dim3 cellgen_entry_block(int64_t places)
{
    unsigned shared = 1;
    while (shared < 32 && shared < places) shared *= 2;
    return dim3(shared, 256 / shared);
}

/* Some threads per entry of each row, side by side along an axis of that many places. */
#define CELLGEN_ENTRIES(run, kernel, rows, units, places, ...)                                     \
    do {                                                                                           \
        const dim3 block = cellgen_entry_block(places);                                            \
        const unsigned blocks = (unsigned)(((rows) * (units) + block.y - 1) / block.y);            \
        if (blocks > 0)                                                                            \
            CELLGEN_LAUNCH_BLOCKS(run, kernel, dim3(blocks), block, rows, units, __VA_ARGS__);     \
    } while (0)
#define CELLGEN_MY_ENTRY ((int64_t)blockIdx.x * blockDim.y + threadIdx.y)

/* The row and the unit of a thread in an elementwise kernel. */
#define CELLGEN_MY_ROW ((int64_t)blockIdx.x * blockDim.y + threadIdx.y)
#define CELLGEN_MY_UNIT ((int64_t)blockIdx.y * blockDim.x + threadIdx.x)

/* -------------------------------------------------------------------------------------- sums */

/* Sum over the threads of a block that has one row: halves, in a fixed order. Thread 0 gets it; the
 * others may see the next sum begin. */
template <typename R> inline __device__ R cellgen_row_total(R mine)
{
    CELLGEN_SHARED(R, partial, CELLGEN_ROW_THREADS);
    const unsigned me = threadIdx.x;
    partial[me] = mine;
    __syncthreads();
    for (unsigned half = CELLGEN_ROW_THREADS / 2; half > 0; half /= 2) {
        if (me < half) partial[me] += partial[me + half];
        __syncthreads();
    }
    return partial[0];
}

/* Sum over the threads that share an entry: halves, in a fixed order. Each of them gets it. */
template <typename R> inline __device__ R cellgen_entry_total(R mine)
{
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2)
        mine += __shfl_xor_sync(0xffffffffu, mine, half);
    return mine;
}

/* Sum of a chunk of rows for each unit of a block: halves, in a fixed order; the threads of the
 * first row of the block write it. */
template <typename R>
inline __device__ void cellgen_chunk_total(R mine, R *totals, int64_t units, int64_t unit)
{
    CELLGEN_SHARED(R, partial, CELLGEN_CHUNK_UNITS * CELLGEN_CHUNK_THREADS);
    const unsigned me = threadIdx.y * CELLGEN_CHUNK_UNITS + threadIdx.x;
    partial[me] = mine;
    __syncthreads();
    for (unsigned half = CELLGEN_CHUNK_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.y < half) partial[me] += partial[me + half * CELLGEN_CHUNK_UNITS];
        __syncthreads();
    }
    if (threadIdx.y == 0 && unit < units) totals[(int64_t)blockIdx.x * units + unit] = partial[me];
}

/* out[unit] = sum of the chunks' totals, in order */
template <typename E, typename R>
__global__ void cellgen_add_chunks(
    int64_t rows, int64_t units, const R *totals, int64_t chunks, cellgen_rows<E> out)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    R sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += totals[chunk * units + unit];
    cg_store(out, 0, unit, sum);
}

/* out[0] = sum of all totals: one block, each thread in order, then halves */
template <typename E, typename R>
__global__ void cellgen_add_all(
    int64_t rows, int64_t units, const R *totals, int64_t chunks, cellgen_rows<E> out)
{
    R sum = 0;
    for (int64_t at = threadIdx.x; at < chunks * units; at += CELLGEN_ROW_THREADS) sum += totals[at];
    const R total = cellgen_row_total(sum);
    if (threadIdx.x == 0) cg_store(out, (int64_t)0, (int64_t)0, total);
    (void)rows;
}

template <typename E, typename R>
void cg_add_chunks(cellgen_run *run, int64_t rows, int64_t units, const R *totals, cellgen_rows<E> out)
{
    const int64_t one = 1, chunks = CELLGEN_CHUNKS(rows);
    CELLGEN_ELEMENTS(run, (cellgen_add_chunks<E, R>), one, units, totals, chunks, out);
}

template <typename E, typename R>
void cg_add_all(cellgen_run *run, int64_t rows, int64_t units, const R *totals, cellgen_rows<E> out)
{
    const int64_t one = 1, chunks = CELLGEN_CHUNKS(rows);
    CELLGEN_EACH_ROW(run, (cellgen_add_all<E, R>), one, units, totals, chunks, out);
}

/* ------------------------------------------------------------------------------------ copies */

template <typename D, typename S>
__global__ void cellgen_copy_elements(
    int64_t rows, int64_t units, cellgen_rows<D> to, cellgen_rows<S> from, int transposed)
{
    const int64_t row = CELLGEN_MY_ROW, unit = CELLGEN_MY_UNIT;
    if (row >= rows || unit >= units) return;
    if (!from.at)
        cg_store(to, row, unit, typename cellgen_element<D>::real(0));
    else
        cg_store(to, row, unit, transposed ? cg_load(from, unit, row) : cg_load(from, row, unit));
}

/* to[row][unit] = from[row][unit]; zeros where `from` is not there. */
template <typename D, typename S>
void cg_copy(cellgen_run *run, int64_t rows, int64_t units, cellgen_rows<D> to, cellgen_rows<S> from)
{
    CELLGEN_ELEMENTS(run, (cellgen_copy_elements<D, S>), rows, units, to, from, 0);
}

/* to[row][unit] = from[unit][row] */
template <typename D, typename S>
void cg_transpose(cellgen_run *run, int64_t rows, int64_t units, cellgen_rows<D> to, cellgen_rows<S> from)
{
    CELLGEN_ELEMENTS(run, (cellgen_copy_elements<D, S>), rows, units, to, from, 1);
}

template <typename D> void cg_clear(cellgen_run *run, int64_t rows, int64_t units, cellgen_rows<D> to)
{
    cg_copy(run, rows, units, to, cellgen_rows<const D>{nullptr, 0});
}

#include "cellgen_cuda_products.cuh"
#include "cellgen_cuda_heads.cuh"

/* -------------------------------------------------------------------------------------- calls */

/* A workspace of its own keeps cuBLAS from allocating, also while a graph is captured. */
#define CELLGEN_CUBLAS_WORKSPACE ((int64_t)32 << 20)

inline int cellgen_begin_run(cellgen_run *run, void *stream, void *blas, void *blas_memory)
{
    run->stream = (cudaStream_t)stream;
    run->blas = (const cellgen_blas *)blas;
    run->error = CELLGEN_OK, run->refused = 0;
    if (!blas) return CELLGEN_OK;
    int status = run->blas->set_stream(run->blas->handle, stream);
    if (!status)
        status = run->blas->set_workspace(
            run->blas->handle, blas_memory, (size_t)CELLGEN_CUBLAS_WORKSPACE);
    return status ? CELLGEN_CUBLAS_STATUS + status : CELLGEN_OK;
}

#if !defined(CELLGEN_DEVICE_HALF)
#include "cellgen_cuda_host.cuh"
#endif

#endif /* CELLGEN_CUDA_CUH */
