/* Vectors along the rows of matrices, in which strips of them are worked at: sums, products and quotients
 * of vectors, and of a vector and a number, are the compiler's. Other compilers than GCC and clang have
 * vectors of one lane. Include after cellgen_driver.h, once per precision: the second half has
 * deliberately no include guard. */
#ifndef CELLGEN_VECTORS_H
#define CELLGEN_VECTORS_H

/* Rows of a matrix that go through loops together, while they are in the first-level cache, and rows that
 * are worked at in one go. */
#define CELLGEN_STRIP_ROWS 16
#define CELLGEN_TURNS 4
#define CELLGEN_STRIP_END(first, rows)                                                             \
    ((rows) - (first) >= CELLGEN_STRIP_ROWS ? (first) + CELLGEN_STRIP_ROWS                         \
     : (rows) - (first) >= CELLGEN_TURNS    ? (rows) - ((rows) - (first)) % CELLGEN_TURNS          \
                                            : (rows))

#endif

#undef cg_vector
#undef cg_sum_four
#undef cg_load
#undef cg_store
#undef cg_all
#undef cg_sum_of
#undef cg_add_lanes
#define cg_vector CELLGEN_NAME(cellgen_vector)
#define cg_sum_four CELLGEN_NAME(cellgen_sum_four)
#define cg_load CELLGEN_NAME(cellgen_load_vector)
#define cg_store CELLGEN_NAME(cellgen_store_vector)
#define cg_all CELLGEN_NAME(cellgen_all)
#define cg_sum_of CELLGEN_NAME(cellgen_sum_of)
#define cg_add_lanes CELLGEN_NAME(cellgen_add_lanes)
#undef CELLGEN_LANES
#if CELLGEN_GNU
#define CELLGEN_LANES CELLGEN_REAL_LANES
typedef real cg_vector __attribute__((vector_size(CELLGEN_VECTOR_BYTES)));
CELLGEN_INLINE cg_vector cg_all(real x)
{
    const cg_vector zero = {0};
    return x - zero;
}
#else
#define CELLGEN_LANES 1
typedef real cg_vector;
CELLGEN_INLINE cg_vector cg_all(real x)
{
    return x;
}
#endif
CELLGEN_INLINE cg_vector cg_load(const real *from)
{
    cg_vector found;
    memcpy(&found, from, sizeof found);
    return found;
}
CELLGEN_INLINE void cg_store(real *to, cg_vector value)
{
    memcpy(to, &value, sizeof value);
}

/* Sums across four vectors: by halves of quarters first, so that all four share them, then by quarters. The sum
 * across one vector adds in the same order. */
#undef CELLGEN_LANE_COUNT
#undef CELLGEN_FIRST_PAIRS
#undef CELLGEN_LAST_PAIRS
#undef CELLGEN_FIRST_TWOS
#undef CELLGEN_LAST_TWOS
#define CELLGEN_LANE_COUNT (CELLGEN_VECTOR_BYTES * 8 / CELLGEN_PRECISION)
#if !(CELLGEN_GNU && (defined(__clang__) || __GNUC__ >= 12)) || CELLGEN_LANE_COUNT < 4
CELLGEN_INLINE real cg_sum_of(cg_vector of)
{
    real lane[CELLGEN_LANES], sum = 0;
    memcpy(lane, &of, sizeof lane);
    for (int i = 0; i < (int)CELLGEN_LANES; ++i) sum += lane[i];
    return sum;
}
CELLGEN_INLINE void cg_add_lanes(const cg_vector *of, const int turns, real *sums)
{
    for (int turn = 0; turn < turns; ++turn) sums[turn] = cg_sum_of(of[turn]);
}
#else
#if CELLGEN_LANE_COUNT == 16
#define CELLGEN_FIRST_PAIRS(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define CELLGEN_LAST_PAIRS(a, b) __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define CELLGEN_FIRST_TWOS(a, b) __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define CELLGEN_LAST_TWOS(a, b) __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#elif CELLGEN_LANE_COUNT == 8
#define CELLGEN_FIRST_PAIRS(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define CELLGEN_LAST_PAIRS(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define CELLGEN_FIRST_TWOS(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define CELLGEN_LAST_TWOS(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#else
#define CELLGEN_FIRST_PAIRS(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define CELLGEN_LAST_PAIRS(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define CELLGEN_FIRST_TWOS(a, b) __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define CELLGEN_LAST_TWOS(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
#endif
CELLGEN_INLINE void cg_sum_four(cg_vector a, cg_vector b, cg_vector c, cg_vector d, real *sums)
{
    enum { quarters = CELLGEN_LANE_COUNT / 4 };
    typedef real quarter __attribute__((vector_size(4 * sizeof(real))));
    const cg_vector ab = CELLGEN_FIRST_PAIRS(a, b) + CELLGEN_LAST_PAIRS(a, b);
    const cg_vector cd = CELLGEN_FIRST_PAIRS(c, d) + CELLGEN_LAST_PAIRS(c, d);
    const cg_vector all = CELLGEN_FIRST_TWOS(ab, cd) + CELLGEN_LAST_TWOS(ab, cd);
    quarter part[quarters];
    memcpy(part, &all, sizeof part);
    for (int width = quarters / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) part[i] += part[i + width];
    memcpy(sums, part, sizeof part[0]);
}
CELLGEN_INLINE real cg_sum_of(cg_vector of)
{
    real sums[4];
    cg_sum_four(of, of, of, of, sums);
    return sums[0];
}
CELLGEN_INLINE void cg_add_lanes(const cg_vector *of, const int turns, real *sums)
{
    if (turns == CELLGEN_TURNS) {
        cg_sum_four(of[0], of[1], of[2], of[3], sums);
        return;
    }
    for (int turn = 0; turn < turns; ++turn) sums[turn] = cg_sum_of(of[turn]);
}
#endif
