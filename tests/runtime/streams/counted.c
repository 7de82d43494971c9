/* Count what a program allocates and locks: preloaded, or linked into a program of C. glibc alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

long counted_allocations, counted_locks;

void *malloc(size_t size) { ++counted_allocations; return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { ++counted_allocations; return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { ++counted_allocations; return __libc_realloc(old, size); }
void *memalign(size_t at, size_t size) { ++counted_allocations; return __libc_memalign(at, size); }
void *aligned_alloc(size_t at, size_t size) { ++counted_allocations; return __libc_memalign(at, size); }

int posix_memalign(void **found, size_t at, size_t size)
{
    ++counted_allocations;
    *found = __libc_memalign(at, size);
    return *found ? 0 : 12;
}

#define COUNTED(name, parameters, given) \
    int name parameters \
    { \
        static int (*own) parameters; \
        ++counted_locks; \
        if (!own) own = (int(*) parameters)dlsym(RTLD_NEXT, #name); \
        return own given; \
    }

COUNTED(pthread_mutex_lock, (pthread_mutex_t * lock), (lock))
COUNTED(pthread_mutex_trylock, (pthread_mutex_t * lock), (lock))
COUNTED(pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
COUNTED(pthread_spin_lock, (pthread_spinlock_t * lock), (lock))
COUNTED(sem_wait, (sem_t * sem), (sem))
COUNTED(sem_trywait, (sem_t * sem), (sem))
