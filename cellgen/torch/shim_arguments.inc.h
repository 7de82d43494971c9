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

static void take_cell(Run *run, Value value)
{
    const char *text = "";
    torch_string_c_str((void *)value, &text);
    run->cell = look_up(text);
    if (run->cell == NULL && find_cell != NULL && find_cell(text) == 0)
        run->cell = look_up(text);
    if (run->cell == NULL)
        fail(run, "cellgen: the operators do not know this cell");
    torch_delete_string((void *)value);
}

/* What tensors hold; 0: no kernel has it. */
static int take_dtype(Run *run)
{
    aoti_torch_get_dtype(run->theta[0], &run->dtype);
    run->is_double = run->dtype == aoti_torch_dtype_float64();
    run->narrow = run->dtype == aoti_torch_dtype_bfloat16()  ? CELLGEN_STORED_BF16
                  : run->dtype == aoti_torch_dtype_float16() ? CELLGEN_STORED_F16
                                                             : CELLGEN_STORED_REAL;
    run->say.products = cg_products_of(run->say.products, run->narrow);
    return run->is_double || run->narrow || run->dtype == aoti_torch_dtype_float32();
}

/* Widen the tensors of a call that have no steps, but for weights that products read as they are. */
static void widen_theta(Run *run)
{
    for (int k = 0; k < run->cell->theta && run->fault == NULL; ++k) {
        int64_t rank = 0, *sizes = NULL;
        int32_t dtype = -1, device = -1;
        const Member *member = &run->cell->of_theta[k];
        const cellgen_value *value = member->value;
        if (value == NULL || kind_of(run, member) || run->theta[k] == NULL)
            continue;
        aoti_torch_get_dtype(run->theta[k], &dtype), aoti_torch_get_device_type(run->theta[k], &device);
        if (dtype != run->dtype || device != aoti_torch_device_type_cpu()) {
            fail(run, "cellgen: a tensor has another dtype or device");
            return;
        }
        aoti_torch_get_dim(run->theta[k], &rank), aoti_torch_get_sizes(run->theta[k], &sizes);
        if (rank != value->axes + (run->is_layer && value->role == CELLGEN_ROLE_STATE)) {
            fail(run, "cellgen: a tensor has another rank");
            return;
        }
        Tensor wide = copied(run, run->theta[k], rank, sizes, aoti_torch_dtype_float32());
        if (wide != NULL)
            run->theta[k] = wide;
    }
}

static void look_at_theta(Run *run, int count)
{
    const Cell *cell = run->cell;
    if (cell == NULL || run->fault != NULL)
        return;
    if (count != cell->theta) {
        fail(run, "cellgen: another number of tensors");
        return;
    }
    if (!take_dtype(run)) {
        fail(run, "cellgen: tensors are none of float32, float64, bfloat16 and float16");
        return;
    }
    int64_t views = 0;
    for (int k = 0; k < count; ++k) {
        const cellgen_value *value = cell->of_theta[k].value;
        int64_t rank = 0, *sizes = NULL;
        if (run->theta[k] == NULL || value == NULL)
            continue;
        aoti_torch_get_dim(run->theta[k], &rank), aoti_torch_get_sizes(run->theta[k], &sizes);
        const int first = run->is_layer && value->role == CELLGEN_ROLE_STATE && rank > 0 && sizes[0] == 1;
        run->view[views] = (cg_view){value, whole, rank - first, sizes + first};
        if (run->is_step && value->flags & CELLGEN_VALUE_OVER_TIME && rank < AXES) {
            int64_t *length = run->step_length[views]; /* of one step */
            length[0] = 1, memcpy(length + 1, sizes, (size_t)rank * sizeof *length);
            run->view[views].rank = rank + 1, run->view[views].length = length;
        }
        views += 1;
    }
    const cg_fault fault = cg_bind(cell->cell, cell->forward.signature, run->view, views, run->dims);
    if (fault.code == CG_UNBOUND)
        fail(run, "cellgen: a state is left out that alone tells a dimension");
    else if (fault.code == CG_RANK)
        fail(run, "cellgen: a tensor has another rank");
    else if (fault.code)
        fail(run, "cellgen: shapes do not agree");
    if (run->narrow)
        widen_theta(run);
}

static void take_theta(Run *run, Value value)
{
    look_at_theta(run, take_tensors(run, value, run->theta));
}

/* Lengths (B), mask and reset (T, B), as `given` says which there are. */
static void take_tables(Run *run, Value list, int64_t given, void **addresses)
{
    Tensor found[MOST];
    const int count = take_tensors(run, list, found);
    for (int k = 0, next = 0; k < TABLES && run->fault == NULL; ++k) {
        addresses[k] = NULL;
        if (!(given >> k & 1))
            continue;
        if (next >= count) {
            fail(run, "cellgen: a table is missing");
            return;
        }
        Tensor table = found[next++];
        int64_t rank = 0, *sizes = NULL;
        int32_t dtype = -1;
        _Bool dense = 0;
        aoti_torch_get_dim(table, &rank), aoti_torch_get_sizes(table, &sizes);
        aoti_torch_get_dtype(table, &dtype), aoti_torch_is_contiguous(table, &dense);
        const int fits = k ? rank == 2 && dtype == aoti_torch_dtype_bool() && sizes[0] == run->dims[0] &&
                                 sizes[1] == run->dims[1]
                           : rank == 1 && dtype == aoti_torch_dtype_int64() && sizes[0] == run->dims[1];
        if (!fits) {
            fail(run, "cellgen: lengths, mask or reset do not fit");
            return;
        }
        if (!dense) {
            table = copied(run, table, rank, sizes, dtype);
            if (table == NULL)
                return;
        }
        aoti_torch_get_data_ptr(table, &addresses[k]);
    }
}
