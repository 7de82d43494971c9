/* One element type's names: include once per instantiation of a body, after
 *     #define CELLGEN_STORE f32      or f64, bf16, f16: a row of cellgen_cuda_elements.cuh
 * It defines
 *     store                     what arrays of the caller hold
 *     real                      what is computed in: double for double, else float
 *     CELLGEN_CUDA_NAME(stem)   stem_f32, stem_f64, stem_bf16 or stem_f16
 *     cg_<function>             the scalar functions of cellgen_math.h, over real
 * and replaces what an earlier inclusion defined. Deliberately without an include guard. */

#undef CELLGEN_PRECISION
#define CELLGEN_PRECISION CELLGEN_OF_STORE(CELLGEN_BITS_)
#include "cellgen_real.h"

#undef cg_gemm_nn /* of the C runtime; those of cellgen_cuda.cuh are functions */
#undef cg_gemm_nt
#undef cg_gemm_tn
#undef cg_sum_to
#undef cg_first_max
#undef cg_spread

#if defined(CELLGEN_LAUNCH_OWN)
#undef CELLGEN_LAUNCH
#define CELLGEN_LAUNCH CELLGEN_LAUNCH_OWN
#endif

#undef store
#undef CELLGEN_CUDA_NAME
#define store CELLGEN_OF_STORE(CELLGEN_STORE_)
#define CELLGEN_CUDA_NAME(stem) CELLGEN_PASTE(stem, CELLGEN_OF_STORE(_))
