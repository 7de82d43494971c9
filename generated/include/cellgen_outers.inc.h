/* Sums of outer products. Part of cellgen_gemm_real.inc.h. */

/* ------------------------------------------------------------------------- weight gradients
 * Many products A^T B over the same K rows, which add up from the last row to the first. Operands are
 * named by their numbers, so that each is packed once for all products it is part of: every A^T in
 * its `packed`, min(K, CELLGEN_DEPTH) elements a row, a panel of B at a time on the stack (backward
 * pass of an LSTM: 0.94 of the time of one product after the other at 32 rows, 128 inputs and 256
 * units, 0.95 at 64, 512 and 512). Threads take rows from `begin` to `end` of every result. */

typedef struct {
    int64_t begin, end; /* rows of A^T */
    const CELLGEN_REAL *a;
    int64_t lda;
    CELLGEN_REAL *packed; /* for all rows of all threads */
} CELLGEN_S(left);
typedef struct {
    int64_t columns;
    const CELLGEN_REAL *b;
    int64_t ldb;
} CELLGEN_S(right);
typedef struct {
    int left, right;
    CELLGEN_REAL *c; /* all rows */
    int64_t ldc;
    int accumulate;
} CELLGEN_S(outer);

/* Where block `turn` of `turns` begins in the rows of an operand. */
CELLGEN_INLINE int64_t CELLGEN_S(left_block)(const CELLGEN_S(left) * left, int64_t turn,
                                             int64_t turns)
{
    return left->begin + (left->end - left->begin) * turn / turns;
}

CELLGEN_INLINE CELLGEN_REAL *CELLGEN_S(left_packed)(const CELLGEN_S(left) * left, int64_t K)
{
    return left->packed + left->begin * (K < CELLGEN_DEPTH ? K : CELLGEN_DEPTH);
}

/* All products of one right operand, over `depth` of K rows from row k on, with block `turn` of the
 * left ones, which is packed already. */
CELLGEN_STATIC void CELLGEN_S(outers_of)(const CELLGEN_S(left) * lefts,
                                         const CELLGEN_S(right) * right, int number,
                                         const CELLGEN_S(outer) * outers, int count, int64_t K,
                                         int64_t k, int64_t depth, int64_t turn, int64_t turns,
                                         int onto)
{
    CELLGEN_ALIGNED CELLGEN_REAL panel[CELLGEN_BUFFER_BYTES / sizeof(CELLGEN_REAL)];
    const int64_t lanes = CELLGEN_LANES, width = CELLGEN_PANEL_VECTORS * lanes;
    const int64_t N = right->columns, ldb = right->ldb;
    int64_t panels = (N + width - 1) / width;
    for (int64_t j = 0, remaining = (N + lanes - 1) / lanes; remaining > 0; --panels) {
        const int64_t vectors = (remaining + panels - 1) / panels, step = vectors * lanes;
        const int64_t columns = N - j < step ? N - j : step;
        CELLGEN_S(pack_rows)(depth, vectors, columns, right->b + k * ldb + j, -ldb, panel, step);
        for (int i = 0; i < count; ++i) {
            const CELLGEN_S(outer) *const outer = outers + i;
            if (outer->right != number)
                continue;
            const CELLGEN_S(left) *const left = lefts + outer->left;
            const int64_t first = CELLGEN_S(left_block)(left, turn, turns);
            const int64_t rows = CELLGEN_S(left_block)(left, turn + 1, turns) - first;
            CELLGEN_S(packed_tiles)
            (rows, vectors, depth, CELLGEN_S(left_packed)(left, K), panel,
             outer->c + first * outer->ldc + j, outer->ldc, columns - (vectors - 1) * lanes,
             onto || outer->accumulate);
        }
        remaining -= vectors;
        j += step;
    }
}

CELLGEN_STATIC void CELLGEN_S(gemm_outers)(const CELLGEN_S(left) * lefts, int left_count,
                                           const CELLGEN_S(right) * rights, int right_count,
                                           const CELLGEN_S(outer) * outers, int count, int64_t K)
{
    const int64_t end = K > 0 ? K - 1 : 0;
    int64_t rows = 0, columns = 0, highest = 0;
    int packed = 0;
    for (int i = 0; i < left_count; ++i) {
        const int64_t own = lefts[i].end - lefts[i].begin;
        rows += own;
        highest = own > highest ? own : highest;
    }
    for (int i = 0; i < right_count; ++i) {
        columns += rights[i].columns;
        packed |= !CELLGEN_S(in_place)(highest, K, rights[i].b, rights[i].ldb);
    }
    if (!packed || K <= 0 || columns < 2 * CELLGEN_PANEL_VECTORS * CELLGEN_LANES) {
        for (int i = 0; i < count; ++i) {
            const CELLGEN_S(left) left = lefts[outers[i].left];
            const CELLGEN_S(right) right = rights[outers[i].right];
            CELLGEN_S(gemm)
            (left.end - left.begin, right.columns, K, left.a + left.begin + end * left.lda, 1,
             -left.lda, right.b + end * right.ldb, -right.ldb, 0,
             outers[i].c + left.begin * outers[i].ldc, outers[i].ldc, outers[i].accumulate);
        }
        return;
    }
    const int64_t turns = (rows + CELLGEN_PACKED_ROWS - 1) / CELLGEN_PACKED_ROWS;
    const int64_t depths = (K + CELLGEN_DEPTH - 1) / CELLGEN_DEPTH;
    for (int64_t done = 0, turn_k = 0, depth; turn_k < depths; ++turn_k, done += depth) {
        depth = (K - done + depths - turn_k - 1) / (depths - turn_k);
        for (int64_t turn = 0; turn < turns; ++turn) {
            for (int i = 0; i < left_count; ++i) {
                const CELLGEN_S(left) *const left = lefts + i;
                const int64_t first = CELLGEN_S(left_block)(left, turn, turns);
                const int64_t partition = CELLGEN_S(left_block)(left, turn + 1, turns) - first;
                CELLGEN_S(pack_tiles)
                (partition, CELLGEN_S(panel_tiles)(partition), depth,
                 left->a + first + (end - done) * left->lda, -left->lda,
                 CELLGEN_S(left_packed)(left, K));
            }
            for (int i = 0; i < right_count; ++i)
                CELLGEN_S(outers_of)
                (lefts, rights + i, i, outers, count, K, end - done, depth, turn, turns, done > 0);
        }
    }
}
