/* Weight gradients of a chunk of steps: a thread's partition of the rows of results. Part of cellgen_stage.inc.h. */

/* Products over the same rows: each operand named once, without those that the caller does not want, and the operands
 * that only they have. */
typedef struct {
    cg_left left[CELLGEN_USES_MAX];
    cg_right right[CELLGEN_USES_MAX];
    cg_outer outer[CELLGEN_USES_MAX];
    int64_t columns[CELLGEN_USES_MAX]; /* of every left operand, for all threads */
    int lefts, rights, outers;
} cg_outers;

/* Those of one head; `onto`: earlier chunks have begun the results. */
CELLGEN_STATIC void cg_find_outers(const cg_row_block *b, const cg_stage *stage, const cg_frame *frame, int64_t head, int onto,
                                   int64_t part, int64_t parts, cg_outers *found)
{
    const int64_t depth = cg_product_depth(b);
    int of_left[CELLGEN_USES_MAX], of_right[CELLGEN_USES_MAX];
#define CELLGEN_OPERAND(row)                                                            \
    (frame->at[(row)->use].rows + ((row)->offset == CELLGEN_NONE ? 0 : cg_length(b, (row)->offset)) + \
     ((row)->head_step == CELLGEN_NONE ? 0 : head * cg_length(b, (row)->head_step)))
    found->lefts = found->rights = found->outers = 0;
    for (int i = 0; i < stage->lefts; ++i) {
        const cellgen_left_row *row = stage->left + i;
        int is_read = 0;
        for (int k = 0; k < stage->outers; ++k)
            is_read |= stage->outer[k].left == i && frame->at[stage->outer[k].use].rows;
        of_left[i] = found->lefts;
        if (!is_read) continue;
        const int64_t count = cg_length(b, row->rows);
        const int64_t before = row->packed_after == CELLGEN_NONE ? 0 : cg_length(b, row->packed_after);
        const cg_left left = {cellgen_partition(count, part, parts, CELLGEN_GRANULARITY(0)),
                              cellgen_partition(count, part + 1, parts, CELLGEN_GRANULARITY(0)), CELLGEN_OPERAND(row),
                              frame->at[row->use].row, b->at.product_block + before * depth};
        found->columns[found->lefts] = count;
        found->left[found->lefts++] = left;
    }
    for (int i = 0; i < stage->rights; ++i) {
        const cellgen_right_row *row = stage->right + i;
        int is_read = 0;
        for (int k = 0; k < stage->outers; ++k)
            is_read |= stage->outer[k].right == i && frame->at[stage->outer[k].use].rows;
        of_right[i] = found->rights;
        if (!is_read) continue;
        const cg_right right = {cg_length(b, row->columns), CELLGEN_OPERAND(row), frame->at[row->use].row};
        found->right[found->rights++] = right;
    }
    for (int i = 0; i < stage->outers; ++i) {
        const cellgen_outer_row *row = stage->outer + i;
        if (!frame->at[row->use].rows) continue;
        const cg_outer outer = {of_left[row->left], of_right[row->right], CELLGEN_OPERAND(row), cg_length(b, row->stride),
                                row->begins ? onto : 1};
        found->outer[found->outers++] = outer;
    }
#undef CELLGEN_OPERAND
}

#if CELLGEN_PRECISION == 32 && CELLGEN_AMX
/* Memory for what one head of a stage carries, by operand. */
CELLGEN_STATIC void cg_find_carried(const cg_row_block *b, const cg_stage *stage, int64_t head, const cg_outers *found,
                                    cellgen_carried_rows *left, cellgen_carried_rows *right)
{
    real *rows = b->at.carried;
    if (rows) rows += cg_carried_before(b, (int)(stage - b->f->part[1].stage)) + head * cg_carried_of_stage(b, stage);
    for (int i = 0; i < found->lefts + found->rights; ++i) {
        cellgen_carried_rows *const own = i < found->lefts ? left + i : right + i - found->lefts;
        own->rows = rows;
        own->step = i < found->lefts ? found->columns[i] : found->right[i - found->lefts].columns;
        if (rows) rows += 32 * own->step;
    }
}

/* A thread's share of the rows that a chunk carries to the next one, of one head. */
CELLGEN_STATIC void cg_carry_rows(const cg_outers *found, int64_t rows, int64_t before, const cellgen_carried_rows *left,
                                  const cellgen_carried_rows *right, int64_t part, int64_t parts)
{
    for (int i = 0; i < found->lefts; ++i)
        cellgen_carry(left + i, found->left[i].a, found->left[i].lda, rows, before, found->left[i].begin, found->left[i].end);
    for (int i = 0; i < found->rights; ++i) {
        const int64_t columns = found->right[i].columns;
        cellgen_carry(right + i, found->right[i].b, found->right[i].ldb, rows, before, cellgen_partition(columns, part, parts, CELLGEN_GRANULARITY(0)),
                      cellgen_partition(columns, part + 1, parts, CELLGEN_GRANULARITY(0)));
    }
}

/* On AMX: the groups of rows that a chunk completes; the rows of the last one are carried. */
CELLGEN_STATIC void cg_products_amx(const cg_row_block *b, const cg_stage *stage, const cg_frame *frame, int64_t rows, int64_t part, int64_t parts)
{
    const int64_t heads = stage->heads == CELLGEN_NONE ? 1 : cg_length(b, stage->heads);
    const int64_t done = b->shape.T * b->shape.B - frame->step * b->shape.B - rows; /* rows of the chunks before, which are later steps */
    cellgen_carried_rows left[CELLGEN_USES_MAX], right[CELLGEN_USES_MAX];
    const cellgen_carried carried = {done % 32, done < 32, frame->step == 0, left, right};
    const int carries = !carried.is_last && (carried.rows + rows) % 32 > 0;
    cg_outers found;
    for (int turn = 0; turn <= carries; ++turn) {
        if (turn && parts > 1) cellgen_team_barrier(b->team, (int)part); /* all have read what was carried */
        for (int64_t head = 0; head < heads; ++head) {
            cg_find_outers(b, stage, frame, head, !carried.is_first, part, parts, &found);
            cg_find_carried(b, stage, head, &found, left, right);
            if (turn)
                cg_carry_rows(&found, rows, carried.rows, left, right, part, parts);
            else if (found.outers)
                cellgen_gemm_outers_amx(found.left, found.lefts, found.right, found.rights, found.outer, found.outers, rows, &carried);
        }
    }
}
#endif

CELLGEN_STATIC void cg_products(const cg_row_block *b, const cg_stage *stage, const cg_frame *frame, int64_t rows, int64_t part, int64_t parts)
{
    const int64_t heads = stage->heads == CELLGEN_NONE ? 1 : cg_length(b, stage->heads);
    const int onto = frame->step * b->shape.B + rows < b->shape.T * b->shape.B; /* else the first chunk of the last steps */
    cg_outers found;
#if CELLGEN_PRECISION == 32 && CELLGEN_AMX
    if (b->modes.bf16_way == CELLGEN_BF16_TILES) {
        cg_products_amx(b, stage, frame, rows, part, parts);
        return;
    }
#endif
    for (int64_t head = 0; head < heads; ++head) {
        cg_find_outers(b, stage, frame, head, onto, part, parts, &found);
        if (!found.outers) continue;
#if CELLGEN_PRECISION == 32
        if (b->modes.bf16_way) {
            cellgen_gemm_outers_bf16(b->modes.bf16_way, found.left, found.lefts, found.right, found.rights, found.outer, found.outers, rows);
            continue;
        }
#endif
        cg_gemm_outers(found.left, found.lefts, found.right, found.rights, found.outer, found.outers, rows);
    }
}
