/* What a call is of, and its shapes: the function that it names, buffers in the places of members, and the
 * dimensions that these tell. Part of handler.c. */

/* Find the cell and the function that a program names. */
static int find_function(call *one)
{
    const XLA_FFI_ByteSpan *cell = attribute(one->frame, "cell", XLA_FFI_AttrType_STRING);
    const XLA_FFI_ByteSpan *digest = attribute(one->frame, "digest", XLA_FFI_AttrType_STRING);
    const XLA_FFI_ByteSpan *function = attribute(one->frame, "function", XLA_FFI_AttrType_STRING);
    char name[TEXT / 2];
    if (!cell || !digest || !function || cell->len >= sizeof name)
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

enum told { DISAGREES, FITS, TOLD };

/* The product of a term's factor and dimensions, but the one that is not told; its number, or -1. */
static int64_t product(const call *one, const cellgen_term *term, int *untold)
{
    int64_t found = term->factor;
    for (int k = 0; k < CELLGEN_TERM_DIMS && term->dim[k] >= 0; ++k) {
        if (one->size[term->dim[k]] >= 0)
            found *= one->size[term->dim[k]];
        else
            *untold = *untold == -1 ? (int)term->dim[k] : -2; /* -2: several */
    }
    return found;
}

/* Let the length of an axis tell a dimension if one alone is missing. */
static enum told tell(call *one, const cellgen_axis *axis, int64_t length)
{
    int missing = -1;
    int64_t rest = length, factor = 0;
    for (int64_t k = 0; k < axis->terms; ++k) {
        int untold = -1;
        const int64_t value = product(one, &axis->term[k], &untold);
        if (untold == -1) {
            rest -= value;
            continue;
        }
        if (untold == -2 || missing != -1)
            return FITS;
        missing = untold;
        factor = value;
    }
    if (missing == -1)
        return rest ? DISAGREES : FITS;
    if (factor == 0)
        return FITS;
    if (rest < 0 || rest % factor)
        return DISAGREES;
    one->size[missing] = rest / factor;
    return TOLD;
}

/* A dimension by its name; -1: the cell has none, or nothing told it yet. */
static int64_t size_named(const call *one, const char *name)
{
    for (int64_t k = 0; k < one->cell->dims; ++k)
        if (!strcmp(one->cell->dim[k], name))
            return one->size[k];
    return -1;
}

/* Whether a member comes row by row, and its first axis is none that the descriptor tells. */
static int is_by_row(const call *one, int64_t at)
{
    return one->per_row && at >= one->function->arguments &&
           one->function->member[at].flags & CELLGEN_VALUE_WEIGHT;
}

/* Whether a member is an output over time or its gradient, of the steps that the call shows. */
static int is_shown(const cellgen_value *value)
{
    return value->flags & CELLGEN_VALUE_OVER_TIME &&
           (value->role == CELLGEN_ROLE_OUTPUT || value->role == CELLGEN_ROLE_UPSTREAM);
}

/* Look at the number of steps that are shown, which tells nothing. */
static enum told look_at_steps(const call *one, int64_t length)
{
    const int64_t steps = size_named(one, "T");
    return steps < 0 || length == steps / one->every ? FITS : DISAGREES;
}

/* Look at the shape of one member; count what it tells. 0: it is wrong. */
static int look(call *one, int64_t at, int *told)
{
    const cellgen_value *value = &one->function->member[at];
    const XLA_FFI_Buffer *buffer = one->member[at];
    const int64_t gone = one->last && is_shown(value), by_row = is_by_row(one, at);
    const int64_t first = by_row - gone, rows = size_named(one, "B");
    int fits = buffer->rank == value->axes + first;
    if (fits && by_row && rows >= 0 && buffer->dims[0] != rows)
        fits = 0;
    for (int64_t a = gone; a < value->axes || !fits; ++a) {
        const int divided = a == 0 && one->every > 1 && is_shown(value);
        const enum told found = !fits     ? DISAGREES
                                : divided ? look_at_steps(one, buffer->dims[0])
                                          : tell(one, value->axis[a], buffer->dims[a + first]);
        if (found == DISAGREES)
            return wrong(one, "%s.%s: %s has %lld axes, the length of axis %lld is %lld, which does not agree "
                         "with the other arrays", one->cell->name, one->function->name, value->name,
                         (long long)buffer->rank, (long long)(a + first),
                         (long long)(a + first < buffer->rank ? buffer->dims[a + first] : -1));
        *told += found == TOLD;
    }
    return 1;
}

/* Tell the dimensions from shapes, and look at every shape once all are told. */
static int tell_sizes(call *one)
{
    int told = 1;
    for (int64_t k = 0; k < one->cell->dims; ++k)
        one->size[k] = -1;
    while (told) {
        told = 0;
        for (int64_t at = 0; at < one->function->members; ++at)
            if (one->member[at] && !look(one, at, &told))
                return 0;
    }
    for (int64_t k = 0; k < one->function->dims; ++k)
        if (one->size[one->function->dim[k]] < 0)
            return wrong(one, "%s.%s: no array tells the dimension %s", one->cell->name, one->function->name,
                         one->cell->dim[one->function->dim[k]]);
    return 1;
}

/* Whether an array has a row for each step, saved ones too; not an output of the last step alone. */
static int has_steps(const call *one, const cellgen_value *value)
{
    if (value->flags & CELLGEN_VALUE_OVER_TIME)
        return !(one->last && is_shown(value));
    if (!(value->flags & CELLGEN_VALUE_SAVED) || value->axes == 0 || value->axis[0]->terms != 1)
        return 0;
    const cellgen_term *term = value->axis[0]->term;
    return term->factor == 1 && term->dim[0] >= 0 && term->dim[1] < 0 && !strcmp(one->cell->dim[term->dim[0]], "T");
}
