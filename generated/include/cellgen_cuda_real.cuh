/* One element type's names: include once per instantiation of a body, after
 *     #define CELLGEN_STORE 32      (float), 64 (double) or 16 (bfloat16)
 * It defines
 *     store                     what arrays of the caller hold
 *     real                      what is computed in: float for float and bfloat16, else double
 *     CELLGEN_CUDA_NAME(stem)   stem_f32, stem_f64 or stem_bf16
 *     cg_<function>             the scalar functions of cellgen_math.h, over real
 * and replaces what an earlier inclusion defined. Deliberately without an include guard. */

#undef CELLGEN_PRECISION
#if CELLGEN_STORE == 64
#define CELLGEN_PRECISION 64
#else
#define CELLGEN_PRECISION 32
#endif
#include "cellgen_real.h"

#undef cg_gemm_nn /* of the C runtime; those of cellgen_cuda.cuh are functions */
#undef cg_gemm_nt
#undef cg_gemm_tn
#undef cg_sum_to
#undef cg_first_max
#undef cg_spread

#undef store
#undef CELLGEN_CUDA_NAME
#if CELLGEN_STORE == 16
#define store __nv_bfloat16
#define CELLGEN_CUDA_NAME(stem) CELLGEN_PASTE(stem, _bf16)
#elif CELLGEN_STORE == 32 || CELLGEN_STORE == 64
#define store real
#define CELLGEN_CUDA_NAME(stem) CELLGEN_NAME(stem)
#else
#error "CELLGEN_STORE must be 16, 32 or 64"
#endif
