/* What compilers spell in ways of their own: linkage that inlines, alignment, prefetches, words that
 * threads share, and whether there are threads. GCC, clang and zig have all of it; another compiler of
 * C11 or C++17 has what the standards say, and one thread. CELLGEN_PLAIN: as if this were another one. */
#ifndef CELLGEN_COMPILER_H
#define CELLGEN_COMPILER_H

#if defined(__GNUC__) && !defined(CELLGEN_PLAIN)
#define CELLGEN_GNU 1
#else
#define CELLGEN_GNU 0
#endif

/* Whether teams have threads, those of POSIX; 0: the caller works alone. Windows has them where
 * winpthreads is, WebAssembly where it was asked for. */
#ifndef CELLGEN_THREADS
#if !CELLGEN_GNU || (defined(__wasm__) && !defined(_REENTRANT))
#define CELLGEN_THREADS 0
#elif defined(_WIN32)
#if defined(__has_include)
#if __has_include(<pthread.h>)
#define CELLGEN_THREADS 1
#endif
#endif
#ifndef CELLGEN_THREADS
#define CELLGEN_THREADS 0
#endif
#else
#define CELLGEN_THREADS 1
#endif
#endif

/* static and possibly unused; INLINE ones vanish in their callers, OUTLINE ones exist once */
#if CELLGEN_GNU
#define CELLGEN_INLINE static inline __attribute__((always_inline, unused))
#define CELLGEN_STATIC static __attribute__((unused))
#define CELLGEN_UNUSED __attribute__((unused))
#else
#define CELLGEN_INLINE static inline
#define CELLGEN_STATIC static inline
#define CELLGEN_UNUSED
#endif
#if !CELLGEN_GNU
#define CELLGEN_OUTLINE static inline
#elif defined(__clang__)
#define CELLGEN_OUTLINE static __attribute__((noinline, unused))
#else /* one copy per tile: cloning for constant arguments doubled the code */
#define CELLGEN_OUTLINE static __attribute__((noinline, noclone, unused))
#endif

/* around functions that -O3 makes no faster than -O1: tiles, which are written out, and what works once a call or
 * once a stage. GCC takes two thirds of the time for the driver so. Two of the options that it adds at -O2 are
 * needed: one has vzeroupper, and without the order of loads that scheduling makes, steps of a GRU take 1.5 percent longer. */
#if CELLGEN_GNU && !defined(__clang__) && defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define CELLGEN_BEGIN_LIGHT          \
    _Pragma("GCC push_options")      \
    _Pragma("GCC optimize (\"O1\", \"expensive-optimizations\", \"strict-aliasing\", \"schedule-insns2\")")
#define CELLGEN_END_LIGHT _Pragma("GCC pop_options")
#else
#define CELLGEN_BEGIN_LIGHT
#define CELLGEN_END_LIGHT
#endif

/* before a short loop: once for each of its turns, one after the other */
#if !CELLGEN_GNU
#define CELLGEN_UNROLL
#elif defined(__clang__)
#define CELLGEN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CELLGEN_UNROLL _Pragma("GCC unroll 4")
#endif

/* a cache line, before the type of a variable */
#if CELLGEN_GNU
#define CELLGEN_ALIGNED __attribute__((aligned(64)))
#elif defined(__cplusplus)
#define CELLGEN_ALIGNED alignas(64)
#else
#define CELLGEN_ALIGNED _Alignas(64)
#endif

/* GCC would make a second loop for a stride of 1 */
#if CELLGEN_GNU && (defined(__x86_64__) || defined(__aarch64__))
#define CELLGEN_OPAQUE(n) __asm__("" : "+r"(n))
#else
#define CELLGEN_OPAQUE(n) ((void)0)
#endif
/* GCC would load a vector again for every use, registers to spare or not: hide where it is from */
#if CELLGEN_GNU && defined(__AVX512F__)
#define CELLGEN_KEEP(v) __asm__("" : "+v"(v))
#elif CELLGEN_GNU && defined(__x86_64__)
#define CELLGEN_KEEP(v) __asm__("" : "+x"(v))
#else
#define CELLGEN_KEEP(v) ((void)0)
#endif

/* GCC for arm64 would load the elements of all rows before the first fma, and store two sums of a tile of 24 for
 * it at every k: no instruction is moved across this one */
#if CELLGEN_GNU && defined(__aarch64__)
#define CELLGEN_KEEP_ORDER(x) __asm__ volatile("" : "+w"(x))
#else
#define CELLGEN_KEEP_ORDER(x) ((void)0)
#endif

/* a line into the second-level cache, or into the first */
#if CELLGEN_GNU
#define CELLGEN_FETCH_NEAR(p) __builtin_prefetch(p)
#else
#define CELLGEN_FETCH_NEAR(p) ((void)(p))
#endif
#if defined(CELLGEN_FETCH) /* tests count them */
#define CELLGEN_FETCH_TO_WRITE(p) ((void)(p))
#elif CELLGEN_GNU
#define CELLGEN_FETCH(p) __builtin_prefetch((p), 0, 2)
#define CELLGEN_FETCH_TO_WRITE(p) __builtin_prefetch((p), 1, 2)
#else
#define CELLGEN_FETCH(p) ((void)(p))
#define CELLGEN_FETCH_TO_WRITE(p) ((void)(p))
#endif

/* a word that another thread may write or read meanwhile, in no order to others */
#if CELLGEN_GNU
#define CELLGEN_READ_SHARED(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define CELLGEN_WRITE_SHARED(p, value) __atomic_store_n((p), (value), __ATOMIC_RELAXED)
#else
#define CELLGEN_READ_SHARED(p) (*(const volatile int *)(p))
#define CELLGEN_WRITE_SHARED(p, value) ((void)(*(volatile int *)(p) = (value)))
#endif
/* Give such a word its value once: what it holds afterwards, the first value that is not 0. Without GNU C
 * threads that do so at once must give the same value. */
CELLGEN_INLINE int cellgen_keep_first(int *word, int value)
{
    int kept = 0;
#if CELLGEN_GNU
    return __atomic_compare_exchange_n(word, &kept, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ? value : kept;
#else
    kept = CELLGEN_READ_SHARED(word);
    if (!kept) CELLGEN_WRITE_SHARED(word, value);
    return kept ? kept : value;
#endif
}

#endif
