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
            one->call.entry = &one->cell->precision[k].entry[one->function - one->cell->function];
    one->call.is_double = bytes == 8;
    return one->call.entry ? 1 : wrong(one, "%s.%s: found arrays of XLA's type %d, expected float32, float64, "
                                  "bfloat16 or float16",
                                  one->cell->name, one->function->name, (int)one->type);
}

/* A dimension by its name; -1: the cell has none, or nothing told it. */
static int64_t size_named(const call *one, const char *name)
{
    const int64_t dim = cg_dim_named(one->cell, name);
    return dim < 0 ? -1 : one->call.size[dim];
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

/* Add a buffer that stands for a member (-1: for none); 0: it has too many axes, or there are too many of them. */
static int add(call *one, const cellgen_value *value, int64_t member, const XLA_FFI_Buffer *buffer)
{
    cg_call *of = &one->call;
    cg_array *array = cg_add(of, value, member, buffer->data, buffer->rank, buffer->dims, NULL);
    if (!array)
        return wrong(one, "%s.%s: %s has %lld axes, expected %lld", one->cell->name, one->function->name, value->name,
                     (long long)buffer->rank, (long long)value->axes);
    array->kind = narrow(buffer);
    if (array->kind && (!of->narrow || !(value->flags & CELLGEN_VALUE_SAVED)))
        of->narrow = array->kind;
    return 1;
}

/* Add the members of a call, then what only the forward pass reads that it runs once more; scalars are words. */
static int add_members(call *one)
{
    const XLA_FFI_CallFrame *frame = one->frame;
    const XLA_FFI_Array *again = attribute(frame, "again", XLA_FFI_AttrType_ARRAY);
    const int32_t *operands = ((const XLA_FFI_Array *)attribute(frame, "operands", XLA_FFI_AttrType_ARRAY))->data;
    const cellgen_signature *forward = again && one->call.say.checkpoint ? cg_function_named(one->cell, "sequence_forward") : NULL;
    for (int64_t m = 0; m < one->function->members; ++m) {
        const cellgen_value *value = &one->function->member[m];
        if (one->member[m] && !add(one, value, value->role == CELLGEN_ROLE_SCALAR ? -1 : m, one->member[m]))
            return 0;
    }
    if (!again || !one->call.say.checkpoint)
        return 1;
    if (!forward || forward->members > MOST_MEMBERS || !is_numbers(again, frame->args.size))
        return disagrees(one);
    cg_begin_again(&one->call, forward, one->call.say.flush_denormals, one->call.say.products);
    for (int64_t n = 0; n < frame->args.size; ++n) {
        const int32_t at = ((const int32_t *)again->data)[n];
        if (at < 0 || at >= forward->arguments || forward->member[at].role == CELLGEN_ROLE_SCALAR)
            continue;
        if (operands[n] >= 0 && one->call.place[operands[n]] < 0)
            return disagrees(one);
        if (operands[n] < 0 && !add(one, &forward->member[at], -1, frame->args.args[n]))
            return 0;
        one->call.again.place[at] = operands[n] >= 0 ? one->call.place[operands[n]] : one->call.views - 1;
    }
    return 1;
}

/* Tell the dimensions from shapes, and look at every shape. */
static int tell_sizes(call *one)
{
    if (!add_members(one))
        return 0;
    if (cg_check(&one->call) != CG_MISFIT)
        return 1;
    const cg_fault *fault = &one->call.fault;
    if (fault->code == CG_UNBOUND)
        return wrong(one, "%s.%s: no array tells the dimension %s", one->cell->name, one->function->name,
                     one->cell->dim[fault->axis]);
    return refuse_shape(one, &one->call.view[fault->view], fault);
}
