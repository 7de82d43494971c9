/* Scalar functions of the generated kernels, float (_f32) and double (_f64). C99 and C++.
 *
 * exp, expm1, log, log1p, tanh, sigmoid, softplus and log_sigmoid in float are straight-line code
 * (selects, no branches, no calls, no tables), so that a compiler turns a loop over units into
 * vector instructions. At most 4 ulp on normal results over all 2^32 inputs; a subnormal result is
 * within 2^-126 (sigmoid, softplus and log_sigmoid round some of them to 0); infinities, NaN,
 * signed zeros and saturation are exact. benchmarks/function_accuracy.py walks every input; the figure at
 * each function is what it finds (with fma; 2.61 ulp is the worst without). Other functions are libm's.
 *
 * Every multiplication that feeds an addition is an explicit fma where the machine has one, so
 * that a vector lane, a remainder loop and a single call give the same bits. Compile with
 * -fno-math-errno -fno-trapping-math -ffp-contract=off and without -ffast-math: NaN must pass.
 *
 * Chosen at compile time:
 *     CELLGEN_EXACT_MATH   float functions are libm's in double, rounded once
 *     CELLGEN_FAST_MATH    tanh and sigmoid in float are a rational function (see there)
 *
 * Polynomials: minimax fits by a linear programme on 400 Chebyshev nodes; the coefficients are
 * rounded to float one by one from the lowest degree and the others refitted each time. The fit's
 * error given with each is that of the rounded coefficients, relative to the function
 * (benchmarks/function_accuracy.py --coefficients repeats the fits).
 * Written by `cellgen build` from templates/include/cellgen_math.h.j2; edit that, not this file. */
#ifndef CELLGEN_MATH_H
#define CELLGEN_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(CELLGEN_EXACT_MATH) && defined(CELLGEN_FAST_MATH)
#error "CELLGEN_EXACT_MATH and CELLGEN_FAST_MATH exclude each other"
#endif

/* `static inline`, and inlined whatever its size: a call in a loop would stop vectorisation. For CUDA
 * the functions are the same, on the device and on the host. */
#if defined(__CUDACC__)
#define CELLGEN_MATH __host__ __device__ __forceinline__
#elif (defined(__GNUC__) || defined(__clang__)) && !defined(CELLGEN_PLAIN)
#define CELLGEN_MATH static inline __attribute__((always_inline, unused))
#else
#define CELLGEN_MATH static inline
#endif

/* ------------------------------------------------------------------------- bits and fma, float */

CELLGEN_MATH uint32_t cellgen_bits_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

CELLGEN_MATH float cellgen_from_bits_f32(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#if !defined(CELLGEN_HAS_FMA)
#if defined(__CUDACC__) || defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
#define CELLGEN_HAS_FMA 1
#else
#define CELLGEN_HAS_FMA 0
#endif
#endif

/* a b + c, rounded once where the machine has the instruction */
CELLGEN_MATH float cellgen_madd_f32(float a, float b, float c)
{
#if CELLGEN_HAS_FMA
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* ------------------------------------------------- selections, comparisons: both precisions */

#define CELLGEN_SELECTIONS(S, REAL, FABS, FLOOR, RINT, ATAN2)                                      \
    CELLGEN_MATH REAL cellgen_abs_##S(REAL x) { return FABS(x); }                                  \
    CELLGEN_MATH REAL cellgen_floor_##S(REAL x) { return FLOOR(x); }                               \
    /* round: the nearest whole number; of two, the even one */                                    \
    CELLGEN_MATH REAL cellgen_round_##S(REAL x) { return RINT(x); }                                \
    /* atan2: the angle of the point (x, y), in (-pi, pi] */                                       \
    CELLGEN_MATH REAL cellgen_atan2_##S(REAL y, REAL x) { return ATAN2(y, x); }                    \
    /* sign: 1, -1 or 0; NaN stays */                                                              \
    CELLGEN_MATH REAL cellgen_sign_##S(REAL x)                                                     \
    {                                                                                              \
        return x > 0 ? (REAL)1 : (x < 0 ? (REAL)-1 : (x != x ? x : (REAL)0));                      \
    }                                                                                              \
    /* maximum, minimum: a NaN in either argument passes; the first argument wins a tie */         \
    CELLGEN_MATH REAL cellgen_maximum_##S(REAL a, REAL b)                                          \
    {                                                                                              \
        const REAL most = a < b ? b : a; /* a nested choice would keep GCC from vectors */         \
        return b != b ? b : most;                                                                  \
    }                                                                                              \
    CELLGEN_MATH REAL cellgen_minimum_##S(REAL a, REAL b)                                          \
    {                                                                                              \
        const REAL least = a > b ? b : a;                                                          \
        return b != b ? b : least;                                                                 \
    }                                                                                              \
    /* clip: maximum(minimum(x, hi), lo) */                                                        \
    CELLGEN_MATH REAL cellgen_clip_##S(REAL x, REAL lo, REAL hi)                                   \
    {                                                                                              \
        return cellgen_maximum_##S(cellgen_minimum_##S(x, hi), lo);                                \
    }                                                                                              \
    /* relu: x if x > 0, else 0; NaN stays */                                                      \
    CELLGEN_MATH REAL cellgen_relu_##S(REAL x) { return x <= 0 ? (REAL)0 : x; }                    \
    /* hard_sigmoid: clip(x/6 + 1/2, 0, 1) (Keras 3), as (x + 3)/6, which stays accurate near -3 */\
    CELLGEN_MATH REAL cellgen_hard_sigmoid_##S(REAL x)                                             \
    {                                                                                              \
        return cellgen_clip_##S((x + (REAL)3) * (REAL)(1.0 / 6.0), (REAL)0, (REAL)1);              \
    }                                                                                              \
    CELLGEN_MATH REAL cellgen_gt_##S(REAL a, REAL b) { return a > b ? (REAL)1 : (REAL)0; }         \
    CELLGEN_MATH REAL cellgen_ge_##S(REAL a, REAL b) { return a >= b ? (REAL)1 : (REAL)0; }        \
    CELLGEN_MATH REAL cellgen_lt_##S(REAL a, REAL b) { return a < b ? (REAL)1 : (REAL)0; }         \
    CELLGEN_MATH REAL cellgen_le_##S(REAL a, REAL b) { return a <= b ? (REAL)1 : (REAL)0; }        \
    /* where: a where c is not 0, else b */                                                        \
    CELLGEN_MATH REAL cellgen_where_##S(REAL c, REAL a, REAL b) { return c != 0 ? a : b; }         \
    /* strong_product: a b, but 0 where a factor is 0: infinity and NaN times 0 too */             \
    CELLGEN_MATH REAL cellgen_strong_product_##S(REAL a, REAL b)                                   \
    {                                                                                              \
        return ((a == 0) | (b == 0)) ? (REAL)0 : a * b;                                            \
    }
CELLGEN_SELECTIONS(f32, float, fabsf, floorf, rintf, atan2f)
CELLGEN_SELECTIONS(f64, double, fabs, floor, rint, atan2)
#undef CELLGEN_SELECTIONS

/* --------------------------------------------------------------------------- double: libm */

CELLGEN_MATH double cellgen_exp_f64(double x) { return exp(x); }
CELLGEN_MATH double cellgen_expm1_f64(double x) { return expm1(x); }
CELLGEN_MATH double cellgen_log_f64(double x) { return log(x); }
CELLGEN_MATH double cellgen_log1p_f64(double x) { return log1p(x); }
CELLGEN_MATH double cellgen_tanh_f64(double x) { return tanh(x); }
CELLGEN_MATH double cellgen_sqrt_f64(double x) { return sqrt(x); }
CELLGEN_MATH double cellgen_sin_f64(double x) { return sin(x); }
CELLGEN_MATH double cellgen_cos_f64(double x) { return cos(x); }
CELLGEN_MATH double cellgen_pow_f64(double x, double y) { return pow(x, y); }
CELLGEN_MATH double cellgen_erf_f64(double x) { return erf(x); }

/* 1/(1 + e^-x), for x < 0 as e^x/(1 + e^x): no overflow, relatively accurate in both tails */
CELLGEN_MATH double cellgen_sigmoid_f64(double x)
{
    const double e = exp(-fabs(x));
    return (x < 0 ? e : 1.0) / (1.0 + e);
}

CELLGEN_MATH double cellgen_quick_tanh_f64(double x) { return cellgen_tanh_f64(x); }
CELLGEN_MATH double cellgen_quick_sigmoid_f64(double x) { return cellgen_sigmoid_f64(x); }

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|) */
CELLGEN_MATH double cellgen_softplus_f64(double x)
{
    return (x > 0 ? x : 0.0) + log1p(exp(-fabs(x)));
}

/* log(sigmoid(x)) = -softplus(-x) */
CELLGEN_MATH double cellgen_log_sigmoid_f64(double x) { return -cellgen_softplus_f64(-x); }

#if defined(CELLGEN_EXACT_MATH)

/* ----------------------------------------------------------- float, exact: double, rounded once */

#define CELLGEN_ROUNDED(NAME)                                                                      \
    CELLGEN_MATH float cellgen_##NAME##_f32(float x)                                               \
    {                                                                                              \
        return (float)cellgen_##NAME##_f64((double)x);                                             \
    }
CELLGEN_ROUNDED(exp)
CELLGEN_ROUNDED(expm1)
CELLGEN_ROUNDED(log)
CELLGEN_ROUNDED(log1p)
CELLGEN_ROUNDED(tanh)
CELLGEN_ROUNDED(sigmoid)
CELLGEN_ROUNDED(softplus)
CELLGEN_ROUNDED(log_sigmoid)
CELLGEN_ROUNDED(sin)
CELLGEN_ROUNDED(cos)
CELLGEN_ROUNDED(erf)
#undef CELLGEN_ROUNDED
CELLGEN_MATH float cellgen_quick_tanh_f32(float x) { return cellgen_tanh_f32(x); }
CELLGEN_MATH float cellgen_quick_sigmoid_f32(float x) { return cellgen_sigmoid_f32(x); }

CELLGEN_MATH float cellgen_sqrt_f32(float x) { return sqrtf(x); } /* correctly rounded */
CELLGEN_MATH float cellgen_pow_f32(float x, float y) { return (float)pow((double)x, (double)y); }

#else

/* ------------------------------------------------------------------------------- float: libm */

CELLGEN_MATH float cellgen_sqrt_f32(float x) { return sqrtf(x); } /* correctly rounded */
CELLGEN_MATH float cellgen_sin_f32(float x) { return sinf(x); }
CELLGEN_MATH float cellgen_cos_f32(float x) { return cosf(x); }
CELLGEN_MATH float cellgen_pow_f32(float x, float y) { return powf(x, y); }
CELLGEN_MATH float cellgen_erf_f32(float x) { return erff(x); }

/* ------------------------------------------------------------------ float: exponential family
 *
 * Range reduction (Cody and Waite, Software Manual for the Elementary Functions, 1980):
 *     e^x = 2^n e^r,  n = round(x log2(e)),  r = x - n ln 2,  |r| <= ln(2)/2
 * with ln 2 = LN2_HIGH + LN2_LOW, where n LN2_HIGH is exact (16 bits by at most 8).
 *
 * Rounding to an integer: the sum of x log2(e) and 1.5 2^23 + 127 has its last place at 1, so that
 * its low bits are the integer n + 127, the exponent field of 2^n. */

#define CELLGEN_LOG2_E 1.44269504f
#define CELLGEN_LN2_HIGH 0.693145752f        /* 0x1.62e4p-1 */
#define CELLGEN_LN2_LOW 1.42860682e-6f       /* ln 2 - LN2_HIGH */
#define CELLGEN_ROUND_TO_INTEGER 12583039.0f /* 1.5 2^23 + 127 */

/* r = x - n ln 2 */
CELLGEN_MATH float cellgen_minus_n_ln2_f32(float x, float n)
{
    return cellgen_madd_f32(n, -CELLGEN_LN2_LOW, cellgen_madd_f32(n, -CELLGEN_LN2_HIGH, x));
}

/* 2^n from the sum that holds n + 127 in its low bits; n = -127 gives 0 */
CELLGEN_MATH float cellgen_power_of_two_f32(float sum)
{
    return cellgen_from_bits_f32(cellgen_bits_f32(sum) << 23);
}

/* e^r - 1 = r + r^2 P(r) on |r| <= ln(2)/2, P of degree 4; error of the fit 1.4e-8 relative.
 * (r P) r instead of r^2 P: r^2 would be subnormal, and slow, for small r. */
CELLGEN_MATH float cellgen_expm1_reduced_f32(float r)
{
    float p = 0.00138706702f;
    p = cellgen_madd_f32(p, r, 0.00836626254f);
    p = cellgen_madd_f32(p, r, 0.0416674353f);
    p = cellgen_madd_f32(p, r, 0.166665465f);
    p = cellgen_madd_f32(p, r, 0.49999997f);
    return cellgen_madd_f32(r * p, r, r);
}

/* e^x. The scale 2^n is applied in two factors, because n reaches 128 (the largest results are
 * below 2^128) and -150 (subnormal results, rounded like any other). At most 1.06 ulp. */
CELLGEN_MATH float cellgen_exp_f32(float x)
{
    x = x > 89.0f ? 89.0f : x;     /* infinity from 88.73 */
    x = x < -104.0f ? -104.0f : x; /* 0 from -103.98 */
    const float sum = cellgen_madd_f32(x, CELLGEN_LOG2_E, CELLGEN_ROUND_TO_INTEGER);
    const float n = sum - CELLGEN_ROUND_TO_INTEGER;
    const float q = cellgen_expm1_reduced_f32(cellgen_minus_n_ln2_f32(x, n));
    /* 2^(n - 64) 2^64 or 2^(n + 64) 2^-64: the exponent field is 23 bits up, modulo 2^32 */
    const uint32_t shift = x > 0 ? (uint32_t)-64 << 23 : (uint32_t)64 << 23;
    const float rest = x > 0 ? 18446744073709551616.0f : 5.42101086e-20f;
    const float scale = cellgen_from_bits_f32((cellgen_bits_f32(sum) << 23) + shift);
    return cellgen_madd_f32(scale, q, scale) * rest;
}

/* e^x - 1 = 2 (2^(n-1) q + (2^(n-1) - 1/2)), q = e^r - 1: no cancellation, and n = 128 is in range.
 * For n = 0 it is q itself. The sign is x's, also at -0. At most 1.57 ulp. */
CELLGEN_MATH float cellgen_expm1_f32(float x)
{
    float z = x > 89.0f ? 89.0f : x;
    z = z < -30.0f ? -30.0f : z; /* -1 from -17.4 */
    const float sum = cellgen_madd_f32(z, CELLGEN_LOG2_E, CELLGEN_ROUND_TO_INTEGER - 1.0f);
    const float n = sum - (CELLGEN_ROUND_TO_INTEGER - 1.0f);
    const float q = cellgen_expm1_reduced_f32(cellgen_minus_n_ln2_f32(z, n));
    const float half_scale = cellgen_power_of_two_f32(sum);
    const float scaled = 2.0f * cellgen_madd_f32(half_scale, q, half_scale - 0.5f);
    return copysignf(n == 0 ? q : scaled, x);
}

/* log(1 + e^x) = max(x, 0) + log(1 + e), e = e^-|x|; on 0 <= e <= 1
 *     log(1 + e) = e + e^2 Q(e), Q of degree 8; error of the fit 5.3e-9 relative.
 * Below -87.68 the result is 0. At most 1.97 ulp. */
CELLGEN_MATH float cellgen_softplus_f32(float x)
{
    float a = fabsf(x);
    a = a > 88.0f ? 88.0f : a; /* n >= -127: the scale becomes 0 */
    const float sum = cellgen_madd_f32(a, -CELLGEN_LOG2_E, CELLGEN_ROUND_TO_INTEGER);
    const float n = sum - CELLGEN_ROUND_TO_INTEGER;
    const float q = cellgen_expm1_reduced_f32(cellgen_minus_n_ln2_f32(-a, n));
    const float scale = cellgen_power_of_two_f32(sum);
    const float e = cellgen_madd_f32(scale, q, scale);
    float p = -0.0033250337f;
    p = cellgen_madd_f32(p, e, 0.0202355329f);
    p = cellgen_madd_f32(p, e, -0.0577257834f);
    p = cellgen_madd_f32(p, e, 0.106871814f);
    p = cellgen_madd_f32(p, e, -0.153596237f);
    p = cellgen_madd_f32(p, e, 0.19697012f);
    p = cellgen_madd_f32(p, e, -0.249589399f);
    p = cellgen_madd_f32(p, e, 0.333305508f);
    p = cellgen_madd_f32(p, e, -0.499999344f);
    return (x > 0 ? x : 0.0f) + cellgen_madd_f32(e * p, e, e);
}

/* log(sigmoid(x)) = -softplus(-x). At most 1.97 ulp. */
CELLGEN_MATH float cellgen_log_sigmoid_f32(float x) { return -cellgen_softplus_f32(-x); }

#if defined(CELLGEN_FAST_MATH)

/* tanh(x) = x A(x^2)/B(x^2), A of degree 3, B of degree 4, on |x| <= 8; error of the fit 1.5e-7
 * relative. 1 from 8 on, where tanh is 1 - 2.3e-7. At most 7.89 ulp. One division bounds both
 * forms: this one is 1.1 to 1.2 times as fast as those for time loops. */
CELLGEN_MATH float cellgen_tanh_f32(float x)
{
    const float a = fabsf(x);
    const float u = a * a;
    float p = 1.86468569e-05f;
    p = cellgen_madd_f32(p, u, 0.00481493818f);
    p = cellgen_madd_f32(p, u, 0.210896879f);
    p = cellgen_madd_f32(p, u, 1.63161266f);
    float q = 4.01250844e-07f;
    q = cellgen_madd_f32(q, u, 0.000389416993f);
    q = cellgen_madd_f32(q, u, 0.0388578065f);
    q = cellgen_madd_f32(q, u, 0.754765928f);
    q = cellgen_madd_f32(q, u, 1.6316129f);
    float y = a * p / q;
    y = y > 1.0f ? 1.0f : y;
    y = a > 8.0f ? 1.0f : y;
    return copysignf(y, x);
}

/* 1/2 + tanh(x/2)/2: within 2.4e-7 absolutely, but not relatively where sigmoid is small: it is 0
 * from -16 down. */
CELLGEN_MATH float cellgen_sigmoid_f32(float x)
{
    return cellgen_madd_f32(0.5f, cellgen_tanh_f32(0.5f * x), 0.5f);
}

#else

/* sinh(x)/cosh(x) = m/(m + 1), m = (e^2|x| - 1)/2, which is relatively accurate near 0.
 * With h = |x| - n ln(2)/2 (|h| <= ln(2)/4) and q = (e^2h - 1)/2 = h + h^2 P2(h):
 *     m = 2^n q + (2^n - 1)/2
 * P2(h) = 2 P(2h), the polynomial of expm1 with coefficients times powers of two: no error added.
 * At most 1.65 ulp with fma, 2.61 without. */
CELLGEN_MATH float cellgen_tanh_f32(float x)
{
    float a = fabsf(x);
    a = a > 10.0f ? 10.0f : a; /* 1 from 9.02 */
    const float sum = cellgen_madd_f32(a, 2.0f * CELLGEN_LOG2_E, CELLGEN_ROUND_TO_INTEGER);
    const float n = sum - CELLGEN_ROUND_TO_INTEGER;
#if CELLGEN_HAS_FMA
    /* ln 2 rounded to float is wrong by 1.9e-9, which moves the result by less than 0.1 ulp */
    const float h = cellgen_madd_f32(n, -0.346573591f, a);
#else
    const float h = a - n * (0.5f * CELLGEN_LN2_HIGH) - n * (0.5f * CELLGEN_LN2_LOW);
#endif
    float p = 32.0f * 0.00138706702f;
    p = cellgen_madd_f32(p, h, 16.0f * 0.00836626254f);
    p = cellgen_madd_f32(p, h, 8.0f * 0.0416674353f);
    p = cellgen_madd_f32(p, h, 4.0f * 0.166665465f);
    p = cellgen_madd_f32(p, h, 2.0f * 0.49999997f);
    const float q = cellgen_madd_f32(h * p, h, h);
    const float scale = cellgen_power_of_two_f32(sum);
    const float shift = cellgen_madd_f32(scale, 0.5f, -0.5f);
    const float m = cellgen_madd_f32(scale, q, shift);
    const float d = m + 1.0f;
    const float inverse = 1.0f / d;
    float y = m * inverse;
#if CELLGEN_HAS_FMA
    /* what m and m + 1 lost to rounding, and from it a correction of the quotient */
    const float m_low = cellgen_madd_f32(scale, q, shift - m);
    const float large = m > 1.0f ? m : 1.0f, small = m > 1.0f ? 1.0f : m;
    const float d_low = small - (d - large) + m_low;
    const float rest = cellgen_madd_f32(-y, d, m) + cellgen_madd_f32(-y, d_low, m_low);
    y = cellgen_madd_f32(rest, inverse, y);
#endif
    return copysignf(y, x);
}

/* 1/(1 + e^-x) = 1/((1 + 2^n) + 2^n q), e^-x = 2^n (1 + q): 1 + 2^n is exact for |n| < 24.
 * Subnormal results (x < -87.34) are 0. At most 1.14 ulp with fma, 2.45 without. */
CELLGEN_MATH float cellgen_sigmoid_f32(float x)
{
    float z = -x;
    z = z > 88.0f ? 88.0f : z;
    z = z < -88.0f ? -88.0f : z;
    const float sum = cellgen_madd_f32(z, CELLGEN_LOG2_E, CELLGEN_ROUND_TO_INTEGER);
    const float n = sum - CELLGEN_ROUND_TO_INTEGER;
    const float q = cellgen_expm1_reduced_f32(cellgen_minus_n_ln2_f32(z, n));
    const float scale = cellgen_power_of_two_f32(sum);
    const float shift = 1.0f + scale;
    const float d = cellgen_madd_f32(scale, q, shift);
    float y = 1.0f / d;
#if CELLGEN_HAS_FMA
    /* what 1 + 2^n and d lost to rounding, and from it a correction of the quotient */
    const float d_low = cellgen_madd_f32(scale, q, shift - d) + (scale - (shift - 1.0f));
    y = cellgen_madd_f32(cellgen_madd_f32(-d_low, y, cellgen_madd_f32(-d, y, 1.0f)), y, y);
#endif
    return x < -87.3366f ? 0.0f : y;
}

#endif /* CELLGEN_FAST_MATH */

/* tanh and sigmoid for time loops, where they are up to a third of the work of small layers: the
 * same, uncorrected, so that fewer operations wait for each other: 1.6 times as fast in a loop of
 * five functions. At most 2.54 and 2.41 ulp, with fma or without. */
#if defined(CELLGEN_FAST_MATH)
CELLGEN_MATH float cellgen_quick_tanh_f32(float x) { return cellgen_tanh_f32(x); }
CELLGEN_MATH float cellgen_quick_sigmoid_f32(float x) { return cellgen_sigmoid_f32(x); }
#else
CELLGEN_MATH float cellgen_quick_tanh_f32(float x)
{
    float a = fabsf(x);
    a = a > 10.0f ? 10.0f : a;
    const float sum = cellgen_madd_f32(a, 2.0f * CELLGEN_LOG2_E, CELLGEN_ROUND_TO_INTEGER);
    const float n = sum - CELLGEN_ROUND_TO_INTEGER;
#if CELLGEN_HAS_FMA
    const float h = cellgen_madd_f32(n, -0.346573591f, a);
#else
    const float h = a - n * (0.5f * CELLGEN_LN2_HIGH) - n * (0.5f * CELLGEN_LN2_LOW);
#endif
    float p = 32.0f * 0.00138706702f;
    p = cellgen_madd_f32(p, h, 16.0f * 0.00836626254f);
    p = cellgen_madd_f32(p, h, 8.0f * 0.0416674353f);
    p = cellgen_madd_f32(p, h, 4.0f * 0.166665465f);
    p = cellgen_madd_f32(p, h, 2.0f * 0.49999997f);
    const float q = cellgen_madd_f32(h * p, h, h);
    const float scale = cellgen_power_of_two_f32(sum);
    const float m = cellgen_madd_f32(scale, q, cellgen_madd_f32(scale, 0.5f, -0.5f));
    return copysignf(m / (m + 1.0f), x);
}

/* 1/(1 + e) for x >= 0, e/(1 + e) for x < 0, e = e^-|x| = 2^n (1 + q): one bound, no overflow.
 * Subnormal results are 0, since n = -127 scales by 0, or right. */
CELLGEN_MATH float cellgen_quick_sigmoid_f32(float x)
{
    float a = fabsf(x);
    a = a > 88.0f ? 88.0f : a;
    const float sum = cellgen_madd_f32(a, -CELLGEN_LOG2_E, CELLGEN_ROUND_TO_INTEGER);
    const float n = sum - CELLGEN_ROUND_TO_INTEGER;
    const float q = cellgen_expm1_reduced_f32(cellgen_minus_n_ln2_f32(-a, n));
    const float scale = cellgen_power_of_two_f32(sum);
    const float e = cellgen_madd_f32(scale, q, scale);
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}
#endif

/* ---------------------------------------------------------------------- float: logarithms
 *
 * x = 2^k m, 2/3 <= m < 4/3, f = m - 1:  log x = k ln 2 + log(1 + f)
 *     log(1 + f) = f + f^2 L(f) on |f| <= 1/3, L of degree 8; error of the fit 4.6e-9 relative.
 * Subtracting the bits of 2/3 leaves k in the exponent field and m's distance from 2/3 below it. */

#define CELLGEN_TWO_THIRDS 0x3f2aaaabu
#define CELLGEN_ONE 0x3f800000u
#define CELLGEN_EXPONENT 0x7f800000u

CELLGEN_MATH float cellgen_log1p_reduced_f32(float f)
{
    float p = -0.128800288f;
    p = cellgen_madd_f32(p, f, 0.139845937f);
    p = cellgen_madd_f32(p, f, -0.121874809f);
    p = cellgen_madd_f32(p, f, 0.14005734f);
    p = cellgen_madd_f32(p, f, -0.166801959f);
    p = cellgen_madd_f32(p, f, 0.200104266f);
    p = cellgen_madd_f32(p, f, -0.249998063f);
    p = cellgen_madd_f32(p, f, 0.333332151f);
    p = cellgen_madd_f32(p, f, -0.5f);
    return cellgen_madd_f32(f * p, f, f);
}

/* k ln 2 + y */
CELLGEN_MATH float cellgen_plus_k_ln2_f32(float y, float k)
{
    return cellgen_madd_f32(k, CELLGEN_LN2_HIGH, cellgen_madd_f32(k, CELLGEN_LN2_LOW, y));
}

/* log x; a subnormal x is scaled by 2^23 first. At most 0.93 ulp. */
CELLGEN_MATH float cellgen_log_f32(float x)
{
    const float normal = x < 1.17549435e-38f ? 8388608.0f * x : x;
    const float bias = x < 1.17549435e-38f ? -150.0f : -127.0f;
    const uint32_t i = cellgen_bits_f32(normal) - CELLGEN_TWO_THIRDS + CELLGEN_ONE;
    const float k = (float)(int32_t)(i >> 23) + bias;
    const float m = cellgen_from_bits_f32((i & ~CELLGEN_EXPONENT) + CELLGEN_TWO_THIRDS);
    float y = cellgen_plus_k_ln2_f32(cellgen_log1p_reduced_f32(m - 1.0f), k);
    y = x < INFINITY ? y : x; /* infinity and NaN */
    y = x < 0 ? NAN : y;
    return x == 0 ? -INFINITY : y;
}

/* log(1 + x) = k ln 2 + log(1 + f): u = 1 + x rounded = 2^k m, and f = (m - 1) + 2^-k (1 + x - u).
 * The rounding error 1 + x - u is exact (Knuth's two-sum). 2^-k as half of 2^(1-k): k reaches 128.
 * The sign is x's, also at -0. At most 1.56 ulp. */
CELLGEN_MATH float cellgen_log1p_f32(float x)
{
    const float u = 1.0f + x;
    const float x_in_u = u - 1.0f;
    const float error = (1.0f - (u - x_in_u)) + (x - x_in_u);
    const uint32_t i = cellgen_bits_f32(u) - CELLGEN_TWO_THIRDS + CELLGEN_ONE;
    const float k = (float)(int32_t)(i >> 23) - 127.0f;
    const float m = cellgen_from_bits_f32((i & ~CELLGEN_EXPONENT) + CELLGEN_TWO_THIRDS);
    const float scale = cellgen_from_bits_f32(CELLGEN_EXPONENT - (i & CELLGEN_EXPONENT));
    const float f = cellgen_madd_f32(0.5f * error, scale, m - 1.0f);
    float y = cellgen_plus_k_ln2_f32(cellgen_log1p_reduced_f32(f), k);
    y = x < INFINITY ? y : x; /* infinity and NaN */
    y = u == 0 ? -INFINITY : y;
    return x < -1.0f ? NAN : copysignf(y, x);
}

#endif /* CELLGEN_EXACT_MATH */

#endif /* CELLGEN_MATH_H */
