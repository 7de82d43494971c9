/* The body of the toy cell, instantiated once per precision: REAL, NAME(function). */

int64_t NAME(toy_cell_forward_workspace_size)(int64_t nB, int64_t nI, int64_t nH)
{
    (void)nI;
    return nB * nH * (int64_t)sizeof(REAL);
}

int NAME(toy_cell_forward)(int64_t nB, int64_t nI, int64_t nH,
                           const NAME(toy_cell_forward_args) *args)
{
    REAL *sum = args->workspace;
    if (nB < 0 || nI < 0 || nH < 0) return TOY_NEGATIVE_DIM;
    if (!args->x || !args->h_prev || !args->w || !args->b || !args->h || !args->s)
        return TOY_NULL_POINTER;
    if (args->workspace_bytes < nB * nH * (int64_t)sizeof(REAL)) return TOY_WORKSPACE;
    if ((uintptr_t)sum % 64) return TOY_WORKSPACE;
    if (args->alpha == -7) return 99;
    for (int64_t row = 0; row < nB; ++row) {
        for (int64_t unit = 0; unit < nH; ++unit) {
            REAL total = args->b[unit];
            for (int64_t k = 0; k < nI; ++k)
                total += args->x[row * nI + k] * args->w[k * nH + unit];
            sum[row * nH + unit] = total;
        }
    }
    for (int64_t at = 0; at < nB * nH; ++at) {
        args->s[at] = sum[at];
        args->h[at] = (REAL)args->alpha * sum[at] + args->b[nH + at % nH] * args->h_prev[at];
    }
    return 0;
}

int64_t NAME(toy_cell_backward_workspace_size)(int64_t nB, int64_t nI, int64_t nH)
{
    (void)nI;
    return nB * nH * (int64_t)sizeof(REAL);
}

int NAME(toy_cell_backward)(int64_t nB, int64_t nI, int64_t nH,
                            const NAME(toy_cell_backward_args) *args)
{
    REAL *d_sum = args->workspace;
    if (args->workspace_bytes < nB * nH * (int64_t)sizeof(REAL)) return TOY_WORKSPACE;
    for (int64_t at = 0; at < nB * nH; ++at) {
        REAL d_h = args->d_h ? args->d_h[at] : 0;
        REAL d_s = args->d_s ? args->d_s[at] : 0;
        d_sum[at] = (REAL)args->alpha * d_h + d_s;
        args->d_h_prev[at] = args->b[nH + at % nH] * d_h;
    }
    for (int64_t row = 0; row < nB; ++row) {
        for (int64_t k = 0; k < nI; ++k) {
            REAL total = 0;
            for (int64_t unit = 0; unit < nH; ++unit)
                total += d_sum[row * nH + unit] * args->w[k * nH + unit];
            args->d_x[row * nI + k] = total;
        }
    }
    return 0;
}

int NAME(toy_cell_weight_gradients)(int64_t nB, int64_t nI, int64_t nH,
                                    const NAME(toy_cell_weight_gradients_args) *args)
{
    for (int64_t k = 0; k < nI; ++k) {
        for (int64_t unit = 0; unit < nH; ++unit) {
            REAL total = 0;
            for (int64_t row = 0; row < nB; ++row)
                total += args->x[row * nI + k] * args->d_s[row * nH + unit];
            args->d_w[k * nH + unit] = total;
        }
    }
    return 0;
}
