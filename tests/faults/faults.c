/* Make one request for memory fail, or all from one on: LD_PRELOAD=faults.so, glibc only.
 *
 *   faults_begin(n, onwards)   from now on the n-th request of FAULTS_LEAST bytes or more fails, and
 *                              with `onwards` every later one; 0: none does, requests are counted
 *   faults_end()               no request fails; returns how many there were
 *   faults_live()              bytes of all memory that has been given out and not given back
 *
 * Requests of the interpreter, of NumPy, of cffi and of kernels are all the same here. Smaller ones
 * Python serves from memory of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FAULTS_LEAST 600

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static long watching, failing, onwards, requests, live;

void faults_begin(long n, long and_later)
{
    failing = n, onwards = and_later, requests = 0;
    __atomic_store_n(&watching, 1, __ATOMIC_SEQ_CST);
}

long faults_end(void)
{
    __atomic_store_n(&watching, 0, __ATOMIC_SEQ_CST);
    return requests;
}

long faults_live(void)
{
    return __atomic_load_n(&live, __ATOMIC_SEQ_CST);
}

static int fails(size_t bytes)
{
    if (bytes < FAULTS_LEAST || !__atomic_load_n(&watching, __ATOMIC_SEQ_CST))
        return 0;
    const long number = __atomic_add_fetch(&requests, 1, __ATOMIC_SEQ_CST);
    if (failing == 0 || (onwards ? number < failing : number != failing))
        return 0;
    errno = ENOMEM;
    return 1;
}

static void *count(void *memory)
{
    if (memory)
        __atomic_add_fetch(&live, (long)malloc_usable_size(memory), __ATOMIC_SEQ_CST);
    return memory;
}

void *malloc(size_t bytes)
{
    return fails(bytes) ? NULL : count(__libc_malloc(bytes));
}

void *calloc(size_t number, size_t bytes)
{
    return fails(number * bytes) ? NULL : count(__libc_calloc(number, bytes));
}

void *realloc(void *memory, size_t bytes)
{
    if (fails(bytes))
        return NULL;
    const long before = memory ? (long)malloc_usable_size(memory) : 0;
    void *const found = __libc_realloc(memory, bytes);
    if (found || bytes == 0)
        __atomic_sub_fetch(&live, before, __ATOMIC_SEQ_CST);
    return count(found);
}

void *memalign(size_t alignment, size_t bytes)
{
    return fails(bytes) ? NULL : count(__libc_memalign(alignment, bytes));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **found, size_t alignment, size_t bytes)
{
    void *const memory = memalign(alignment, bytes);
    if (memory)
        *found = memory;
    return memory ? 0 : ENOMEM;
}

void free(void *memory)
{
    const int before = errno;
    if (memory)
        __atomic_sub_fetch(&live, (long)malloc_usable_size(memory), __ATOMIC_SEQ_CST);
    __libc_free(memory);
    errno = before;
}
