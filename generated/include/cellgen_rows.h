/* Work on rows that is neither a product nor pointwise: a row is so many heads, of each so many units,
 * of each so many elements, `after`.
 *
 * Written by `cellgen build` from templates/include/cellgen_rows.h.j2; edit that, not this file. */
#ifndef CELLGEN_ROWS_H
#define CELLGEN_ROWS_H

#include "cellgen.h"
#include "cellgen_math.h"

#define CELLGEN_ROWS(S, REAL)                                                                      \
    /* first_max: 1 where a head's largest unit stands, the first of equal ones, else 0;           \
     * a NaN counts as the largest */                                                              \
    CELLGEN_MATH void cellgen_first_max_##S(                                                       \
        int64_t rows, int64_t heads, int64_t units, int64_t after,                                 \
        const REAL *a, int64_t a_row, REAL *y, int64_t y_row)                                      \
    {                                                                                              \
        for (int64_t row = 0; row < rows; ++row)                                                   \
            for (int64_t each = 0; each < heads * after; ++each) {                                 \
                const int64_t first = each / after * units * after + each % after;                 \
                const REAL *from = a + row * a_row + first;                                        \
                REAL *to = y + row * y_row + first;                                                \
                int64_t best = 0;                                                                  \
                for (int64_t unit = 1; unit < units; ++unit) {                                     \
                    const REAL x = from[unit * after], most = from[best * after];                  \
                    if (x > most || (x != x && most == most)) best = unit;                         \
                }                                                                                  \
                for (int64_t unit = 0; unit < units; ++unit)                                       \
                    to[unit * after] = unit == best ? 1 : 0;                                       \
            }                                                                                      \
    }
CELLGEN_ROWS(f32, float)
CELLGEN_ROWS(f64, double)
#undef CELLGEN_ROWS

#endif
