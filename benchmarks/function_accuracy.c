/* Every float32 input of one function of cellgen_math.h against libm in double.
 *
 *     function_accuracy NAME THREADS
 *
 * prints one line: four pairs of a figure and the bits of an input where it occurs
 *     worst_ulp         |y - f(x)| in units of the last place of f(x), where |f(x)| >= 2^-126
 *     worst_subnormal   |y - f(x)| / 2^-126 elsewhere (0 included)
 *     worst_absolute    |y - f(x)| anywhere that |f(x)| <= 1
 *     wrong             inputs where y is a NaN and f(x) is not or the reverse, or f(x) is infinite
 *                       and y is not, or x and f(x) are zeros and y has the other sign
 * The double reference is good to about 2^-51 relative: 1e-8 ulp of float. The inputs go through
 * arrays, so that the compiler vectorises what is tested as it does in a kernel. */
#include "cellgen_math.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 14, BLOCK = 1 << 8 };
#define CHUNKS (((int64_t)1 << 32) / CHUNK)

#define FUNCTIONS(F)                                                                               \
    F(exp) F(expm1) F(log) F(log1p) F(tanh) F(sigmoid) F(softplus) F(log_sigmoid)                  \
    F(sqrt) F(sin) F(cos) F(erf) F(abs) F(sign) F(relu) F(hard_sigmoid)                            \
    F(quick_tanh) F(quick_sigmoid)

#define LOOPS(NAME)                                                                                \
    static void NAME##_f32(const float *restrict x, float *restrict y)                             \
    {                                                                                              \
        for (int unit = 0; unit < CHUNK; unit++) y[unit] = cellgen_##NAME##_f32(x[unit]);          \
    }                                                                                              \
    static void NAME##_f64(const float *restrict x, double *restrict y)                            \
    {                                                                                              \
        for (int unit = 0; unit < CHUNK; unit++) y[unit] = cellgen_##NAME##_f64((double)x[unit]);  \
    }
FUNCTIONS(LOOPS)

typedef struct {
    const char *name;
    void (*tested)(const float *restrict, float *restrict);
    void (*reference)(const float *restrict, double *restrict);
} function_row;

#define ROW(NAME) {#NAME, NAME##_f32, NAME##_f64},
static const function_row functions[] = {FUNCTIONS(ROW)};

typedef struct {
    double ulp, subnormal, absolute;
    int64_t wrong;
    uint32_t ulp_input, subnormal_input, absolute_input, wrong_input;
} worst;

static const function_row *function;
static int64_t next_chunk = 0;
static worst total;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double from_bits_f64(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^(floor(log2 |x|) - 23) for a normal double x */
static double last_place_f32(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return from_bits_f64((bits & 0x7ff0000000000000u) - ((uint64_t)23 << 52));
}

/* 2^128 (1 + 2^-20): beyond it not even a rounding error explains a finite result */
#define OVERFLOWS 0x1.00001p128

/* NaN where f is NaN, infinity where f is or overflows, f's zero at x = +-0, a number elsewhere */
static int special_value_right(float x, double y, double f)
{
    if (f != f) return y != y;
    if (fabs(f) > OVERFLOWS) return y == (f < 0 ? -INFINITY : INFINITY);
    if (x == 0 && f == 0) return y == 0 && !signbit(y) == !signbit(f);
    return y == y;
}

/* Compare one input and keep what is worse than w. Infinity counts as 2^128, the next number after
 * the largest: just below it a result may overflow, or not, by its rounding error. */
static void compare(uint32_t input, float x, double y, double f, worst *w)
{
    if (!special_value_right(x, y, f)) {
        if (w->wrong++ == 0) w->wrong_input = input;
        return;
    }
    if (!(fabs(f) <= OVERFLOWS)) return;
    const double value = fabs(y) > 0x1p128 ? (y < 0 ? -0x1p128 : 0x1p128) : y;
    const double reference = fabs(f) > 0x1p128 ? (f < 0 ? -0x1p128 : 0x1p128) : f;
    const double error = fabs(value - reference);
    if (fabs(f) <= 1 && error > w->absolute) w->absolute = error, w->absolute_input = input;
    if (fabs(f) >= 0x1p-126) {
        const double ulp = error / last_place_f32(reference);
        if (ulp > w->ulp) w->ulp = ulp, w->ulp_input = input;
    } else if (error * 0x1p126 > w->subnormal) {
        w->subnormal = error * 0x1p126, w->subnormal_input = input;
    }
}

/* Whether nothing in a block can change w: all ordinary numbers, no error larger. Vectorised. */
static int nothing_worse(const float *x, const float *y, const double *f, const worst *w)
{
    const double ulp = w->ulp, subnormal = w->subnormal * 0x1p-126, absolute = w->absolute;
    int64_t worse = x[0] == 0; /* +-0 are first in their blocks */
    for (int unit = 0; unit < BLOCK; unit++) {
        const double size = fabs(f[unit]), error = fabs((double)y[unit] - f[unit]);
        const double bound = size >= 0x1p-126 ? ulp * last_place_f32(f[unit]) : subnormal;
        const double tighter = size <= 1 && absolute < bound ? absolute : bound;
        const int64_t exceeds = size < 0x1p127 && error <= tighter ? 0 : 1;
        worse |= exceeds;
    }
    return worse == 0;
}

static void *walk(void *unused)
{
    float *x = malloc(CHUNK * sizeof *x), *y = malloc(CHUNK * sizeof *y);
    double *f = malloc(CHUNK * sizeof *f);
    worst w = {0};
    if (!x || !y || !f) abort();
    for (;;) {
        pthread_mutex_lock(&lock);
        const int64_t chunk = next_chunk++;
        pthread_mutex_unlock(&lock);
        if (chunk >= CHUNKS) break;
        if (chunk % (CHUNKS / 20) == 0)
            fprintf(stderr, "\r%-12s %3d %%", function->name, (int)(100 * chunk / CHUNKS));
        const uint32_t first = (uint32_t)(chunk * CHUNK);
        for (uint32_t unit = 0; unit < CHUNK; unit++) x[unit] = cellgen_from_bits_f32(first + unit);
        function->tested(x, y);
        function->reference(x, f);
        for (uint32_t unit = 0; unit < CHUNK; unit++) {
            if (unit % BLOCK == 0 && nothing_worse(x + unit, y + unit, f + unit, &w))
                unit += BLOCK - 1;
            else
                compare(first + unit, x[unit], (double)y[unit], f[unit], &w);
        }
    }
    pthread_mutex_lock(&lock);
    if (w.ulp > total.ulp) total.ulp = w.ulp, total.ulp_input = w.ulp_input;
    if (w.absolute > total.absolute) {
        total.absolute = w.absolute;
        total.absolute_input = w.absolute_input;
    }
    if (w.subnormal > total.subnormal) {
        total.subnormal = w.subnormal;
        total.subnormal_input = w.subnormal_input;
    }
    if (w.wrong) total.wrong += w.wrong, total.wrong_input = w.wrong_input;
    pthread_mutex_unlock(&lock);
    free(x);
    free(y);
    free(f);
    return unused;
}

int main(int argc, char **argv)
{
    const int threads = argc == 3 ? atoi(argv[2]) : 0;
    for (size_t row = 0; argc == 3 && row < sizeof functions / sizeof *functions; row++)
        if (strcmp(functions[row].name, argv[1]) == 0) function = &functions[row];
    if (!function || threads < 1 || threads > 256) {
        fprintf(stderr, "usage: function_accuracy NAME THREADS; NAME is one of");
        for (size_t row = 0; row < sizeof functions / sizeof *functions; row++)
            fprintf(stderr, " %s", functions[row].name);
        fprintf(stderr, "\n");
        return 2;
    }
    pthread_t workers[256];
    for (int worker = 0; worker < threads; worker++)
        if (pthread_create(&workers[worker], NULL, walk, NULL)) return 2;
    for (int worker = 0; worker < threads; worker++) pthread_join(workers[worker], NULL);
    fprintf(stderr, "\r%-12s 100 %%\n", function->name);
    printf("%.6f %08x %.6g %08x %.6g %08x %lld %08x\n", total.ulp, total.ulp_input,
           total.subnormal, total.subnormal_input, total.absolute, total.absolute_input,
           (long long)total.wrong, total.wrong_input);
    return 0;
}
