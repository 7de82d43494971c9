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
 * number of threads, with saved results or without; absent gradients; the three error codes, and
 * that nothing was written with them; calls of several host threads on one team; and, built with
 * -DDRIVE_COUNT, that no call allocates, maps memory or makes a thread. */
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
    DRIVE_SAVED, /* a result that is formed on request: NULL, not wanted */
    DRIVE_WORKSPACE,
    DRIVE_WORKSPACE_BYTES,
    DRIVE_TEAM
};

typedef struct {
    const char *name;
    enum drive_kind kind;
    size_t offset;                          /* in the struct of arguments */
    int64_t (*count)(const int64_t *sizes); /* elements */
    double value;                           /* of a scalar */
} drive_member;

typedef struct {
    const char *name;
    size_t real_bytes; /* 4 or 8 */
    size_t struct_bytes;
    int (*call)(const int64_t *sizes, const void *args);
    int64_t (*workspace_size)(const int64_t *sizes); /* NULL: takes none */
    int dims;
    int takes_team;
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
    void *mapping; /* or the heap's block */
    size_t mapped; /* 0: on the heap */
} drive_array;

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
    if (array->mapped && mprotect((char *)array->mapping + page, array->mapped - 2 * page, PROT_READ))
        DRIVE_FAIL("mprotect");
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

/* Numbers in (-1/2, 1/2), the same for a seed on every machine. */
static void drive_fill(drive_array *array, size_t real_bytes, uint64_t seed)
{
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    for (size_t place = 0; place < array->bytes / real_bytes; ++place) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        const double number = (double)(state >> 40) / 16777216.0 - 0.5;
        if (real_bytes == 4)
            ((float *)array->data)[place] = (float)number;
        else
            ((double *)array->data)[place] = number;
    }
}

static double drive_element(const drive_array *array, size_t real_bytes, size_t place)
{
    return real_bytes == 4 ? (double)((const float *)array->data)[place]
                           : ((const double *)array->data)[place];
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
} drive_manner;

typedef struct {
    drive_array array[DRIVE_MEMBERS];
    int64_t words[256]; /* the struct of arguments */
} drive_frame;

static void drive_set(drive_frame *frame, size_t offset, const void *value, size_t bytes)
{
    memcpy((char *)frame->words + offset, value, bytes);
}

static void drive_prepare(drive_frame *frame, const drive_function *f, const int64_t *sizes,
                          drive_manner manner)
{
    memset(frame, 0, sizeof *frame);
    if (f->struct_bytes > sizeof frame->words || f->members > DRIVE_MEMBERS)
        DRIVE_FAIL("raise DRIVE_MEMBERS: %d members, %zu bytes", f->members, f->struct_bytes);
    const int64_t needed = f->workspace_size ? f->workspace_size(sizes) : 0;
    for (int place = 0; place < f->members; ++place) {
        const drive_member *m = &f->member[place];
        drive_array *array = &frame->array[place];
        const size_t bytes = m->count ? (size_t)m->count(sizes) * f->real_bytes : 0;
        switch (m->kind) {
        case DRIVE_OPTIONAL:
            if (!manner.upstream) break;
            /* fall through */
        case DRIVE_ARGUMENT:
            *array = drive_take(bytes, manner.place, f->real_bytes);
            drive_fill(array, f->real_bytes, (uint64_t)place + 1);
            drive_protect(array);
            drive_set(frame, m->offset, &array->data, sizeof array->data);
            break;
        case DRIVE_SCALAR: {
            const float single = (float)m->value;
            if (f->real_bytes == 4)
                drive_set(frame, m->offset, &single, 4);
            else
                drive_set(frame, m->offset, &m->value, 8);
            break;
        }
        case DRIVE_SAVED:
            if (!manner.saves) break;
            /* fall through */
        case DRIVE_RESULT:
            *array = drive_take(bytes, manner.place, f->real_bytes);
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
        }
    }
}

static void drive_finish(drive_frame *frame, const drive_function *f)
{
    for (int place = 0; place < f->members; ++place) drive_give(&frame->array[place]);
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
    return m->kind == DRIVE_RESULT || m->kind == DRIVE_SAVED;
}

/* What a call in one manner writes; its results have the bits of `first`, where both wrote them. */
static void drive_compare(const drive_frame *first, const drive_function *f, const int64_t *sizes,
                          drive_manner manner)
{
    drive_frame *frame = (drive_frame *)malloc(sizeof *frame);
    drive_prepare(frame, f, sizes, manner);
    const int code = drive_call(frame, f, sizes);
    if (code != CELLGEN_OK) DRIVE_FAIL("returned %d", code);
    for (int place = 0; place < f->members; ++place) {
        const drive_member *m = &f->member[place];
        const drive_array *array = &frame->array[place];
        if (!drive_is_result(m) || !array->mapping || !first->array[place].mapping) continue;
        if (memcmp(array->data, first->array[place].data, array->bytes))
            DRIVE_FAIL("%s differs from the first call's (place %d, poison %02x, team %s)", m->name,
                       (int)manner.place, manner.poison, manner.team ? "yes" : "no");
    }
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

/* Every error code that the header names, from memory of full size. */
static void drive_errors(const drive_function *f, const int64_t *sizes)
{
    const drive_manner manner = {DRIVE_END, 0xff, 1, 1, NULL};
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
        if (m->kind == DRIVE_WORKSPACE_BYTES && f->workspace_size(sizes) > 0) {
            const int64_t needed = f->workspace_size(sizes), short_by_one = needed - 1;
            drive_set(frame, m->offset, &short_by_one, sizeof needed);
            drive_expect(f, sizes, frame, CELLGEN_WORKSPACE_TOO_SMALL, "a byte too few");
            drive_set(frame, m->offset, &needed, sizeof needed);
        }
    }
    drive_finish(frame, f);
    free(frame);
}

typedef struct {
    const drive_frame *first;
    const drive_function *f;
    const int64_t *sizes;
    void *team;
} drive_host;

__attribute__((unused)) static void *drive_host_thread(void *context)
{
    const drive_host *host = (const drive_host *)context;
    const drive_manner manner = {DRIVE_HEAP, 0xff, 1, 1, host->team};
    for (int turn = 0; turn < 2; ++turn)
        drive_compare(host->first, host->f, host->sizes, manner);
    return NULL;
}

/* All that is asked of one function for one shape. `teams` ends with NULL. */
static void drive(const drive_function *f, const int64_t *sizes, void *const *teams)
{
    static char doing[256];
    int length = snprintf(doing, sizeof doing, "%s(", f->name);
    for (int dim = 0; dim < f->dims; ++dim)
        length += snprintf(doing + length, sizeof doing - (size_t)length, "%s%lld",
                           dim ? ", " : "", (long long)sizes[dim]);
    snprintf(doing + length, sizeof doing - (size_t)length, ")");
    drive_doing = doing;

    for (int upstream = 0; upstream < 2; ++upstream) {
        const drive_manner manner = {DRIVE_HEAP, 0xff, upstream, 1, NULL};
        drive_frame *first = (drive_frame *)malloc(sizeof *first);
        drive_prepare(first, f, sizes, manner);
        const int code = drive_call(first, f, sizes);
        if (code != CELLGEN_OK) DRIVE_FAIL("returned %d", code);
        for (int place = 0; place < f->members; ++place) {
            if (!drive_is_result(&f->member[place])) continue;
            for (size_t at = 0; at < first->array[place].bytes / f->real_bytes; ++at)
                if (isnan(drive_element(&first->array[place], f->real_bytes, at)))
                    DRIVE_FAIL("%s[%zu] is NaN", f->member[place].name, at);
        }
        drive_compare(first, f, sizes, (drive_manner){DRIVE_END, 0x4b, upstream, 1, NULL});
        drive_compare(first, f, sizes, (drive_manner){DRIVE_START, 0xff, upstream, 0, NULL});
        for (int team = 0; f->takes_team && teams[team]; ++team) {
            drive_compare(first, f, sizes, (drive_manner){DRIVE_END, 0xff, upstream, 0, teams[team]});
            drive_compare(first, f, sizes, (drive_manner){DRIVE_START, 0x4b, upstream, 1, teams[team]});
        }
#ifndef DRIVE_COUNT /* which would count what the other caller allocates between its calls */
        if (upstream && f->takes_team && teams[0]) { /* two callers of one team: they take turns */
            drive_host host = {first, f, sizes, teams[0]};
            pthread_t other;
            if (pthread_create(&other, NULL, drive_host_thread, &host)) DRIVE_FAIL("no thread");
            drive_host_thread(&host);
            pthread_join(other, NULL);
        }
#endif
        drive_finish(first, f);
        free(first);
    }
    drive_errors(f, sizes);
    if (drive_allocations) DRIVE_FAIL("%d allocations in a call", drive_allocations);
}
