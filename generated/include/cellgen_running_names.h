/* Names of cellgen_running.h in one precision, for cellgen_real.h. Written by `cellgen build` from the table
 * cellgen/language/ops/running.py; edit that, not this file. */
#undef cg_cumsum
#undef cg_cumsum_reversed
#undef cg_shifted
#undef cg_shifted_from_1
#undef cg_shifted_from_least
#undef cg_shifted_back
#undef cg_linear_scan
#undef cg_linear_scan_transposed
#undef cg_cumprod
#undef cg_cummax
#undef cg_logcumsumexp
#ifndef CELLGEN_STORE
#define cg_cumsum CELLGEN_NAME(cellgen_cumsum)
#define cg_cumsum_reversed CELLGEN_NAME(cellgen_cumsum_reversed)
#define cg_shifted CELLGEN_NAME(cellgen_shifted)
#define cg_shifted_from_1 CELLGEN_NAME(cellgen_shifted_from_1)
#define cg_shifted_from_least CELLGEN_NAME(cellgen_shifted_from_least)
#define cg_shifted_back CELLGEN_NAME(cellgen_shifted_back)
#define cg_linear_scan CELLGEN_NAME(cellgen_linear_scan)
#define cg_linear_scan_transposed CELLGEN_NAME(cellgen_linear_scan_transposed)
#define cg_cumprod CELLGEN_NAME(cellgen_cumprod)
#define cg_cummax CELLGEN_NAME(cellgen_cummax)
#define cg_logcumsumexp CELLGEN_NAME(cellgen_logcumsumexp)
#endif
