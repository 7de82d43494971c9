/* Work along units, one after the other. Written by `cellgen build` from the table
 * cellgen/language/ops/running.py; edit that, not this file.
 *
 * A row is so many heads, of each so many units, of each so many elements, `after`. */
#ifndef CELLGEN_RUNNING_H
#define CELLGEN_RUNNING_H

#include "cellgen.h"
#include "cellgen_math.h"

/* cumsum: each unit the sum of those up to it */
CELLGEN_MATH void cellgen_cumsum_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            float *y_first = y + row * y_row + first;
            float total = 0;
            for (int64_t unit = 0; unit < units; ++unit) {
                const float a_unit = a_first[unit * after];
                const float y_unit = total + a_unit;
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* cumsum: each unit the sum of those up to it */
CELLGEN_MATH void cellgen_cumsum_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            double *y_first = y + row * y_row + first;
            double total = 0;
            for (int64_t unit = 0; unit < units; ++unit) {
                const double a_unit = a_first[unit * after];
                const double y_unit = total + a_unit;
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* cumsum_reversed: each unit the sum of those from it on */
CELLGEN_MATH void cellgen_cumsum_reversed_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            float *y_first = y + row * y_row + first;
            float total = 0;
            for (int64_t unit = units - 1; unit >= 0; --unit) {
                const float a_unit = a_first[unit * after];
                const float y_unit = total + a_unit;
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* cumsum_reversed: each unit the sum of those from it on */
CELLGEN_MATH void cellgen_cumsum_reversed_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            double *y_first = y + row * y_row + first;
            double total = 0;
            for (int64_t unit = units - 1; unit >= 0; --unit) {
                const double a_unit = a_first[unit * after];
                const double y_unit = total + a_unit;
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* shifted: each unit that before it */
CELLGEN_MATH void cellgen_shifted_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            float *y_first = y + row * y_row + first;
            float total = 0;
            for (int64_t unit = 0; unit < units; ++unit) {
                const float a_unit = a_first[unit * after];
                const float y_unit = total;
                total = a_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* shifted: each unit that before it */
CELLGEN_MATH void cellgen_shifted_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            double *y_first = y + row * y_row + first;
            double total = 0;
            for (int64_t unit = 0; unit < units; ++unit) {
                const double a_unit = a_first[unit * after];
                const double y_unit = total;
                total = a_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* shifted_from_1: each unit that before it */
CELLGEN_MATH void cellgen_shifted_from_1_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            float *y_first = y + row * y_row + first;
            float total = 1;
            for (int64_t unit = 0; unit < units; ++unit) {
                const float a_unit = a_first[unit * after];
                const float y_unit = total;
                total = a_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* shifted_from_1: each unit that before it */
CELLGEN_MATH void cellgen_shifted_from_1_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            double *y_first = y + row * y_row + first;
            double total = 1;
            for (int64_t unit = 0; unit < units; ++unit) {
                const double a_unit = a_first[unit * after];
                const double y_unit = total;
                total = a_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* shifted_from_least: each unit that before it */
CELLGEN_MATH void cellgen_shifted_from_least_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            float *y_first = y + row * y_row + first;
            float total = -INFINITY;
            for (int64_t unit = 0; unit < units; ++unit) {
                const float a_unit = a_first[unit * after];
                const float y_unit = total;
                total = a_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* shifted_from_least: each unit that before it */
CELLGEN_MATH void cellgen_shifted_from_least_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            double *y_first = y + row * y_row + first;
            double total = -INFINITY;
            for (int64_t unit = 0; unit < units; ++unit) {
                const double a_unit = a_first[unit * after];
                const double y_unit = total;
                total = a_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* shifted_back: each unit that after it, the last 0 */
CELLGEN_MATH void cellgen_shifted_back_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            float *y_first = y + row * y_row + first;
            float total = 0;
            for (int64_t unit = units - 1; unit >= 0; --unit) {
                const float a_unit = a_first[unit * after];
                const float y_unit = total;
                total = a_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* shifted_back: each unit that after it, the last 0 */
CELLGEN_MATH void cellgen_shifted_back_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            double *y_first = y + row * y_row + first;
            double total = 0;
            for (int64_t unit = units - 1; unit >= 0; --unit) {
                const double a_unit = a_first[unit * after];
                const double y_unit = total;
                total = a_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* linear_scan: y_k = a_k y_(k-1) + b_k; an a_k of 0 begins anew */
CELLGEN_MATH void cellgen_linear_scan_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, const float *b, int64_t b_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            const float *b_first = b + row * b_row + first;
            float *y_first = y + row * y_row + first;
            float total = 0;
            for (int64_t unit = 0; unit < units; ++unit) {
                const float a_unit = a_first[unit * after];
                const float b_unit = b_first[unit * after];
                const float y_unit = a_unit == 0 ? b_unit : a_unit * total + b_unit;
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* linear_scan: y_k = a_k y_(k-1) + b_k; an a_k of 0 begins anew */
CELLGEN_MATH void cellgen_linear_scan_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, const double *b, int64_t b_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            const double *b_first = b + row * b_row + first;
            double *y_first = y + row * y_row + first;
            double total = 0;
            for (int64_t unit = 0; unit < units; ++unit) {
                const double a_unit = a_first[unit * after];
                const double b_unit = b_first[unit * after];
                const double y_unit = a_unit == 0 ? b_unit : a_unit * total + b_unit;
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* linear_scan_transposed: y_k = b_k + a_(k+1) y_(k+1), from the last on */
CELLGEN_MATH void cellgen_linear_scan_transposed_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, const float *b, int64_t b_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            const float *b_first = b + row * b_row + first;
            float *y_first = y + row * y_row + first;
            float total = 0;
            for (int64_t unit = units - 1; unit >= 0; --unit) {
                const float a_unit = a_first[unit * after];
                const float b_unit = b_first[unit * after];
                const float y_unit = total + b_unit;
                total = a_unit == 0 ? 0 : a_unit * y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* linear_scan_transposed: y_k = b_k + a_(k+1) y_(k+1), from the last on */
CELLGEN_MATH void cellgen_linear_scan_transposed_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, const double *b, int64_t b_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            const double *b_first = b + row * b_row + first;
            double *y_first = y + row * y_row + first;
            double total = 0;
            for (int64_t unit = units - 1; unit >= 0; --unit) {
                const double a_unit = a_first[unit * after];
                const double b_unit = b_first[unit * after];
                const double y_unit = total + b_unit;
                total = a_unit == 0 ? 0 : a_unit * y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* cumprod: each unit the product of those up to it */
CELLGEN_MATH void cellgen_cumprod_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            float *y_first = y + row * y_row + first;
            float total = 1;
            for (int64_t unit = 0; unit < units; ++unit) {
                const float a_unit = a_first[unit * after];
                const float y_unit = total * a_unit;
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* cumprod: each unit the product of those up to it */
CELLGEN_MATH void cellgen_cumprod_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            double *y_first = y + row * y_row + first;
            double total = 1;
            for (int64_t unit = 0; unit < units; ++unit) {
                const double a_unit = a_first[unit * after];
                const double y_unit = total * a_unit;
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* cummax: each unit the largest of those up to it; a NaN counts as the largest */
CELLGEN_MATH void cellgen_cummax_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            float *y_first = y + row * y_row + first;
            float total = -INFINITY;
            for (int64_t unit = 0; unit < units; ++unit) {
                const float a_unit = a_first[unit * after];
                const float y_unit = a_unit >= total || a_unit != a_unit ? a_unit : total;
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* cummax: each unit the largest of those up to it; a NaN counts as the largest */
CELLGEN_MATH void cellgen_cummax_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            double *y_first = y + row * y_row + first;
            double total = -INFINITY;
            for (int64_t unit = 0; unit < units; ++unit) {
                const double a_unit = a_first[unit * after];
                const double y_unit = a_unit >= total || a_unit != a_unit ? a_unit : total;
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* logcumsumexp: log(exp(y_(k-1)) + exp(a_k)), with no overflow */
CELLGEN_MATH void cellgen_logcumsumexp_f32(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const float *a, int64_t a_row, float *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const float *a_first = a + row * a_row + first;
            float *y_first = y + row * y_row + first;
            float total = -INFINITY;
            for (int64_t unit = 0; unit < units; ++unit) {
                const float a_unit = a_first[unit * after];
                const float y_unit = (a_unit > total ? a_unit : total) + cellgen_log1p_f32(cellgen_exp_f32(a_unit == total ? 0 : -cellgen_abs_f32(a_unit - total)));
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

/* logcumsumexp: log(exp(y_(k-1)) + exp(a_k)), with no overflow */
CELLGEN_MATH void cellgen_logcumsumexp_f64(
    int64_t rows, int64_t heads, int64_t units, int64_t after,
    const double *a, int64_t a_row, double *y, int64_t y_row)
{
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t each = 0; each < heads * after; ++each) {
            const int64_t first = each / after * units * after + each % after;
            const double *a_first = a + row * a_row + first;
            double *y_first = y + row * y_row + first;
            double total = -INFINITY;
            for (int64_t unit = 0; unit < units; ++unit) {
                const double a_unit = a_first[unit * after];
                const double y_unit = (a_unit > total ? a_unit : total) + cellgen_log1p_f64(cellgen_exp_f64(a_unit == total ? 0 : -cellgen_abs_f64(a_unit - total)));
                total = y_unit;
                y_first[unit * after] = y_unit;
            }
        }
}

#endif
