/* What a compiled cell is, as data: one exported symbol for each, `const cellgen_cell *<cell>_cellgen(void)`.
 * A caller in any language reads there which arrays a function takes, in which order and of which
 * shapes, and calls it by an array of dimensions and an array of words. C99 and C++; needs nothing else
 * of cellgen, so a program may have a copy of this file.
 *
 *   int64_t n[] = {B, I, H};                               signature->dims of them
 *   void *args[] = {x, h_prev, w, u, b, h, workspace, bytes};
 *   entry->call(n, args);
 *
 * The words of a call, eight bytes each: those of `member`, then with has_workspace its address and its
 * bytes (at least entry->size), with has_team a team (or NULL: the caller alone) and the options (or
 * NULL). A scalar is a double in either precision. Arrays are row-major without gaps, of the precision's
 * type. NULL is legal for an array without elements, and for what is CELLGEN_VALUE_OPTIONAL or, as a
 * result, CELLGEN_VALUE_SAVED. */
#ifndef CELLGEN_DESCRIPTOR_H
#define CELLGEN_DESCRIPTOR_H

#include <stdint.h>

#if defined(__GNUC__) && !defined(CELLGEN_PLAIN)
#define CELLGEN_EXPORT __attribute__((visibility("default"))) /* seen outside of a shared object */
#else
#define CELLGEN_EXPORT
#endif

/* What a value is. */
enum cellgen_role {
    CELLGEN_ROLE_INPUT = 0,
    CELLGEN_ROLE_STATE = 1,  /* before the first step */
    CELLGEN_ROLE_STATIC = 2, /* the same at every step, a row for each of the batch */
    CELLGEN_ROLE_WEIGHT = 3,
    CELLGEN_ROLE_BIAS = 4,
    CELLGEN_ROLE_SCALAR = 5, /* a double in the struct, not an address */
    CELLGEN_ROLE_OUTPUT = 6,
    CELLGEN_ROLE_FINAL = 7,        /* a state after the last step; `of`: the one before the first */
    CELLGEN_ROLE_INTERMEDIATE = 8, /* of a step, which its backward function reads */
    CELLGEN_ROLE_SAVED = 9,        /* kept over time for sequence_backward */
    CELLGEN_ROLE_UPSTREAM = 10,    /* the gradient of the loss by `of`, which the caller has */
    CELLGEN_ROLE_GRADIENT = 11     /* the gradient of the loss by `of` */
};

enum cellgen_flag {
    CELLGEN_VALUE_OPTIONAL = 1,  /* NULL: of an argument, zeros; of a result, not wanted and not formed */
    CELLGEN_VALUE_OVER_TIME = 2, /* (T, B, ...), at the strides of the options if they have any */
    CELLGEN_VALUE_SAVED = 4,     /* between sequence_forward and sequence_backward; NULL: not wanted */
    CELLGEN_VALUE_WRITTEN = 8,   /* a result: every element of it is written */
    CELLGEN_VALUE_WEIGHT = 16,   /* neither steps nor rows: the same array for all of them */
    CELLGEN_VALUE_BOUNDED = 32,  /* it is saved and ends in a bounded function: a gate */
    CELLGEN_VALUE_OPERAND = 64,  /* a weight that products alone read, of functions over time */
    CELLGEN_VALUE_CARRIED = 128  /* an output that is a state: its value after each step */
};

#define CELLGEN_VALUE_AXES 8 /* the most that a value has */
#define CELLGEN_TERM_DIMS 3  /* the most that are multiplied in a term */

/* factor * dim * ..., dimensions by their number in the cell; -1: no more */
typedef struct {
    int64_t factor;
    int64_t dim[CELLGEN_TERM_DIMS];
} cellgen_term;

/* The length of an axis: the sum of its terms. */
typedef struct {
    int64_t terms;
    const cellgen_term *term;
} cellgen_axis;

/* One member of a function's argument struct. */
typedef struct {
    const char *name; /* as its author wrote it, in UTF-8 */
    const char *of;   /* see the roles; "" for others */
    int64_t role;     /* cellgen_role */
    int64_t flags;    /* cellgen_flag, added up */
    double value;     /* of a scalar, its default; of a state, where it starts */
    int64_t axes;
    const cellgen_axis *axis[CELLGEN_VALUE_AXES];
} cellgen_value;

/* What a function takes, in either precision. */
typedef struct {
    const char *name;
    const char *text;
    int64_t dims;
    const int64_t *dim; /* numbers in the cell, in the order of a call */
    int64_t arguments;  /* members that are read; results follow */
    int64_t members;
    const cellgen_value *member;
    int64_t has_workspace, has_team; /* words that follow the members */
} cellgen_signature;

/* How a function is called, in one precision; NULL where it has no such thing. Options, plans and
 * constants are those of cellgen.h. */
typedef struct {
    int (*call)(const int64_t *dims, const void *args);
    int64_t (*size)(const int64_t *dims, const void *options); /* bytes of workspace; below 0: too many */
    void (*plan)(const int64_t *dims, int64_t threads, const void *constants, void *plan);
    int64_t (*packed_size)(const int64_t *dims, const void *options);
    int (*pack)(const int64_t *dims, const void *args, void *packed, int64_t packed_bytes);
} cellgen_entry;

typedef struct {
    const char *name;           /* "f32" or "f64" */
    int64_t bytes;              /* of an element */
    const cellgen_entry *entry; /* one for each function */
} cellgen_precision;

typedef struct {
    int64_t abi; /* CELLGEN_ABI_VERSION of cellgen.h: of another, nothing behind this member is known */
    const char *name;
    const char *digest; /* of the mathematics */
    int64_t dims;
    const char *const *dim;
    int64_t functions;
    const cellgen_signature *function;
    int64_t precisions;
    const cellgen_precision *precision;
    void *(*team)(int threads); /* this process's team of so many threads, made when first asked for,
                                 * also after a fork; NULL: the caller alone. Not to be destroyed */
    void *(*team_create)(int threads); /* a team of the caller's own; 0: one thread per processor */
    void (*team_destroy)(void *team);
    const struct cellgen_engine *engine; /* calls from arrays as they are: cellgen_engine.h */
} cellgen_cell;

#endif
