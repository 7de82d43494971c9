/* Work on rows that is neither a product nor pointwise: heads lie side by side in a row.
 *
 *     first_max   1 where a head's largest unit stands, the first of equal ones, else 0;
 *                 a NaN counts as the largest
 *     sum_to      the sum of each head's units
 *     cumsum      each unit the sum of a head's units up to it; cumsum_reversed from it on
 *     spread      y[row][head][unit] = a at the same place, with stride 0 along an axis that a
 *                 lacks */
#ifndef CELLGEN_ROWS_H
#define CELLGEN_ROWS_H

#include "cellgen.h"
#include "cellgen_math.h"

#if defined(__GNUC__)
#pragma GCC system_header
#endif

#define CELLGEN_ROWS(S, REAL)                                                                      \
    CELLGEN_MATH void cellgen_first_max_##S(int64_t rows, int64_t heads, int64_t units,            \
                                            const REAL *a, int64_t a_row, REAL *y, int64_t y_row)  \
    {                                                                                              \
        for (int64_t row = 0; row < rows; ++row)                                                   \
            for (int64_t head = 0; head < heads; ++head) {                                         \
                const REAL *from = a + row * a_row + head * units;                                 \
                REAL *to = y + row * y_row + head * units;                                         \
                int64_t best = 0;                                                                  \
                for (int64_t unit = 1; unit < units; ++unit)                                       \
                    if (from[unit] > from[best] ||                                                 \
                        (from[unit] != from[unit] && from[best] == from[best]))                    \
                        best = unit;                                                               \
                for (int64_t unit = 0; unit < units; ++unit) to[unit] = unit == best ? 1 : 0;      \
            }                                                                                      \
    }                                                                                              \
    CELLGEN_MATH void cellgen_sum_to_##S(int64_t rows, int64_t heads, int64_t units,               \
                                         const REAL *a, int64_t a_row, REAL *y, int64_t y_row)     \
    {                                                                                              \
        for (int64_t row = 0; row < rows; ++row)                                                   \
            for (int64_t head = 0; head < heads; ++head) {                                         \
                const REAL *from = a + row * a_row + head * units;                                 \
                REAL total = 0;                                                                    \
                CELLGEN_SUMS(total)                                                                \
                for (int64_t unit = 0; unit < units; ++unit) total += from[unit];                  \
                y[row * y_row + head] = total;                                                     \
            }                                                                                      \
    }                                                                                              \
    CELLGEN_MATH void cellgen_cumsum_##S(int64_t rows, int64_t heads, int64_t units,               \
                                         const REAL *a, int64_t a_row, REAL *y, int64_t y_row)     \
    {                                                                                              \
        for (int64_t row = 0; row < rows; ++row)                                                   \
            for (int64_t head = 0; head < heads; ++head) {                                         \
                const REAL *from = a + row * a_row + head * units;                                 \
                REAL *to = y + row * y_row + head * units, total = 0;                              \
                for (int64_t unit = 0; unit < units; ++unit) to[unit] = total += from[unit];       \
            }                                                                                      \
    }                                                                                              \
    CELLGEN_MATH void cellgen_cumsum_reversed_##S(int64_t rows, int64_t heads, int64_t units,      \
                                                  const REAL *a, int64_t a_row,                    \
                                                  REAL *y, int64_t y_row)                          \
    {                                                                                              \
        for (int64_t row = 0; row < rows; ++row)                                                   \
            for (int64_t head = 0; head < heads; ++head) {                                         \
                const REAL *from = a + row * a_row + head * units;                                 \
                REAL *to = y + row * y_row + head * units, total = 0;                              \
                for (int64_t unit = units - 1; unit >= 0; --unit) to[unit] = total += from[unit];  \
            }                                                                                      \
    }                                                                                              \
    CELLGEN_MATH void cellgen_spread_##S(int64_t rows, int64_t heads, int64_t units,               \
                                         const REAL *a, int64_t a_row, int64_t a_head,             \
                                         int64_t a_unit, REAL *y, int64_t y_row)                   \
    {                                                                                              \
        for (int64_t row = 0; row < rows; ++row)                                                   \
            for (int64_t head = 0; head < heads; ++head)                                           \
                for (int64_t unit = 0; unit < units; ++unit)                                       \
                    y[row * y_row + head * units + unit] =                                         \
                        a[row * a_row + head * a_head + unit * a_unit];                            \
    }
CELLGEN_ROWS(f32, float)
CELLGEN_ROWS(f64, double)
#undef CELLGEN_ROWS

#endif
