/* Calls of a kernel from arrays as they are: dimensions from shapes, results, strides, types of 16 bits, checkpoints and
 * the words of the call, for whoever does not include cellgen_call.h: a program in C, or a language that loads a
 * kernel and reads its descriptor. Every kernel has it, as `engine` of its cellgen_cell.
 *
 *   const cellgen_engine *engine = cell->engine;
 *   void *call = malloc((size_t)engine->bytes);
 *   int64_t n[8];
 *   refusal = engine->bind(call, cell, &request, arrays, count, n);     what is read, and results that have memory
 *   more = engine->results(call, results);                              all other results, which get memory now
 *   refusal = engine->prepare(call, &request, results, more);
 *   bytes = engine->size(call);
 *   code = engine->run(call, workspace, bytes, cell->team(threads));    as often as wanted
 *   engine->end(call);
 *
 * What a call refers to stays where it is until its end. Results are formed that a call has an array for. C99 and C++17. */
#ifndef CELLGEN_ENGINE_H
#define CELLGEN_ENGINE_H

#include "cellgen_descriptor.h"
#include "cellgen_numbers.h"

/* An array of a call. */
typedef struct {
    const cellgen_value *value; /* what it is, by the descriptor */
    int64_t member;             /* of the function; -1: it is checked alone */
    int64_t again;              /* of the forward pass that is run once more; -1: none */
    void *data;
    int64_t kind;     /* what it holds (cellgen_stored) */
    int64_t rank;     /* of at most CELLGEN_VALUE_AXES + 1 */
    int64_t has_gaps; /* 0: `stride` is not read */
    int64_t length[CELLGEN_VALUE_AXES + 1];
    int64_t stride[CELLGEN_VALUE_AXES + 1]; /* bytes */
} cellgen_array;

/* A number that a cell takes; members as those of an array. */
typedef struct {
    int64_t member, again;
    double number;
} cellgen_scalar;

/* What a call is beside its arrays. `bind` reads the first part, `prepare` the second. */
typedef struct {
    int64_t function;      /* by its place in the cell */
    int64_t is_double;     /* it computes in double, else in float */
    int64_t narrow;        /* what its arrays of 16 bits hold (cellgen_stored); 0: it has none */
    int64_t saves;         /* a forward pass whose backward pass follows */
    cellgen_numbers say;   /* its options that are numbers; products below 0: as the type of its arrays has them */
    int64_t scalars;       /* the others are as the cell has them */
    const cellgen_scalar *scalar;
    int64_t again;         /* the forward pass that a backward pass with checkpoints runs once more; -1: none */
    int64_t again_flush, again_products; /* as the run had them that saved */
    /* second part */
    const int64_t *lengths;        /* (B), NULL: none, as the next ones */
    const unsigned char *flags[2]; /* mask and reset, (T, B) */
    int64_t flag_stride[2][2];     /* of steps and of rows, read of flags that are there; the first CELLGEN_NO_GAPS: none */
    const void *packed;            /* weights laid out for this function, and for the one that is run once more */
    int64_t packed_bytes;
    const void *packed_again;
    int64_t packed_again_bytes;
    const cellgen_plan *plan;
    const int *stop;
    void *const *checkpoints; /* those that are made, or that a backward pass reads */
} cellgen_request;

/* What `bind` and `prepare` refuse. */
enum cellgen_refusal {
    CELLGEN_RUNS = 0,
    CELLGEN_MISFIT = 1,  /* shapes do not fit */
    CELLGEN_MISSING = 2, /* an argument is missing */
    CELLGEN_GAPS = 3,    /* an array lies as no kernel reads it, or has too many axes, or there are too many arrays */
    CELLGEN_NOTHING = 4, /* `bind`: it fits, and some dimension is 0 */
    CELLGEN_NO_MEMORY = 5
};

/* Which array is refused, and why. */
typedef struct {
    int64_t reason;   /* cellgen_reason */
    int64_t array;    /* by its place among those of `bind`, or of `prepare` */
    int64_t axis;     /* of the array; of CELLGEN_REASON_UNBOUND the dimension, by its number in the cell */
    int64_t expected; /* the rank, or of CELLGEN_REASON_SHAPE the length of the axis */
} cellgen_fault;

enum cellgen_reason {
    CELLGEN_REASON_GAPS = 0,   /* of a call with CELLGEN_GAPS; the others of CELLGEN_MISFIT */
    CELLGEN_REASON_RANK = 1,   /* an array has another number of axes */
    CELLGEN_REASON_LENGTH = 2, /* no length of the dimensions makes an axis as long */
    CELLGEN_REASON_SHAPE = 3,  /* an axis is not as long as other arrays say */
    CELLGEN_REASON_UNBOUND = 4 /* no array tells a dimension of the function */
};

typedef struct cellgen_engine {
    int64_t bytes; /* of a call, aligned as any object */
    /* Look at the arrays of a call; `n` are then the dimensions of its function, in order. */
    int (*bind)(void *call, const cellgen_cell *cell, const cellgen_request *request, const cellgen_array *array,
                int64_t count, int64_t *n);
    /* What a call was refused for; `known`: the dimensions of its cell, -1 for those that no array told. */
    void (*fault)(const void *call, cellgen_fault *fault, int64_t *known);
    /* The results of a call that is bound, but for those that have memory: all of them but `data`. Their number, at
     * most that of the function's. */
    int64_t (*results)(const void *call, cellgen_array *result);
    double (*work)(const void *call); /* multiply-adds of a call that is bound */
    /* Add results, and make the call ready. */
    int (*prepare)(void *call, const cellgen_request *request, const cellgen_array *result, int64_t count);
    int64_t (*size)(const void *call); /* bytes of workspace; below 0: too many */
    int (*run)(void *call, void *workspace, int64_t bytes, void *team); /* cellgen_error */
    void (*end)(void *call);
    /* The function, its dimensions and its words, of a call that is prepared, for who calls it without `run`. 0: an
     * array is widened or rounded, which `run` does. */
    int (*words)(const void *call, uintptr_t *function, uintptr_t *n, uintptr_t *words);
} cellgen_engine;

CELLGEN_BEGIN_DECLS
extern const cellgen_engine cellgen_driver_engine;
CELLGEN_END_DECLS

#endif /* CELLGEN_ENGINE_H */
