/* The body of cellgen_gemm.h, included there once for float, once for double, once for pairs of bfloat16
 * and once for panels of int8.
 *
 * CELLGEN_REAL is the type of panels, CELLGEN_S(name) a name for it, CELLGEN_LANES its elements a
 * vector; CELLGEN_LEFT is the type of rows, CELLGEN_SUM that of sums, CELLGEN_C(name) a name for that.
 * With CELLGEN_ONLY_TILES there are no whole products: operands come packed; where it is 2, there is
 * nothing but tiles, and where it is 3, these have one row: few products need them, and each takes its
 * time to compile; where it is 4, there are no tiles: columns are packed, and nothing else. All of these macros are undefined at the end. */

CELLGEN_BEGIN_LIGHT
#if CELLGEN_ONLY_TILES != 4
#include "cellgen_tiles.inc.h"
#endif

#if CELLGEN_ONLY_TILES < 2 || CELLGEN_ONLY_TILES == 4
/* -------------------------------------------------------------------------- packing columns */

#define CELLGEN_CHUNK (16 / (int64_t)sizeof(CELLGEN_REAL)) /* k of one gather */

/* out[k][0 .. vectors*LANES) = b[k][0 .. columns), padded with zeros */
CELLGEN_INLINE void CELLGEN_S(pack_rows)(int64_t K, int64_t vectors, int64_t columns,
                                         const CELLGEN_REAL *b, int64_t ldb, CELLGEN_REAL *out,
                                         int64_t step)
{
    const int64_t whole = columns / CELLGEN_LANES;
    const CELLGEN_S(part) last = CELLGEN_S(part_make)(columns % CELLGEN_LANES);
    for (int64_t k = 0; k < K; ++k, b += ldb, out += step)
        for (int64_t j = 0; j < vectors; ++j)
            CELLGEN_S(store)
            (out + j * CELLGEN_LANES,
             j < whole    ? CELLGEN_S(load)(b + j * CELLGEN_LANES)
             : j == whole ? CELLGEN_S(load_part)(b + j * CELLGEN_LANES, last)
                          : CELLGEN_S(zero)());
}

/* the same of b[column][k] */
CELLGEN_INLINE void CELLGEN_S(pack_transposed)(int64_t K, int64_t vectors, int64_t columns,
                                               const CELLGEN_REAL *b, int64_t ldb,
                                               CELLGEN_REAL *out, int64_t step)
{
    for (int64_t j = 0; j < vectors; ++j, columns -= CELLGEN_LANES, out += CELLGEN_LANES) {
        int64_t k = 0;
#if CELLGEN_HAVE_UNPACK
        if (columns >= CELLGEN_LANES)
            for (; k + CELLGEN_CHUNK <= K; k += CELLGEN_CHUNK) {
                CELLGEN_S(vec) v[CELLGEN_CHUNK];
                CELLGEN_S(gather)(b + k, ldb, v);
                for (int64_t q = 0; q < CELLGEN_CHUNK; ++q)
                    CELLGEN_S(store)(out + (k + q) * step, v[q]);
            }
#endif
        for (; k < K; ++k)
            for (int64_t lane = 0; lane < CELLGEN_LANES; ++lane)
                out[k * step + lane] = lane < columns ? b[lane * ldb + k] : (CELLGEN_REAL)0;
        b += CELLGEN_LANES * ldb;
    }
}

#endif

#if CELLGEN_ONLY_TILES < 2
/* --------------------------------------------------------------------------- whole products */

#if CELLGEN_VECTOR_REGISTERS == 32
#define CELLGEN_PANEL_VECTORS 4
#else
#define CELLGEN_PANEL_VECTORS 2
#endif
#define CELLGEN_PANEL_ROWS 6 /* of a tile that wide, with 16 registers and with 32 */
#define CELLGEN_BUFFER_BYTES 81920 /* of stack */
#define CELLGEN_BLOCK_ROWS 512
#define CELLGEN_DEPTH 256       /* k of a panel of B: 64 KB with AVX-512 */
#define CELLGEN_DEPTH_BLOCK 128 /* beside a block of A on the stack */
#define CELLGEN_PACKED_ROWS 512 /* of all A^T of one call, in a block of the caller's */
#ifndef CELLGEN_SLICE
#define CELLGEN_SLICE 512 /* k of a slice of deep panels: 128 KB of them, as much of 64 rows beside */
#endif

/* the widths that whole products use, so that the other tiles are not compiled for them */
CELLGEN_INLINE void CELLGEN_S(column_narrow)(int64_t M, int64_t vectors, int64_t K,
                                             const CELLGEN_REAL *a, int64_t a_row, int64_t a_step,
                                             const CELLGEN_REAL *b, int64_t b_step,
                                             CELLGEN_SUM *c, int64_t ldc, int64_t lanes,
                                             int64_t lanes_b, int accumulate)
{
    if (vectors <= CELLGEN_PANEL_VECTORS)
        CELLGEN_S(column_of)
        (M, vectors, K, a, a_row, a_step, b, b_step, c, ldc, lanes, lanes_b, accumulate);
}

CELLGEN_INLINE int64_t CELLGEN_S(panel_tiles)(int64_t rows)
{
    return (rows + CELLGEN_PANEL_ROWS - 1) / CELLGEN_PANEL_ROWS;
}

/* Rows of A^T are strided: pack `rows` of them, in tiles of equal height, each [k][row]. */
CELLGEN_STATIC void CELLGEN_S(pack_tiles)(int64_t rows, int64_t tiles, int64_t depth,
                                          const CELLGEN_REAL *a, int64_t a_step, CELLGEN_REAL *out)
{
    for (int64_t height; rows > 0; --tiles, rows -= height, a += height) {
        height = (rows + tiles - 1) / tiles;
        const CELLGEN_REAL *from = a;
        if (height == CELLGEN_PANEL_ROWS) /* a copy of known size */
            for (int64_t k = 0; k < depth; ++k, from += a_step, out += CELLGEN_PANEL_ROWS)
                memcpy(out, from, CELLGEN_PANEL_ROWS * sizeof *a);
        else
            for (int64_t k = 0; k < depth; ++k, from += a_step)
                for (int64_t row = 0; row < height; ++row) *out++ = from[row];
    }
}

/* c(rows, vectors*LANES) (+)= such tiles times a panel. The rows of c that the next tile adds to are
 * fetched meanwhile: where c comes from a further cache, 512x512x192, 108 instead of 100 GFLOP/s. */
CELLGEN_STATIC void CELLGEN_S(packed_tiles)(int64_t rows, int64_t vectors, int64_t depth,
                                            const CELLGEN_REAL *tile, const CELLGEN_REAL *panel,
                                            CELLGEN_SUM *c, int64_t ldc, int64_t last,
                                            int accumulate)
{
    const int64_t lanes = CELLGEN_LANES;
    int64_t tiles = CELLGEN_S(panel_tiles)(rows);
    for (int64_t height; rows > 0; --tiles, rows -= height, tile += height * depth) {
        height = (rows + tiles - 1) / tiles;
        CELLGEN_SUM *const next = c + height * ldc;
        for (int64_t row = 0; row < rows - height && row < CELLGEN_PANEL_ROWS; ++row)
            for (int64_t j = 0; j < vectors; ++j)
                CELLGEN_FETCH_TO_WRITE(next + row * ldc + j * lanes);
        CELLGEN_S(column_narrow)
        (height, vectors, depth, tile, 1, height, panel, vectors * lanes, c, ldc, last, lanes,
         accumulate);
        c = next;
    }
}

#if !CELLGEN_ONLY_TILES
/* A panel of B is packed and all rows of A pass over it, 512 at a time so that A stays in L2. Rows
 * of A^T are packed beside the panel, 96 at a time. A itself gains nothing. */
CELLGEN_OUTLINE void CELLGEN_S(gemm_packed)(int64_t M, int64_t N, int64_t K, const CELLGEN_REAL *a,
                                            int64_t a_row, int64_t a_step, const CELLGEN_REAL *b,
                                            int64_t ldb, int b_transposed, CELLGEN_REAL *c,
                                            int64_t ldc, int accumulate)
{
    CELLGEN_ALIGNED CELLGEN_REAL panel[CELLGEN_BUFFER_BYTES / sizeof(CELLGEN_REAL)];
    const int64_t lanes = CELLGEN_LANES, width = CELLGEN_PANEL_VECTORS * lanes;
    const int pack_a = a_step != 1 && N >= 2 * width && M > 2 * CELLGEN_PANEL_ROWS;
    const int64_t deepest = pack_a ? CELLGEN_DEPTH_BLOCK : CELLGEN_DEPTH;
    const int64_t highest = pack_a ? CELLGEN_BUFFER_BYTES / (int64_t)sizeof *a / deepest - width
                                   : CELLGEN_BLOCK_ROWS;
    CELLGEN_REAL *const packed = panel + deepest * width;
    const int64_t blocks = (M + highest - 1) / highest, depths = (K + deepest - 1) / deepest;
    for (int64_t k = 0, turn_k = 0, depth; turn_k < depths; ++turn_k, k += depth) {
        depth = (K - k + depths - turn_k - 1) / (depths - turn_k);
        for (int64_t row = 0, turn = 0, rows; turn < blocks; ++turn, row += rows) {
            rows = (M - row + blocks - turn - 1) / (blocks - turn);
            const CELLGEN_REAL *const x = a + row * a_row + k * a_step;
            const int64_t tiles = CELLGEN_S(panel_tiles)(rows);
            if (pack_a)
                CELLGEN_S(pack_tiles)(rows, tiles, depth, x, a_step, packed);
            int64_t panels = (N + width - 1) / width;
            for (int64_t j = 0, left = (N + lanes - 1) / lanes; left > 0; --panels) {
                const int64_t vectors = (left + panels - 1) / panels;
                const int64_t step = vectors * lanes;
                const int64_t columns = N - j < step ? N - j : step;
                const int64_t last = columns - (vectors - 1) * lanes;
                const int onto = accumulate || k > 0;
                CELLGEN_REAL *const to = c + row * ldc + j;
                if (b_transposed)
                    CELLGEN_S(pack_transposed)
                    (depth, vectors, columns, b + j * ldb + k, ldb, panel, step);
                else
                    CELLGEN_S(pack_rows)
                    (depth, vectors, columns, b + k * ldb + j, ldb, panel, step);
                if (pack_a)
                    CELLGEN_S(packed_tiles)
                    (rows, vectors, depth, packed, panel, to, ldc, last, onto);
                else
                    CELLGEN_S(column_narrow)
                    (rows, vectors, depth, x, a_row, a_step, panel, step, to, ldc, last, lanes,
                     onto);
                left -= vectors;
                j += step;
            }
        }
    }
}

/* Whether few rows read B in place, not packed (24x512x256: 177 instead of 130 GFLOP/s). Rows of B
 * should then be whole cache lines and not collide: an L2 of 20 ways of 64 KB holds 160 rows that
 * are 8 KB apart (64x2048x1024: 67 in place, 126 packed). */
CELLGEN_INLINE int CELLGEN_S(in_place)(int64_t M, int64_t K, const CELLGEN_REAL *b, int64_t ldb)
{
    const int64_t bytes = ldb * (int64_t)sizeof *b;
    if (M <= 12)
        return 1;
    if (bytes % 4096 == 0 && K > 64)
        return 0;
    return M <= (((bytes | (int64_t)(uintptr_t)b) & 63) == 0 ? 64 : 16);
}

CELLGEN_OUTLINE void CELLGEN_S(gemm_in_place)(int64_t M, int64_t N, int64_t K,
                                              const CELLGEN_REAL *a, int64_t a_row, int64_t a_step,
                                              const CELLGEN_REAL *b, int64_t ldb, CELLGEN_REAL *c,
                                              int64_t ldc, int accumulate)
{
    const int64_t lanes = CELLGEN_LANES;
    int64_t left = (N + lanes - 1) / lanes, j = 0;
    if (M <= 2) /* few accumulators: eight chains at least hide the latency of fma */
        for (; left > 8 || (left == 8 && N % lanes == 0); left -= 8, j += 8 * lanes)
            CELLGEN_S(column_of)
            (M, 8, K, a, a_row, a_step, b + j, ldb, c + j, ldc, lanes, lanes, accumulate);
    int64_t panels = (left + CELLGEN_PANEL_VECTORS - 1) / CELLGEN_PANEL_VECTORS;
    for (; left > 0; --panels) {
        const int64_t vectors = (left + panels - 1) / panels;
        const int64_t columns = N - j < vectors * lanes ? N - j : vectors * lanes;
        const int64_t last = columns - (vectors - 1) * lanes;
        CELLGEN_S(column_narrow)
        (M, vectors, K, a, a_row, a_step, b + j, ldb, c + j, ldc, last, last, accumulate);
        left -= vectors;
        j += vectors * lanes;
    }
}

#if CELLGEN_HAVE_UNPACK
/* Few rows, B transposed: 2*LANES columns at a time are transposed in registers and used at once
 * (512x256, M = 1: 26 GFLOP/s, 13 with packed panels). The second half may repeat the first. */
CELLGEN_OUTLINE void CELLGEN_S(gather_one)(const CELLGEN_REAL *b, int64_t ldb, CELLGEN_S(vec) *v)
{
    CELLGEN_REAL x[CELLGEN_LANES];
    for (int64_t lane = 0; lane < CELLGEN_LANES; ++lane)
        x[lane] = b[lane * ldb];
    *v = CELLGEN_S(load)(x);
}
#define CELLGEN_NARROW_BEGIN(R, E)                                                                 \
    const CELLGEN_REAL *const a_##R = a + R * lda;                                                 \
    CELLGEN_S(vec) s_##R = accumulate ? CELLGEN_S(load)(c + R * ldc) : CELLGEN_S(zero)();          \
    CELLGEN_S(vec) t_##R = accumulate ? CELLGEN_S(load)(c + half + R * ldc) : CELLGEN_S(zero)();
#define CELLGEN_NARROW_FMA(R, E)                                                                   \
    s_##R = CELLGEN_S(fma)(CELLGEN_S(set1)(a_##R[k + q]), u[q], s_##R);                            \
    t_##R = CELLGEN_S(fma)(CELLGEN_S(set1)(a_##R[k + q]), v[q], t_##R);
#define CELLGEN_NARROW_END(R, E)                                                                   \
    CELLGEN_S(store)(c + R * ldc, s_##R);                                                          \
    CELLGEN_S(store)(c + half + R * ldc, t_##R);
#define CELLGEN_NARROW(MR, E)                                                                      \
    CELLGEN_OUTLINE void CELLGEN_S(narrow_##MR)(                                                   \
        int64_t K, const CELLGEN_REAL *a, int64_t lda, const CELLGEN_REAL *b, int64_t ldb,         \
        CELLGEN_REAL *c, int64_t ldc, int64_t half, int accumulate)                                \
    {                                                                                              \
        CELLGEN_ROWS_##MR(CELLGEN_NARROW_BEGIN, 0)                                                 \
        int64_t k = 0;                                                                             \
        for (; k + CELLGEN_CHUNK <= K; k += CELLGEN_CHUNK) {                                       \
            CELLGEN_S(vec) u[CELLGEN_CHUNK], v[CELLGEN_CHUNK];                                     \
            CELLGEN_S(gather)(b + k, ldb, u);                                                      \
            CELLGEN_S(gather)(b + half * ldb + k, ldb, v);                                         \
            for (int64_t q = 0; q < CELLGEN_CHUNK; ++q) {                                          \
                CELLGEN_ROWS_##MR(CELLGEN_NARROW_FMA, 0)                                           \
            }                                                                                      \
        }                                                                                          \
        for (const int64_t q = 0; k < K; ++k) {                                                    \
            CELLGEN_S(vec) u[1], v[1];                                                             \
            CELLGEN_S(gather_one)(b + k, ldb, u);                                                  \
            CELLGEN_S(gather_one)(b + half * ldb + k, ldb, v);                                     \
            CELLGEN_ROWS_##MR(CELLGEN_NARROW_FMA, 0)                                               \
        }                                                                                          \
        CELLGEN_ROWS_##MR(CELLGEN_NARROW_END, 0)                                                   \
    }
#define CELLGEN_NARROW_ROWS 3
CELLGEN_COUNT_3(CELLGEN_NARROW, 0)

CELLGEN_STATIC void CELLGEN_S(gemm_narrow)(int64_t M, int64_t N, int64_t K, const CELLGEN_REAL *a,
                                           int64_t lda, const CELLGEN_REAL *b, int64_t ldb,
                                           CELLGEN_REAL *c, int64_t ldc, int accumulate)
{
    for (int64_t j = 0; j < N; j += 2 * CELLGEN_LANES) {
        const int64_t half = N - j > CELLGEN_LANES ? CELLGEN_LANES : 0;
        const CELLGEN_REAL *y = b + j * ldb;
        if (M == 1)
            CELLGEN_S(narrow_1)(K, a, lda, y, ldb, c + j, ldc, half, accumulate);
        else if (M == 2)
            CELLGEN_S(narrow_2)(K, a, lda, y, ldb, c + j, ldc, half, accumulate);
        else
            CELLGEN_S(narrow_3)(K, a, lda, y, ldb, c + j, ldc, half, accumulate);
    }
}
#endif

#if CELLGEN_HAVE_UNPACK
/* More rows, but few, B transposed: the roles change. A is the packed panel, the rows of B are read as
 * they lie, and C^T = B A^T is turned back block by block: no weight is copied (nt 32x256x256: 1.2
 * times as fast, 32x1024x1024: 1.3; slower where lanes of the panel stay empty). */
CELLGEN_INLINE int CELLGEN_S(turns)(int64_t M)
{
    const int64_t lanes = CELLGEN_LANES, filled = (M + lanes - 1) / lanes * lanes;
    return M > lanes && M <= CELLGEN_PANEL_VECTORS * lanes && 8 * M >= 7 * filled;
}
#define CELLGEN_TRANSPOSED_BLOCK (48 / CELLGEN_LANES * CELLGEN_LANES) /* rows of B: whole tiles */
CELLGEN_OUTLINE void CELLGEN_S(gemm_transposed)(int64_t M, int64_t N, int64_t K, const CELLGEN_REAL *a,
                                            int64_t lda, const CELLGEN_REAL *b, int64_t ldb,
                                            CELLGEN_REAL *c, int64_t ldc, int accumulate)
{
    CELLGEN_ALIGNED CELLGEN_REAL panel[CELLGEN_BUFFER_BYTES / sizeof(CELLGEN_REAL)];
    const int64_t lanes = CELLGEN_LANES, vectors = (M + lanes - 1) / lanes, step = vectors * lanes;
    const int64_t deepest = CELLGEN_BUFFER_BYTES / (int64_t)sizeof *a / step - CELLGEN_TRANSPOSED_BLOCK;
    CELLGEN_REAL *const transposed = panel + deepest * step;
    for (int64_t k = 0; k < K; k += deepest) {
        const int64_t depth = K - k < deepest ? K - k : deepest;
        const int onto = accumulate || k > 0;
        CELLGEN_S(pack_transposed)(depth, vectors, M, a + k, lda, panel, step);
        for (int64_t j = 0; j < N; j += CELLGEN_TRANSPOSED_BLOCK) {
            const int64_t rows = N - j < CELLGEN_TRANSPOSED_BLOCK ? N - j : CELLGEN_TRANSPOSED_BLOCK;
            const int64_t whole = rows / lanes;
            if (onto)
                CELLGEN_S(pack_transposed)(rows, vectors, M, c + j, ldc, transposed, step);
            CELLGEN_S(column_narrow)
            (rows, vectors, depth, b + j * ldb + k, ldb, 1, panel, step, transposed, step, lanes, lanes,
             onto);
            CELLGEN_S(pack_transposed)(M, whole, whole * lanes, transposed, step, c + j, ldc);
            for (int64_t r = 0; r < M; ++r)
                for (int64_t q = whole * lanes; q < rows; ++q)
                    c[r * ldc + j + q] = transposed[q * step + r];
        }
    }
}
#endif

CELLGEN_STATIC void CELLGEN_S(gemm)(int64_t M, int64_t N, int64_t K, const CELLGEN_REAL *a,
                                    int64_t a_row, int64_t a_step, const CELLGEN_REAL *b,
                                    int64_t ldb, int b_transposed, CELLGEN_REAL *c, int64_t ldc,
                                    int accumulate)
{
    if (M <= 0 || N <= 0)
        return;
    if (K <= 0) {
        if (!accumulate)
            for (int64_t row = 0; row < M; ++row)
                memset(c + row * ldc, 0, (size_t)N * sizeof(CELLGEN_REAL));
        return;
    }
    if (!b_transposed && CELLGEN_S(in_place)(M, K, b, ldb)) {
        const int64_t done = CELLGEN_HAVE_PART ? N : N - N % CELLGEN_LANES;
        CELLGEN_S(gemm_in_place)(M, done, K, a, a_row, a_step, b, ldb, c, ldc, accumulate);
        if (done == N)
            return;
        N -= done, b += done, c += done;
    }
#if CELLGEN_HAVE_UNPACK
    if (b_transposed && M <= CELLGEN_NARROW_ROWS && a_step == 1) {
        const int64_t done = N - N % CELLGEN_LANES;
        CELLGEN_S(gemm_narrow)(M, done, K, a, a_row, b, ldb, c, ldc, accumulate);
        if (done == N)
            return;
        N -= done, b += done * ldb, c += done;
    } else if (b_transposed && CELLGEN_S(turns)(M) && a_step == 1) {
        CELLGEN_S(gemm_transposed)(M, N, K, a, a_row, b, ldb, c, ldc, accumulate);
        return;
    }
#endif
    CELLGEN_S(gemm_packed)
    (M, N, K, a, a_row, a_step, b, ldb, b_transposed, c, ldc, accumulate);
}

CELLGEN_STATIC void CELLGEN_S(gemm_nn)(int64_t M, int64_t N, int64_t K, const CELLGEN_REAL *a,
                                       int64_t lda, const CELLGEN_REAL *b, int64_t ldb,
                                       CELLGEN_REAL *c, int64_t ldc, int accumulate)
{
    CELLGEN_S(gemm)(M, N, K, a, lda, 1, b, ldb, 0, c, ldc, accumulate);
}
CELLGEN_STATIC void CELLGEN_S(gemm_nt)(int64_t M, int64_t N, int64_t K, const CELLGEN_REAL *a,
                                       int64_t lda, const CELLGEN_REAL *b, int64_t ldb,
                                       CELLGEN_REAL *c, int64_t ldc, int accumulate)
{
    CELLGEN_S(gemm)(M, N, K, a, lda, 1, b, ldb, 1, c, ldc, accumulate);
}
CELLGEN_STATIC void CELLGEN_S(gemm_tn)(int64_t M, int64_t N, int64_t K, const CELLGEN_REAL *a,
                                       int64_t lda, const CELLGEN_REAL *b, int64_t ldb,
                                       CELLGEN_REAL *c, int64_t ldc, int accumulate)
{
    CELLGEN_S(gemm)(M, N, K, a, 1, lda, b, ldb, 0, c, ldc, accumulate);
}

#include "cellgen_outers.inc.h"
#endif

#include "cellgen_panels.inc.h"
#endif

#undef CELLGEN_ONLY_TILES
#undef CELLGEN_REAL
#undef CELLGEN_LEFT
#undef CELLGEN_SUM
#undef CELLGEN_S
#undef CELLGEN_C
#undef CELLGEN_LANES
CELLGEN_END_LIGHT
