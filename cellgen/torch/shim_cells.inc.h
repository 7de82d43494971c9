/* Cells that Python makes known: what their descriptors say, by the operators' lists. Part of shim.c. */

static int place(const char *name, const char *const *names, int count)
{
    for (int k = 0; k < count; ++k)
        if (strcmp(names[k], name) == 0)
            return k;
    return -1;
}

static int describe(Function *function, const Cell *cell, const char *name, const char *const *theta,
                    const char *const *scalars, const char *const *kept, const char *const *upstream,
                    const char *const *results, int count)
{
    const cellgen_cell *of = cell->cell;
    const cellgen_signature *signature = function->signature = cg_function_named(of, name);
    if (signature == NULL || of->precisions != 2)
        return 1;
    function->results = count;
    function->member = calloc((size_t)signature->members + 1, sizeof *function->member);
    function->of_theta = calloc((size_t)cell->theta + 1, sizeof *function->of_theta);
    if (function->member == NULL || function->of_theta == NULL || signature->members > MOST)
        return 2;
    for (int k = 0; k < cell->theta; ++k)
        function->of_theta[k] = -1;
    for (int64_t m = 0; m < signature->members; ++m) {
        const cellgen_value *value = &signature->member[m];
        Member *member = &function->member[m];
        const struct {
            const char *const *names;
            int count, source;
        } from[] = {{results, count, RESULT},
                    {theta, cell->theta, THETA},
                    {scalars, cell->scalars, SCALAR},
                    {kept, kept == NULL ? 0 : cell->outputs + cell->saved, KEPT},
                    {upstream, upstream == NULL ? 0 : cell->upstream, UPSTREAM}};
        const int first = m >= signature->arguments ? 0 : 1, last = first ? 5 : 1;
        member->value = value, member->number = -1;
        for (int k = first; k < last && member->number < 0; ++k) {
            member->source = from[k].source;
            member->number = place(value->name, from[k].names, from[k].count);
        }
        if (member->number < 0 || (!first && kept == NULL && member->number != m - signature->arguments))
            return 3; /* bits of outputs are by numbers of the descriptor */
        if (member->source == THETA)
            cell->of_theta[member->number] = *member, function->of_theta[member->number] = m;
    }
    return 0;
}

/* Note what checkpoints hold. */
static int note_held(Cell *cell)
{
    const cellgen_signature *forward = cell->forward.signature;
    cell->held = calloc((size_t)forward->members + 1, sizeof *cell->held);
    if (cell->held == NULL)
        return 2;
    cell->always = cg_checkpoints_of(forward, 0, NULL);
    cell->most = cg_checkpoints_of(forward, 1, cell->held);
    return 0;
}

/* Make a cell known: names in the order of the operators' lists. Returns 0, or what is wrong. */
int cellgen_torch_add(const char *text, const cellgen_cell *of, const int64_t *counts,
                      const char *const *theta, const char *const *scalars, const char *const *kept,
                      const char *const *upstream, const char *const *gradients)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (of->abi != CELLGEN_ABI_VERSION || of->dims > DIMS || cg_dim_named(of, "T") < 0 || cg_dim_named(of, "B") < 0)
        return 4;
    Cell *cell = calloc(1, sizeof *cell);
    if (cell == NULL)
        return 2;
    cell->cell = of, cell->text = strdup(text);
    cell->theta = (int)counts[0], cell->scalars = (int)counts[1], cell->outputs = (int)counts[2];
    cell->saved = (int)counts[3], cell->upstream = (int)counts[4], cell->steps = cg_dim_named(of, "T"), cell->rows = cg_dim_named(of, "B");
    cell->of_theta = calloc((size_t)cell->theta + 1, sizeof *cell->of_theta);
    if (cell->text == NULL || cell->of_theta == NULL || cell->theta > MOST)
        return 2;
    const int all = cell->outputs + cell->saved;
    int code = describe(&cell->forward, cell, "sequence_forward", theta, scalars, NULL, NULL, kept, all);
    if (!code)
        code = describe(&cell->backward, cell, "sequence_backward", theta, scalars, kept, upstream,
                        gradients, (int)counts[5]);
    cell->output_of = calloc((size_t)cell->upstream + 1, sizeof *cell->output_of);
    code = code || cell->output_of != NULL ? code : 2;
    for (int64_t m = 0; !code && m < cell->backward.signature->arguments; ++m) {
        const Member *member = &cell->backward.member[m];
        if (member->source != UPSTREAM)
            continue;
        const int output = place(member->value->of, kept, cell->outputs);
        code = output < 0 ? 3 : 0, cell->output_of[member->number] = output;
    }
    code = code ? code : note_held(cell);
    if (code)
        return code;
    pthread_mutex_lock(&lock);
    if (look_up(text) == NULL) {
        cell->next = cells;
        __atomic_store_n(&cells, cell, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
