/* A team of threads for the generated kernels (pthreads; no globals, no OpenMP).
 *
 *   cellgen_team *team = cellgen_team_create(threads);     0: one per online processor
 *   cellgen_team_run(team, task, context);                 task(thread, threads, context) on each
 *   cellgen_team_barrier(team, thread);                    inside a task, by every thread
 *   cellgen_team_part(team, part, threads);                inside a task, by one thread: some of them,
 *                                                          who pass barriers of their own
 *   cellgen_team_destroy(team);
 *
 * A NULL team is the caller alone. Only create and destroy allocate and free. Calls of run from
 * several host threads are serialised; a task must not call run on its own team. Every thread of a
 * task passes the same number of barriers. Kernels of several shared objects may share a team: its
 * layout is fixed by CELLGEN_TEAM_LAYOUT, and a team of another layout runs on the caller alone.
 * After fork the child has no workers: it must create its own team (destroy only frees there).
 *
 * Needs POSIX declarations: compile as gnu99 or later, or define _POSIX_C_SOURCE >= 200809L. */
#ifndef CELLGEN_TEAM_H
#define CELLGEN_TEAM_H

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__GNUC__)
#pragma GCC system_header
#endif

#define CELLGEN_TEAM_LAYOUT 0x43470002u /* changes with any field of cellgen_team */
#define CELLGEN_TEAM_THREADS_MAX 1024
#define CELLGEN_TEAM_PARTS 4 /* the most that a team can be split into */
#define CELLGEN_TEAM_STACK (2u << 20) /* bytes per worker; macOS would give 512 KB, musl 128 */

#define CELLGEN_TEAM_STATIC static __attribute__((unused))

typedef void (*cellgen_team_task)(int thread, int threads, void *context);
typedef struct cellgen_team cellgen_team;

/* What one thread writes lies in a pair of cache lines of its own (prefetchers fetch pairs). */
typedef struct {
    uint32_t arrived; /* barriers this thread has reached */
    uint32_t done;    /* newest region this thread has finished */
    int32_t thread;
    int32_t unused;
    cellgen_team *team;
    pthread_t handle;
    char unused_line[128 - 24 - sizeof(pthread_t)];
} cellgen_team_member;

struct cellgen_team {
    uint32_t layout;
    int32_t threads;
    int64_t process;
    void *allocation;
    cellgen_team_member *members; /* [threads] */
    cellgen_team *parts;          /* [CELLGEN_TEAM_PARTS]; NULL in a part */
    char unused_layout[128 - 16 - 3 * sizeof(void *)];
    /* one line takes a region to a waiting worker: 130 ns a line between two cores measured */
    uint32_t region; /* number of the newest region; workers wait for it to change */
    uint32_t stop;
    cellgen_team_task task;
    void *context;
    char unused_region[128 - 8 - 2 * sizeof(void *)];
    uint32_t arrivals; /* at barriers, of all threads: counted up, never reset */
    char unused_arrivals[124];
    uint32_t sleepers;
    char unused_sleepers[124];
    pthread_mutex_t host; /* held during run */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

/* Waiting: 64 plain loads (a pause takes 50 ns on some processors, a barrier 100), then pauses for
 * some 10 us, then sched_yield, since the thread waited for may want this processor. An idle worker
 * sleeps after 3 to 10 ms: more than what training does between two calls. A processor without work
 * may be given to others, and is then back late: calls of 0.1 ms, as of examples/digits_over_time.py
 * on two shared processors, took 1.0 to 1.8 instead of 0.8 to 1.0 s with workers that sleep after
 * 0.4 ms. */
#define CELLGEN_TEAM_EAGER 64
#define CELLGEN_TEAM_PAUSES 256
#define CELLGEN_TEAM_YIELDS 10000

static inline __attribute__((unused)) void cellgen_team_relax(uint32_t *turns)
{
    const uint32_t turn = (*turns)++;
    if (turn < CELLGEN_TEAM_EAGER)
        return;
    if (turn < CELLGEN_TEAM_EAGER + CELLGEN_TEAM_PAUSES) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb" ::: "memory"); /* `yield` returns at once on most cores */
#endif
        return;
    }
    sched_yield();
}

/* Threads that run a task, the caller included. */
static inline __attribute__((unused)) int cellgen_team_size(const cellgen_team *team)
{
    return team != NULL && team->layout == CELLGEN_TEAM_LAYOUT ? team->threads : 1;
}

/* Wait until every thread of the running task is here; what they wrote before is visible after.
 * A function of its own, so that profiles tell waiting from work. */
__attribute__((noinline)) CELLGEN_TEAM_STATIC void cellgen_team_barrier(cellgen_team *team, int thread)
{
    const int threads = cellgen_team_size(team);
    if (threads == 1)
        return;
    /* one counter for all is faster than a flag per thread: 97 against 142 ns for two */
    team->members[thread].arrived += 1;
    const uint32_t goal = team->members[thread].arrived * (uint32_t)threads;
    __atomic_add_fetch(&team->arrivals, 1u, __ATOMIC_ACQ_REL);
    uint32_t turns = 0; /* beyond the goal: others are at the next barrier; the counter may wrap */
    while ((int32_t)(__atomic_load_n(&team->arrivals, __ATOMIC_ACQUIRE) - goal) < 0)
        cellgen_team_relax(&turns);
}

/* So many threads as a team of their own, numbered from 0 on: what others do does not hold them up at
 * its barriers. For the task that runs, by one thread, before a barrier of all; NULL for one alone. */
CELLGEN_TEAM_STATIC cellgen_team *cellgen_team_part(cellgen_team *team, int part, int threads)
{
    if (threads <= 1)
        return NULL;
    cellgen_team *const some = &team->parts[part];
    some->layout = CELLGEN_TEAM_LAYOUT;
    some->threads = threads;
    some->arrivals = 0;
    for (int thread = 0; thread < threads; ++thread)
        some->members[thread].arrived = 0;
    return some;
}

/* Run task(thread, threads, context) on every thread of the team, the caller being thread 0. */
CELLGEN_TEAM_STATIC void cellgen_team_run(cellgen_team *team, cellgen_team_task task, void *context)
{
    const int threads = cellgen_team_size(team);
    if (threads == 1) {
        task(0, 1, context);
        return;
    }
    pthread_mutex_lock(&team->host);
    team->task = task;
    team->context = context;
    const uint32_t region = team->region + 1;
    /* sequentially consistent with the sleeper's increment: one of the two sees the other */
    __atomic_store_n(&team->region, region, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&team->sleepers, __ATOMIC_SEQ_CST) != 0) {
        pthread_mutex_lock(&team->mutex);
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->mutex);
    }
    task(0, threads, context);
    for (int other = 1; other < threads; ++other) {
        uint32_t turns = 0;
        while (__atomic_load_n(&team->members[other].done, __ATOMIC_ACQUIRE) != region)
            cellgen_team_relax(&turns);
    }
    pthread_mutex_unlock(&team->host);
}

CELLGEN_TEAM_STATIC void *cellgen_team_worker(void *argument)
{
    cellgen_team_member *const self = (cellgen_team_member *)argument;
    cellgen_team *const team = self->team;
    uint32_t region = 0;
    for (;;) {
        uint32_t turns = 0;
        while (__atomic_load_n(&team->region, __ATOMIC_ACQUIRE) == region) {
            if (turns < CELLGEN_TEAM_EAGER + CELLGEN_TEAM_PAUSES + CELLGEN_TEAM_YIELDS) {
                cellgen_team_relax(&turns);
                continue;
            }
            pthread_mutex_lock(&team->mutex);
            __atomic_add_fetch(&team->sleepers, 1, __ATOMIC_SEQ_CST);
            while (__atomic_load_n(&team->region, __ATOMIC_SEQ_CST) == region)
                pthread_cond_wait(&team->wake, &team->mutex);
            __atomic_sub_fetch(&team->sleepers, 1, __ATOMIC_SEQ_CST);
            pthread_mutex_unlock(&team->mutex);
        }
        region += 1;
        if (__atomic_load_n(&team->stop, __ATOMIC_RELAXED))
            return NULL;
        team->task(self->thread, team->threads, team->context);
        __atomic_store_n(&self->done, region, __ATOMIC_RELEASE);
    }
}

/* Stop and join the workers, and free the team. NULL and teams made before a fork are allowed. */
CELLGEN_TEAM_STATIC void cellgen_team_destroy(cellgen_team *team)
{
    if (team == NULL || team->layout != CELLGEN_TEAM_LAYOUT)
        return;
    if (team->process == (int64_t)getpid()) {
        pthread_mutex_lock(&team->host);
        pthread_mutex_lock(&team->mutex);
        __atomic_store_n(&team->stop, 1u, __ATOMIC_RELAXED);
        __atomic_store_n(&team->region, team->region + 1, __ATOMIC_SEQ_CST);
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->mutex);
        for (int32_t thread = 1; thread < team->threads; ++thread)
            pthread_join(team->members[thread].handle, NULL);
        pthread_mutex_unlock(&team->host);
        pthread_cond_destroy(&team->wake);
        pthread_mutex_destroy(&team->mutex);
        pthread_mutex_destroy(&team->host);
    }
    team->layout = 0;
    free(team->allocation);
}

/* A team of `threads` threads (the caller of run is one of them), fewer if the system refuses;
 * 0 means one per online processor. NULL if memory is short: run then uses the caller alone. */
CELLGEN_TEAM_STATIC cellgen_team *cellgen_team_create(int threads)
{
    if (threads <= 0)
        threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (threads < 1)
        threads = 1;
    if (threads > CELLGEN_TEAM_THREADS_MAX)
        threads = CELLGEN_TEAM_THREADS_MAX;
    const size_t line = 128, head = (sizeof(cellgen_team) + line - 1) / line * line;
    const size_t whole = head + (size_t)threads * sizeof(cellgen_team_member);
    char *const allocation = (char *)calloc(1, (1 + CELLGEN_TEAM_PARTS) * whole + line);
    if (allocation == NULL)
        return NULL;
    char *const aligned = allocation + (line - (size_t)((uintptr_t)allocation % line)) % line;
    cellgen_team *const team = (cellgen_team *)(void *)aligned;
    team->layout = CELLGEN_TEAM_LAYOUT;
    team->process = (int64_t)getpid();
    team->allocation = allocation;
    team->members = (cellgen_team_member *)(void *)(aligned + head);
    team->parts = (cellgen_team *)(void *)(aligned + whole);
    for (int part = 0; part < CELLGEN_TEAM_PARTS; ++part)
        team->parts[part].members =
            (cellgen_team_member *)(void *)(aligned + whole + CELLGEN_TEAM_PARTS * head) +
            (size_t)part * (size_t)threads;
    pthread_mutex_init(&team->host, NULL);
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->wake, NULL);
    for (int thread = 0; thread < threads; ++thread) {
        team->members[thread].thread = thread;
        team->members[thread].team = team;
    }

    /* signals belong to the host program's threads */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, CELLGEN_TEAM_STACK);
    int created = 1;
    while (created < threads && pthread_create(&team->members[created].handle, &attributes,
                                               cellgen_team_worker, &team->members[created]) == 0)
        created += 1;
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    team->threads = created; /* read by the workers only in a region */
    return team;
}

/* The part [begin, end) of `total` that belongs to a thread: whole multiples of `grain`, evenly. */
CELLGEN_TEAM_STATIC void cellgen_team_share(int64_t total, int64_t grain, int thread, int threads,
                                            int64_t *begin, int64_t *end)
{
    const int64_t grains = (total + grain - 1) / grain;
    const int64_t first = grains * thread / threads * grain;
    const int64_t last = grains * (thread + 1) / threads * grain;
    *begin = first < total ? first : total;
    *end = last < total ? last : total;
}

#endif
