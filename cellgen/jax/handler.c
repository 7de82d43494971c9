/* The handler through which programs of XLA call every cell: the target "cellgen_call" of its typed FFI,
 * in C99. Attributes name what is called: `cell`, `digest`, `function`. Operands and results are members of
 * the function's argument struct, by their numbers in `operands` and `results`; -1, -2, -3 are lengths,
 * mask, reset; -10 and below checkpoints, from the first on; -4 what the function does not read. `again` are
 * the members of the forward pass that a backward pass with checkpoints runs once more. Members that are in neither are NULL. Dimensions follow from the shapes of what comes in,
 * by the cell's descriptor, so that a program holds none. Every shape is checked against it.
 * Buffers of 16 bits: those that have steps go to the kernel as they are (`stored` of the options), all others
 * are widened to float32 before the call, and results rounded after it.
 * A cell that this process has not met is asked for through `find`. Calls on a device: handler_device.inc.h. */
#include "handler.h"
#include "handler_shapes.inc.h"

/* --- numbers of 16 bits -------------------------------------------------------------------- */

/* Note a buffer whose numbers have to be widened, or rounded; 0: there are too many. */
static int note_wide(call *one, const cellgen_value *value, const XLA_FFI_Buffer *buffer, int is_result)
{
    int64_t count = 1;
    if (!narrow(buffer) || held(one, value, buffer))
        return 1;
    for (int64_t k = 0; k < one->wides; ++k)
        if (one->widened[k].buffer == buffer)
            return 1;
    if (one->wides == MOST_MEMBERS)
        return wrong(one, "%s.%s: it has too many arrays", one->cell->name, one->function->name);
    for (int64_t a = 0; a < buffer->rank; ++a)
        count *= buffer->dims[a];
    one->widened[one->wides++] = (wide){buffer, NULL, count, is_result};
    return 1;
}

/* Widen what has no steps, and make room for such results, at zero; 0: no memory. */
static int widen(call *one)
{
    const int64_t line = ALIGNMENT / (int64_t)sizeof(float);
    int64_t total = 0;
    for (int64_t k = 0; k < one->wides; ++k)
        total += (one->widened[k].count + line - 1) / line * line;
    one->numbers = take_memory(total * (int64_t)sizeof(float));
    float *at = one->numbers.address;
    if (!at)
        return wrong(one, "%s.%s: no memory for arrays in float32", one->cell->name, one->function->name);
    for (int64_t k = 0; k < one->wides; ++k) {
        wide *found = &one->widened[k];
        found->numbers = at;
        at += (found->count + line - 1) / line * line;
        if (found->is_result)
            memset(found->numbers, 0, (size_t)found->count * sizeof(float));
        else
            cellgen_widen(found->numbers, found->buffer->data, found->count, narrow(found->buffer));
    }
    return 1;
}

/* Round results that have no steps. */
static void round_results(const call *one)
{
    for (int64_t k = 0; k < one->wides; ++k)
        if (one->widened[k].is_result)
            cellgen_narrow(one->widened[k].buffer->data, one->widened[k].numbers, one->widened[k].count,
                           narrow(one->widened[k].buffer));
}

/* Where the kernel finds or puts the numbers of a buffer. */
static void *numbers_of(const call *one, const XLA_FFI_Buffer *buffer)
{
    for (int64_t k = 0; narrow(buffer) && k < one->wides; ++k)
        if (one->widened[k].buffer == buffer)
            return one->widened[k].numbers;
    return buffer->data;
}

/* The word of a member: an address, or a scalar as a double. */
static uint64_t word_of(const call *one, const cellgen_value *value, const XLA_FFI_Buffer *buffer)
{
    double scalar = value->value;
    uint64_t word = 0;
    void *const found = buffer ? numbers_of(one, buffer) : NULL;
    if (value->role != CELLGEN_ROLE_SCALAR)
        return (uint64_t)(uintptr_t)found;
    if (buffer)
        scalar = one->type == XLA_FFI_DataType_F32 ? *(const float *)found : *(const double *)found;
    memcpy(&word, &scalar, sizeof scalar);
    return word;
}

/* Note what has to be widened or rounded, of the members; 0: there are too many. */
static int note_members(call *one)
{
    for (int64_t m = 0; m < one->function->members; ++m)
        if (one->member[m] &&
            !note_wide(one, &one->function->member[m], one->member[m], m >= one->function->arguments))
            return 0;
    return 1;
}

/* --- arguments ----------------------------------------------------------------------------- */

/* The forward pass that a backward pass with checkpoints runs once more; NULL: the cell has none. */
static const cellgen_signature *forward_of(const call *one)
{
    for (int64_t k = 0; k < one->cell->functions; ++k)
        if (!strcmp(one->cell->function[k].name, "sequence_forward"))
            return &one->cell->function[k];
    return NULL;
}

/* Note what it alone reads. */
static int note_again(call *one)
{
    const XLA_FFI_CallFrame *frame = one->frame;
    const XLA_FFI_Array *again = attribute(frame, "again", XLA_FFI_AttrType_ARRAY);
    const cellgen_signature *forward = forward_of(one);
    if (!again || !forward || !is_numbers(again, frame->args.size))
        return 1;
    for (int64_t n = 0; n < frame->args.size; ++n) {
        const int32_t at = ((const int32_t *)again->data)[n];
        if (at >= 0 && at < forward->arguments && !note_wide(one, &forward->member[at], frame->args.args[n], 0))
            return 0;
    }
    return 1;
}

/* Fill the words of the members; an output of the last step alone starts at zero. */
static void fill_words(call *one)
{
    for (int64_t m = 0; m < one->function->members; ++m) {
        const XLA_FFI_Buffer *buffer = one->member[m];
        const cellgen_value *value = &one->function->member[m];
        one->word[m] = word_of(one, value, buffer);
        one->stored[m] = (unsigned char)(buffer ? held(one, value, buffer) : CELLGEN_STORED_REAL);
        if (buffer && one->say.last_only && cg_is_shown(value) && !narrow(buffer)) {
            size_t bytes = one->type == XLA_FFI_DataType_F32 ? 4 : 8;
            for (int64_t a = 0; a < buffer->rank; ++a)
                bytes *= (size_t)buffer->dims[a];
            memset(buffer->data, 0, bytes);
        }
    }
}

/* Look at checkpoints: whether they are those that the forward pass makes, of their shapes. */
static int place_checkpoints(call *one)
{
    const cellgen_signature *forward = forward_of(one);
    const int skips = one->table[0] || one->table[1] || one->table[2];
    const cellgen_value *held[MOST_MEMBERS];
    int64_t shape[CG_AXES + 1];
    if (!forward || forward->members > MOST_MEMBERS || one->checkpoints > MOST_CHECKPOINTS ||
        cg_checkpoints_of(forward, skips, held) != one->checkpoints)
        return disagrees(one);
    for (int64_t k = 0; k < one->checkpoints; ++k) {
        const XLA_FFI_Buffer *buffer = one->checkpoint[k];
        const int64_t rank = cg_checkpoint_shape(one->cell, held[k], one->say.checkpoint, one->size, shape);
        if (!buffer || buffer->dtype != one->type || buffer->rank != rank ||
            memcmp(buffer->dims, shape, (size_t)rank * sizeof *shape))
            return disagrees(one);
        one->checkpoint_at[k] = buffer->data;
    }
    return 1;
}

/* Put checkpoints into the options, and for a backward pass what it runs forward once more; 0: they are wrong. */
static int fill_checkpoints(call *one, cellgen_options *options)
{
    const XLA_FFI_CallFrame *frame = one->frame;
    const XLA_FFI_Array *again = attribute(frame, "again", XLA_FFI_AttrType_ARRAY);
    const cellgen_signature *forward = forward_of(one);
    if (!place_checkpoints(one))
        return 0;
    options->checkpoints = one->checkpoint_at;
    if (!again)
        return 1;
    if (!is_numbers(again, frame->args.size))
        return disagrees(one);
    memset(one->stored_again, 0, (size_t)forward->members);
    for (int64_t m = 0; m < forward->members; ++m)
        one->again[m] = m < forward->arguments ? word_of(one, &forward->member[m], NULL) : 0;
    for (int64_t n = 0; n < frame->args.size; ++n) {
        const int32_t at = ((const int32_t *)again->data)[n];
        if (at < 0 || at >= forward->arguments)
            continue;
        const XLA_FFI_Buffer *buffer = frame->args.args[n];
        one->again[at] = word_of(one, &forward->member[at], buffer);
        one->stored_again[at] = (unsigned char)held(one, &forward->member[at], buffer);
    }
    one->options_again = cg_options_again(options);
    one->options_again.stored = one->is_narrow ? one->stored_again : NULL;
    memset(one->again + forward->members, 0, 3 * sizeof *one->again);
    one->again[forward->members + 3] = (uint64_t)(uintptr_t)&one->options_again;
    options->forward = one->again;
    return 1;
}

/* The options of a call, from its tables and attributes; 0: no memory. */
static int fill_options(call *one, cellgen_options *options)
{
    const XLA_FFI_Buffer *lengths = one->table[0];
    cellgen_set_numbers(options, &one->say);
    options->stored = one->is_narrow ? one->stored : NULL;
    options->mask = one->table[1] ? one->table[1]->data : NULL;
    options->reset = one->table[2] ? one->table[2]->data : NULL;
    if (lengths && lengths->dtype == XLA_FFI_DataType_S64)
        options->lengths = lengths->data;
    else if (lengths) {
        one->lengths = malloc((size_t)(lengths->dims[0] + 1) * sizeof(int64_t));
        if (!one->lengths)
            return 0;
        for (int64_t row = 0; row < lengths->dims[0]; ++row)
            one->lengths[row] = ((const int32_t *)lengths->data)[row];
        options->lengths = one->lengths;
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

static XLA_FFI_Error *run(call *one)
{
    cellgen_options options;
    int64_t dims[MOST_DIMS], at = one->function->members;
    int64_t threads = number(one->frame, "threads", 0);
    if (!fill_options(one, &options)) {
        wrong(one, "%s.%s: no memory for lengths", one->cell->name, one->function->name);
        return refuse(one, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
    }
    if (one->say.checkpoint && !fill_checkpoints(one, &options))
        return refuse(one, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    for (int64_t k = 0; k < one->function->dims; ++k)
        dims[k] = one->size[one->function->dim[k]];
    const int64_t bytes = one->entry->size ? one->entry->size(dims, &options) : 0;
    const memory workspace = bytes < 0 ? (memory){NULL, 0} : take_memory(bytes);
    if (!workspace.address) {
        wrong(one, "%s.%s: no memory for a workspace of %lld bytes", one->cell->name,
                 one->function->name, (long long)bytes);
        return refuse(one, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
    }
    if (one->function->has_workspace) {
        one->word[at++] = (uint64_t)(uintptr_t)workspace.address;
        one->word[at++] = (uint64_t)workspace.bytes;
    }
    threads = threads > 0 ? threads : usual_threads;
    if (one->function->has_team) {
        one->word[at++] = (uint64_t)(uintptr_t)(threads > 1 ? team_of((int)threads) : NULL);
        one->word[at++] = (uint64_t)(uintptr_t)&options;
    }
    const int code = one->entry->call(dims, one->word);
    give_memory(workspace);
    if (!code) {
        round_results(one);
        return NULL;
    }
    if (code == CELLGEN_LENGTH_OUT_OF_RANGE)
        say_length(one, options.lengths);
    else
        wrong(one, "%s.%s: the compiled function returned %d: %s", one->cell->name,
              one->function->name, code, meaning(code));
    return refuse(one, XLA_FFI_Error_Code_INVALID_ARGUMENT);
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
    one->entry = NULL;
    one->lengths = NULL;
#define TAKE(name, usual) one->say.name = number(frame, #name, usual);
    CELLGEN_EACH_NUMBER(TAKE)
    if (cg_wrong_numbers(&one->say)) {
        wrong(one, "%s", cg_wrong_numbers(&one->say));
        return refuse(one, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    }
    one->checkpoints = one->wides = 0;
    one->is_narrow = 0;
    one->numbers = (memory){NULL, 0};
    if (one->say.checkpoint)
        memset(one->checkpoint, 0, sizeof one->checkpoint);
    memset(one->table, 0, sizeof one->table);
    if (!find_function(one))
        return refuse(one, XLA_FFI_Error_Code_NOT_FOUND);
    memset(one->member, 0, (size_t)one->function->members * sizeof *one->member);
    if (!place_buffers(one) || !choose_entry(one) || !tell_sizes(one) || !check_tables(one))
        return refuse(one, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    return NULL;
}

/* Begin a call, if the frame is one; 0: it asks for something else, or the call is wrong. */
static int begins(call *one, XLA_FFI_CallFrame *frame, XLA_FFI_Error **error)
{
    if (answers_metadata(frame) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE)
        return 0;
    *error = begin(one, frame);
    return *error == NULL;
}

CELLGEN_EXPORT XLA_FFI_Error *cellgen_call(XLA_FFI_CallFrame *frame);
CELLGEN_EXPORT XLA_FFI_Error *cellgen_call(XLA_FFI_CallFrame *frame)
{
    call one;
    XLA_FFI_Error *error = NULL;
    if (!begins(&one, frame, &error))
        return error;
    if (one.is_narrow && (!note_members(&one) || !note_again(&one) || !widen(&one)))
        return refuse(&one, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
    fill_words(&one);
    error = run(&one);
    free(one.lengths);
    give_memory(one.numbers);
    return error;
}

#include "handler_device.inc.h"
