/* What a call is of, and its shapes: the function that it names, buffers in the places of members, and the
 * dimensions that these tell. Part of handler.c. */

/* Find the cell and the function that a program names. */
static int find_function(call *one)
{
    const XLA_FFI_ByteSpan *cell = attribute(one->frame, "cell", XLA_FFI_AttrType_STRING);
    const XLA_FFI_ByteSpan *digest = attribute(one->frame, "digest", XLA_FFI_AttrType_STRING);
    const XLA_FFI_ByteSpan *function = attribute(one->frame, "function", XLA_FFI_AttrType_STRING);
    char *const name = one->named;
    if (!cell || !digest || !function || cell->len >= sizeof one->named)
        return wrong(one, "cellgen_call: found no attributes cell, digest and function");
    memcpy(name, cell->ptr, cell->len);
    name[cell->len] = 0;
    one->cell = met_before(name, cell->len);
    if (!one->cell && find)
        one->cell = find(name);
    if (!one->cell)
        return wrong(one, "%s: this process does not know the cell; call cellgen.jax.function "
                 "with its class before the program", name);
    if (!is_called(digest, one->cell->digest))
        return wrong(one, "%s: the program was made for the mathematics %.*s, found %s; make it again",
                 name, (int)digest->len, digest->ptr, one->cell->digest);
    for (int64_t k = 0; k < one->cell->functions; ++k)
        if (is_called(function, one->cell->function[k].name)) {
            one->function = &one->cell->function[k];
            return one->function->members <= MOST_MEMBERS && one->cell->dims <= MOST_DIMS;
        }
    return wrong(one, "%s: it has no function %.*s; make the program again", name, (int)function->len,
                 function->ptr);
}

static int is_numbers(const XLA_FFI_Array *list, int64_t count)
{
    return list && list->dtype == XLA_FFI_DataType_S32 && (int64_t)list->size == count;
}

static int disagrees(call *one)
{
    return wrong(one, "%s.%s: the program's operands are not those of this function; make it again",
                 one->cell->name, one->function->name);
}

/* What a buffer of 16 bits holds (cellgen_stored); 0: it has others. */
static int narrow(const XLA_FFI_Buffer *buffer)
{
    return buffer->dtype == XLA_FFI_DataType_BF16  ? CELLGEN_STORED_BF16
           : buffer->dtype == XLA_FFI_DataType_F16 ? CELLGEN_STORED_F16
                                                   : CELLGEN_STORED_REAL;
}

/* The type that a kernel computes in, of a buffer. */
static XLA_FFI_DataType computed(const XLA_FFI_Buffer *buffer)
{
    return narrow(buffer) ? XLA_FFI_DataType_F32 : buffer->dtype;
}

/* Put operands and results in the places of members; all are computed in one type. */
static int place_buffers(call *one)
{
    const XLA_FFI_CallFrame *frame = one->frame;
    const XLA_FFI_Array *lists[2] = {attribute(frame, "operands", XLA_FFI_AttrType_ARRAY),
                                     attribute(frame, "results", XLA_FFI_AttrType_ARRAY)};
    const int64_t counts[2] = {frame->args.size, frame->rets.size};
    one->type = XLA_FFI_DataType_INVALID;
    for (int k = 0; k < 2; ++k) {
        if (!is_numbers(lists[k], counts[k]))
            return disagrees(one);
        for (int64_t n = 0; n < counts[k]; ++n) {
            const XLA_FFI_Buffer *buffer = k ? frame->rets.rets[n] : frame->args.args[n];
            const int32_t at = ((const int32_t *)lists[k]->data)[n];
            if (at <= FIRST_CHECKPOINT && at > FIRST_CHECKPOINT - MOST_CHECKPOINTS) {
                one->checkpoint[FIRST_CHECKPOINT - at] = buffer;
                one->checkpoints += 1;
                continue;
            }
            if (at == UNREAD && !k)
                continue;
            if (at < RESET || at >= one->function->members || (k && at < one->function->arguments))
                return disagrees(one);
            if (at < 0) {
                one->table[-1 - at] = buffer;
                continue;
            }
            one->member[at] = buffer;
            one->is_narrow |= narrow(buffer);
            if (one->type == XLA_FFI_DataType_INVALID)
                one->type = computed(buffer);
            if (computed(buffer) != one->type)
                return disagrees(one);
        }
    }
    return 1;
}

/* Choose the precision. */
static int choose_entry(call *one)
{
    const int64_t bytes = one->type == XLA_FFI_DataType_F32 ? 4 : one->type == XLA_FFI_DataType_F64 ? 8 : 0;
    for (int64_t k = 0; k < one->cell->precisions; ++k)
        if (one->cell->precision[k].bytes == bytes)
            one->entry = &one->cell->precision[k].entry[one->function - one->cell->function];
    return one->entry ? 1 : wrong(one, "%s.%s: found arrays of XLA's type %d, expected float32, float64, "
                                  "bfloat16 or float16",
                                  one->cell->name, one->function->name, (int)one->type);
}

/* A dimension by its name; -1: the cell has none, or nothing told it. */
static int64_t size_named(const call *one, const char *name)
{
    const int64_t dim = cg_dim_named(one->cell, name);
    return dim < 0 ? -1 : one->size[dim];
}

/* Say what is wrong with the shape of a member. */
static int refuse_shape(call *one, const cg_view *view, const cg_fault *fault)
{
    const char *cell = one->cell->name, *function = one->function->name, *name = view->value->name;
    if (fault->code == CG_RANK)
        return wrong(one, "%s.%s: %s has %lld axes, expected %lld", cell, function, name, (long long)view->rank,
                     (long long)fault->expected);
    return wrong(one, "%s.%s: %s has %lld axes, the length of axis %lld is %lld, which does not agree "
                 "with the other arrays", cell, function, name, (long long)view->rank, (long long)fault->axis,
                 (long long)view->length[fault->axis]);
}

/* Tell the dimensions from shapes, and look at every shape. */
static int tell_sizes(call *one)
{
    int64_t views = 0;
    for (int64_t m = 0; m < one->function->members; ++m)
        if (one->member[m]) {
            const cellgen_value *value = &one->function->member[m];
            one->view[views++] = (cg_view){value, cg_change_of(value, &one->say), one->member[m]->rank,
                                           one->member[m]->dims};
        }
    const cg_fault fault = cg_bind(one->cell, one->function, one->view, views, one->size);
    if (fault.code == CG_UNBOUND)
        return wrong(one, "%s.%s: no array tells the dimension %s", one->cell->name, one->function->name,
                     one->cell->dim[fault.axis]);
    return fault.code == CG_FITS || refuse_shape(one, &one->view[fault.view], &fault);
}

/* What a kernel finds in an array (cellgen_stored): a buffer of 16 bits says by its type what it holds where it stays as
 * it is, and weights are widened whatever reads them. */
static int held(const call *one, const cellgen_value *value, const XLA_FFI_Buffer *buffer)
{
    const cg_change change = cg_change_of(value, &one->say);
    return cg_held(value, &change, cg_dim_named(one->cell, "T"), narrow(buffer), CELLGEN_PRODUCTS_FULL);
}
