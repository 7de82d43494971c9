/* What every generated function shares: error codes, linkage, restrict. C99 and C++. */
#ifndef CELLGEN_H
#define CELLGEN_H

#include <stdint.h>

/* Raised by one whenever an argument struct, a code below or a symbol's meaning changes. */
#define CELLGEN_ABI_VERSION 21

#if defined(__cplusplus)
#define CELLGEN_BEGIN_DECLS extern "C" {
#define CELLGEN_END_DECLS }
#else
#define CELLGEN_BEGIN_DECLS
#define CELLGEN_END_DECLS
#endif

/* No other pointer of the function reaches this memory. C++ has no `restrict`. */
#if (defined(__GNUC__) || defined(__clang__)) && !defined(CELLGEN_PLAIN)
#define CELLGEN_RESTRICT __restrict
#elif defined(__cplusplus)
#define CELLGEN_RESTRICT
#else
#define CELLGEN_RESTRICT restrict
#endif

/* Before a member of an argument struct: it takes a word of eight bytes where addresses are shorter too. */
#if UINTPTR_MAX > 0xffffffffu
#define CELLGEN_MEMBER
#elif defined(__cplusplus)
#define CELLGEN_MEMBER alignas(8)
#else
#define CELLGEN_MEMBER _Alignas(8)
#endif

/* The iterations of the next loop are independent: arrays never overlap, which callers see to. */
#if defined(__clang__)
#define CELLGEN_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CELLGEN_VECTORIZE _Pragma("GCC ivdep")
#else
#define CELLGEN_VECTORIZE
#endif

/* The same of a loop that adds up these locals, in the order of the vectors' lanes: one addition after
 * the other takes four cycles each. Needs -fopenmp-simd (no library); without it,
 * and in C++, sums are formed in order. */
#if defined(__cplusplus)
#define CELLGEN_SUMS(...) CELLGEN_VECTORIZE
#else
#define CELLGEN_PRAGMA(text) _Pragma(#text)
#define CELLGEN_SUMS(...) CELLGEN_PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#endif

/* What a generated function returns. Nothing is written unless it is CELLGEN_OK. */
enum cellgen_error {
    CELLGEN_OK = 0,
    CELLGEN_NULL_POINTER = 1,       /* a required array of the argument struct is missing */
    CELLGEN_NEGATIVE_DIMENSION = 2, /* 0 is allowed: an empty batch or sequence */
    CELLGEN_WORKSPACE_TOO_SMALL = 3, /* fewer bytes than <cell>_<function>_workspace_size tells */
    CELLGEN_LENGTH_OUT_OF_RANGE = 4, /* a row has fewer than 0 or more than T steps */
    CELLGEN_PLAN_UNFIT = 5,          /* a plan that this function cannot follow with this shape and threads */
    CELLGEN_STOPPED = 6,             /* the caller asked it to stop: results are incomplete */
    CELLGEN_PACKED_TOO_SMALL = 7     /* packed weights of fewer bytes than <cell>_<function>_packed_size tells */
};

/* What plans are chosen by: figures of a machine. NULL in place of it, or a negative member: what
 * the kernel was compiled with. */
typedef struct {
    int64_t hoist_rows;       /* rows up to which products of inputs are formed ahead of the time loop */
    int64_t rows_per_thread;  /* with fewer rows for each thread, threads share units */
    int64_t weights_in_cache; /* bytes of weights that stay in a core's second-level cache */
    int64_t window_rows;      /* rows of a hoist window, of products formed ahead */
    int64_t chunk_rows;       /* rows of a chunk of what runs once over the rows of many steps */
} cellgen_constants;

/* How a function over time runs: what depends on the shape and the threads. <cell>_<function>_plan
 * fills it, a caller may change it. Results are the same to the bit, whatever it says. */
typedef struct {
    int64_t threads;      /* that it was chosen for */
    int64_t by_units;     /* 1: threads share the units of a step and meet after each stage; 0: its rows */
    int64_t hoist;        /* 1: products of inputs are formed ahead, for a hoist window of steps */
    int64_t unpacked;     /* 1: weights are read where they lie, not packed ahead */
    int64_t window_rows;  /* rows of a hoist window, a multiple of B */
    int64_t chunk_rows;   /* rows of a chunk, a multiple of those of the longest row block */
    int64_t row_blocks;   /* of a batch, summed apart from each other: by shape and precision, not to be changed */
    int64_t weight_bytes; /* packed weights of the time loop; for information */
    cellgen_constants by; /* what it was chosen by; for information */
} cellgen_plan;

/* `products` of the options: operands as they are, rounded to bfloat16, or weights in int8 (not backward). */
enum cellgen_products { CELLGEN_PRODUCTS_FULL = 0, CELLGEN_PRODUCTS_BF16 = 1, CELLGEN_PRODUCTS_INT8 = 2 };

/* `stored` of the options: what an array over time, or a weight that products alone read, holds in a function in float. */
enum cellgen_stored { CELLGEN_STORED_REAL = 0, CELLGEN_STORED_BF16 = 1, CELLGEN_STORED_F16 = 2 };

#include "cellgen_options.h"

#endif /* CELLGEN_H */
