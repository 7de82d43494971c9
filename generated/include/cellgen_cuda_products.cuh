/* Matrix products on a device: those of cuBLAS, tiles, and kernels for few rows. Part of cellgen_cuda.cuh. */
#ifndef CELLGEN_CUDA_PRODUCTS_CUH
#define CELLGEN_CUDA_PRODUCTS_CUH

/* cuBLAS, opened at run time: compiling needs neither its headers nor the library. */
struct cellgen_blas {
    void *library, *handle;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_stream)(void *, void *);
    int (*set_workspace)(void *, void *, size_t);
    int (*gemm)(void *, int, int, int64_t, int64_t, int64_t, const void *, const void *, int, int64_t,
                const void *, int, int64_t, const void *, void *, int, int64_t, int, int);
    int (*gemm_batched)(void *, int, int, int64_t, int64_t, int64_t, const void *, const void *, int,
                        int64_t, long long, const void *, int, int64_t, long long, const void *, void *,
                        int, int64_t, long long, int64_t, int, int);
};

enum { CELLGEN_CUBLAS_N = 0, CELLGEN_CUBLAS_T = 1, CELLGEN_CUBLAS_DEFAULT = -1 };

#define CELLGEN_GEMM_TILE 16

/* Products side by side: of each head, and of each slot that a head has. How many elements further
 * the operands and the result of the next one begin; slots share the operand `a`. */
struct cellgen_batch {
    int64_t slots, heads, a_head, b_head, c_head, b_slot, c_slot;
};

/* c (+)= op(a) op(b) by tiles, the contracted index ascending. */
template <typename E, typename C, typename R>
__global__ void cellgen_gemm_tiles(
    int64_t rows, int64_t columns, int64_t inner, cellgen_rows<const E> a, int a_transposed,
    cellgen_rows<const E> b, int b_transposed, cellgen_rows<C> c, int onto, cellgen_batch batch)
{
    const int64_t slot = blockIdx.z / batch.heads, head = blockIdx.z % batch.heads;
    a.at += head * batch.a_head;
    b.at += slot * batch.b_slot + head * batch.b_head;
    c.at += slot * batch.c_slot + head * batch.c_head;
    CELLGEN_SHARED(R, a_tile, CELLGEN_GEMM_TILE * (CELLGEN_GEMM_TILE + 1));
    CELLGEN_SHARED(R, b_tile, CELLGEN_GEMM_TILE * (CELLGEN_GEMM_TILE + 1));
    const unsigned x = threadIdx.x, y = threadIdx.y, pitch = CELLGEN_GEMM_TILE + 1;
    const int64_t row = (int64_t)blockIdx.x * CELLGEN_GEMM_TILE + y;
    const int64_t column = (int64_t)blockIdx.y * CELLGEN_GEMM_TILE + x;
    R sum = 0;
    for (int64_t start = 0; start < inner; start += CELLGEN_GEMM_TILE) {
        const int64_t a_inner = start + x, b_inner = start + y;
        a_tile[y * pitch + x] = row < rows && a_inner < inner
            ? (a_transposed ? cg_load(a, a_inner, row) : cg_load(a, row, a_inner)) : R(0);
        b_tile[y * pitch + x] = column < columns && b_inner < inner
            ? (b_transposed ? cg_load(b, column, b_inner) : cg_load(b, b_inner, column)) : R(0);
        __syncthreads();
        for (unsigned k = 0; k < CELLGEN_GEMM_TILE; ++k)
            sum += a_tile[y * pitch + k] * b_tile[k * pitch + x];
        __syncthreads(); /* the next tile overwrites this one */
    }
    if (row < rows && column < columns)
        cg_store(c, row, column, onto ? cg_load(c, row, column) + sum : sum);
}

inline __host__ __device__ int64_t cellgen_whole(int64_t count, int64_t tile)
{
    return (count + tile - 1) / tile * tile;
}

inline __device__ float cellgen_fma(float a, float b, float c) { return fmaf(a, b, c); }
inline __device__ double cellgen_fma(double a, double b, double c) { return fma(a, b, c); }

/* A step's product has few rows, and weights that lie in the second cache: what counts is how many
 * loads are under way. A block takes 32 columns and `most` rows; each of its warps a share of the
 * contracted index, a tile of `a` in shared memory at a time. Shares are added in order. On an H100
 * it takes 6 to 12 us where cuBLAS takes up to 54, of 2 to 32 rows and so long an index; cuBLAS is
 * ahead of it elsewhere (docs/lab/0014-cuda-on-a-device.md). */
enum { CELLGEN_FEW_ROWS = 32, CELLGEN_FEW_INNER = 512 };
enum { CELLGEN_FEW_WARPS = 8, CELLGEN_FEW_DEEP = 32, CELLGEN_FEW_AHEAD = 8 };

template <typename E, typename C, typename R, int most, bool b_transposed>
__global__ void cellgen_gemm_few_rows(
    int64_t rows, int64_t columns, int64_t inner, cellgen_rows<const E> a, cellgen_rows<const E> b,
    cellgen_rows<C> c, int onto)
{
    CELLGEN_SHARED(R, room, CELLGEN_FEW_WARPS * CELLGEN_FEW_DEEP * most);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t column = (int64_t)blockIdx.x * 32 + lane, top = (int64_t)blockIdx.y * most;
    const int64_t each = (inner + CELLGEN_FEW_WARPS - 1) / CELLGEN_FEW_WARPS;
    const int64_t share = cellgen_whole(each, CELLGEN_FEW_AHEAD);
    const int64_t end = (warp + 1) * share < inner ? (warp + 1) * share : inner;
    R *const tile = room + warp * CELLGEN_FEW_DEEP * most;
    R sum[most];
    CELLGEN_UNROLL
    for (int row = 0; row < most; ++row) sum[row] = 0;
    for (int64_t first = warp * share; first < end; first += CELLGEN_FEW_DEEP) {
        __syncwarp();
        CELLGEN_UNROLL
        for (int row = 0; row < most; ++row)
            tile[lane * most + row] =
                top + row < rows && first + lane < end ? cg_load(a, top + row, first + lane) : R(0);
        __syncwarp();
        for (int k = 0; k < CELLGEN_FEW_DEEP && first + k < end; k += CELLGEN_FEW_AHEAD) {
            R weights[CELLGEN_FEW_AHEAD];
            CELLGEN_UNROLL
            for (int at = 0; at < CELLGEN_FEW_AHEAD; ++at) {
                const int64_t factor = first + k + at;
                weights[at] = column < columns && factor < end
                    ? (b_transposed ? cg_load(b, column, factor) : cg_load(b, factor, column)) : R(0);
            }
            CELLGEN_UNROLL
            for (int at = 0; at < CELLGEN_FEW_AHEAD; ++at)
                CELLGEN_UNROLL
                for (int row = 0; row < most; ++row)
                    sum[row] = cellgen_fma(tile[(k + at) * most + row], weights[at], sum[row]);
        }
    }
    __syncthreads(); /* the tiles make room for the shares */
    CELLGEN_UNROLL
    for (int row = 0; row < most; ++row) room[(warp * most + row) * 32 + lane] = sum[row];
    __syncthreads();
    for (unsigned row = warp; row < most; row += CELLGEN_FEW_WARPS) {
        R total = 0;
        for (int other = 0; other < CELLGEN_FEW_WARPS; ++other)
            total += room[(other * most + row) * 32 + lane];
        if (top + row < rows && column < columns)
            cg_store(c, top + row, column, onto ? cg_load(c, top + row, column) + total : total);
    }
}

template <int most, typename E, typename C>
void cellgen_launch_few_rows(
    cellgen_run *run, int64_t rows, int64_t columns, int64_t inner, cellgen_rows<const E> a,
    cellgen_rows<const E> b, int b_transposed, cellgen_rows<C> c, int onto)
{
    typedef typename cellgen_element<E>::real R;
    const dim3 grid((unsigned)((columns + 31) / 32), (unsigned)((rows + most - 1) / most));
    const dim3 block(CELLGEN_FEW_WARPS * 32);
    if (b_transposed)
        CELLGEN_LAUNCH_BLOCKS(run, (cellgen_gemm_few_rows<E, C, R, most, true>), grid, block, rows, columns,
                              inner, a, b, c, onto);
    else
        CELLGEN_LAUNCH_BLOCKS(run, (cellgen_gemm_few_rows<E, C, R, most, false>), grid, block, rows, columns,
                              inner, a, b, c, onto);
}

/* Whether a product is of few rows and runs by itself, and so it does. Of types that matrix units take
 * none: they are for those. */
template <typename E, typename C>
bool cellgen_few_rows(
    cellgen_run *run, int64_t rows, int64_t columns, int64_t inner, cellgen_rows<const E> a,
    cellgen_rows<const E> b, int b_transposed, cellgen_rows<C> c, int onto)
{
    if constexpr (!cellgen_element<E>::on_units) {
        if (rows < 2 || rows > CELLGEN_FEW_ROWS || inner > CELLGEN_FEW_INNER) return false;
        if (rows <= 4)
            cellgen_launch_few_rows<4>(run, rows, columns, inner, a, b, b_transposed, c, onto);
        else if (rows <= 8)
            cellgen_launch_few_rows<8>(run, rows, columns, inner, a, b, b_transposed, c, onto);
        else
            cellgen_launch_few_rows<16>(run, rows, columns, inner, a, b, b_transposed, c, onto);
        return true;
    }
    return false;
}

/* c (+)= op(a) op(b), row-major: rows x columns, contracted over inner; as often as `batch` says. */
template <typename E, typename C>
void cellgen_gemm(
    cellgen_run *run, int64_t rows, int64_t columns, int64_t inner, const E *a, int64_t a_stride,
    int a_transposed, const E *b, int64_t b_stride, int b_transposed, C *c, int64_t c_stride, int onto,
    cellgen_batch batch = {1, 1, 0, 0, 0, 0, 0})
{
    typedef typename cellgen_element<E>::real R;
    if (rows <= 0 || columns <= 0 || batch.heads <= 0 || run->error) return;
    if (inner <= 0) {
        for (int64_t at = 0; at < batch.slots * batch.heads && !onto; ++at) {
            const int64_t slot = at / batch.heads, head = at % batch.heads;
            C *const own = c + slot * batch.c_slot + head * batch.c_head;
            cg_clear(run, rows, columns, cg_rows(own, c_stride));
        }
        return;
    }
    if (!run->blas) {
        CELLGEN_LAUNCH_BLOCKS(
            run, (cellgen_gemm_tiles<E, C, R>),
            dim3((unsigned)((rows + CELLGEN_GEMM_TILE - 1) / CELLGEN_GEMM_TILE),
                 (unsigned)((columns + CELLGEN_GEMM_TILE - 1) / CELLGEN_GEMM_TILE),
                 (unsigned)(batch.slots * batch.heads)),
            dim3(CELLGEN_GEMM_TILE, CELLGEN_GEMM_TILE), rows, columns, inner, cg_in(a, a_stride),
            a_transposed, cg_in(b, b_stride), b_transposed, cg_rows(c, c_stride), onto, batch);
        return;
    }
    if (!a_transposed && batch.slots == 1 && batch.heads == 1
        && cellgen_few_rows(run, rows, columns, inner, cg_in(a, a_stride), cg_in(b, b_stride), b_transposed,
                            cg_rows(c, c_stride), onto))
        return;
    /* cuBLAS counts by columns: c' = b' a' */
    const R one = 1, scale = onto ? R(1) : R(0);
    const int b_op = b_transposed ? CELLGEN_CUBLAS_T : CELLGEN_CUBLAS_N;
    const int a_op = a_transposed ? CELLGEN_CUBLAS_T : CELLGEN_CUBLAS_N;
    const int b_type = cellgen_element<E>::blas, a_type = b_type;
    const int c_type = cellgen_element<C>::blas, compute = cellgen_element<E>::compute;
    for (int64_t slot = 0; slot < batch.slots && !run->error; ++slot) {
        const E *const own = b + slot * batch.b_slot;
        C *const sums = c + slot * batch.c_slot;
        const int status = batch.heads == 1
            ? run->blas->gemm(run->blas->handle, b_op, a_op, columns, rows, inner, &one, own, b_type,
                              b_stride, a, a_type, a_stride, &scale, sums, c_type, c_stride, compute,
                              CELLGEN_CUBLAS_DEFAULT)
            : run->blas->gemm_batched(
                  run->blas->handle, b_op, a_op, columns, rows, inner, &one, own, b_type, b_stride,
                  batch.b_head, a, a_type, a_stride, batch.a_head, &scale, sums, c_type, c_stride,
                  batch.c_head, batch.heads, compute, CELLGEN_CUBLAS_DEFAULT);
        if (status) run->error = CELLGEN_CUBLAS_STATUS + status;
    }
}

/* c (+)= a b; a b'; a' b: as in C, with `onto` at the end */
template <typename E, typename C>
void cg_gemm_nn(cellgen_run *run, int64_t rows, int64_t columns, int64_t inner, const E *a,
    int64_t a_stride, const E *b, int64_t b_stride, C *c, int64_t c_stride, int onto)
{
    cellgen_gemm(run, rows, columns, inner, a, a_stride, 0, b, b_stride, 0, c, c_stride, onto);
}

template <typename E, typename C>
void cg_gemm_nt(cellgen_run *run, int64_t rows, int64_t columns, int64_t inner, const E *a,
    int64_t a_stride, const E *b, int64_t b_stride, C *c, int64_t c_stride, int onto)
{
    cellgen_gemm(run, rows, columns, inner, a, a_stride, 0, b, b_stride, 1, c, c_stride, onto);
}

template <typename E, typename C>
void cg_gemm_tn(cellgen_run *run, int64_t rows, int64_t columns, int64_t inner, const E *a,
    int64_t a_stride, const E *b, int64_t b_stride, C *c, int64_t c_stride, int onto)
{
    cellgen_gemm(run, rows, columns, inner, a, a_stride, 1, b, b_stride, 0, c, c_stride, onto);
}

/* The same for heads that lie side by side, weights of a head (inner, columns) or (columns, inner):
 * `slots` results share the operand a; they lie side by side, their weights one after the other. */
template <typename E, typename C>
void cg_gemm_heads_nn(cellgen_run *run, int64_t slots, int64_t heads, int64_t rows, int64_t columns,
    int64_t inner, const E *a, int64_t a_stride, const E *b, int64_t b_stride, C *c, int64_t c_stride,
    int onto)
{
    const int64_t size = inner * columns;
    const cellgen_batch batch = {slots, heads, inner, size, columns, heads * size, heads * columns};
    cellgen_gemm(run, rows, columns, inner, a, a_stride, 0, b, b_stride, 0, c, c_stride, onto, batch);
}

template <typename E, typename C>
void cg_gemm_heads_nt(cellgen_run *run, int64_t slots, int64_t heads, int64_t rows, int64_t columns,
    int64_t inner, const E *a, int64_t a_stride, const E *b, int64_t b_stride, C *c, int64_t c_stride,
    int onto)
{
    const int64_t size = inner * columns;
    const cellgen_batch batch = {slots, heads, inner, size, columns, heads * size, heads * columns};
    cellgen_gemm(run, rows, columns, inner, a, a_stride, 0, b, b_stride, 1, c, c_stride, onto, batch);
}

/* Gradients of such weights: c is (heads, rows, columns). */
template <typename E, typename C>
void cg_gemm_heads_tn(cellgen_run *run, int64_t slots, int64_t heads, int64_t rows, int64_t columns,
    int64_t inner, const E *a, int64_t a_stride, const E *b, int64_t b_stride, C *c, int64_t c_stride,
    int onto)
{
    const int64_t size = rows * columns;
    const cellgen_batch batch = {slots, heads, rows, columns, size, heads * columns, heads * size};
    cellgen_gemm(run, rows, columns, inner, a, a_stride, 1, b, b_stride, 0, c, c_stride, onto, batch);
}

#endif
