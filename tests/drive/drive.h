/* Call every function of a generated cell from C alone, where a mistake cannot hide.
 *
 * main.c (written by tests/drive/__init__.py from a cell's interface) holds tables; this header does
 * the work. Each array stands so that its last byte is the last of a page with no access behind it
 * (END), or its first byte the first of a page with no access before it (START), or alone on the
 * heap (HEAP: what AddressSanitizer watches to the byte). Arguments are read-only memory. Results and
 * the workspace, which has exactly the bytes that the kernel asks for, are poisoned first: what is
 * not written, or read before it is written, shows as NaN or as a bit that differs.
 *
 * Checked: code CELLGEN_OK and results without NaN; equal bits for every placement, poison and
 * number of threads, with saved results or without; absent gradients; every option of the functions
 * over time, arrays with gaps that stay as they were; the error codes, and that nothing was written
 * with them; calls of several host threads on one team; and, built with
 * -DDRIVE_COUNT, that no call allocates, maps memory or makes a thread. Built with -DDRIVE_TEAMS it
 * leaves out what one thread does alone, beside that with which teams are compared. */
#define _GNU_SOURCE 1
#include "cellgen.h"
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum drive_kind {
    DRIVE_ARGUMENT, /* required */
    DRIVE_OPTIONAL, /* an upstream gradient: NULL counts as zero */
    DRIVE_SCALAR,
    DRIVE_RESULT,
    DRIVE_GRADIENT, /* a result that is formed where it is wanted: NULL, not wanted */
    DRIVE_SAVED, /* a result that is formed on request: NULL, not wanted */
    DRIVE_WORKSPACE,
    DRIVE_WORKSPACE_BYTES,
    DRIVE_TEAM,
    DRIVE_OPTIONS
};

typedef struct {
    const char *name;
    enum drive_kind kind;
    size_t offset;                          /* in the struct of arguments */
    int64_t (*count)(const int64_t *sizes); /* elements */
    double value;                           /* of a scalar; more than that in an array */
    int64_t (*width)(const int64_t *sizes); /* of an array over time, elements of a row */
    int is_saved;                           /* an argument that comes from the forward pass */
    int is_summed;                          /* a result that is a sum over rows and steps */
    int is_final;                           /* a result that is a state after the last step */
} drive_member;

typedef struct {
    const char *name;
    size_t real_bytes; /* 4 or 8 */
    size_t struct_bytes;
    int (*call)(const int64_t *sizes, const void *args);
    int64_t (*workspace_size)(const int64_t *sizes, const void *options); /* NULL: takes none */
    int dims;
    int takes_team; /* a function over time: the first two sizes are T and B */
    int is_backward;
    int members;
    const drive_member *member;
} drive_function;

enum { DRIVE_DIMS = 16, DRIVE_MEMBERS = 256 };
enum drive_place { DRIVE_HEAP, DRIVE_END, DRIVE_START };

static const char *drive_doing = "starting";
static int64_t drive_calls;

#define DRIVE_FAIL(...)                                                                            \
    do {                                                                                           \
        fprintf(stderr, "%s: ", drive_doing);                                                      \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fprintf(stderr, "\n");                                                                     \
        exit(1);                                                                                   \
    } while (0)

/* ------------------------------------------------------------------------------- allocations */

static int drive_inside, drive_allocations; /* calls running; what they allocated */

#ifdef DRIVE_COUNT
/* An executable's own definitions go before the library's, for the library's own calls as well. */
#define DRIVE_NOTE()                                                                               \
    do {                                                                                           \
        if (__atomic_load_n(&drive_inside, __ATOMIC_ACQUIRE))                                      \
            __atomic_add_fetch(&drive_allocations, 1, __ATOMIC_ACQ_REL);                           \
    } while (0)
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t), __libc_free(void *);
void *malloc(size_t n) { DRIVE_NOTE(); return __libc_malloc(n); }
void *calloc(size_t m, size_t n) { DRIVE_NOTE(); return __libc_calloc(m, n); }
void *realloc(void *p, size_t n) { DRIVE_NOTE(); return __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { DRIVE_NOTE(); return __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { DRIVE_NOTE(); return __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n)
{
    DRIVE_NOTE();
    *p = __libc_memalign(a, n);
    return *p ? 0 : 12;
}
void free(void *p)
{
    if (p) DRIVE_NOTE();
    __libc_free(p);
}
/* linked with --wrap for each of these */
void *__real_mmap(void *, size_t, int, int, int, off_t);
void *__wrap_mmap(void *p, size_t n, int protection, int flags, int file, off_t at)
{
    DRIVE_NOTE();
    return __real_mmap(p, n, protection, flags, file, at);
}
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *c)
{
    DRIVE_NOTE();
    return __real_pthread_create(t, a, f, c);
}
#endif

/* ------------------------------------------------------------------------------------ memory */

typedef struct {
    void *data;
    size_t bytes;
    void *mapping;                       /* or the heap's block */
    size_t mapped;                       /* 0: on the heap */
    int64_t steps, rows, width;          /* an array that has gaps, or all of it in one row */
    int64_t step_stride, row_stride;     /* in elements */
    int stored;                          /* elements of 16 bits, as `stored` of the options numbers them */
} drive_array;

/* Layouts of arrays over time. */
enum drive_layout { DRIVE_DENSE, DRIVE_GAPS, DRIVE_BATCH_FIRST };

/* One way to choose steps and layout; each table is drawn for T and B. */
typedef struct {
    const char *name;
    int lengths, mask, reset, reverse, hold, last, window, per_row;
    enum drive_layout layout;
    int every, products, stored;
} drive_choice;

static const drive_choice drive_choices[] = {
    {"", 0, 0, 0, 0, 0, 0, 0, 0, DRIVE_DENSE, 1, 0, 0}, /* no options at all */
    {"lengths", 1, 0, 0, 0, 0, 0, 0, 0, DRIVE_DENSE, 1, 0, 0},
    {"mask", 0, 1, 0, 0, 1, 0, 0, 0, DRIVE_DENSE, 1, 0, 0},
    {"reverse, window", 0, 0, 0, 1, 0, 0, 2, 0, DRIVE_DENSE, 1, 0, 0},
    {"last", 0, 0, 0, 0, 0, 1, 0, 0, DRIVE_DENSE, 1, 0, 0},
    {"batch first", 0, 0, 0, 0, 0, 0, 0, 0, DRIVE_BATCH_FIRST, 1, 0, 0},
    {"per row", 0, 0, 0, 0, 0, 0, 0, 1, DRIVE_DENSE, 1, 0, 0},
    {"all together", 1, 1, 1, 1, 0, 1, 3, 0, DRIVE_GAPS, 1, 0, 0},
    {"every", 0, 0, 0, 0, 0, 0, 0, 0, DRIVE_DENSE, 2, 0, 0},
    {"products in bfloat16", 1, 0, 0, 1, 0, 0, 2, 0, DRIVE_GAPS, 1, 1, 0},
    {"every, with gaps, norms of rows", 1, 1, 1, 1, 1, 0, 3, 2, DRIVE_GAPS, 3, 0, 0},
    {"16 bits, all together, norms of rows", 1, 1, 1, 1, 1, 0, 3, 2, DRIVE_GAPS, 3, 0, 1},
};
enum { DRIVE_CHOICES = sizeof drive_choices / sizeof drive_choices[0] };

static size_t drive_pages(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static drive_array drive_take(size_t bytes, enum drive_place place, size_t alignment)
{
    drive_array array = {0};
    array.bytes = bytes;
    if (place == DRIVE_HEAP) {
        const size_t least = alignment < sizeof(void *) ? sizeof(void *) : alignment;
        if (posix_memalign(&array.mapping, least, bytes ? bytes : 1)) DRIVE_FAIL("no memory");
        array.data = array.mapping;
        return array;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = drive_pages(bytes);
    array.mapped = inner + 2 * page;
    array.mapping = mmap(NULL, array.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (array.mapping == MAP_FAILED) DRIVE_FAIL("no memory");
    char *first = (char *)array.mapping + page;
    if (inner && mprotect(first, inner, PROT_READ | PROT_WRITE)) DRIVE_FAIL("mprotect");
    array.data = place == DRIVE_START ? first : first + inner - bytes;
    if ((uintptr_t)array.data % alignment) DRIVE_FAIL("%zu bytes cannot end at a page", bytes);
    return array;
}

static void drive_protect(const drive_array *array)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t inner = array->mapped > 2 * page ? array->mapped - 2 * page : 0; /* emulators refuse no pages */
    if (inner && mprotect((char *)array->mapping + page, inner, PROT_READ)) DRIVE_FAIL("mprotect");
}

static void drive_give(drive_array *array)
{
    if (!array->mapping) return;
    if (array->mapped)
        munmap(array->mapping, array->mapped);
    else
        free(array->mapping);
    memset(array, 0, sizeof *array);
}

/* Where the element lies that is the place'th of the rows of an array. */
static size_t drive_at(const drive_array *array, int64_t place)
{
    const int64_t row = place / array->width, unit = place % array->width;
    return (size_t)(row / array->rows * array->step_stride + row % array->rows * array->row_stride + unit);
}

static int64_t drive_count(const drive_array *array)
{
    return array->steps * array->rows * array->width;
}

/* Numbers in (-1/2, 1/2) and some more, the same for a seed on every machine; NaN in gaps. */
static void drive_fill(drive_array *array, size_t real_bytes, uint64_t seed, double more)
{
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    uint32_t bits;
    memset(array->data, 0xff, array->bytes);
    for (int64_t place = 0; place < drive_count(array); ++place) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        const double number = (double)(state >> 40) / 16777216.0 - 0.5 + more;
        const float narrow = (float)number;
        memcpy(&bits, &narrow, sizeof bits);
        if (array->stored) /* finite numbers in either type */
            ((uint16_t *)array->data)[drive_at(array, place)] = (uint16_t)(bits >> 16);
        else if (real_bytes == 4)
            ((float *)array->data)[drive_at(array, place)] = narrow;
        else
            ((double *)array->data)[drive_at(array, place)] = number;
    }
}

static double drive_element(const drive_array *array, size_t real_bytes, int64_t place)
{
    const size_t at = drive_at(array, place);
    if (array->stored) {
        const uint16_t bits = ((const uint16_t *)array->data)[at] & 0x7fff;
        return bits > (array->stored == 1 ? 0x7f80 : 0x7c00) ? NAN : bits;
    }
    return real_bytes == 4 ? (double)((const float *)array->data)[at]
                           : ((const double *)array->data)[at];
}

/* Whether every byte between the rows is still the poison. */
static int drive_gaps_are(const drive_array *array, size_t real_bytes, int poison)
{
    if (array->stored) real_bytes = 2;
    unsigned char *const seen = (unsigned char *)calloc(array->bytes ? array->bytes : 1, 1);
    int clean = 1;
    for (int64_t place = 0; place < drive_count(array); ++place)
        memset(seen + drive_at(array, place) * real_bytes, 1, real_bytes);
    for (size_t at = 0; at < array->bytes; ++at)
        clean &= seen[at] || ((const unsigned char *)array->data)[at] == (unsigned char)poison;
    free(seen);
    return clean;
}

static int drive_is_filled(const drive_array *array, int poison)
{
    const unsigned char *bytes = (const unsigned char *)array->data;
    for (size_t place = 0; place < array->bytes; ++place)
        if (bytes[place] != (unsigned char)poison) return 0;
    return 1;
}

/* -------------------------------------------------------------------------------------- calls */

typedef struct {
    enum drive_place place;
    int poison; /* the byte that fills results and workspace */
    int upstream, saves;
    void *team;
    const drive_choice *choice;
    int64_t checkpoint; /* states are kept before every so many-th step; 0: what steps save is */
    void *const *checkpoints;
    const void *forward; /* of a backward pass: arguments of the forward pass */
} drive_manner;

typedef struct {
    drive_array array[DRIVE_MEMBERS];
    drive_array lengths, mask, reset;
    int64_t words[256]; /* the struct of arguments */
    cellgen_options options;
    int64_t strides[2 * DRIVE_MEMBERS];
    unsigned char stored[DRIVE_MEMBERS];
} drive_frame;

static void drive_set(drive_frame *frame, size_t offset, const void *value, size_t bytes)
{
    memcpy((char *)frame->words + offset, value, bytes);
}

/* Whether an array over time is an output, or the gradient of one: it has the steps that are shown. */
static int drive_is_shown(const drive_function *f, const drive_member *m)
{
    return m->width && (f->is_backward ? m->kind == DRIVE_OPTIONAL : m->kind == DRIVE_RESULT);
}

/* How an array lies in memory; returns how many elements its memory has. */
static int64_t drive_lay_out(drive_array *array, const drive_function *f, const drive_member *m,
                             const int64_t *sizes, const drive_choice *c)
{
    const enum drive_layout layout = c->layout;
    const int has_steps = m->width || m->is_saved || m->kind == DRIVE_SAVED;
    array->stored = c->stored && f->real_bytes == 4 && has_steps ? (m->width ? 1 : 2) : 0;
    array->steps = array->rows = array->row_stride = 1;
    array->width = array->step_stride = m->count(sizes);
    if (m->is_summed && c->per_row)
        array->width = array->step_stride = sizes[1] * (c->per_row > 1 ? 1 : array->width);
    if (!m->width) return array->width;
    array->steps = drive_is_shown(f, m) ? sizes[0] / c->every : sizes[0];
    array->rows = sizes[1], array->width = m->width(sizes);
    const int64_t gap = layout == DRIVE_GAPS ? 3 : 0;
    array->row_stride = array->width + gap, array->step_stride = array->rows * array->row_stride + gap;
    if (layout == DRIVE_BATCH_FIRST)
        array->step_stride = array->width, array->row_stride = array->steps * array->width;
    if (drive_count(array) == 0) return 0;
    return (array->steps - 1) * array->step_stride + (array->rows - 1) * array->row_stride + array->width;
}

/* Allocate where `manner` says, keeping the layout. */
static void drive_place(drive_array *array, size_t bytes, enum drive_place place, size_t alignment)
{
    const drive_array layout = *array;
    *array = drive_take(bytes, place, alignment);
    array->steps = layout.steps, array->rows = layout.rows, array->width = layout.width;
    array->step_stride = layout.step_stride, array->row_stride = layout.row_stride;
    array->stored = layout.stored;
}

/* Tables of which steps are valid: a row of no steps, one of all, others in between. */
static void drive_choose(drive_frame *frame, const drive_function *f, const int64_t *sizes,
                         drive_manner manner)
{
    const drive_choice *c = manner.choice;
    const int64_t T = sizes[0], B = sizes[1];
    cellgen_options *o = &frame->options;
    static const int never = 0;
    o->stop = &never;
    if (c->lengths) {
        frame->lengths = drive_take((size_t)B * sizeof(int64_t), manner.place, sizeof(int64_t));
        for (int64_t row = 0; row < B; ++row)
            ((int64_t *)frame->lengths.data)[row] = row == 0 ? T : row * 2 % (T + 1);
        o->lengths = (const int64_t *)frame->lengths.data;
        drive_protect(&frame->lengths);
    }
    drive_array *tables[2] = {&frame->mask, &frame->reset};
    for (int table = 0; table < 2; ++table) {
        if (!(table ? c->reset : c->mask)) continue;
        *tables[table] = drive_take((size_t)(T * B), manner.place, 1);
        for (int64_t place = 0; place < T * B; ++place)
            ((unsigned char *)tables[table]->data)[place] = (place * 7 + table) % 3 != 0;
        drive_protect(tables[table]);
    }
    o->mask = (const unsigned char *)frame->mask.data;
    o->reset = (const unsigned char *)frame->reset.data;
    o->reverse = c->reverse, o->hold = c->hold;
    o->last = c->last && !f->is_backward && !manner.saves;
    o->window = f->is_backward ? c->window : 0;
    o->every = c->every;
    o->products = c->products;
    o->checkpoint = manner.checkpoint, o->checkpoints = manner.checkpoints;
    o->forward = manner.forward;
    o->per_row = f->is_backward ? c->per_row : 0;
    for (int place = 0; place < f->members && c->stored && f->real_bytes == 4; ++place) {
        drive_array array = {0};
        if (f->member[place].count) drive_lay_out(&array, f, &f->member[place], sizes, c);
        frame->stored[place] = (unsigned char)array.stored;
        o->stored = frame->stored;
    }
    if (c->layout == DRIVE_DENSE) return;
    int64_t *stride = frame->strides;
    for (int place = 0; place < f->members; ++place) {
        if (!f->member[place].width) continue;
        drive_array array;
        drive_lay_out(&array, f, &f->member[place], sizes, c);
        *stride++ = array.step_stride, *stride++ = array.row_stride;
    }
    for (int table = 0; table < 2; ++table) *stride++ = B, *stride++ = 1;
    o->strides = frame->strides;
}

static void drive_prepare(drive_frame *frame, const drive_function *f, const int64_t *sizes,
                          drive_manner manner)
{
    memset(frame, 0, sizeof *frame);
    if (f->struct_bytes > sizeof frame->words || f->members > DRIVE_MEMBERS)
        DRIVE_FAIL("raise DRIVE_MEMBERS: %d members, %zu bytes", f->members, f->struct_bytes);
    const drive_choice *c = manner.choice;
    const void *const options = f->takes_team && c->name[0] ? &frame->options : NULL;
    if (options) drive_choose(frame, f, sizes, manner);
    const int64_t needed = f->workspace_size ? f->workspace_size(sizes, options) : 0;
    for (int place = 0; place < f->members; ++place) {
        const drive_member *m = &f->member[place];
        drive_array *array = &frame->array[place];
        const size_t bytes =
            m->count ? (size_t)drive_lay_out(array, f, m, sizes, c) * (array->stored ? 2 : f->real_bytes) : 0;
        switch (m->kind) {
        case DRIVE_OPTIONAL:
            if (!manner.upstream) break;
            /* fall through */
        case DRIVE_ARGUMENT:
            drive_place(array, bytes, manner.place, array->stored ? 2 : f->real_bytes);
            drive_fill(array, f->real_bytes, (uint64_t)place + 1, m->value);
            drive_protect(array);
            drive_set(frame, m->offset, &array->data, sizeof array->data);
            break;
        case DRIVE_SCALAR: drive_set(frame, m->offset, &m->value, sizeof m->value); break;
        case DRIVE_SAVED:
            if (!manner.saves) break;
            /* fall through */
        case DRIVE_GRADIENT:
        case DRIVE_RESULT:
            if (frame->options.last && m->width) break;
            drive_place(array, bytes, manner.place, array->stored ? 2 : f->real_bytes);
            memset(array->data, manner.poison, array->bytes);
            drive_set(frame, m->offset, &array->data, sizeof array->data);
            break;
        case DRIVE_WORKSPACE:
            *array = drive_take((size_t)needed, manner.place, 64);
            memset(array->data, manner.poison, array->bytes);
            drive_set(frame, m->offset, &array->data, sizeof array->data);
            break;
        case DRIVE_WORKSPACE_BYTES: drive_set(frame, m->offset, &needed, sizeof needed); break;
        case DRIVE_TEAM: drive_set(frame, m->offset, &manner.team, sizeof manner.team); break;
        case DRIVE_OPTIONS: drive_set(frame, m->offset, &options, sizeof options); break;
        }
    }
}

static void drive_finish(drive_frame *frame, const drive_function *f)
{
    for (int place = 0; place < f->members; ++place) drive_give(&frame->array[place]);
    drive_give(&frame->lengths), drive_give(&frame->mask), drive_give(&frame->reset);
}

static int drive_call(drive_frame *frame, const drive_function *f, const int64_t *sizes)
{
    __atomic_add_fetch(&drive_calls, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&drive_inside, 1, __ATOMIC_ACQ_REL);
    const int code = f->call(sizes, frame->words);
    __atomic_sub_fetch(&drive_inside, 1, __ATOMIC_ACQ_REL);
    return code;
}

static int drive_is_result(const drive_member *m)
{
    return m->kind == DRIVE_RESULT || m->kind == DRIVE_GRADIENT || m->kind == DRIVE_SAVED;
}

/* Results of a call have the bits of `first`, where both wrote them. */
static void drive_same(const drive_frame *frame, const drive_frame *first, const drive_function *f,
                       drive_manner manner)
{
    for (int place = 0; place < f->members; ++place) {
        const drive_member *m = &f->member[place];
        const drive_array *array = &frame->array[place];
        const drive_array *other = &first->array[place];
        if (!drive_is_result(m) || !array->mapping || !other->mapping) continue;
        const size_t size = array->stored ? 2 : f->real_bytes;
        for (int64_t at = 0; at < drive_count(array); ++at)
            if (memcmp((char *)array->data + drive_at(array, at) * size,
                       (char *)other->data + drive_at(other, at) * size, size))
                DRIVE_FAIL("%s[%lld] differs from the first call's (place %d, poison %02x, team %s)",
                           m->name, (long long)at, (int)manner.place, manner.poison,
                           manner.team ? "yes" : "no");
        if (!drive_gaps_are(array, f->real_bytes, manner.poison))
            DRIVE_FAIL("%s: the memory between its rows was written to", m->name);
    }
}

/* What a call in one manner writes. */
static void drive_compare(const drive_frame *first, const drive_function *f, const int64_t *sizes,
                          drive_manner manner)
{
    drive_frame *frame = (drive_frame *)malloc(sizeof *frame);
    drive_prepare(frame, f, sizes, manner);
    const int code = drive_call(frame, f, sizes);
    if (code != CELLGEN_OK) DRIVE_FAIL("returned %d", code);
    drive_same(frame, first, f, manner);
    drive_finish(frame, f);
    free(frame);
}

static void drive_expect(const drive_function *f, const int64_t *sizes, drive_frame *frame,
                         int expected, const char *what)
{
    const int code = drive_call(frame, f, sizes);
    if (code != expected) DRIVE_FAIL("%s: returned %d, expected %d", what, code, expected);
    for (int place = 0; place < f->members; ++place)
        if (drive_is_result(&f->member[place]) && !drive_is_filled(&frame->array[place], 0xff))
            DRIVE_FAIL("%s: wrote %s all the same", what, f->member[place].name);
}

/* Calls without one of the gradients, and without any. */
__attribute__((unused)) static void drive_unwanted(const drive_function *f, const int64_t *sizes, const drive_choice *choice)
{
    const drive_manner manner = {DRIVE_END, 0xff, 1, 1, NULL, choice};
    drive_frame *frame = (drive_frame *)malloc(sizeof *frame);
    drive_prepare(frame, f, sizes, manner);
    for (int all = 0; all < 2; ++all)
        for (int place = 0; place < f->members; ++place) {
            void *const none = NULL;
            if (f->member[place].kind != DRIVE_GRADIENT) continue;
            drive_set(frame, f->member[place].offset, &none, sizeof none);
            if (drive_call(frame, f, sizes) != CELLGEN_OK)
                DRIVE_FAIL("%s: refused without %s", f->name, f->member[place].name);
            if (!all) drive_set(frame, f->member[place].offset, &frame->array[place].data, sizeof none);
        }
    drive_finish(frame, f);
    free(frame);
}

/* Every error code that the header names, from memory of full size. */
__attribute__((unused)) static void drive_errors(const drive_function *f, const int64_t *sizes, const drive_choice *choice)
{
    const drive_manner manner = {DRIVE_END, 0xff, 1, 1, NULL, choice};
    drive_frame *frame = (drive_frame *)malloc(sizeof *frame);
    drive_prepare(frame, f, sizes, manner);
    for (int dim = 0; dim < f->dims; ++dim) {
        int64_t wrong[DRIVE_DIMS];
        memcpy(wrong, sizes, sizeof wrong);
        wrong[dim] = -1;
        drive_expect(f, wrong, frame, CELLGEN_NEGATIVE_DIMENSION, "a dimension of -1");
    }
    for (int place = 0; place < f->members; ++place) {
        const drive_member *m = &f->member[place];
        const drive_array *array = &frame->array[place];
        void *const none = NULL;
        if (m->kind == DRIVE_ARGUMENT || m->kind == DRIVE_RESULT) {
            drive_set(frame, m->offset, &none, sizeof none);
            drive_expect(f, sizes, frame, CELLGEN_NULL_POINTER, m->name);
            drive_set(frame, m->offset, &array->data, sizeof array->data);
        }
        if (m->kind == DRIVE_WORKSPACE && array->bytes > 0) {
            drive_set(frame, m->offset, &none, sizeof none);
            drive_expect(f, sizes, frame, CELLGEN_WORKSPACE_TOO_SMALL, "no workspace");
            drive_set(frame, m->offset, &array->data, sizeof array->data);
        }
        const void *const options = choice->name[0] ? &frame->options : NULL;
        if (m->kind == DRIVE_WORKSPACE_BYTES && f->workspace_size(sizes, options) > 0) {
            const int64_t needed = f->workspace_size(sizes, options), short_by_one = needed - 1;
            drive_set(frame, m->offset, &short_by_one, sizeof needed);
            drive_expect(f, sizes, frame, CELLGEN_WORKSPACE_TOO_SMALL, "a byte too few");
            drive_set(frame, m->offset, &needed, sizeof needed);
        }
    }
    for (int wrong = 0; wrong < 2 && choice->lengths && sizes[1] > 0; ++wrong) {
        int64_t lengths[64] = {0};
        if (sizes[1] > 64) DRIVE_FAIL("more rows than lengths");
        lengths[sizes[1] - 1] = wrong ? sizes[0] + 1 : -1;
        const int64_t *const right = frame->options.lengths;
        frame->options.lengths = lengths;
        drive_expect(f, sizes, frame, CELLGEN_LENGTH_OUT_OF_RANGE, "a length out of range");
        frame->options.lengths = right;
    }
    drive_finish(frame, f);
    free(frame);
}

typedef struct {
    const drive_frame *first;
    const drive_function *f;
    const int64_t *sizes;
    void *team;
    const drive_choice *choice;
} drive_host;

__attribute__((unused)) static void *drive_host_thread(void *context)
{
    const drive_host *host = (const drive_host *)context;
    const drive_manner manner = {DRIVE_HEAP, 0xff, 1, 1, host->team, host->choice};
    for (int turn = 0; turn < 2; ++turn)
        drive_compare(host->first, host->f, host->sizes, manner);
    return NULL;
}

/* One function, one shape, one choice of steps and layout; `teams` ends with NULL. */
static void drive_choice_of(const drive_function *f, const int64_t *sizes, void *const *teams,
                            const drive_choice *c)
{
    int is_empty = 0; /* a mean over no units is NaN */
    for (int dim = 0; dim < f->dims; ++dim) is_empty |= sizes[dim] == 0;
    for (int upstream = 0; upstream < 2; ++upstream) {
        const drive_manner manner = {DRIVE_HEAP, 0xff, upstream, 1, NULL, c};
        drive_frame *first = (drive_frame *)malloc(sizeof *first);
        drive_prepare(first, f, sizes, manner);
        const int code = drive_call(first, f, sizes);
        if (code != CELLGEN_OK) DRIVE_FAIL("returned %d", code);
        for (int place = 0; place < f->members; ++place) {
            if (!drive_is_result(&f->member[place])) continue;
            const drive_array *array = &first->array[place];
            for (int64_t at = 0; at < drive_count(array); ++at)
                if (isnan(drive_element(array, f->real_bytes, at)) && !is_empty)
                    DRIVE_FAIL("%s[%lld] is NaN", f->member[place].name, (long long)at);
        }
#ifndef DRIVE_TEAMS
        drive_compare(first, f, sizes, (drive_manner){DRIVE_END, 0x4b, upstream, 1, NULL, c});
        drive_compare(first, f, sizes, (drive_manner){DRIVE_START, 0xff, upstream, 0, NULL, c});
#endif
        for (int team = 0; f->takes_team && teams[team]; ++team) {
            void *const with = teams[team];
            drive_compare(first, f, sizes, (drive_manner){DRIVE_END, 0xff, upstream, 0, with, c});
            drive_compare(first, f, sizes, (drive_manner){DRIVE_START, 0x4b, upstream, 1, with, c});
        }
#ifndef DRIVE_COUNT /* which would count what the other caller allocates between its calls */
        if (upstream && f->takes_team && teams[0]) { /* two callers of one team: they take turns */
            drive_host host = {first, f, sizes, teams[0], c};
            pthread_t other;
            if (pthread_create(&other, NULL, drive_host_thread, &host)) DRIVE_FAIL("no thread");
            drive_host_thread(&host);
            pthread_join(other, NULL);
        }
#endif
        drive_finish(first, f);
        free(first);
    }
#ifndef DRIVE_TEAMS
    drive_unwanted(f, sizes, c);
    drive_errors(f, sizes, c);
#endif
    if (drive_allocations) DRIVE_FAIL("%d allocations in a call", drive_allocations);
}

/* All that is asked of one function for one shape. */
static void drive(const drive_function *f, const int64_t *sizes, void *const *teams)
{
    static char doing[256];
#ifdef DRIVE_TEAMS
    if (!f->takes_team) return;
#endif
    for (int choice = 0; choice < (f->takes_team ? (int)DRIVE_CHOICES : 1); ++choice) {
        const drive_choice *c = &drive_choices[choice];
        int length = snprintf(doing, sizeof doing, "%s(", f->name);
        for (int dim = 0; dim < f->dims; ++dim)
            length += snprintf(doing + length, sizeof doing - (size_t)length, "%s%lld",
                               dim ? ", " : "", (long long)sizes[dim]);
        snprintf(doing + length, sizeof doing - (size_t)length, ")%s%s", c->name[0] ? ", " : "",
                 c->name);
        drive_doing = doing;
        drive_choice_of(f, sizes, teams, c);
    }
}

/* ---------------------------------------------------------------------------------- segments */

/* Give one call what another took, and what it made unless that is to be made `again`. */
static void drive_hand_over(drive_frame *to, const drive_function *takes, const drive_frame *from,
                            const drive_function *gives, int again)
{
    for (int place = 0; place < takes->members; ++place)
        for (int other = 0; other < gives->members; ++other) {
            const drive_member *m = &takes->member[place], *o = &gives->member[other];
            if (m->kind != DRIVE_ARGUMENT || strcmp(m->name, o->name) != 0) continue;
            void *const data = again && drive_is_result(o) ? NULL : from->array[other].data;
            drive_set(to, m->offset, &data, sizeof data);
        }
}

static drive_frame *drive_run(const drive_function *f, const int64_t *sizes, drive_manner manner,
                              const drive_frame *before, const drive_function *ran)
{
    drive_frame *frame = (drive_frame *)malloc(sizeof *frame);
    drive_prepare(frame, f, sizes, manner);
    if (before) drive_hand_over(frame, f, before, ran, manner.checkpoint > 0);
    const int code = drive_call(frame, f, sizes);
    if (code != CELLGEN_OK) DRIVE_FAIL("returned %d", code);
    return frame;
}

/* Both passes with states in place of what every step saves: gradients have the same bits. */
static void drive_segments_of(const drive_function *forward, const drive_function *backward,
                              const int64_t *sizes, const drive_frame *first, drive_manner manner)
{
    enum { STATES = 16 };
    drive_array array[STATES];
    void *kept[STATES];
    int states = 0;
    const int64_t count = sizes[0] > 0 ? (sizes[0] - 1) / manner.checkpoint : 0;
    for (int place = 0; place < forward->members; ++place) {
        const drive_member *m = &forward->member[place];
        if (!m->is_final) continue;
        if (states == STATES) DRIVE_FAIL("raise STATES");
        const size_t bytes = (size_t)(count * m->count(sizes)) * forward->real_bytes;
        array[states] = drive_take(bytes, manner.place, forward->real_bytes);
        memset(array[states].data, 0xff, bytes);
        kept[states] = array[states].data, ++states;
    }
    manner.checkpoints = kept, manner.saves = 0;
    drive_frame *ran = drive_run(forward, sizes, manner, NULL, NULL);
    for (int state = 0; state < states; ++state) drive_protect(&array[state]);
    int64_t words[sizeof ran->words / sizeof ran->words[0]]; /* the same, without results */
    memcpy(words, ran->words, sizeof words);
    for (int place = 0; place < forward->members; ++place)
        if (drive_is_result(&forward->member[place]))
            memset((char *)words + forward->member[place].offset, 0, sizeof(void *));
    manner.forward = words;
    drive_frame *found = drive_run(backward, sizes, manner, ran, forward);
    drive_same(found, first, backward, manner);
    drive_finish(found, backward), drive_finish(ran, forward);
    for (int state = 0; state < states; ++state) drive_give(&array[state]);
    free(found), free(ran);
}

__attribute__((unused)) static void drive_segments(const drive_function *forward,
                                                   const drive_function *backward,
                                                   const int64_t *sizes, void *const *teams)
{
    static const drive_choice dense = {"segments", 0, 0, 0, 0, 0, 0, 0, 0, DRIVE_DENSE, 1, 0, 0};
    static char doing[256];
    const int64_t every[] = {1, 3, sizes[0] > 0 ? sizes[0] : 2, sizes[0] + 1};
    drive_manner manner = {DRIVE_END, 0xff, 1, 1, NULL, &dense, 0, NULL, NULL};
    drive_frame *saved = drive_run(forward, sizes, manner, NULL, NULL);
    drive_frame *first = drive_run(backward, sizes, manner, saved, forward);
    for (int choice = 0; choice < (int)(sizeof every / sizeof every[0]); ++choice) {
        snprintf(doing, sizeof doing, "%s(%lld, %lld, ...), segments of %lld", backward->name,
                 (long long)sizes[0], (long long)sizes[1], (long long)every[choice]);
        drive_doing = doing;
        manner.checkpoint = every[choice], manner.team = NULL;
        drive_segments_of(forward, backward, sizes, first, manner);
        for (int team = 0; teams[team]; ++team) {
            manner.team = teams[team];
            drive_segments_of(forward, backward, sizes, first, manner);
        }
    }
    if (drive_allocations) DRIVE_FAIL("%d allocations in a call", drive_allocations);
    drive_finish(saved, forward), drive_finish(first, backward);
    free(saved), free(first);
}
