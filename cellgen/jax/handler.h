/* What calls of XLA are made of: cells that programs may name, memory, a call, its attributes and errors.
 * Part of handler.c. */
#ifndef CELLGEN_JAX_HANDLER_H
#define CELLGEN_JAX_HANDLER_H

#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_MEMBERS 2048
#define CG_MOST_MEMBERS MOST_MEMBERS
#define CG_MOST_VIEWS (2 * MOST_MEMBERS) /* and what only the forward pass reads that is run once more */
#include "cellgen.h"
#include "cellgen_call.h"
#include "xla/ffi/api/c_api.h"

#define MOST_DIMS 32
#define KEPT_MEMORIES 32
#define ALIGNMENT 64
#define TEXT 1024

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

typedef struct {
    memory own; /* where this is */
    XLA_FFI_CallFrame *frame;
    const cellgen_cell *cell;
    const cellgen_signature *function;
    const XLA_FFI_Buffer *member[MOST_MEMBERS];
    const XLA_FFI_Buffer *table[3]; /* lengths, mask, reset */
    XLA_FFI_DataType type;
    int64_t *lengths; /* of our own, where those of the call have 32 bits */
    const XLA_FFI_Buffer *checkpoint[MOST_CHECKPOINTS];
    int64_t checkpoints;
    cg_call call;
    char named[TEXT / 2]; /* the cell, as the program names it */
    char text[TEXT]; /* of an error */
} call;

static XLA_FFI_Error *refuse_in(const XLA_FFI_CallFrame *frame, const char *text, XLA_FFI_Error_Code code)
{
    XLA_FFI_Error_Create_Args args;
    memset(&args, 0, sizeof args);
    args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
    args.message = text;
    args.errc = code;
    return frame->api->XLA_FFI_Error_Create(&args);
}

static XLA_FFI_Error *refuse(const call *one, XLA_FFI_Error_Code code) { return refuse_in(one->frame, one->text, code); }

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

static int64_t number(const XLA_FFI_CallFrame *frame, const char *name, int64_t usual)
{
    const XLA_FFI_Scalar *found = attribute(frame, name, XLA_FFI_AttrType_SCALAR);
    return found && found->dtype == XLA_FFI_DataType_S64 ? *(const int64_t *)found->value : usual;
}

static int is_called(const XLA_FFI_ByteSpan *text, const char *name)
{
    return strlen(name) == text->len && !memcmp(name, text->ptr, text->len);
}

#endif
