/* Products of single steps, whose weights are read where they lie: all slots of a row side by side. Part of
 * cellgen_stage.inc.h. */

#if CELLGEN_PRECISION == 32
/* Weights that the caller has in bfloat16, NULL: in float. Products alone read such ones, in bfloat16. */
CELLGEN_INLINE const uint16_t *cg_narrow_weight(const cg_row_block *b, const cellgen_weight *weight)
{
    const cellgen_options *const options = cg_options_of(b->f, b->at.args);
    if (weight->member == CELLGEN_NONE || !options || !options->stored || options->stored[weight->member] != CELLGEN_STORED_BF16) return 0;
    const uint16_t *const found = (const uint16_t *)(const void *)cg_member(b, weight->member);
    return weight->offset == CELLGEN_NONE ? found : found + cg_length(b, weight->offset);
}

/* c(M, N) (+)= rounded rows times w(K, N), or w(N, K)^T, rounded a panel at a time, which the rows pass over at once;
 * `narrow`: weights that are bfloat16 already, NULL: they are floats. */
CELLGEN_STATIC void cg_gemm_bf16(int way, cellgen_amx *amx, int64_t M, int64_t N, int64_t K, const cellgen_pair *a, int64_t a_row,
                                 const float *w, const uint16_t *narrow, int64_t ldw, int transposed, float *c, int64_t ldc, int accumulate)
{
    CELLGEN_ALIGNED cellgen_pair panel[CELLGEN_BUFFER_BYTES / sizeof(cellgen_pair)];
    const int64_t lanes = CELLGEN_LANES_F32, width = CELLGEN_PANEL_VECTORS * lanes, deepest = way == CELLGEN_BF16_FLOATS ? CELLGEN_DEPTH : 2 * CELLGEN_DEPTH;
    const int own_way = way == CELLGEN_BF16_TILES ? CELLGEN_BF16_PAIRS : way;
    for (int64_t row = 0; row < M && K == 0 && !accumulate; ++row) cg_zero_row(c + row * ldc, N);
    for (int64_t k = 0; k < K; k += deepest) {
        const int64_t depth = K - k < deepest ? K - k : deepest, words = cellgen_bf16_words(way, depth);
        const cellgen_pair *const rows = a + cellgen_bf16_words(way, k);
        for (int64_t j = 0; j < N; j += width) {
            const int64_t columns = N - j < width ? N - j : width, vectors = (columns + lanes - 1) / lanes, step = vectors * lanes;
            const int64_t at = transposed ? j * ldw + k : k * ldw + j;
            const int onto = accumulate || k > 0;
            if (transposed)
                cellgen_pack_transposed_bf16(way, depth, vectors, columns, narrow ? 0 : w + at, narrow ? narrow + at : 0, ldw, panel, step);
            else if (narrow)
                cellgen_pack_rows_of_bf16(way, depth, vectors, columns, narrow + at, ldw, panel, step);
            else
                cellgen_pack_rows_bf16(way, depth, vectors, columns, w + at, ldw, panel, step);
            for (int64_t word = cellgen_bf16_words(own_way, depth) * step; word < words * step; ++word) panel[word] = 0;
#if CELLGEN_AMX
            if (way == CELLGEN_BF16_TILES) {
                const cellgen_term_tiles term = {words / 16, rows, a_row, panel, step, 0};
                cellgen_amx_product(amx, M, columns, &term, 1, c + j, ldc, onto);
                continue;
            }
#endif
#if CELLGEN_AVX512BF16
            if (way == CELLGEN_BF16_PAIRS) {
                cellgen_column_narrow_pairs(M, vectors, words, rows, a_row, 1, panel, step, c + j, ldc, columns - step + lanes, lanes, onto);
                continue;
            }
#endif
            cellgen_column_narrow_f32(M, vectors, words, (const float *)(const void *)rows, a_row, 1, (const float *)(const void *)panel, step,
                                      c + j, ldc, columns - step + lanes, lanes, onto);
        }
    }
    (void)amx;
}
#endif

CELLGEN_OUTLINE void cg_products_in_place(const cg_row_block *b, const cg_stage *stage, const cg_rows *at, const cellgen_rounded *rounded,
                                          cellgen_amx *amx, const cg_blocks *own, int64_t row_begin, int64_t row_end)
{
    const int64_t all = cg_length(b, stage->all_units), slots = stage->slots, rows = row_end - row_begin;
    const int64_t heads = own->of_head ? cg_length(b, stage->heads) : 1;
    const int64_t first = own->of_head ? 0 : own->begin * own->width;
    const int64_t end = own->of_head ? own->units : own->end * own->width < own->units ? own->end * own->width : own->units;
    real *const whole = b->at.memory[stage->whole] + row_begin * slots * all + first;
    for (int64_t head = 0; head < heads; ++head)
        for (int i = 0; i < stage->runs; ++i) {
            const cellgen_run *run = stage->run + i;
            const int64_t inner = cg_length(b, run->inner), row = at[run->use].row;
            const real *operand = cg_operand(b, at, run, head) + row_begin * row;
            for (int j = 0; j < run->weights; ++j) {
                const cellgen_weight *weight = stage->weight + run->first_weight + j;
                const int64_t stride = cg_length(b, weight->stride);
                const int64_t from = (weight->head_step == CELLGEN_NONE ? 0 : head * cg_length(b, weight->head_step)) + (weight->transposed ? first * stride : first);
                const real *w = cg_either(b, weight->member, weight->memory);
                if (weight->offset != CELLGEN_NONE) w += cg_length(b, weight->offset);
                w += from;
                real *out = whole + head * own->units + weight->slot * all;
#if CELLGEN_PRECISION == 32
                if (b->modes.bf16_way) {
                    const uint16_t *const narrow = cg_narrow_weight(b, weight);
                    cg_gemm_bf16(b->modes.bf16_way, amx, rows, end - first, inner, cg_rounded_row(b, stage, rounded, i, row_begin, head), rounded->stride, w,
                                 narrow ? narrow + from : 0, stride, weight->transposed, out, slots * all, !weight->begins);
                    continue;
                }
#endif
                if (weight->transposed)
                    cg_gemm_nt(rows, end - first, inner, operand, row, w, stride, out, slots * all, !weight->begins);
                else
                    cg_gemm_nn(rows, end - first, inner, operand, row, w, stride, out, slots * all, !weight->begins);
            }
        }
    (void)amx, (void)rounded;
}
