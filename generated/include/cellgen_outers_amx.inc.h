/* Weight gradients on AMX. Part of cellgen_gemm_bf16.h.
 *
 * Rows of all steps are counted from the last one down, and 32 of them, from a multiple of 32 on, are a group of an
 * element's chain. What is deferred comes by chunks of steps, which end anywhere: the rows of a group that a chunk does
 * not finish are carried to the next one, so that chunks change no bit. */

/* Memory for the rows of an operand that are carried, the last one in front; NULL: none ever is. */
typedef struct {
    float *rows;
    int64_t step;
} cellgen_carried_rows;

/* What the chunks before one have left to it. */
typedef struct {
    int64_t rows;                             /* that are carried: below 32 */
    int is_first, is_last;                    /* no group is complete; no chunk follows */
    const cellgen_carried_rows *left, *right; /* of every operand */
} cellgen_carried;

#if CELLGEN_AMX

/* Rows of an operand, counted from the last one down: `count` carried ones, then those of a chunk. */
typedef struct {
    const float *carried, *last;
    int64_t step, count, ld;
} cellgen_rows_down;
CELLGEN_INLINE const float *cellgen_row_down(const cellgen_rows_down *rows, int64_t row)
{
    return row < rows->count ? rows->carried + row * rows->step : rows->last - (row - rows->count) * rows->ld;
}

/* to[column][pair] = pairs of rows, of `count` columns: a block of 16 by 16 words turned; rows from `end` on are zeros. */
CELLGEN_INLINE void cellgen_turn_pairs(const cellgen_rows_down *rows, int64_t column, int64_t count, int64_t row, int64_t end,
                                       cellgen_pair *to, int64_t step)
{
#if defined(__AVX512F__)
    const __mmask16 part = (__mmask16)((1u << count) - 1u);
    const __m512 none = _mm512_setzero_ps();
    __m512i r[16], t[16];
    for (int p = 0; p < 16; ++p) {
        const int64_t at = row + 2 * p;
        const __m512 first = at < end ? _mm512_maskz_loadu_ps(part, cellgen_row_down(rows, at) + column) : none;
        const __m512 second = at + 1 < end ? _mm512_maskz_loadu_ps(part, cellgen_row_down(rows, at + 1) + column) : none;
        r[p] = (__m512i)cellgen_pair_vectors(first, second);
    }
    /* the unmasked forms set off a false -Wmaybe-uninitialized in GCC 12 */
    const __mmask16 all = (__mmask16)-1;
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_maskz_unpacklo_epi32(all, r[i], r[i + 1]);
        t[i + 1] = _mm512_maskz_unpackhi_epi32(all, r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
            r[i + 2 * j] = _mm512_maskz_unpacklo_epi64((__mmask8)-1, t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_maskz_unpackhi_epi64((__mmask8)-1, t[i + j], t[i + j + 2]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; ++j) {
            t[i + j] = _mm512_maskz_shuffle_i32x4(all, r[i + j], r[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_maskz_shuffle_i32x4(all, r[i + j], r[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; ++j) {
        r[j] = _mm512_maskz_shuffle_i32x4(all, t[j], t[j + 8], 0x88);
        r[j + 8] = _mm512_maskz_shuffle_i32x4(all, t[j], t[j + 8], 0xdd);
    }
    for (int64_t q = 0; q < count; ++q) _mm512_storeu_si512(to + q * step, r[q]);
#else
    for (int64_t p = 0; p < 16; ++p)
        for (int64_t q = 0; q < count; ++q) {
            const int64_t at = row + 2 * p;
            const float first = at < end ? cellgen_row_down(rows, at)[column + q] : 0.0f;
            const float second = at + 1 < end ? cellgen_row_down(rows, at + 1)[column + q] : 0.0f;
            to[q * step + p] = cellgen_pair_of(first, second);
        }
#endif
}

/* Rows first <= row < end of A, turned: `count` columns from `column` on, each [pair], `step` words apart. */
CELLGEN_STATIC void cellgen_pack_left_amx(const cellgen_rows_down *rows, int64_t column, int64_t count, int64_t first, int64_t end,
                                          cellgen_pair *to, int64_t step)
{
    for (int64_t q = 0; q < count; q += 16)
        for (int64_t row = first; row < end; row += 32)
            cellgen_turn_pairs(rows, column + q, count - q < 16 ? count - q : 16, row, end, to + q * step + (row - first) / 2, step);
}

/* A panel of B: to[pair][0 .. vectors * LANES), whole groups of pairs, `columns` columns from column j on. */
CELLGEN_STATIC void cellgen_pack_right_amx(const cellgen_rows_down *rows, int64_t j, int64_t vectors, int64_t columns, int64_t first,
                                           int64_t end, cellgen_pair *to)
{
    const int64_t lanes = CELLGEN_LANES_F32, whole = columns / lanes;
    const cellgen_part_f32 last = cellgen_part_make_f32(columns % lanes);
    for (int64_t row = first; row < first + (end - first + 31) / 32 * 32; row += 2)
        for (int64_t v = 0; v < vectors; ++v, to += lanes) {
            cellgen_vec_f32 of[2];
            for (int64_t half = 0; half < 2; ++half)
                of[half] = row + half < end ? cellgen_vector_of_row(cellgen_row_down(rows, row + half) + j, v, whole, last) : cellgen_zero_f32();
            cellgen_store_pairs(to, cellgen_pair_vectors(of[0], of[1]));
        }
}

/* Where block `turn` of `turns` begins in the rows of an operand: whole tiles. */
CELLGEN_INLINE int64_t cellgen_left_tiles(const cellgen_left_f32 *left, int64_t turn, int64_t turns)
{
    const int64_t rows = left->end - left->begin;
    return left->begin + (turn == turns ? rows : rows * turn / turns / 16 * 16);
}

/* All products of one right operand over its rows first <= row < end, with block `turn` of the left ones, which is packed
 * already, `step` words a row. */
CELLGEN_STATIC void cellgen_outers_of_amx(cellgen_amx *amx, const cellgen_left_f32 *lefts, const cellgen_rows_down *rows, int64_t N,
                                          int number, const cellgen_outer_f32 *outers, int count, int64_t step, int64_t first,
                                          int64_t end, int64_t turn, int64_t turns, int onto)
{
    CELLGEN_ALIGNED cellgen_pair panel[CELLGEN_BUFFER_BYTES / sizeof(cellgen_pair)];
    const int64_t lanes = CELLGEN_LANES_F32, width = CELLGEN_PANEL_VECTORS * lanes, groups = (end - first + 31) / 32;
    for (int64_t j = 0; j < N; j += width) {
        const int64_t columns = N - j < width ? N - j : width, vectors = (columns + lanes - 1) / lanes;
        cellgen_pack_right_amx(rows, j, vectors, columns, first, end, panel);
        for (int i = 0; i < count; ++i) {
            const cellgen_outer_f32 *const outer = outers + i;
            if (outer->right != number) continue;
            const cellgen_left_f32 *const left = lefts + outer->left;
            const int64_t top = cellgen_left_tiles(left, turn, turns);
            const cellgen_term_tiles term = {groups, (const cellgen_pair *)(const void *)left->packed + left->begin * step, step, panel,
                                             vectors * lanes, 0};
            cellgen_amx_product(amx, cellgen_left_tiles(left, turn + 1, turns) - top, columns, &term, 1, outer->c + top * outer->ldc + j,
                                outer->ldc, onto || outer->accumulate);
        }
    }
}

/* What cellgen_gemm_outers_bf16 does, of the groups that are complete. */
CELLGEN_STATIC void cellgen_gemm_outers_amx(const cellgen_left_f32 *lefts, int left_count, const cellgen_right_f32 *rights,
                                            int right_count, const cellgen_outer_f32 *outers, int count, int64_t K,
                                            const cellgen_carried *carried)
{
    const int64_t all = carried->rows + K, end = carried->is_last ? all : all / 32 * 32, groups = (end + 31) / 32;
    const int64_t deepest = CELLGEN_DEPTH / 16, depths = (groups + deepest - 1) / deepest;
    const int64_t step = 16 * (groups < deepest ? groups : deepest);
    cellgen_amx amx = {0};
    int64_t rows = 0;
    for (int i = 0; i < left_count; ++i) rows += lefts[i].end - lefts[i].begin;
    const int64_t turns = (rows + CELLGEN_PACKED_ROWS - 1) / CELLGEN_PACKED_ROWS;
    for (int64_t turn_k = 0, done = 0, deep; turn_k < depths; ++turn_k, done += deep) {
        deep = (groups - done + depths - turn_k - 1) / (depths - turn_k);
        const int64_t first = 32 * done, last = 32 * (done + deep) < end ? 32 * (done + deep) : end;
        const int onto = !carried->is_first || done > 0;
        for (int64_t turn = 0; turn < turns; ++turn) {
            for (int i = 0; i < left_count; ++i) {
                const cellgen_left_f32 *const left = lefts + i;
                const cellgen_rows_down down = {carried->left[i].rows, left->a + (K - 1) * left->lda, carried->left[i].step, carried->rows, left->lda};
                const int64_t top = cellgen_left_tiles(left, turn, turns);
                cellgen_pack_left_amx(&down, top, cellgen_left_tiles(left, turn + 1, turns) - top, first, last,
                                      (cellgen_pair *)(void *)left->packed + left->begin * step, step);
            }
            for (int i = 0; i < right_count; ++i) {
                const cellgen_right_f32 *const right = rights + i;
                const cellgen_rows_down down = {carried->right[i].rows, right->b + (K - 1) * right->ldb, carried->right[i].step, carried->rows, right->ldb};
                cellgen_outers_of_amx(&amx, lefts, &down, right->columns, i, outers, count, step, first, last, turn, turns, onto);
            }
        }
    }
    cellgen_amx_end(&amx);
}

/* Keep what the next chunk begins with: columns begin <= column < end of the rows of an operand. */
CELLGEN_STATIC void cellgen_carry(const cellgen_carried_rows *to, const float *a, int64_t lda, int64_t K, int64_t before, int64_t begin, int64_t end)
{
    const int64_t all = before + K, rows = all % 32, fresh = rows < K ? rows : K; /* the last so many are of this chunk */
    for (int64_t row = rows - fresh; row < rows; ++row)
        memcpy(to->rows + row * to->step + begin, a + (rows - 1 - row) * lda + begin, (size_t)(end - begin) * sizeof *a);
}

#endif
