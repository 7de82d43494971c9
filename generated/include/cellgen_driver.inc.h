/* The time driver: runs a function over time as its tables say. The body of cellgen_driver_f32.c and cellgen_driver_f64.c,
 * which are compiled once per machine, compiler and flags and linked with every cell. A program without Python
 * compiles both beside the cells: cc main.c lstm.c cellgen_driver_f32.c cellgen_driver_f64.c -lm -lpthread */
#if !defined(_DEFAULT_SOURCE) && !defined(_POSIX_C_SOURCE)
#define _DEFAULT_SOURCE /* threads and clocks, under -std=c11 too */
#endif

#include "cellgen_real.h"
#include "cellgen_gemm.h"
#include "cellgen_gemm_bf16.h"
#include "cellgen_gemm_int8.h"
#include "cellgen_over_time.inc.h" /* and cellgen_driver.h */
CELLGEN_BEGIN_LIGHT
#include "cellgen_modes.inc.h"
#include "cellgen_row_block.inc.h"
#include "cellgen_place.inc.h"
#include "cellgen_needs.inc.h"
CELLGEN_END_LIGHT
#include "cellgen_bf16.inc.h"
#include "cellgen_stored.inc.h"
#include "cellgen_int8.inc.h"
CELLGEN_BEGIN_LIGHT
#include "cellgen_stage.inc.h"
#include "cellgen_steps.inc.h"
#include "cellgen_forward.inc.h"
#include "cellgen_band.inc.h"
#include "cellgen_segment.inc.h"
#include "cellgen_backward.inc.h"
CELLGEN_END_LIGHT
#include "cellgen_per_row.inc.h"

#define CELLGEN_PRODUCT(name)                                                                      \
    void CELLGEN_NAME(cellgen_product_##name)(int64_t M, int64_t N, int64_t K, const real *a,      \
                                              int64_t lda, const real *b, int64_t ldb, real *c,    \
                                              int64_t ldc, int accumulate)                         \
    {                                                                                              \
        CELLGEN_NAME(cellgen_gemm_##name)(M, N, K, a, lda, b, ldb, c, ldc, accumulate);            \
    }
CELLGEN_PRODUCT(nn)
CELLGEN_PRODUCT(nt)
CELLGEN_PRODUCT(tn)
#undef CELLGEN_PRODUCT
