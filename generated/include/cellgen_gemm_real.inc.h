/* The body of cellgen_gemm.h, included there once for float, once for double, once for pairs of bfloat16
 * and once for panels of int8.
 *
 * CELLGEN_REAL is the type of panels, CELLGEN_S(name) a name for it, CELLGEN_LANES its elements a
 * vector; CELLGEN_LEFT is the type of rows, CELLGEN_SUM that of sums, CELLGEN_C(name) a name for that.
 * With CELLGEN_ONLY_TILES there are no whole products: operands come packed; where it is 2, there is
 * nothing but tiles, and where it is 3, these have one row: few products need them, and each takes its
 * time to compile. All of these macros are undefined at the end. */

/* ------------------------------------------------------------------------------------ tiles
 * c[row][vector] (+)= sum over terms and k of a[row*a_row + k*a_step] * b[k*b_step + vector*LANES]:
 * one chain through all terms, which stays in registers. Of the last vector only `last` lanes are read
 * from c and written; where partial loads are cheap the same lanes of b are read, elsewhere b has
 * whole vectors (it is then a packed panel). */

typedef struct {
    int64_t K;
    const CELLGEN_LEFT *a;
    int64_t a_row, a_step;
    const CELLGEN_REAL *b;
    int64_t b_step;
    cellgen_fetch ahead; /* the next panel */
    cellgen_prefetch *prefetch; /* what is needed soon after the product; NULL for nothing */
} CELLGEN_S(term);

/* A masked store of AVX2 takes 20 cycles on Zen 3, any other 1.6; of AVX-512, as long as any other. */
#define CELLGEN_LAST(J, NV) (J == NV - 1 && (CELLGEN_HAVE_PART || lanes < CELLGEN_LANES))

#define CELLGEN_ROW_BEGIN(R, NV)                                                                   \
    CELLGEN_SUM *const c_##R = c + R * ldc;                                                        \
    CELLGEN_COLUMNS_##NV(CELLGEN_ZERO, R, NV)
#define CELLGEN_ROW_TERM(R, NV) const char *const a_##R = (const char *)(a + R * term->a_row);
#define CELLGEN_ZERO(R, J, NV) CELLGEN_C(vec) t_##R##_##J = CELLGEN_C(zero)();
#define CELLGEN_ROW_SEED(R, NV) CELLGEN_COLUMNS_##NV(CELLGEN_SEED, R, NV)
#define CELLGEN_SEED(R, J, NV)                                                                     \
    t_##R##_##J = CELLGEN_LAST(J, NV) ? CELLGEN_C(load_part)(c_##R + J * CELLGEN_LANES, last)      \
                                      : CELLGEN_C(load)(c_##R + J * CELLGEN_LANES);
#define CELLGEN_ROW_END(R, NV) CELLGEN_COLUMNS_##NV(CELLGEN_STORE, R, NV)
#define CELLGEN_STORE(R, J, NV)                                                                    \
    if (CELLGEN_LAST(J, NV))                                                                       \
        CELLGEN_C(store_part)(c_##R + J * CELLGEN_LANES, last, t_##R##_##J);                       \
    else                                                                                           \
        CELLGEN_C(store)(c_##R + J * CELLGEN_LANES, t_##R##_##J);

#define CELLGEN_LOAD_B(J, NV)                                                                      \
    CELLGEN_S(vec) b_##J = CELLGEN_HAVE_PART && J == NV - 1                                        \
                               ? CELLGEN_S(load_part)(b + J * CELLGEN_LANES, last_b)               \
                               : CELLGEN_S(load)(b + J * CELLGEN_LANES);                           \
    CELLGEN_KEEP(b_##J);
#if CELLGEN_BY_LANE
#define CELLGEN_LOAD_A(R, NV)                                                                      \
    CELLGEN_LEFT x_##R = *(const CELLGEN_LEFT *)(const void *)(a_##R + k_a);                       \
    CELLGEN_KEEP_ORDER(x_##R);
#define CELLGEN_FMA(R, J, NV) t_##R##_##J = CELLGEN_S(fma_lane)(x_##R, b_##J, t_##R##_##J);
#else
#define CELLGEN_LOAD_A(R, NV)                                                                      \
    const CELLGEN_S(vec) x_##R =                                                                   \
        CELLGEN_S(set1)(*(const CELLGEN_LEFT *)(const void *)(a_##R + k_a));
#define CELLGEN_FMA(R, J, NV) t_##R##_##J = CELLGEN_S(fma)(x_##R, b_##J, t_##R##_##J);
#endif

#define CELLGEN_ROW_FMA(R, NV) CELLGEN_LOAD_A(R, NV) CELLGEN_COLUMNS_##NV(CELLGEN_FMA, R, NV)
#define CELLGEN_BY_ROWS(MR, NV)                                                                    \
    CELLGEN_ROWS_##NV(CELLGEN_LOAD_B, NV) CELLGEN_ROWS_##MR(CELLGEN_ROW_FMA, NV)

#define CELLGEN_NEXT_B(J, NV)                                                                      \
    CELLGEN_LOAD_B(J, NV)                                                                          \
    CELLGEN_KEEP_ORDER(b_##J);
#define CELLGEN_COLUMN_FMA_1(J, NV) CELLGEN_NEXT_B(J, NV) CELLGEN_DOWN_1(CELLGEN_FMA, J, NV)
#define CELLGEN_COLUMN_FMA_2(J, NV) CELLGEN_NEXT_B(J, NV) CELLGEN_DOWN_2(CELLGEN_FMA, J, NV)
#define CELLGEN_COLUMN_FMA_3(J, NV) CELLGEN_NEXT_B(J, NV) CELLGEN_DOWN_3(CELLGEN_FMA, J, NV)
#define CELLGEN_COLUMN_FMA_4(J, NV) CELLGEN_NEXT_B(J, NV) CELLGEN_DOWN_4(CELLGEN_FMA, J, NV)
#define CELLGEN_BY_COLUMNS(MR, NV)                                                                 \
    CELLGEN_ROWS_##MR(CELLGEN_LOAD_A, NV) CELLGEN_ROWS_##NV(CELLGEN_COLUMN_FMA_##MR, NV)

/* One loop over k for each number of lines that are fetched: a second one costs 1 to 2 % of a tile of 4 to
 * 6 rows. Fewer rows are bound by the second-level cache as it is, one vector by what it loads. */
#define CELLGEN_FETCH_ONE                                                                          \
    CELLGEN_FETCH(one);                                                                            \
    one += one_step;
#define CELLGEN_FETCH_TWO                                                                          \
    CELLGEN_FETCH_ONE                                                                              \
    CELLGEN_FETCH(two);                                                                            \
    two += two_step;
#define CELLGEN_OVER_K(MR, NV, ORDER, FETCHES)                                                     \
    for (; k < end; ++k, k_a += bytes, b += b_step) {                                              \
        FETCHES CELLGEN_BY_##ORDER(MR, NV)                                                         \
    }

#define CELLGEN_TILE(MR, NV, ORDER)                                                                \
    CELLGEN_OUTLINE void CELLGEN_S(tile_##MR##x##NV)(                                              \
        const CELLGEN_S(term) * term, int64_t terms, int64_t top, int64_t left, CELLGEN_SUM *c,    \
        int64_t ldc, int64_t lanes, int64_t lanes_b, int accumulate)                               \
    {                                                                                              \
        const CELLGEN_C(part) last = CELLGEN_C(part_make)(lanes);                                  \
        const CELLGEN_S(part) last_b = CELLGEN_S(part_make)(lanes_b);                              \
        (void)last_b;                                                                              \
        CELLGEN_ROWS_##MR(CELLGEN_ROW_BEGIN, NV)                                                   \
        if (accumulate) {                                                                          \
            CELLGEN_ROWS_##MR(CELLGEN_ROW_SEED, NV)                                                \
        }                                                                                          \
        for (; terms > 0; --terms, ++term) {                                                       \
            const CELLGEN_LEFT *const a = term->a + top * term->a_row;                             \
            const CELLGEN_REAL *b = term->b + left;                                                \
            CELLGEN_ROWS_##MR(CELLGEN_ROW_TERM, NV)                                                \
            const int fetches = CELLGEN_FETCHES(MR, 2) && left == 0;                               \
            const int64_t K = term->K, b_step = term->b_step;                                      \
            int64_t bytes = term->a_step * (int64_t)sizeof *a, k = 0, k_a = 0, end;                \
            const char *one = (const char *)term->ahead.at, *two = one;                            \
            int64_t one_step = term->ahead.step;                                                   \
            CELLGEN_OPAQUE(bytes);                                                                 \
            if (CELLGEN_FETCHES(MR, NV) && fetches && term->prefetch) {                              \
                const int64_t two_step = INT64_C(1) << term->prefetch->shift;                        \
                const int both = !one_step; /* no panel is next */                                 \
                while ((end = cellgen_next_pieces(term->prefetch, (K - k) << both, &two)) > 0) {     \
                    if (both) {                                                                    \
                        end = (end + 1) / 2;                                                       \
                        one = two, one_step = two_step;                                            \
                        two = one + end * two_step;                                                \
                    }                                                                              \
                    end += k;                                                                      \
                    CELLGEN_OVER_K(MR, NV, ORDER, CELLGEN_FETCH_TWO)                               \
                }                                                                                  \
                if (both) one_step = 0;                                                            \
            }                                                                                      \
            end = K;                                                                               \
            if (fetches && one_step)                                                               \
                CELLGEN_OVER_K(MR, NV, ORDER, CELLGEN_FETCH_ONE)                                   \
            else                                                                                   \
                CELLGEN_OVER_K(MR, NV, ORDER, )                                                    \
        }                                                                                          \
        CELLGEN_ROWS_##MR(CELLGEN_ROW_END, NV)                                                     \
    }

#define CELLGEN_TILE_HIGH(MR, NV) CELLGEN_TILE(MR, NV, ROWS)
#define CELLGEN_TILE_WIDE(MR, NV) CELLGEN_TILE(MR, NV, COLUMNS)

/* A tile of two narrower ones, FIRST and NEXT vectors wide, side by side: panels of seven and eight
 * vectors would have one row with 16 registers. Cells of seven and eight gates take 0.58 to 0.77 times
 * as long so, at 1000,16,64,64 and 100,32,128,256 with one thread or two; of five and six, 0.96 to 1.04.
 * Six rows of four vectors are faster alone, but steps of an LSTM, whose threads share a third-level
 * cache, took 1.02 (100,32,128,256) and 1.06 times (100,64,512,512) as long as with three rows. */
#define CELLGEN_TILE_BESIDE(MR, NV, FIRST, NEXT)                                                   \
    CELLGEN_INLINE void CELLGEN_S(tile_##MR##x##NV)(                                               \
        const CELLGEN_S(term) * term, int64_t terms, int64_t top, int64_t left, CELLGEN_SUM *c,    \
        int64_t ldc, int64_t lanes, int64_t lanes_b, int accumulate)                               \
    {                                                                                              \
        const int64_t width = FIRST * CELLGEN_LANES;                                               \
        CELLGEN_S(tile_##MR##x##FIRST)                                                             \
        (term, terms, top, left, c, ldc, CELLGEN_LANES, CELLGEN_LANES, accumulate);                \
        CELLGEN_S(tile_##MR##x##NEXT)                                                              \
        (term, terms, top, left + width, c + width, ldc, lanes, lanes_b, accumulate);              \
    }

#if CELLGEN_ONLY_TILES == 3
CELLGEN_TILE_HIGH(1, 1)
CELLGEN_TILE_HIGH(1, 2)
CELLGEN_TILE_HIGH(1, 3)
CELLGEN_TILE_HIGH(1, 4)
CELLGEN_TILE_BESIDE(1, 5, 4, 1)
CELLGEN_TILE_BESIDE(1, 6, 4, 2)
CELLGEN_TILE_BESIDE(1, 7, 4, 3)
CELLGEN_TILE_BESIDE(1, 8, 4, 4)
#elif CELLGEN_VECTOR_REGISTERS == 32
CELLGEN_COUNT_8(CELLGEN_TILE_HIGH, 1)
CELLGEN_COUNT_8(CELLGEN_TILE_HIGH, 2)
CELLGEN_COUNT_8(CELLGEN_TILE_HIGH, 3)
CELLGEN_COUNT_6(CELLGEN_TILE_HIGH, 4)
CELLGEN_COUNT_4(CELLGEN_TILE_WIDE, 5)
CELLGEN_TILE_HIGH(5, 5)
CELLGEN_COUNT_4(CELLGEN_TILE_WIDE, 6)
CELLGEN_COUNT_3(CELLGEN_TILE_WIDE, 7)
CELLGEN_COUNT_3(CELLGEN_TILE_WIDE, 8)
#else
CELLGEN_COUNT_8(CELLGEN_TILE_HIGH, 1)
CELLGEN_COUNT_6(CELLGEN_TILE_HIGH, 2)
CELLGEN_COUNT_4(CELLGEN_TILE_HIGH, 3)
CELLGEN_COUNT_3(CELLGEN_TILE_WIDE, 4)
CELLGEN_COUNT_2(CELLGEN_TILE_WIDE, 5)
CELLGEN_COUNT_2(CELLGEN_TILE_WIDE, 6)
CELLGEN_COUNT_1(CELLGEN_TILE_WIDE, 7)
CELLGEN_TILE_BESIDE(2, 7, 4, 3)
CELLGEN_TILE_BESIDE(3, 7, 4, 3)
CELLGEN_COUNT_1(CELLGEN_TILE_WIDE, 8)
CELLGEN_TILE_BESIDE(2, 8, 4, 4)
CELLGEN_TILE_BESIDE(3, 8, 4, 4)
#endif

/* Columns of `vectors` vectors and any number of rows, split evenly into the fewest tiles. */
#define CELLGEN_CASE(MR, NV)                                                                       \
    case MR:                                                                                       \
        CELLGEN_S(tile_##MR##x##NV)(term, terms, top, 0, c, ldc, lanes, lanes_b, accumulate);      \
        break;
#define CELLGEN_COLUMN(NV, MAX)                                                                    \
    CELLGEN_OUTLINE void CELLGEN_S(column_##NV)(                                                   \
        int64_t M, const CELLGEN_S(term) * term, int64_t terms, CELLGEN_SUM *c, int64_t ldc,       \
        int64_t lanes, int64_t lanes_b, int accumulate)                                            \
    {                                                                                              \
        int64_t tiles = M <= MAX ? 1 : (M + MAX - 1) / MAX;                                        \
        for (int64_t top = 0; M > 0; --tiles) {                                                    \
            const int64_t rows = tiles == 1 ? M : (M + tiles - 1) / tiles;                         \
            switch (rows) {                                                                        \
                CELLGEN_COUNT_##MAX(CELLGEN_CASE, NV)                                              \
            default:                                                                               \
                break;                                                                             \
            }                                                                                      \
            c += rows * ldc;                                                                       \
            top += rows;                                                                           \
            M -= rows;                                                                             \
        }                                                                                          \
    }
#if CELLGEN_ONLY_TILES == 3
CELLGEN_COLUMN(1, 1)
CELLGEN_COLUMN(2, 1)
CELLGEN_COLUMN(3, 1)
CELLGEN_COLUMN(4, 1)
CELLGEN_COLUMN(5, 1)
CELLGEN_COLUMN(6, 1)
CELLGEN_COLUMN(7, 1)
CELLGEN_COLUMN(8, 1)
#elif CELLGEN_VECTOR_REGISTERS == 32
CELLGEN_COLUMN(1, 8)
CELLGEN_COLUMN(2, 8)
CELLGEN_COLUMN(3, 8)
CELLGEN_COLUMN(4, 6)
CELLGEN_COLUMN(5, 5)
CELLGEN_COLUMN(6, 4)
CELLGEN_COLUMN(7, 3)
CELLGEN_COLUMN(8, 3)
#else
CELLGEN_COLUMN(1, 8)
CELLGEN_COLUMN(2, 6)
CELLGEN_COLUMN(3, 4)
CELLGEN_COLUMN(4, 3)
CELLGEN_COLUMN(5, 2)
CELLGEN_COLUMN(6, 2)
CELLGEN_COLUMN(7, 3)
CELLGEN_COLUMN(8, 3)
#endif

/* with a constant `vectors` one call remains */
CELLGEN_INLINE void CELLGEN_S(column)(int64_t M, int64_t vectors, const CELLGEN_S(term) * term,
                                      int64_t terms, CELLGEN_SUM *c, int64_t ldc, int64_t lanes,
                                      int64_t lanes_b, int accumulate)
{
#define CELLGEN_CASE_COLUMN(NV, E)                                                                 \
    case NV:                                                                                       \
        CELLGEN_S(column_##NV)(M, term, terms, c, ldc, lanes, lanes_b, accumulate);                \
        break;
    switch (vectors) {
        CELLGEN_COUNT_8(CELLGEN_CASE_COLUMN, 0)
    default:
        break;
    }
#undef CELLGEN_CASE_COLUMN
}

/* The same of one operand. */
CELLGEN_INLINE void CELLGEN_S(column_of)(int64_t M, int64_t vectors, int64_t K,
                                         const CELLGEN_LEFT *a, int64_t a_row, int64_t a_step,
                                         const CELLGEN_REAL *b, int64_t b_step, CELLGEN_SUM *c,
                                         int64_t ldc, int64_t lanes, int64_t lanes_b, int accumulate)
{
    const CELLGEN_S(term) term = {K, a, a_row, a_step, b, b_step, {b, 0}, 0};
    CELLGEN_S(column)(M, vectors, &term, 1, c, ldc, lanes, lanes_b, accumulate);
}

#if CELLGEN_ONLY_TILES < 2
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

/* ------------------------------------------------------------------------- weight gradients
 * Many products A^T B over the same K rows, which add up from the last row to the first. Operands are
 * named by their numbers, so that each is packed once for all products it is part of: every A^T in
 * its `packed`, min(K, CELLGEN_DEPTH) elements a row, a panel of B at a time on the stack (backward
 * pass of an LSTM: 0.94 of the time of one product after the other at 32 rows, 128 inputs and 256
 * units, 0.95 at 64, 512 and 512). Threads take rows from `begin` to `end` of every result. */

typedef struct {
    int64_t begin, end; /* rows of A^T */
    const CELLGEN_REAL *a;
    int64_t lda;
    CELLGEN_REAL *packed; /* for all rows of all threads */
} CELLGEN_S(left);
typedef struct {
    int64_t columns;
    const CELLGEN_REAL *b;
    int64_t ldb;
} CELLGEN_S(right);
typedef struct {
    int left, right;
    CELLGEN_REAL *c; /* all rows */
    int64_t ldc;
    int accumulate;
} CELLGEN_S(outer);

/* Where block `turn` of `turns` begins in the rows of an operand. */
CELLGEN_INLINE int64_t CELLGEN_S(left_block)(const CELLGEN_S(left) * left, int64_t turn,
                                             int64_t turns)
{
    return left->begin + (left->end - left->begin) * turn / turns;
}

CELLGEN_INLINE CELLGEN_REAL *CELLGEN_S(left_packed)(const CELLGEN_S(left) * left, int64_t K)
{
    return left->packed + left->begin * (K < CELLGEN_DEPTH ? K : CELLGEN_DEPTH);
}

/* All products of one right operand, over `depth` of K rows from row k on, with block `turn` of the
 * left ones, which is packed already. */
CELLGEN_STATIC void CELLGEN_S(outers_of)(const CELLGEN_S(left) * lefts,
                                         const CELLGEN_S(right) * right, int number,
                                         const CELLGEN_S(outer) * outers, int count, int64_t K,
                                         int64_t k, int64_t depth, int64_t turn, int64_t turns,
                                         int onto)
{
    CELLGEN_ALIGNED CELLGEN_REAL panel[CELLGEN_BUFFER_BYTES / sizeof(CELLGEN_REAL)];
    const int64_t lanes = CELLGEN_LANES, width = CELLGEN_PANEL_VECTORS * lanes;
    const int64_t N = right->columns, ldb = right->ldb;
    int64_t panels = (N + width - 1) / width;
    for (int64_t j = 0, remaining = (N + lanes - 1) / lanes; remaining > 0; --panels) {
        const int64_t vectors = (remaining + panels - 1) / panels, step = vectors * lanes;
        const int64_t columns = N - j < step ? N - j : step;
        CELLGEN_S(pack_rows)(depth, vectors, columns, right->b + k * ldb + j, -ldb, panel, step);
        for (int i = 0; i < count; ++i) {
            const CELLGEN_S(outer) *const outer = outers + i;
            if (outer->right != number)
                continue;
            const CELLGEN_S(left) *const left = lefts + outer->left;
            const int64_t first = CELLGEN_S(left_block)(left, turn, turns);
            const int64_t rows = CELLGEN_S(left_block)(left, turn + 1, turns) - first;
            CELLGEN_S(packed_tiles)
            (rows, vectors, depth, CELLGEN_S(left_packed)(left, K), panel,
             outer->c + first * outer->ldc + j, outer->ldc, columns - (vectors - 1) * lanes,
             onto || outer->accumulate);
        }
        remaining -= vectors;
        j += step;
    }
}

CELLGEN_STATIC void CELLGEN_S(gemm_outers)(const CELLGEN_S(left) * lefts, int left_count,
                                           const CELLGEN_S(right) * rights, int right_count,
                                           const CELLGEN_S(outer) * outers, int count, int64_t K)
{
    const int64_t end = K > 0 ? K - 1 : 0;
    int64_t rows = 0, columns = 0, highest = 0;
    int packed = 0;
    for (int i = 0; i < left_count; ++i) {
        const int64_t own = lefts[i].end - lefts[i].begin;
        rows += own;
        highest = own > highest ? own : highest;
    }
    for (int i = 0; i < right_count; ++i) {
        columns += rights[i].columns;
        packed |= !CELLGEN_S(in_place)(highest, K, rights[i].b, rights[i].ldb);
    }
    if (!packed || K <= 0 || columns < 2 * CELLGEN_PANEL_VECTORS * CELLGEN_LANES) {
        for (int i = 0; i < count; ++i) {
            const CELLGEN_S(left) left = lefts[outers[i].left];
            const CELLGEN_S(right) right = rights[outers[i].right];
            CELLGEN_S(gemm)
            (left.end - left.begin, right.columns, K, left.a + left.begin + end * left.lda, 1,
             -left.lda, right.b + end * right.ldb, -right.ldb, 0,
             outers[i].c + left.begin * outers[i].ldc, outers[i].ldc, outers[i].accumulate);
        }
        return;
    }
    const int64_t turns = (rows + CELLGEN_PACKED_ROWS - 1) / CELLGEN_PACKED_ROWS;
    const int64_t depths = (K + CELLGEN_DEPTH - 1) / CELLGEN_DEPTH;
    for (int64_t done = 0, turn_k = 0, depth; turn_k < depths; ++turn_k, done += depth) {
        depth = (K - done + depths - turn_k - 1) / (depths - turn_k);
        for (int64_t turn = 0; turn < turns; ++turn) {
            for (int i = 0; i < left_count; ++i) {
                const CELLGEN_S(left) *const left = lefts + i;
                const int64_t first = CELLGEN_S(left_block)(left, turn, turns);
                const int64_t partition = CELLGEN_S(left_block)(left, turn + 1, turns) - first;
                CELLGEN_S(pack_tiles)
                (partition, CELLGEN_S(panel_tiles)(partition), depth,
                 left->a + first + (end - done) * left->lda, -left->lda,
                 CELLGEN_S(left_packed)(left, K));
            }
            for (int i = 0; i < right_count; ++i)
                CELLGEN_S(outers_of)
                (lefts, rights + i, i, outers, count, K, end - done, depth, turn, turns, done > 0);
        }
    }
}
#endif

/* -------------------------------------------------------------------------- packed weights
 * The columns of a product that belong together are `slots` columns per unit (the gates):
 * column slot*slot_stride + unit. A panel holds a block of vectors*LANES units of every slot,
 * [block][k][slot][vectors*LANES], so that one tile holds all gates of its units; units beyond the
 * last are zeros. slots*vectors <= CELLGEN_TILE_VECTORS_MAX. */

/* blocks of units, and elements in all panels */
CELLGEN_STATIC int64_t CELLGEN_S(panels_blocks)(int64_t units, int64_t vectors)
{
    return (units + vectors * CELLGEN_LANES - 1) / (vectors * CELLGEN_LANES);
}
CELLGEN_STATIC int64_t CELLGEN_S(panels_size)(int64_t K, int64_t slots, int64_t units,
                                              int64_t vectors)
{
    return CELLGEN_S(panels_blocks)(units, vectors) * K * slots * vectors * CELLGEN_LANES;
}

#if !CELLGEN_ONLY_TILES
/* Pack w(K, columns), or w(columns, K) if `transposed`, into panels that are `block_stride`
 * elements apart: K*slots*vectors*LANES, or more where several operands share the panels
 * ([x; h]: the second matrix starts at out + I*slots*vectors*LANES). */
CELLGEN_STATIC void CELLGEN_S(pack_panels)(int64_t K, const CELLGEN_REAL *w, int64_t ldw,
                                           int transposed, int64_t slots, int64_t units,
                                           int64_t slot_stride, int64_t vectors, CELLGEN_REAL *out,
                                           int64_t block_stride)
{
    const int64_t width = vectors * CELLGEN_LANES;
    for (int64_t unit = 0; unit < units; unit += width, out += block_stride)
        for (int64_t slot = 0; slot < slots; ++slot) {
            const int64_t column = slot * slot_stride + unit;
            const int64_t columns = units - unit < width ? units - unit : width;
            if (transposed)
                CELLGEN_S(pack_transposed)
                (K, vectors, columns, w + column * ldw, ldw, out + slot * width, slots * width);
            else
                CELLGEN_S(pack_rows)
                (K, vectors, columns, w + column, ldw, out + slot * width, slots * width);
        }
}
#endif

/* c(rows, vectors*LANES) (+)= A(rows, K) panel: whole vectors of c are written. Any number of rows;
 * up to cellgen_tile_rows(vectors) it is one tile. Let `vectors` be a constant. */
CELLGEN_INLINE void CELLGEN_S(tile)(int64_t rows, int64_t vectors, int64_t K, const CELLGEN_REAL *a,
                                    int64_t lda, const CELLGEN_REAL *panel, CELLGEN_SUM *c,
                                    int64_t ldc, int accumulate)
{
    CELLGEN_S(column_of)
    (rows, vectors, K, a, lda, 1, panel, vectors * CELLGEN_LANES, c, ldc, CELLGEN_LANES,
     CELLGEN_LANES, accumulate);
}

/* More rows than a tile has, over panels that the second-level cache does not hold beside them: all
 * tiles take a slice of k after the other, which stays there meanwhile. The chain is the same. */
CELLGEN_OUTLINE void CELLGEN_S(tiles_deep)(int64_t rows, int64_t vectors,
                                           const CELLGEN_S(term) * term, int64_t terms,
                                           CELLGEN_SUM *c, int64_t ldc, int accumulate)
{
    const int64_t highest = cellgen_tile_rows(vectors), tiles = (rows + highest - 1) / highest;
    const int64_t pace = cellgen_pace(tiles, vectors);
    const void *const ahead = term->ahead.at;
    for (; terms > 0; --terms, ++term) {
        const int64_t slices = term->K > 0 ? (term->K + CELLGEN_SLICE - 1) / CELLGEN_SLICE : 1;
        for (int64_t slice = 0, k = 0, depth; slice < slices; ++slice, k += depth, accumulate = 1) {
            depth = (term->K - k + slices - slice - 1) / (slices - slice);
            const CELLGEN_REAL *const b = term->b + k * term->b_step;
            const void *const next = slice + 1 < slices ? b + depth * term->b_step
                                     : terms > 1        ? term[1].b
                                                        : ahead;
            for (int64_t tile = 0, top = 0, height; tile < tiles; ++tile, top += height) {
                height = (rows - top + tiles - tile - 1) / (tiles - tile);
                const CELLGEN_S(term) here = {
                    depth, term->a + top * term->a_row + k * term->a_step, term->a_row,
                    term->a_step, b, term->b_step,
                    cellgen_part(next, tile, pace, depth, vectors), 0};
                CELLGEN_S(column)
                (height, vectors, &here, 1, c + top * ldc, ldc, CELLGEN_LANES, CELLGEN_LANES,
                 accumulate);
            }
        }
    }
}

/* The same of several operands, each with its panel, in one chain that never leaves the registers
 * while the rows are one tile. */
CELLGEN_INLINE void CELLGEN_S(tile_of)(int64_t rows, int64_t vectors, const CELLGEN_S(term) * term,
                                       int64_t terms, CELLGEN_SUM *c, int64_t ldc, int accumulate)
{
    if (rows > cellgen_tile_rows(vectors))
        CELLGEN_S(tiles_deep)(rows, vectors, term, terms, c, ldc, accumulate);
    else
        CELLGEN_S(column)
        (rows, vectors, term, terms, c, ldc, CELLGEN_LANES, CELLGEN_LANES, accumulate);
}

#if !CELLGEN_ONLY_TILES
/* C(M,N) (+)= A(M,K) B(K,N), B packed with slots = 1, units = N */
CELLGEN_STATIC void CELLGEN_S(gemm_panels)(int64_t M, int64_t N, int64_t K, const CELLGEN_REAL *a,
                                           int64_t lda, const CELLGEN_REAL *panels, int64_t vectors,
                                           int64_t block_stride, CELLGEN_SUM *c, int64_t ldc,
                                           int accumulate)
{
    const int64_t width = vectors * CELLGEN_LANES;
    for (int64_t j = 0; j < N; j += width, panels += block_stride) {
        const int64_t columns = N - j < width ? N - j : width;
        /* a last panel that is not full is computed without its empty vectors */
        const int64_t used = (columns + CELLGEN_LANES - 1) / CELLGEN_LANES;
        CELLGEN_S(column_of)
        (M, used, K, a, lda, 1, panels, width, c + j, ldc, columns - (used - 1) * CELLGEN_LANES,
         CELLGEN_LANES, accumulate);
    }
}
#endif
#endif

#undef CELLGEN_ONLY_TILES
#undef CELLGEN_REAL
#undef CELLGEN_LEFT
#undef CELLGEN_SUM
#undef CELLGEN_S
#undef CELLGEN_C
#undef CELLGEN_LANES
