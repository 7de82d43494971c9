/* The arguments of a call, from the stack of an operator. Part of shim.c. */

static int take_tensors(Run *run, Value value, Tensor *into)
{
    size_t count = 0;
    torch_list_size((List)value, &count);
    for (size_t k = 0; k < count; ++k) {
        Value item = 0;
        if (k >= MOST || torch_list_get_item((List)value, k, &item)) {
            fail(run, "cellgen: a list of tensors cannot be read");
            break;
        }
        into[k] = (Tensor)item;
        own(run, into[k]);
        if (!is_in_memory(into[k]))
            fail(run, "cellgen: the memory of a tensor was cut short: its storage holds fewer bytes than its entries take");
    }
    torch_delete_list((List)value);
    return (int)count;
}

static void take_scalars(Run *run, Value value)
{
    size_t count = 0;
    torch_list_size((List)value, &count);
    for (size_t k = 0; k < count && k < MOST; ++k) {
        Value item = 0;
        torch_list_get_item((List)value, k, &item);
        memcpy(&run->scalar[k], &item, sizeof run->scalar[k]);
    }
    torch_delete_list((List)value);
    if (run->cell != NULL && (int)count != run->cell->scalars)
        fail(run, "cellgen: another number of scalars");
}

static const Cell *look_up(const char *text)
{
    for (const Cell *cell = __atomic_load_n(&cells, __ATOMIC_ACQUIRE); cell != NULL; cell = cell->next)
        if (strcmp(cell->text, text) == 0)
            return cell;
    return NULL;
}

static const Cell *take_cell(Run *run, Value value)
{
    const char *text = "";
    torch_string_c_str((void *)value, &text);
    const Cell *cell = look_up(text);
    if (cell == NULL && find_cell != NULL && find_cell(text) == 0)
        cell = look_up(text);
    if (cell == NULL)
        fail(run, "cellgen: the operators do not know this cell");
    torch_delete_string((void *)value);
    return cell;
}

/* What a call computes in, by its first tensor; 0: no kernel has it. */
static int take_dtype(Run *run)
{
    cg_call *call = &run->call;
    aoti_torch_get_dtype(run->theta[0], &run->dtype);
    cg_compute_in(call, run->dtype == aoti_torch_dtype_float64());
    call->narrow = run->dtype == aoti_torch_dtype_bfloat16()  ? CELLGEN_STORED_BF16
                   : run->dtype == aoti_torch_dtype_float16() ? CELLGEN_STORED_F16
                                                              : CELLGEN_STORED_REAL;
    call->say.products = cg_products_of(call->say.products, call->narrow);
    return call->is_double || call->narrow || run->dtype == aoti_torch_dtype_float32();
}

/* Bits of results in the order of their members; -1, all, where bits do not reach one that is wanted. */
static int64_t wanted_of_members(const Run *run)
{
    const cellgen_signature *signature = run->function->signature;
    int64_t bits = 0;
    if (run->wanted < 0)
        return -1;
    for (int64_t k = 0; k < signature->members - signature->arguments; ++k) {
        const int is_wanted = cg_has_bit(run->wanted, run->function->member[signature->arguments + k].number);
        if (is_wanted && k >= CG_BITS)
            return -1;
        bits |= is_wanted ? (int64_t)1 << k : 0;
    }
    return bits;
}

/* Let a step that keeps nothing form its final states alone. */
static void leave_out_outputs(Run *run)
{
    const cellgen_signature *signature = run->function->signature;
    run->call.say.outputs = -1;
    for (int64_t k = 0; k < signature->members - signature->arguments; ++k) {
        if (signature->member[signature->arguments + k].role == CELLGEN_ROLE_FINAL)
            continue;
        if (k >= CG_BITS)
            fail(run, "cellgen: a step has too many results");
        else
            run->call.say.outputs &= ~((int64_t)1 << k);
    }
}

/* What the numbers of a call say to this function. A backward pass always `saves`. */
static void settle(Run *run, int saves)
{
    cg_call *call = &run->call;
    const int is_forward = run->function == &run->cell->forward;
    call->saves = saves, call->wanted = wanted_of_members(run);
    if (is_forward && !saves)
        call->say.checkpoint = 0;
    if (!is_forward)
        call->say.last_only = 0;
    if (is_forward && run->is_step && !saves)
        leave_out_outputs(run);
    if (call->say.products && call->is_double)
        fail(run, "cellgen: products in bfloat16 are of float32 tensors");
}

/* The word of a scalar that is a tensor, at its address, of a kind. */
static uint64_t scalar_word(const Run *run, const cg_array *array)
{
    double number = 0;
    float small = 0;
    uint64_t word = 0;
    if (run->call.is_double)
        number = *(const double *)array->data;
    else
        cellgen_widen(&small, array->data, 1, array->kind), number = small;
    memcpy(&word, &number, sizeof word);
    return word;
}

/* Begin with the forward pass that a backward pass with checkpoints runs once more: its scalars. */
static void begin_again(Run *run)
{
    const Function *function = &run->cell->forward;
    const cellgen_signature *signature = function->signature;
    cg_begin_again(&run->call, signature, run->call.say.flush_denormals, run->call.say.products);
    for (int64_t m = 0; m < signature->arguments; ++m)
        if (function->member[m].source == SCALAR)
            memcpy(&run->call.again.word[m], &run->scalar[function->member[m].number], sizeof *run->call.again.word);
}

/* Add theta, to the forward pass that is run once more too. */
static void add_theta(Run *run)
{
    cg_call *call = &run->call;
    for (int k = 0; k < run->cell->theta && run->fault == NULL; ++k) {
        const cellgen_value *value = run->cell->of_theta[k].value;
        const int64_t m = run->function->of_theta[k];
        const int64_t other = call->again.function == NULL ? -1 : run->cell->forward.of_theta[k];
        const int is_scalar = value != NULL && value->role == CELLGEN_ROLE_SCALAR;
        if (run->theta[k] == NULL || value == NULL)
            continue;
        const cg_array *array = add(run, run->theta[k], value, is_scalar ? -1 : m);
        if (array == NULL)
            return;
        if (is_scalar && m >= 0)
            call->word[m] = scalar_word(run, array);
        if (is_scalar && other >= 0)
            call->again.word[other] = scalar_word(run, array);
        else if (other >= 0)
            call->again.place[other] = call->views - 1;
    }
}

/* Whether what a call keeps is in the one tensor of all that it keeps. */
static int is_kept_in_one(const Run *run, const Member *member)
{
    const int is_kept = member->source == KEPT || (member->source == RESULT && run->function == &run->cell->forward);
    return run->is_in_one && is_kept && member->value->role != CELLGEN_ROLE_FINAL &&
           (run->is_step || member->number >= run->cell->outputs);
}

/* Add what a function reads besides theta. */
static void add_others(Run *run)
{
    const Function *function = run->function;
    cg_call *call = &run->call;
    for (int64_t m = 0; m < function->signature->arguments && run->fault == NULL; ++m) {
        const Member *member = &function->member[m];
        Tensor tensor = NULL;
        if (member->source == SCALAR)
            memcpy(&call->word[m], &run->scalar[member->number], sizeof *call->word);
        else if (member->source == UPSTREAM)
            tensor = run->upstream[member->number];
        else if (member->source == KEPT && !call->say.checkpoint && !is_kept_in_one(run, member)) {
            if (run->is_step)
                fail(run, "cellgen: a result that a backward pass reads is not among what is kept");
            else
                tensor = run->kept[member->number];
        }
        if (tensor != NULL)
            add(run, tensor, member->value, m);
    }
}

/* Take the tensors of a call, `count` of theta, and bind its dimensions. */
static void bind(Run *run, int count, int saves)
{
    if (run->cell == NULL || run->fault != NULL)
        return;
    if (count != run->cell->theta)
        fail(run, "cellgen: another number of tensors");
    else if (!take_dtype(run))
        fail(run, "cellgen: tensors are none of float32, float64, bfloat16 and float16");
    else
        settle(run, saves);
    if (run->fault == NULL && run->call.say.checkpoint && run->function == &run->cell->backward)
        begin_again(run);
    add_theta(run), add_others(run);
    if (run->fault == NULL && cg_check(&run->call) == CG_MISFIT)
        fail(run, run->call.fault.code == CG_UNBOUND ? "cellgen: a state is left out that alone tells a dimension"
                                                     : "cellgen: shapes do not agree");
}

/* Lengths (B), mask and reset (T, B), as `given` says which there are. */
static void take_tables(Run *run, Value list, int64_t given)
{
    Tensor found[MOST];
    cg_call *call = &run->call;
    const int count = take_tensors(run, list, found);
    for (int k = 0, next = 0; k < TABLES && run->fault == NULL; ++k) {
        if (!(given >> k & 1))
            continue;
        if (next >= count) {
            fail(run, "cellgen: a table is missing");
            return;
        }
        Tensor table = found[next++];
        const int64_t steps = call->size[run->cell->steps], rows = call->size[run->cell->rows];
        int64_t rank = 0, *sizes = NULL;
        int32_t dtype = -1;
        _Bool dense = 0;
        void *data = NULL;
        aoti_torch_get_dim(table, &rank), aoti_torch_get_sizes(table, &sizes);
        aoti_torch_get_dtype(table, &dtype), aoti_torch_is_contiguous(table, &dense);
        const int fits = k ? rank == 2 && dtype == aoti_torch_dtype_bool() && sizes[0] == steps && sizes[1] == rows
                           : rank == 1 && dtype == aoti_torch_dtype_int64() && sizes[0] == rows;
        if (!fits) {
            fail(run, "cellgen: lengths, mask or reset do not fit");
            return;
        }
        if (!dense) {
            table = copied(run, table, rank, sizes, dtype);
            if (table == NULL)
                return;
        }
        aoti_torch_get_data_ptr(table, &data);
        data = data == NULL ? run : data; /* torch has no address of nothing: it is there all the same */
        if (k)
            call->flags[k - 1] = data;
        else
            call->lengths = data;
    }
}
