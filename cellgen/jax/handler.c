/* The handler through which programs of XLA call every cell: the target "cellgen_call" of its typed FFI,
 * in C99. Attributes name what is called: `cell`, `digest`, `function`. Operands and results are members of
 * the function's argument struct, by their numbers in `operands` and `results`; -1, -2, -3 are lengths,
 * mask, reset; -10 and below checkpoints, from the first on; -4 what the function does not read. `again` are
 * the members of the forward pass that a backward pass with checkpoints runs once more. Members that are in neither are NULL. Dimensions follow from the shapes of what comes in,
 * by the cell's descriptor, so that a program holds none. Every shape is checked against it.
 * What a call means, 16 bits too, is said by cellgen_call.h.
 * A cell that this process has not met is asked for through `find`. Calls on a device: handler_device.inc.h. */
#include "handler.h"
#include "handler_shapes.inc.h"

/* --- arguments ----------------------------------------------------------------------------- */

/* The word of a scalar: a double, its usual one where there is no buffer. */
static uint64_t scalar_word(const cellgen_value *value, const XLA_FFI_Buffer *buffer)
{
    double scalar = value->value;
    float small = 0;
    uint64_t word = 0;
    if (buffer && buffer->dtype == XLA_FFI_DataType_F64)
        scalar = *(const double *)buffer->data;
    else if (buffer)
        cellgen_widen(&small, buffer->data, 1, narrow(buffer)), scalar = small;
    memcpy(&word, &scalar, sizeof scalar);
    return word;
}

/* Fill the words of scalars, of the forward pass too that is run once more. */
static void fill_scalars(call *one)
{
    const XLA_FFI_CallFrame *frame = one->frame;
    const XLA_FFI_Array *again = attribute(frame, "again", XLA_FFI_AttrType_ARRAY);
    const cellgen_signature *forward = one->call.again.function;
    for (int64_t m = 0; m < one->function->arguments; ++m)
        if (one->function->member[m].role == CELLGEN_ROLE_SCALAR)
            one->call.word[m] = scalar_word(&one->function->member[m], one->member[m]);
    for (int64_t m = 0; forward && m < forward->arguments; ++m) {
        const XLA_FFI_Buffer *buffer = NULL;
        for (int64_t n = 0; n < frame->args.size; ++n)
            if (((const int32_t *)again->data)[n] == m)
                buffer = frame->args.args[n];
        if (forward->member[m].role == CELLGEN_ROLE_SCALAR)
            one->call.again.word[m] = scalar_word(&forward->member[m], buffer);
    }
}

/* Look at checkpoints: whether they are those that the forward pass makes, of their shapes. */
static int place_checkpoints(call *one)
{
    const cellgen_signature *forward = cg_function_named(one->cell, "sequence_forward");
    const int skips = one->table[0] || one->table[1] || one->table[2];
    const cellgen_value *held[MOST_MEMBERS];
    int64_t shape[CG_AXES + 1];
    if (!forward || forward->members > MOST_MEMBERS || one->checkpoints > MOST_CHECKPOINTS ||
        cg_checkpoints_of(forward, skips, held) != one->checkpoints)
        return disagrees(one);
    for (int64_t k = 0; k < one->checkpoints; ++k) {
        const XLA_FFI_Buffer *buffer = one->checkpoint[k];
        const int64_t rank = cg_checkpoint_shape(one->cell, held[k], one->call.say.checkpoint, one->call.size, shape);
        if (!buffer || buffer->dtype != one->type || buffer->rank != rank ||
            memcmp(buffer->dims, shape, (size_t)rank * sizeof *shape))
            return disagrees(one);
        one->call.checkpoint_at[k] = buffer->data;
    }
    return 1;
}

/* Take the tables of steps; 0: no memory. */
static int take_tables(call *one)
{
    const XLA_FFI_Buffer *lengths = one->table[0];
    cg_call *of = &one->call;
    for (int k = 0; k < 2; ++k)
        of->flags[k] = one->table[k + 1] ? one->table[k + 1]->data : NULL;
    if (lengths && lengths->dtype == XLA_FFI_DataType_S64)
        of->lengths = lengths->data;
    else if (lengths) {
        one->lengths = malloc((size_t)(lengths->dims[0] + 1) * sizeof(int64_t));
        if (!one->lengths)
            return 0;
        for (int64_t row = 0; row < lengths->dims[0]; ++row)
            one->lengths[row] = ((const int32_t *)lengths->data)[row];
        of->lengths = one->lengths;
    }
    return 1;
}

static int has_bytes(const XLA_FFI_Buffer *table)
{
    return !table || table->dtype == XLA_FFI_DataType_PRED || table->dtype == XLA_FFI_DataType_U8;
}

/* Look at lengths (B), mask and reset (T, B) by how many elements they have. */
static int check_tables(call *one)
{
    const int64_t rows = size_named(one, "B"), steps = size_named(one, "T");
    const XLA_FFI_Buffer *lengths = one->table[0];
    int fits = !lengths || (lengths->rank == 1 && lengths->dims[0] == rows &&
                            (lengths->dtype == XLA_FFI_DataType_S32 || lengths->dtype == XLA_FFI_DataType_S64));
    for (int k = 1; k < 3; ++k) {
        const XLA_FFI_Buffer *table = one->table[k];
        fits = fits && has_bytes(table) &&
               (!table || (table->rank == 2 && table->dims[0] == steps && table->dims[1] == rows));
    }
    return fits || wrong(one, "%s.%s: lengths are not (B) integers, or mask or reset not (T, B) bool",
                         one->cell->name, one->function->name);
}

static const char *meaning(int code)
{
    switch (code) {
    case CELLGEN_NULL_POINTER: return "an array is missing";
    case CELLGEN_WORKSPACE_TOO_SMALL: return "the workspace is too small";
    default: return "see the error codes of cellgen.h";
    }
}

/* Name the first row whose length is none. */
static void say_length(call *one, const int64_t *lengths)
{
    const int64_t steps = size_named(one, "T"), row = cg_wrong_length(lengths, size_named(one, "B"), steps);
    wrong(one, "%s.%s: lengths[%lld] is %lld, expected 0 to T = %lld; shorten it or pass longer arrays",
          one->cell->name, one->function->name, (long long)row, (long long)lengths[row],
          (long long)steps);
}

static void say_code(call *one, int code)
{
    if (code == CELLGEN_LENGTH_OUT_OF_RANGE)
        say_length(one, one->call.lengths);
    else
        wrong(one, "%s.%s: the compiled function returned %d: %s", one->cell->name, one->function->name, code,
              meaning(code));
}

/* Run a call that is prepared. */
static XLA_FFI_Error *run(call *one)
{
    cg_call *of = &one->call;
    const int64_t bytes = of->entry->size ? of->entry->size(of->dims, cg_options_of(of)) : 0;
    const memory workspace = bytes < 0 ? (memory){NULL, 0} : take_memory(bytes);
    if (!workspace.address) {
        wrong(one, "%s.%s: no memory for a workspace of %lld bytes", one->cell->name,
                 one->function->name, (long long)bytes);
        return refuse(one, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
    }
    cg_lend(of, workspace.address, workspace.bytes);
    const int code = of->entry->call(of->dims, of->word);
    give_memory(workspace);
    if (!code)
        return NULL;
    say_code(one, code);
    return refuse(one, XLA_FFI_Error_Code_INVALID_ARGUMENT);
}

/* Prepare a call that has begun, and run it. */
static XLA_FFI_Error *compute(call *one)
{
    const int64_t own = number(one->frame, "threads", 0), threads = own > 0 ? own : usual_threads;
    fill_scalars(one);
    if (!take_tables(one)) {
        wrong(one, "%s.%s: no memory for lengths", one->cell->name, one->function->name);
        return refuse(one, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
    }
    if (one->call.say.checkpoint && !place_checkpoints(one))
        return refuse(one, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    const int refusal = cg_prepare(&one->call, threads > 1 ? team_of((int)threads) : NULL);
    if (!refusal)
        return run(one);
    if (refusal == CG_MISSING)
        say_code(one, CELLGEN_NULL_POINTER);
    else
        wrong(one, "%s.%s: no memory for arrays in float32", one->cell->name, one->function->name);
    return refuse(one, refusal == CG_MISSING ? XLA_FFI_Error_Code_INVALID_ARGUMENT : XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
}

static int answers_metadata(XLA_FFI_CallFrame *frame)
{
    if (!frame->extension_start || frame->extension_start->type != XLA_FFI_Extension_Metadata)
        return 0;
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = 0;
    return 1;
}

/* Begin a call: what it is of, its options, buffers in the places of members, and its dimensions. */
static XLA_FFI_Error *begin(call *one, XLA_FFI_CallFrame *frame)
{
    one->frame = frame;
    one->lengths = NULL;
    if (!find_function(one))
        return refuse(one, XLA_FFI_Error_Code_NOT_FOUND);
    cg_begin(&one->call, one->cell, one->function);
    one->call.are_given = 1, one->call.entry = NULL;
#define TAKE(name, usual) one->call.say.name = number(frame, #name, usual);
    CELLGEN_EACH_NUMBER(TAKE)
    if (cg_wrong_numbers(&one->call.say)) {
        wrong(one, "%s", cg_wrong_numbers(&one->call.say));
        return refuse(one, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    }
    one->checkpoints = 0;
    if (one->call.say.checkpoint)
        memset(one->checkpoint, 0, sizeof one->checkpoint);
    memset(one->table, 0, sizeof one->table);
    memset(one->member, 0, (size_t)one->function->members * sizeof *one->member);
    if (!place_buffers(one) || !choose_entry(one) || !tell_sizes(one) || !check_tables(one))
        return refuse(one, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    return NULL;
}

/* Begin a call, if the frame is one; NULL: it asks for something else, or the call is wrong. Its record is larger than
 * the stack of a thread may be. */
static call *begins(XLA_FFI_CallFrame *frame, XLA_FFI_Error **error)
{
    if (answers_metadata(frame) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE)
        return NULL;
    const memory own = take_memory(sizeof(call));
    call *one = own.address;
    if (!one) {
        *error = refuse_in(frame, "cellgen_call: no memory for a call", XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
        return NULL;
    }
    one->own = own;
    *error = begin(one, frame);
    if (!*error)
        return one;
    give_memory(own);
    return NULL;
}

CELLGEN_EXPORT XLA_FFI_Error *cellgen_call(XLA_FFI_CallFrame *frame);
CELLGEN_EXPORT XLA_FFI_Error *cellgen_call(XLA_FFI_CallFrame *frame)
{
    XLA_FFI_Error *error = NULL;
    call *one = begins(frame, &error);
    if (!one)
        return error;
    error = compute(one);
    cg_end(&one->call, error == NULL);
    free(one->lengths);
    give_memory(one->own);
    return error;
}

#include "handler_device.inc.h"
