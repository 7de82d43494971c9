/* Tiles: products small enough for registers, and columns of them. Part of cellgen_gemm_real.inc.h. */

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

#if CELLGEN_ONLY_TILES && CELLGEN_TILES_ARE == CELLGEN_TILES_ELSEWHERE
#elif CELLGEN_ONLY_TILES == 3
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
#define CELLGEN_COLUMN_HEAD(NV)                                                                    \
    void CELLGEN_S(column_##NV)(                                                                   \
        int64_t M, const CELLGEN_S(term) * term, int64_t terms, CELLGEN_SUM *c, int64_t ldc,       \
        int64_t lanes, int64_t lanes_b, int accumulate)
#define CELLGEN_COLUMN_OF_ALL(NV, E) CELLGEN_COLUMN_HEAD(NV);
#undef CELLGEN_COLUMN_LINKAGE
#if CELLGEN_ONLY_TILES && CELLGEN_TILES_ARE != CELLGEN_TILES_OWN
#define CELLGEN_COLUMN_LINKAGE
CELLGEN_COUNT_8(CELLGEN_COLUMN_OF_ALL, 0)
#else
#define CELLGEN_COLUMN_LINKAGE CELLGEN_OUTLINE
#endif
#define CELLGEN_COLUMN(NV, MAX)                                                                    \
    CELLGEN_COLUMN_LINKAGE CELLGEN_COLUMN_HEAD(NV)                                                 \
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
#if CELLGEN_ONLY_TILES && CELLGEN_TILES_ARE == CELLGEN_TILES_ELSEWHERE
#elif CELLGEN_ONLY_TILES == 3
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
