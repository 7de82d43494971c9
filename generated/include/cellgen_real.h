/* One precision's names: include once per instantiation of a body, after
 *     #define CELLGEN_PRECISION 32      (or 64)
 * It defines
 *     real                 float or double
 *     CELLGEN_NAME(stem)   stem_f32 or stem_f64
 *     cg_<function>        cellgen_<function>_f32 or _f64
 * and replaces what an earlier inclusion defined. Deliberately without an include guard. */

#include "cellgen.h"
#include "cellgen_math.h"
#include "cellgen_rows.h"
#include "cellgen_running.h"

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wunknown-pragmas" /* CELLGEN_SUMS without -fopenmp-simd */
#pragma clang diagnostic ignored "-Wpass-failed"     /* CELLGEN_VECTORIZE permits, and asks for nothing */
#elif defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#endif

#if !defined(CELLGEN_PRECISION)
#error "define CELLGEN_PRECISION as 32 or 64 before including cellgen_real.h"
#elif CELLGEN_PRECISION != 32 && CELLGEN_PRECISION != 64
#error "CELLGEN_PRECISION must be 32 or 64"
#endif

#undef real
#undef CELLGEN_NAME
#undef CELLGEN_PASTE
#undef CELLGEN_PASTE_EXPANDED

/* two steps, so that a stem that is itself a macro is expanded before ## joins it */
#define CELLGEN_PASTE_EXPANDED(stem, suffix) stem##suffix
#define CELLGEN_PASTE(stem, suffix) CELLGEN_PASTE_EXPANDED(stem, suffix)

#if CELLGEN_PRECISION == 32
#define real float
#define CELLGEN_NAME(stem) CELLGEN_PASTE(stem, _f32)
#else
#define real double
#define CELLGEN_NAME(stem) CELLGEN_PASTE(stem, _f64)
#endif

/* Bytes that a workspace array of `count` elements takes, rounded up to cache lines. */
#undef CELLGEN_BYTES
#define CELLGEN_BYTES(count) (((int64_t)(count) * (int64_t)sizeof(real) + 63) / 64 * 64)

/* -------------------------------------------------------------- functions of cellgen_math.h */

#undef cg_exp
#undef cg_expm1
#undef cg_log
#undef cg_log1p
#undef cg_tanh
#undef cg_sigmoid
#undef cg_quick_tanh
#undef cg_quick_sigmoid
#undef cg_softplus
#undef cg_log_sigmoid
#undef cg_sqrt
#undef cg_sin
#undef cg_cos
#undef cg_pow
#undef cg_erf
#undef cg_abs
#undef cg_sign
#undef cg_floor
#undef cg_round
#undef cg_atan2
#undef cg_maximum
#undef cg_minimum
#undef cg_clip
#undef cg_relu
#undef cg_hard_sigmoid
#undef cg_gt
#undef cg_ge
#undef cg_lt
#undef cg_le
#undef cg_where
#undef cg_strong_product

#define cg_exp CELLGEN_NAME(cellgen_exp)
#define cg_expm1 CELLGEN_NAME(cellgen_expm1)
#define cg_log CELLGEN_NAME(cellgen_log)
#define cg_log1p CELLGEN_NAME(cellgen_log1p)
#define cg_tanh CELLGEN_NAME(cellgen_tanh)
#define cg_sigmoid CELLGEN_NAME(cellgen_sigmoid)
#define cg_quick_tanh CELLGEN_NAME(cellgen_quick_tanh)
#define cg_quick_sigmoid CELLGEN_NAME(cellgen_quick_sigmoid)
#define cg_softplus CELLGEN_NAME(cellgen_softplus)
#define cg_log_sigmoid CELLGEN_NAME(cellgen_log_sigmoid)
#define cg_sqrt CELLGEN_NAME(cellgen_sqrt)
#define cg_sin CELLGEN_NAME(cellgen_sin)
#define cg_cos CELLGEN_NAME(cellgen_cos)
#define cg_pow CELLGEN_NAME(cellgen_pow)
#define cg_erf CELLGEN_NAME(cellgen_erf)
#define cg_abs CELLGEN_NAME(cellgen_abs)
#define cg_sign CELLGEN_NAME(cellgen_sign)
#define cg_floor CELLGEN_NAME(cellgen_floor)
#define cg_round CELLGEN_NAME(cellgen_round)
#define cg_atan2 CELLGEN_NAME(cellgen_atan2)
#define cg_maximum CELLGEN_NAME(cellgen_maximum)
#define cg_minimum CELLGEN_NAME(cellgen_minimum)
#define cg_clip CELLGEN_NAME(cellgen_clip)
#define cg_relu CELLGEN_NAME(cellgen_relu)
#define cg_hard_sigmoid CELLGEN_NAME(cellgen_hard_sigmoid)
#define cg_gt CELLGEN_NAME(cellgen_gt)
#define cg_ge CELLGEN_NAME(cellgen_ge)
#define cg_lt CELLGEN_NAME(cellgen_lt)
#define cg_le CELLGEN_NAME(cellgen_le)
#define cg_where CELLGEN_NAME(cellgen_where)
#define cg_strong_product CELLGEN_NAME(cellgen_strong_product)

/* -------------------------------------------------------------- functions of cellgen_rows.h */

#undef cg_first_max

#define cg_first_max CELLGEN_NAME(cellgen_first_max)
#include "cellgen_running_names.h"

/* ------------------------------------------- matrix products of cellgen_gemm.h, names only:
 * a body that uses them includes cellgen_gemm.h itself */

#undef cg_gemm_nn
#undef cg_gemm_nt
#undef cg_gemm_tn
#undef cg_gemm_outers
#undef cg_left
#undef cg_right
#undef cg_outer

#define cg_gemm_nn CELLGEN_NAME(cellgen_gemm_nn)
#define cg_gemm_nt CELLGEN_NAME(cellgen_gemm_nt)
#define cg_gemm_tn CELLGEN_NAME(cellgen_gemm_tn)
#define cg_gemm_outers CELLGEN_NAME(cellgen_gemm_outers)
#define cg_left CELLGEN_NAME(cellgen_left)
#define cg_right CELLGEN_NAME(cellgen_right)
#define cg_outer CELLGEN_NAME(cellgen_outer)
