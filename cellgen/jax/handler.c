/* The handler through which programs of XLA call every cell: the target "cellgen_call" of its typed FFI,
 * in C99. Attributes name what is called: `cell`, `digest`, `function`. Operands and results are members of
 * the function's argument struct, by their numbers in `operands` and `results`; -1, -2, -3 are lengths,
 * mask, reset; -10 and below checkpoints, from the first on; -4 what the function does not read. `again` are
 * the members of the forward pass that a backward pass with checkpoints runs once more. Members that are in neither are NULL. Dimensions follow from the shapes of what comes in,
 * by the cell's descriptor, so that a program holds none. Every shape is checked against it.
 * Buffers of 16 bits: those that have steps go to the kernel as they are (`stored` of the options), all others
 * are widened to float32 before the call, and results rounded after it.
 * A cell that this process has not met is asked for through `find`. */
#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cellgen.h"
#include "cellgen_descriptor.h"
#include "cellgen_half.h"
#include "xla/ffi/api/c_api.h"

#define MOST_MEMBERS 2048
#define MOST_DIMS 32
#define KEPT_MEMORIES 32
#define ALIGNMENT 64
#define TEXT 512

enum { LENGTHS = -1, MASK = -2, RESET = -3, UNREAD = -4, FIRST_CHECKPOINT = -10, MOST_CHECKPOINTS = 256 };

/* --- cells ------------------------------------------------------------------------------- */

typedef struct met {
    const cellgen_cell *cell;
    const struct met *next;
    char text[]; /* as programs name it */
} met;

static const met *cells; /* the last one first; entries stay */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *(*team_of)(int threads); /* one team of a size serves every cell */
static const void *(*find)(const char *text);
static int64_t usual_threads = 1;

static const cellgen_cell *met_before(const char *text, size_t length)
{
    for (const met *at = __atomic_load_n(&cells, __ATOMIC_ACQUIRE); at; at = at->next)
        if (strlen(at->text) == length && !memcmp(at->text, text, length))
            return at->cell;
    return NULL;
}

/* Make a cell known under a text; 0: no memory, -1: a kernel of another ABI. */
CELLGEN_EXPORT int cellgen_jax_add(const char *text, const cellgen_cell *cell)
{
    if (cell->abi != CELLGEN_ABI_VERSION)
        return -1;
    met *made = malloc(sizeof *made + strlen(text) + 1);
    if (!made)
        return 0;
    made->cell = cell;
    strcpy(made->text, text);
    pthread_mutex_lock(&lock);
    if (!team_of)
        team_of = cell->team;
    made->next = cells;
    __atomic_store_n(&cells, made, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return 1;
}

/* Say who finds cells that programs name and nobody added, and how many threads a call has. */
CELLGEN_EXPORT void cellgen_jax_set(const void *(*finder)(const char *), int64_t threads)
{
    find = finder;
    usual_threads = threads;
}

/* --- memory ------------------------------------------------------------------------------ */

typedef struct {
    void *address;
    int64_t bytes;
} memory;

static memory kept[KEPT_MEMORIES]; /* workspaces that no call uses */

/* Take a workspace: the smallest of those kept that is large enough, or a new one. */
static memory take_memory(int64_t bytes)
{
    memory found = {NULL, 0};
    int best = -1;
    pthread_mutex_lock(&lock);
    for (int k = 0; k < KEPT_MEMORIES; ++k)
        if (kept[k].bytes >= bytes && kept[k].address && (best < 0 || kept[k].bytes < kept[best].bytes))
            best = k;
    if (best >= 0) {
        found = kept[best];
        kept[best] = (memory){NULL, 0};
    }
    pthread_mutex_unlock(&lock);
    if (!found.address && !posix_memalign(&found.address, ALIGNMENT, (size_t)(bytes > 0 ? bytes : 1)))
        found.bytes = bytes;
    return found;
}

/* Keep a workspace for the next call, in place of the smallest where there is no room. */
static void give_memory(memory given)
{
    int place = 0;
    pthread_mutex_lock(&lock);
    for (int k = 0; k < KEPT_MEMORIES; ++k)
        if (kept[k].bytes < kept[place].bytes)
            place = k;
    if (kept[place].bytes < given.bytes) {
        const memory old = kept[place];
        kept[place] = given;
        given = old;
    }
    pthread_mutex_unlock(&lock);
    free(given.address);
}

/* --- a call ------------------------------------------------------------------------------ */

/* A buffer of 16 bits without steps, and its numbers in float32. */
typedef struct {
    const XLA_FFI_Buffer *buffer;
    float *numbers;
    int64_t count;
    int is_result;
} wide;

typedef struct {
    XLA_FFI_CallFrame *frame;
    const cellgen_cell *cell;
    const cellgen_signature *function;
    const cellgen_entry *entry;
    const XLA_FFI_Buffer *member[MOST_MEMBERS];
    const XLA_FFI_Buffer *table[3]; /* lengths, mask, reset */
    XLA_FFI_DataType type;
    int64_t size[MOST_DIMS]; /* by number of dimension in the cell; -1: not told yet */
    uint64_t word[MOST_MEMBERS + 4];
    int64_t *lengths; /* of our own, where those of the call have 32 bits */
    int64_t per_row;  /* gradients of weights come row by row, (B, ...) */
    int64_t every, last; /* outputs are of every so many-th step; of the last one alone, (B, ...) */
    int64_t segment;     /* steps from one checkpoint to the next; 0: there are none */
    const XLA_FFI_Buffer *checkpoint[MOST_CHECKPOINTS];
    void *checkpoint_at[MOST_CHECKPOINTS];
    int64_t checkpoints;
    uint64_t again[MOST_MEMBERS + 4]; /* the forward pass that is run once more */
    cellgen_options options_again;
    unsigned char stored[MOST_MEMBERS], stored_again[MOST_MEMBERS];
    int is_narrow; /* some buffers have 16 bits */
    wide widened[MOST_MEMBERS];
    int64_t wides;
    memory numbers; /* of those */
    char text[TEXT];  /* of an error */
} call;

static XLA_FFI_Error *refuse(const call *one, XLA_FFI_Error_Code code)
{
    XLA_FFI_Error_Create_Args args;
    memset(&args, 0, sizeof args);
    args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
    args.message = one->text;
    args.errc = code;
    return one->frame->api->XLA_FFI_Error_Create(&args);
}

/* Say what is wrong with a call; 0. */
static int wrong(call *one, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(one->text, TEXT, format, args);
    va_end(args);
    return 0;
}

static const void *attribute(const XLA_FFI_CallFrame *frame, const char *name, XLA_FFI_AttrType type)
{
    const size_t length = strlen(name);
    for (int64_t k = 0; k < frame->attrs.size; ++k) {
        const XLA_FFI_ByteSpan *found = frame->attrs.names[k];
        if (found->len == length && !memcmp(found->ptr, name, length) && frame->attrs.types[k] == type)
            return frame->attrs.attrs[k];
    }
    return NULL;
}

static int64_t number(const XLA_FFI_CallFrame *frame, const char *name)
{
    const XLA_FFI_Scalar *found = attribute(frame, name, XLA_FFI_AttrType_SCALAR);
    return found && found->dtype == XLA_FFI_DataType_S64 ? *(const int64_t *)found->value : 0;
}

static int is_called(const XLA_FFI_ByteSpan *text, const char *name)
{
    return strlen(name) == text->len && !memcmp(name, text->ptr, text->len);
}

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

/* Note a buffer whose numbers have to be widened, or rounded; 0: there are too many. */
static int note_wide(call *one, const cellgen_value *value, const XLA_FFI_Buffer *buffer, int is_result)
{
    int64_t count = 1;
    if (!narrow(buffer) || has_steps(one, value))
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
        one->stored[m] = (unsigned char)(buffer && has_steps(one, value) ? narrow(buffer) : CELLGEN_STORED_REAL);
        if (buffer && one->last && is_shown(value) && !narrow(buffer)) {
            size_t bytes = one->type == XLA_FFI_DataType_F32 ? 4 : 8;
            for (int64_t a = 0; a < buffer->rank; ++a)
                bytes *= (size_t)buffer->dims[a];
            memset(buffer->data, 0, bytes);
        }
    }
}

/* Put checkpoints into the options, and for a backward pass what it runs forward once more; 0: they are wrong. */
static int fill_checkpoints(call *one, cellgen_options *options)
{
    const XLA_FFI_CallFrame *frame = one->frame;
    const XLA_FFI_Array *again = attribute(frame, "again", XLA_FFI_AttrType_ARRAY);
    const int64_t steps = size_named(one, "T"), kept = steps > 0 ? (steps - 1) / one->segment : 0;
    const cellgen_signature *forward = forward_of(one);
    if (!one->checkpoints)
        return disagrees(one);
    for (int64_t k = 0; k < one->checkpoints; ++k) {
        const XLA_FFI_Buffer *buffer = k < MOST_CHECKPOINTS ? one->checkpoint[k] : NULL;
        if (!buffer || buffer->dtype != one->type || buffer->rank < 2 || buffer->dims[0] != kept ||
            buffer->dims[1] != size_named(one, "B"))
            return disagrees(one);
        one->checkpoint_at[k] = buffer->data;
    }
    options->checkpoint = one->segment;
    options->checkpoints = one->checkpoint_at;
    if (!again)
        return 1;
    if (!forward || forward->members > MOST_MEMBERS || !is_numbers(again, frame->args.size))
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
        one->stored_again[at] = (unsigned char)(has_steps(one, &forward->member[at]) ? narrow(buffer) : 0);
    }
    one->options_again = *options;
    one->options_again.window = one->options_again.checkpoint = one->options_again.every = 0;
    one->options_again.partial = one->options_again.per_row = 0;
    one->options_again.checkpoints = NULL;
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
    memset(options, 0, sizeof *options);
    options->reverse = number(one->frame, "reverse");
    options->hold = !number(one->frame, "zero_output_for_mask");
    options->window = number(one->frame, "window");
    options->flush = number(one->frame, "flush_denormals");
    options->per_row = one->per_row;
    options->products = number(one->frame, "products");
    options->every = one->every;
    options->last = one->last;
    options->partial = number(one->frame, "partial");
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
    const int64_t rows = size_named(one, "B"), steps = size_named(one, "T");
    int64_t row = 0;
    while (row + 1 < rows && lengths[row] >= 0 && lengths[row] <= steps)
        ++row;
    wrong(one, "%s.%s: lengths[%lld] is %lld, expected 0 to T = %lld; shorten it or pass longer arrays",
          one->cell->name, one->function->name, (long long)row, (long long)lengths[row],
          (long long)steps);
}

static XLA_FFI_Error *run(call *one)
{
    cellgen_options options;
    int64_t dims[MOST_DIMS], at = one->function->members;
    int64_t threads = number(one->frame, "threads");
    if (!fill_options(one, &options)) {
        wrong(one, "%s.%s: no memory for lengths", one->cell->name, one->function->name);
        return refuse(one, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
    }
    if (one->segment && !fill_checkpoints(one, &options))
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

CELLGEN_EXPORT XLA_FFI_Error *cellgen_call(XLA_FFI_CallFrame *frame);
CELLGEN_EXPORT XLA_FFI_Error *cellgen_call(XLA_FFI_CallFrame *frame)
{
    if (answers_metadata(frame) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE)
        return NULL;
    call one;
    one.frame = frame;
    one.entry = NULL;
    one.lengths = NULL;
    one.per_row = number(frame, "per_row");
    one.every = number(frame, "every");
    one.last = number(frame, "last");
    one.segment = number(frame, "checkpoint");
    one.checkpoints = one.wides = 0;
    one.is_narrow = 0;
    one.numbers = (memory){NULL, 0};
    if (one.segment)
        memset(one.checkpoint, 0, sizeof one.checkpoint);
    memset(one.table, 0, sizeof one.table);
    if (!find_function(&one))
        return refuse(&one, XLA_FFI_Error_Code_NOT_FOUND);
    memset(one.member, 0, (size_t)one.function->members * sizeof *one.member);
    if (!place_buffers(&one) || !choose_entry(&one) || !tell_sizes(&one) || !check_tables(&one))
        return refuse(&one, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    if (one.is_narrow && (!note_members(&one) || !note_again(&one) || !widen(&one)))
        return refuse(&one, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
    fill_words(&one);
    XLA_FFI_Error *error = run(&one);
    free(one.lengths);
    give_memory(one.numbers);
    return error;
}
