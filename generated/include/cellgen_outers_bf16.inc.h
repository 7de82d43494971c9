/* ------------------------------------------------------------------------- weight gradients
 * cellgen_gemm_outers of operands that are rounded when they are packed, in pairs or in floats; `packed` holds
 * words of either. Part of cellgen_gemm_bf16.h. */

/* Rows of A^T in tiles of equal height, each [pair][row]. */
CELLGEN_STATIC void cellgen_pack_pairs_in_tiles(int64_t rows, int64_t tiles, int64_t K, const float *a, int64_t a_step, cellgen_pair *out)
{
    for (int64_t height; rows > 0; --tiles, rows -= height, a += height) {
        height = (rows + tiles - 1) / tiles;
        const float *from = a;
#if CELLGEN_HAVE_PART
        const cellgen_part_f32 part = cellgen_part_make_f32(height);
        for (int64_t k = 0; k < K; k += 2, from += 2 * a_step, out += height)
            cellgen_store_part_pairs(out, part,
                                     cellgen_pair_vectors(cellgen_load_part_f32(from, part),
                                                          k + 1 < K ? cellgen_load_part_f32(from + a_step, part)
                                                                    : cellgen_zero_f32()));
#else
        for (int64_t k = 0; k < K; k += 2, from += 2 * a_step)
            for (int64_t row = 0; row < height; ++row)
                *out++ = cellgen_pair_of(from[row], k + 1 < K ? from[a_step + row] : 0.0f);
#endif
    }
}

/* The same in floats: rows of A are rounded in whole vectors, a few tiles wide. */
CELLGEN_STATIC void cellgen_pack_floats_in_tiles(int64_t rows, int64_t tiles, int64_t K, const float *a, int64_t a_step, float *out)
{
    enum { TILES = 8, WIDTH = TILES * CELLGEN_PANEL_ROWS };
    CELLGEN_ALIGNED float rounded[CELLGEN_DEPTH * WIDTH];
    for (int64_t width, here; rows > 0; tiles -= here, rows -= width, a += width, out += width * K) {
        here = tiles < TILES ? tiles : (int64_t)TILES;
        width = 0;
        for (int64_t tile = 0; tile < here; ++tile) width += (rows - width + tiles - tile - 1) / (tiles - tile);
        for (int64_t k = 0; k < K; ++k)
            cellgen_round_row(CELLGEN_BF16_FLOATS, a + k * a_step, width, (cellgen_pair *)(void *)(rounded + k * WIDTH));
        cellgen_pack_tiles_f32(width, here, K, rounded, WIDTH, out);
    }
}

/* Either of both. */
CELLGEN_INLINE void cellgen_pack_tiles_bf16(int way, int64_t rows, int64_t tiles, int64_t K, const float *a,
                                            int64_t a_step, cellgen_pair *out)
{
    if (way == CELLGEN_BF16_FLOATS)
        cellgen_pack_floats_in_tiles(rows, tiles, K, a, a_step, (float *)(void *)out);
    else
        cellgen_pack_pairs_in_tiles(rows, tiles, K, a, a_step, out);
}

/* Where the words of an operand are packed. */
CELLGEN_INLINE cellgen_pair *cellgen_left_words(const cellgen_left_f32 *left, int64_t words)
{
    return (cellgen_pair *)(void *)left->packed + left->begin * (words < CELLGEN_DEPTH ? words : CELLGEN_DEPTH);
}

/* Tiles times a panel, both of so many words. */
CELLGEN_INLINE void cellgen_packed_tiles_bf16(int way, int64_t rows, int64_t vectors, int64_t words, const cellgen_pair *tile,
                                              const cellgen_pair *panel, float *c, int64_t ldc, int64_t last, int accumulate)
{
#if CELLGEN_AVX512BF16
    if (way == CELLGEN_BF16_PAIRS) {
        cellgen_packed_tiles_pairs(rows, vectors, words, tile, panel, c, ldc, last, accumulate);
        return;
    }
#endif
    (void)way;
    cellgen_packed_tiles_f32(rows, vectors, words, (const float *)(const void *)tile, (const float *)(const void *)panel, c, ldc,
                             last, accumulate);
}

/* All products of one right operand over `depth` of K rows, `words` in all, from row k on, downwards, with block `turn`
 * of the left ones, which is packed already. */
CELLGEN_STATIC void cellgen_outers_of_bf16(int way, const cellgen_left_f32 *lefts, const cellgen_right_f32 *right,
                                           int number, const cellgen_outer_f32 *outers, int count, int64_t words,
                                           int64_t k, int64_t depth, int64_t turn, int64_t turns, int onto)
{
    CELLGEN_ALIGNED cellgen_pair panel[CELLGEN_BUFFER_BYTES / sizeof(cellgen_pair)];
    const int64_t lanes = CELLGEN_LANES_F32, width = CELLGEN_PANEL_VECTORS * lanes;
    const int64_t N = right->columns, ldb = right->ldb;
    int64_t panels = (N + width - 1) / width;
    for (int64_t j = 0, remaining = (N + lanes - 1) / lanes; remaining > 0; --panels) {
        const int64_t vectors = (remaining + panels - 1) / panels, step = vectors * lanes;
        const int64_t columns = N - j < step ? N - j : step;
        cellgen_pack_rows_bf16(way, depth, vectors, columns, right->b + k * ldb + j, -ldb, panel, step);
        for (int i = 0; i < count; ++i) {
            const cellgen_outer_f32 *const outer = outers + i;
            if (outer->right != number) continue;
            const cellgen_left_f32 *const left = lefts + outer->left;
            const int64_t first = cellgen_left_block_f32(left, turn, turns);
            cellgen_packed_tiles_bf16(way, cellgen_left_block_f32(left, turn + 1, turns) - first, vectors,
                                      cellgen_bf16_words(way, depth), cellgen_left_words(left, words), panel,
                                      outer->c + first * outer->ldc + j, outer->ldc, columns - (vectors - 1) * lanes,
                                      onto || outer->accumulate);
        }
        remaining -= vectors;
        j += step;
    }
}

CELLGEN_STATIC void cellgen_gemm_outers_bf16(int way, const cellgen_left_f32 *lefts, int left_count,
                                             const cellgen_right_f32 *rights, int right_count,
                                             const cellgen_outer_f32 *outers, int count, int64_t K)
{
    const int64_t each = way == CELLGEN_BF16_FLOATS ? 1 : 2, words = cellgen_bf16_words(way, K);
    const int64_t depths = (words + CELLGEN_DEPTH - 1) / CELLGEN_DEPTH;
    int64_t rows = 0;
    for (int i = 0; i < left_count; ++i) rows += lefts[i].end - lefts[i].begin;
    const int64_t turns = (rows + CELLGEN_PACKED_ROWS - 1) / CELLGEN_PACKED_ROWS;
    for (int64_t done = 0, turn_k = 0, deep; turn_k < depths; ++turn_k, done += deep) {
        deep = (words - done + depths - turn_k - 1) / (depths - turn_k);
        const int64_t left_over = K - each * done, from = left_over - 1, depth = left_over < each * deep ? left_over : each * deep;
        for (int64_t turn = 0; turn < turns; ++turn) {
            for (int i = 0; i < left_count; ++i) {
                const cellgen_left_f32 *const left = lefts + i;
                const int64_t first = cellgen_left_block_f32(left, turn, turns);
                const int64_t partition = cellgen_left_block_f32(left, turn + 1, turns) - first;
                cellgen_pack_tiles_bf16(way, partition, cellgen_panel_tiles_f32(partition), depth,
                                        left->a + first + from * left->lda, -left->lda, cellgen_left_words(left, words));
            }
            for (int i = 0; i < right_count; ++i)
                cellgen_outers_of_bf16(way, lefts, rights + i, i, outers, count, words, from, depth, turn, turns, done > 0);
        }
    }
}
