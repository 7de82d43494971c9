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
#undef cg_quad
#undef cg_load
#undef cg_store
#undef cg_all
#undef cg_quad_of
#undef cg_sum_of
#undef cg_add_lanes
#define cg_vector CELLGEN_NAME(cellgen_vector)
#define cg_quad CELLGEN_NAME(cellgen_quad)
#define cg_load CELLGEN_NAME(cellgen_load_vector)
#define cg_store CELLGEN_NAME(cellgen_store_vector)
#define cg_all CELLGEN_NAME(cellgen_all)
#define cg_quad_of CELLGEN_NAME(cellgen_quad_of)
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

/* The sum of a vector's lanes, by quarters: the same order wherever four vectors are summed at once. */
#undef CELLGEN_HAVE_QUADS
#if CELLGEN_GNU && CELLGEN_VECTOR_BYTES * 8 >= 4 * CELLGEN_PRECISION && (defined(__clang__) || __GNUC__ >= 12)
#define CELLGEN_HAVE_QUADS 1
typedef real cg_quad __attribute__((vector_size(4 * sizeof(real))));
CELLGEN_INLINE cg_quad cg_quad_of(const cg_vector *of)
{
    enum { quads = sizeof *of / sizeof(cg_quad) };
    cg_quad part[quads];
    memcpy(part, of, sizeof part);
    for (int width = quads / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) part[i] += part[i + width];
    return part[0];
}
CELLGEN_INLINE real cg_sum_of(cg_vector of)
{
    const cg_quad four = cg_quad_of(&of);
    return (four[0] + four[2]) + (four[1] + four[3]);
}
#else
#define CELLGEN_HAVE_QUADS 0
CELLGEN_INLINE real cg_sum_of(cg_vector of)
{
    real lane[CELLGEN_LANES], sum = 0;
    memcpy(lane, &of, sizeof lane);
    for (int i = 0; i < (int)CELLGEN_LANES; ++i) sum += lane[i];
    return sum;
}
#endif
CELLGEN_INLINE void cg_add_lanes(const cg_vector *of, const int turns, real *sums)
{
#if CELLGEN_HAVE_QUADS
    if (turns == CELLGEN_TURNS) {
        const cg_quad a = cg_quad_of(of), b = cg_quad_of(of + 1), c = cg_quad_of(of + 2), d = cg_quad_of(of + 3);
        const cg_quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
        const cg_quad cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
        const cg_quad all = __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
        memcpy(sums, &all, sizeof all);
        return;
    }
#endif
    for (int turn = 0; turn < turns; ++turn) sums[turn] = cg_sum_of(of[turn]);
}
