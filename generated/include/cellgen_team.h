/* A team of threads for the generated kernels (pthreads; no globals, no OpenMP).
 *
 *   cellgen_team *team = cellgen_team_create(threads);     0: one per processor that it may use
 *   cellgen_team_run(team, task, context);                 task(thread, threads, context) on each
 *   cellgen_team_barrier(team, thread);                    inside a task, by every thread
 *   cellgen_team_part(team, part, threads);                inside a task, by one thread: some of them,
 *                                                          who pass barriers of their own
 *   cellgen_team_destroy(team);
 *
 *   team = cellgen_team_worth(team);                       before run: NULL where threads that meet would
 *                                                          hold each other up, since others want the
 *                                                          processors
 *
 * A NULL team is the caller alone. Only create and destroy allocate and free. Calls of run from
 * several host threads are serialised; a task must not call run on its own team. Every thread of a
 * task passes the same number of barriers. Kernels of several shared objects may share a team: its
 * layout is fixed by CELLGEN_TEAM_LAYOUT, and a team of another layout runs on the caller alone.
 * After fork the child has no workers: it must create its own team (destroy only frees there).
 *
 * Needs POSIX declarations: compile as gnu99 or later, or define _POSIX_C_SOURCE >= 200809L. Without
 * threads (CELLGEN_THREADS is 0) there is no team but NULL: cellgen_alone.h. */
#ifndef CELLGEN_TEAM_H
#define CELLGEN_TEAM_H

#include <stdint.h>

#include "cellgen_compiler.h"

#if !CELLGEN_THREADS

#include "cellgen_alone.h"

#else

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#if !defined(_WIN32)
#include <signal.h>
#endif

#define CELLGEN_TEAM_LAYOUT 0x43470003u /* changes with any field of cellgen_team */
#define CELLGEN_TEAM_THREADS_MAX 1024
#define CELLGEN_TEAM_ALWAYS 0x10000 /* added to the threads of a new team: all of them, in every run */
#define CELLGEN_TEAM_PARTS 4 /* the most that a team can be split into */
#define CELLGEN_TEAM_STACK (2u << 20) /* bytes per worker; macOS would give 512 KB, musl 128 */

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
    uint32_t waiting;  /* threads that sleep at a barrier, or until a region has ended */
    char unused_arrivals[120];
    uint32_t idle;     /* workers that sleep until there is a region */
    uint32_t unused;
    uint32_t sleeps;   /* how often one did, since the team was made */
    uint32_t slept;    /* sleeps before the last region, those of parts included */
    uint32_t crowded;  /* there are more threads than processors */
    uint32_t always;   /* every region is for all threads */
    uint32_t measured; /* this region is */
    uint32_t woken;    /* workers slept when the last one began */
    int64_t spent;     /* in a measured region: processors' time in ns, without what waiting took */
    int64_t busy;      /* until when processors count as wanted by others, in ns */
    int64_t alone;     /* until when the caller works alone, in ns; 0: it does not */
    char unused_sleepers[128 - 56];
    pthread_mutex_t host; /* held during run */
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* there is a region */
    pthread_cond_t met;  /* all are at the barrier, or a worker has finished the region */
};

/* Waiting: 64 plain loads (a pause takes 50 ns on some processors, a barrier 100), then pauses for
 * some 10 us, then sched_yield, since the thread waited for may want this processor, then sleep: at
 * a barrier after 0.2 ms, without a region after 10, more than what training does between two calls
 * (a processor without work may be given to others, and is then back late: calls of 0.1 ms, as of
 * examples/digits_over_time.py on two shared processors, took 1.0 to 1.8 instead of 0.8 to 1.0 s
 * with workers that sleep after 0.4 ms). A yield that takes long has let others run: then a thread
 * sleeps at once, and for a while does without yields, since who yields waits for a whole slice of
 * the others' (3 ms), and who sleeps is woken before them. Of a team with more threads than
 * processors, those who wait keep the others from working: they sleep after the plain loads. */
#define CELLGEN_TEAM_EAGER 64
#define CELLGEN_TEAM_PAUSES 256
#define CELLGEN_TEAM_BARRIER_NS 200000
#define CELLGEN_TEAM_IDLE_NS 10000000
#define CELLGEN_TEAM_SLOW_YIELD_NS 50000
#define CELLGEN_TEAM_BUSY_NS 50000000

/* Where others want the processors, threads that meet every microsecond take 20 to 100 times as long as
 * one alone. A region after one in which a thread slept is measured: one that lasted longer than twice
 * the time of processors that its work took would have been done sooner by one thread. Then the caller
 * works alone 20 times as long as that region took, and tries again with all. */
#define CELLGEN_TEAM_POOR 2
#define CELLGEN_TEAM_TRIALS 20

CELLGEN_STATIC int64_t cellgen_team_time(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

CELLGEN_STATIC int64_t cellgen_team_clock(void)
{
    return cellgen_team_time(CLOCK_MONOTONIC);
}

/* Windows counts a thread's time in steps of 10 to 16 ms, in which a region is over: none is measured. */
#if defined(_WIN32)
#define CELLGEN_TEAM_MEASURES 0
#if defined(__cplusplus)
extern "C"
#endif
__declspec(dllimport) int __stdcall SwitchToThread(void);
#define CELLGEN_TEAM_YIELD SwitchToThread /* sched_yield lets only threads of one's own priority run */
#else
#define CELLGEN_TEAM_MEASURES 1
#define CELLGEN_TEAM_YIELD sched_yield
#endif

/* Add (sign 1) or take away the time that the calling thread has had a processor. */
CELLGEN_STATIC void cellgen_team_spend(cellgen_team *team, int sign)
{
    if (team->measured)
        __atomic_add_fetch(&team->spent, sign * cellgen_team_time(CLOCK_THREAD_CPUTIME_ID), __ATOMIC_RELAXED);
}

/* One turn of waiting awake; 0 where it is time to sleep. `turns` and `since` begin with 0. */
static inline int cellgen_team_looks(cellgen_team *team, uint32_t *turns,
                                     int64_t *since, int64_t limit)
{
    const uint32_t turn = (*turns)++;
    if (turn < CELLGEN_TEAM_EAGER)
        return 1;
    if (team->crowded)
        return 0;
    if (turn < CELLGEN_TEAM_EAGER + CELLGEN_TEAM_PAUSES) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb" ::: "memory"); /* `yield` returns at once on most cores */
#endif
        return 1;
    }
    const int64_t before = cellgen_team_clock();
    if (before < __atomic_load_n(&team->busy, __ATOMIC_RELAXED))
        return 0;
    if (*since == 0)
        *since = before;
    CELLGEN_TEAM_YIELD();
    const int64_t after = cellgen_team_clock();
    if (after - before > CELLGEN_TEAM_SLOW_YIELD_NS) {
        __atomic_store_n(&team->busy, after + CELLGEN_TEAM_BUSY_NS, __ATOMIC_RELAXED);
        return 0;
    }
    return after - *since < limit;
}

/* Wake who sleeps at a barrier, or until a region has ended. After the count that they wait for has
 * been changed, sequentially consistent with their own: one of the two sees the other. */
static inline void cellgen_team_wake(cellgen_team *team)
{
    if (__atomic_load_n(&team->waiting, __ATOMIC_SEQ_CST) == 0)
        return;
    pthread_mutex_lock(&team->mutex);
    pthread_cond_broadcast(&team->met);
    pthread_mutex_unlock(&team->mutex);
}

/* Wait until a count has come to `goal`; it may be beyond, and may wrap. */
CELLGEN_OUTLINE void cellgen_team_wait_long(cellgen_team *team,
                                            const uint32_t *count, uint32_t goal)
{
    uint32_t turns = CELLGEN_TEAM_EAGER;
    int64_t since = 0;
    int is_slow = 0;
    while ((int32_t)(__atomic_load_n(count, __ATOMIC_ACQUIRE) - goal) < 0) {
        const int looks = cellgen_team_looks(team, &turns, &since, CELLGEN_TEAM_BARRIER_NS);
        if (!is_slow && (!looks || turns > CELLGEN_TEAM_EAGER + 16))
            is_slow = 1, cellgen_team_spend(team, 1);
        if (looks)
            continue;
        pthread_mutex_lock(&team->mutex);
        __atomic_add_fetch(&team->sleeps, 1u, __ATOMIC_RELAXED);
        __atomic_add_fetch(&team->waiting, 1u, __ATOMIC_SEQ_CST);
        while ((int32_t)(__atomic_load_n(count, __ATOMIC_SEQ_CST) - goal) < 0)
            pthread_cond_wait(&team->met, &team->mutex);
        __atomic_sub_fetch(&team->waiting, 1u, __ATOMIC_SEQ_CST);
        pthread_mutex_unlock(&team->mutex);
    }
    if (is_slow)
        cellgen_team_spend(team, -1);
}

static inline void cellgen_team_wait(cellgen_team *team, const uint32_t *count,
                                     uint32_t goal)
{
    for (int turn = 0; turn < CELLGEN_TEAM_EAGER; ++turn)
        if ((int32_t)(__atomic_load_n(count, __ATOMIC_ACQUIRE) - goal) >= 0)
            return;
    cellgen_team_wait_long(team, count, goal);
}

/* Threads that run a task, the caller included. */
static inline int cellgen_team_size(const cellgen_team *team)
{
    return team != NULL && team->layout == CELLGEN_TEAM_LAYOUT ? team->threads : 1;
}

/* Wait until every thread of the running task is here; what they wrote before is visible after.
 * A function of its own, so that profiles tell waiting from work. */
CELLGEN_OUTLINE void cellgen_team_barrier(cellgen_team *team, int thread)
{
    const int threads = cellgen_team_size(team);
    if (threads == 1)
        return;
    /* one counter for all is faster than a flag per thread: 97 against 142 ns for two */
    team->members[thread].arrived += 1;
    const uint32_t goal = team->members[thread].arrived * (uint32_t)threads;
    if (__atomic_add_fetch(&team->arrivals, 1u, __ATOMIC_SEQ_CST) == goal)
        cellgen_team_wake(team); /* the last one */
    else
        cellgen_team_wait(team, &team->arrivals, goal); /* beyond it: others are at the next barrier */
}

/* So many threads as a team of their own, numbered from 0 on: what others do does not hold them up at
 * its barriers. For the task that runs, by one thread, before a barrier of all; NULL for one alone. */
CELLGEN_STATIC cellgen_team *cellgen_team_part(cellgen_team *team, int part, int threads)
{
    if (threads <= 1)
        return NULL;
    cellgen_team *const some = &team->parts[part];
    some->layout = CELLGEN_TEAM_LAYOUT;
    some->threads = threads;
    some->arrivals = 0;
    some->crowded = team->crowded;
    some->measured = team->measured;
    some->spent = 0;
    for (int thread = 0; thread < threads; ++thread)
        some->members[thread].arrived = 0;
    return some;
}

/* Of a region that was measured: whether it took so long that one thread alone would have been faster. */
CELLGEN_STATIC int cellgen_team_was_poor(const cellgen_team *team, int64_t took)
{
    int64_t spent = __atomic_load_n(&team->spent, __ATOMIC_RELAXED);
    for (int part = 0; part < CELLGEN_TEAM_PARTS; ++part)
        spent += __atomic_load_n(&team->parts[part].spent, __ATOMIC_RELAXED);
    return took > CELLGEN_TEAM_POOR * spent;
}

/* How often threads have slept, in parts too. */
CELLGEN_STATIC uint32_t cellgen_team_sleeps(const cellgen_team *team)
{
    uint32_t sleeps = __atomic_load_n(&team->sleeps, __ATOMIC_RELAXED);
    for (int part = 0; part < CELLGEN_TEAM_PARTS; ++part)
        sleeps += __atomic_load_n(&team->parts[part].sleeps, __ATOMIC_RELAXED);
    return sleeps;
}

/* The team, or NULL for the caller alone while that is faster. For work that anyone may do alone. */
CELLGEN_STATIC cellgen_team *cellgen_team_worth(cellgen_team *team)
{
    if (cellgen_team_size(team) == 1)
        return NULL;
    const int64_t alone = __atomic_load_n(&team->alone, __ATOMIC_RELAXED);
    return alone != 0 && cellgen_team_clock() < alone ? NULL : team;
}

/* Run task(thread, threads, context) on every thread of the team, the caller being thread 0. */
CELLGEN_STATIC void cellgen_team_run(cellgen_team *team, cellgen_team_task task, void *context)
{
    const int threads = cellgen_team_size(team);
    if (threads == 1) {
        task(0, 1, context);
        return;
    }
    pthread_mutex_lock(&team->host);
    team->task = task;
    team->context = context;
    const int woken = __atomic_load_n(&team->idle, __ATOMIC_SEQ_CST) != 0;
    const int is_fair = !woken || team->woken; /* the way back from a sleep is judged if it is usual */
    const uint32_t sleeps = cellgen_team_sleeps(team);
    team->measured = CELLGEN_TEAM_MEASURES && !team->always && (sleeps != team->slept || team->alone != 0);
    team->slept = sleeps;
    const int64_t begin = team->measured ? cellgen_team_clock() : 0;
    team->spent = 0;
    for (int part = 0; part < CELLGEN_TEAM_PARTS; ++part)
        team->parts[part].spent = 0;
    const uint32_t region = team->region + 1;
    /* sequentially consistent with the sleeper's increment: one of the two sees the other */
    __atomic_store_n(&team->region, region, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&team->idle, __ATOMIC_SEQ_CST) != 0) {
        pthread_mutex_lock(&team->mutex);
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->mutex);
    }
    cellgen_team_spend(team, -1);
    task(0, threads, context);
    for (int other = 1; other < threads; ++other)
        cellgen_team_wait(team, &team->members[other].done, region);
    cellgen_team_spend(team, 1);
    if (team->measured && is_fair) {
        const int64_t end = cellgen_team_clock(), took = end - begin;
        const int64_t alone = cellgen_team_was_poor(team, took) ? end + CELLGEN_TEAM_TRIALS * took : 0;
        __atomic_store_n(&team->alone, alone, __ATOMIC_RELAXED);
    }
    team->woken = (uint32_t)woken;
    pthread_mutex_unlock(&team->host);
}

CELLGEN_STATIC void *cellgen_team_worker(void *argument)
{
    cellgen_team_member *const self = (cellgen_team_member *)argument;
    cellgen_team *const team = self->team;
    uint32_t region = 0;
    for (;;) {
        uint32_t turns = 0;
        int64_t since = 0;
        while (__atomic_load_n(&team->region, __ATOMIC_ACQUIRE) == region) {
            if (cellgen_team_looks(team, &turns, &since, CELLGEN_TEAM_IDLE_NS))
                continue;
            pthread_mutex_lock(&team->mutex);
            __atomic_add_fetch(&team->idle, 1u, __ATOMIC_SEQ_CST);
            while (__atomic_load_n(&team->region, __ATOMIC_SEQ_CST) == region)
                pthread_cond_wait(&team->wake, &team->mutex);
            __atomic_sub_fetch(&team->idle, 1u, __ATOMIC_SEQ_CST);
            pthread_mutex_unlock(&team->mutex);
        }
        region += 1;
        if (__atomic_load_n(&team->stop, __ATOMIC_RELAXED))
            return NULL;
        cellgen_team_spend(team, -1);
        team->task(self->thread, team->threads, team->context);
        cellgen_team_spend(team, 1);
        __atomic_store_n(&self->done, region, __ATOMIC_SEQ_CST);
        cellgen_team_wake(team);
    }
}

/* Stop and join the workers, and free the team. NULL and teams made before a fork are allowed. */
CELLGEN_STATIC void cellgen_team_destroy(cellgen_team *team)
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
        for (int part = -1; part < CELLGEN_TEAM_PARTS; ++part) {
            cellgen_team *const some = part < 0 ? team : &team->parts[part];
            pthread_cond_destroy(&some->met);
            pthread_cond_destroy(&some->wake);
            pthread_mutex_destroy(&some->mutex);
            pthread_mutex_destroy(&some->host);
        }
    }
    team->layout = 0;
    free(team->allocation);
}

/* Processors that the calling thread may run on. */
CELLGEN_STATIC int cellgen_team_processors(void)
{
#if defined(SYS_sched_getaffinity) && (defined(_DEFAULT_SOURCE) || defined(_GNU_SOURCE) || defined(_BSD_SOURCE))
    unsigned long allowed[1024]; /* 64 thousand processors */
    const long bytes = syscall(SYS_sched_getaffinity, 0, sizeof allowed, allowed);
    int count = 0;
    for (long word = 0; word < bytes / (long)sizeof *allowed; ++word)
        for (unsigned bit = 0; bit < 8 * sizeof *allowed; ++bit)
            count += (int)(allowed[word] >> bit & 1);
    if (count > 0)
        return count;
#endif
#if defined(_WIN32)
    const long online = pthread_num_processors_np();
#else
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return online < 1 ? 1 : online > CELLGEN_TEAM_THREADS_MAX ? CELLGEN_TEAM_THREADS_MAX : (int)online;
}

/* A team of `threads` threads (the caller of run is one of them), fewer if the system refuses;
 * 0 means one per processor that it may use. NULL if memory is short: run then uses the caller alone. */
CELLGEN_STATIC cellgen_team *cellgen_team_create(int threads)
{
    const int processors = cellgen_team_processors();
    const int always = threads > 0 && (threads & CELLGEN_TEAM_ALWAYS) != 0;
    if (always)
        threads &= ~CELLGEN_TEAM_ALWAYS;
    if (threads <= 0)
        threads = processors;
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
    team->crowded = threads > processors;
    team->always = (uint32_t)always;
    for (int part = -1; part < CELLGEN_TEAM_PARTS; ++part) {
        cellgen_team *const some = part < 0 ? team : &team->parts[part];
        if (part >= 0)
            some->members = (cellgen_team_member *)(void *)(aligned + whole + CELLGEN_TEAM_PARTS * head) +
                            (size_t)part * (size_t)threads;
        pthread_mutex_init(&some->host, NULL);
        pthread_mutex_init(&some->mutex, NULL);
        pthread_cond_init(&some->wake, NULL);
        pthread_cond_init(&some->met, NULL);
    }
    for (int thread = 0; thread < threads; ++thread) {
        team->members[thread].thread = thread;
        team->members[thread].team = team;
    }

#if !defined(_WIN32) /* signals belong to the host program's threads */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, CELLGEN_TEAM_STACK);
    int created = 1;
    while (created < threads && pthread_create(&team->members[created].handle, &attributes,
                                               cellgen_team_worker, &team->members[created]) == 0)
        created += 1;
    pthread_attr_destroy(&attributes);
#if !defined(_WIN32)
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
    team->threads = created; /* read by the workers only in a region */
    return team;
}

#endif

/* The part [begin, end) of `total` that belongs to a thread: whole multiples of `granularity`, evenly. */
CELLGEN_STATIC void cellgen_team_partition(int64_t total, int64_t granularity, int thread, int threads,
                                           int64_t *begin, int64_t *end)
{
    const int64_t blocks = (total + granularity - 1) / granularity;
    const int64_t first = blocks * thread / threads * granularity;
    const int64_t last = blocks * (thread + 1) / threads * granularity;
    *begin = first < total ? first : total;
    *end = last < total ? last : total;
}

#endif
