/* The options of a call in C: strides, checkpoints, and the forward pass that a backward pass with checkpoints runs
 * once more. Part of cellgen_call.h. */

/* Whether a table has gaps, or one of the arrays: then write down the strides of arrays over time of a function, which are
 * at `place`, and of the tables. */
static inline int cg_write_strides(const cg_call *call, const cellgen_signature *function, const int64_t *place,
                                   int64_t *next)
{
    int is_apart = call->flag_stride[0][0] != CELLGEN_NO_GAPS || call->flag_stride[1][0] != CELLGEN_NO_GAPS;
    for (int64_t v = 0; v < call->views; ++v)
        is_apart |= call->array[v].is_apart;
    for (int64_t m = 0; is_apart && m < function->members; ++m) {
        const cg_array *array = place[m] < 0 || !call->array[place[m]].is_apart ? NULL : &call->array[place[m]];
        if (!(function->member[m].flags & CELLGEN_VALUE_OVER_TIME))
            continue;
        *next++ = array == NULL ? CELLGEN_NO_GAPS : array->stride[0];
        *next++ = array == NULL ? 0 : array->stride[1];
    }
    if (is_apart)
        memcpy(next, call->flag_stride, sizeof call->flag_stride);
    return is_apart;
}

/* --- checkpoints --- */

static inline int cg_skips(const cg_call *call)
{
    return call->lengths != NULL || call->flags[0] != NULL || call->flags[1] != NULL;
}

/* Give the checkpoints of a forward pass memory. */
static inline int cg_make_checkpoints(cg_call *call)
{
    const cellgen_value *held[CG_MOST_MEMBERS];
    const int64_t count = cg_checkpoints_of(call->function, cg_skips(call), held);
    for (int64_t k = 0; k < count; ++k) {
        int64_t length[CG_AXES + 1];
        const int64_t rank = cg_checkpoint_shape(call->cell, held[k], call->say.checkpoint, call->size, length);
        call->checkpoint_at[k] = call->allocate(call, -1 - k, CELLGEN_STORED_REAL, rank, length, 0);
        if (call->checkpoint_at[k] == NULL)
            return CG_MEMORY;
    }
    return CG_RUNS;
}

/* Whether an argument of a backward pass is made by the forward pass that it runs once more: an output, or what is saved. */
static inline int cg_is_made_again(const cg_call *call, const cellgen_value *value)
{
    return call->again.function != NULL &&
           (value->role == CELLGEN_ROLE_OUTPUT || (value->flags & CELLGEN_VALUE_SAVED));
}

/* The words of the forward pass that a backward pass runs once more. */
static inline const uint64_t *cg_write_again(cg_call *call)
{
    cg_again *again = &call->again;
    const cellgen_signature *forward = again->function;
    for (int64_t m = 0; m < forward->members; ++m) {
        const cg_array *array = again->place[m] < 0 ? NULL : &call->array[again->place[m]];
        again->stored[m] = (unsigned char)(array == NULL ? CELLGEN_STORED_REAL : array->kind);
        if (array != NULL)
            again->word[m] = (uintptr_t)array->data;
    }
    again->options = cg_options_again(&call->options);
    again->options.flush = again->flush, again->options.products = again->products;
    again->options.packed = again->packed, again->options.packed_bytes = again->packed_bytes;
    again->options.plan = NULL, again->options.stop = NULL;
    if (cg_write_strides(call, forward, again->place, again->strides))
        again->options.strides = again->strides;
    again->options.stored = call->narrow ? again->stored : NULL;
    memset(again->word + forward->members, 0, 3 * sizeof *again->word);
    again->word[forward->members + 3] = (uintptr_t)&again->options;
    return again->word;
}

/* The options of a call in C, NULL where it says nothing. */
static inline cellgen_options *cg_write_options(cg_call *call)
{
    const int is_apart = cg_write_strides(call, call->function, call->place, call->strides);
    if (!is_apart && !call->narrow && call->lengths == NULL && call->flags[0] == NULL && call->flags[1] == NULL &&
        call->packed == NULL && call->plan == NULL && call->stop == NULL && cg_are_usual(&call->say))
        return NULL;
    cellgen_set_numbers(&call->options, &call->say);
    call->options.lengths = call->lengths;
    call->options.mask = call->flags[0], call->options.reset = call->flags[1];
    call->options.packed = call->packed, call->options.packed_bytes = call->packed_bytes;
    call->options.plan = call->plan, call->options.stop = call->stop;
    call->options.strides = is_apart ? call->strides : NULL;
    call->options.stored = call->narrow ? call->stored : NULL;
    if (call->say.checkpoint)
        call->options.checkpoints = call->checkpoint_at;
    if (call->again.function != NULL)
        call->options.forward = cg_write_again(call);
    return &call->options;
}
