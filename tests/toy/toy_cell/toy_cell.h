/* toy_cell: s = x @ w + b[:H],  h = alpha * s + b[H:] * h_prev */
#ifndef TOY_CELL_H
#define TOY_CELL_H

#include "toy_mini.h"
#include "cellgen.h"
#include "cellgen_descriptor.h"

#define TOY_DECLARE(suffix, real) \
    typedef struct { \
        const real *x; const real *h_prev; const real *w; const real *b; double alpha; \
        real *h; real *s; void *workspace; int64_t workspace_bytes; \
    } toy_cell_forward_args_##suffix; \
    typedef struct { \
        const real *w; const real *b; double alpha; const real *d_h; const real *d_s; \
        real *d_x; real *d_h_prev; \
        void *workspace; int64_t workspace_bytes; \
    } toy_cell_backward_args_##suffix; \
    typedef struct { const real *x; const real *d_s; real *d_w; } \
        toy_cell_weight_gradients_args_##suffix; \
    int toy_cell_forward_##suffix(int64_t nB, int64_t nI, int64_t nH, \
                                  const toy_cell_forward_args_##suffix *args); \
    int64_t toy_cell_forward_workspace_size_##suffix(int64_t nB, int64_t nI, int64_t nH); \
    int toy_cell_backward_##suffix(int64_t nB, int64_t nI, int64_t nH, \
                                   const toy_cell_backward_args_##suffix *args); \
    int64_t toy_cell_backward_workspace_size_##suffix(int64_t nB, int64_t nI, int64_t nH); \
    int toy_cell_weight_gradients_##suffix(int64_t nB, int64_t nI, int64_t nH, \
                                           const toy_cell_weight_gradients_args_##suffix *args);

TOY_DECLARE(f32, float)
TOY_DECLARE(f64, double)

#endif
