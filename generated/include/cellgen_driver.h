/* The time driver, as a cell sees it: the tables that describe a function over time, and the frame that
 * its equations are called with. `cellgen_driver.inc.h` reads the tables; it is compiled once per machine,
 * compiler and flags, and linked with every cell. Include after cellgen_real.h, once per precision:
 * the second half has deliberately no include guard. */
#ifndef CELLGEN_DRIVER_H
#define CELLGEN_DRIVER_H

#include <stddef.h>
#include <string.h>

#include "cellgen.h"
#include "cellgen_compiler.h"
#include "cellgen_descriptor.h"

/* --- the width of a tile: constants of the instruction set, the same for a cell and the driver --- */

#if defined(__AVX512F__)
#define CELLGEN_TILE_VECTOR_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#define CELLGEN_TILE_VECTOR_BYTES 32
#else
#define CELLGEN_TILE_VECTOR_BYTES 16
#endif
#ifndef CELLGEN_VECTOR_BYTES
#define CELLGEN_VECTOR_BYTES CELLGEN_TILE_VECTOR_BYTES
#elif CELLGEN_VECTOR_BYTES != CELLGEN_TILE_VECTOR_BYTES
#error "cellgen_gemm.h and cellgen_driver.h differ in the width of a vector"
#endif
/* Vectors of units per slot, by the slots of the widest panel: a tile row is slots times that. */
#define CELLGEN_SLOT_VECTORS(slots) ((slots) == 1 ? 4 : (slots) == 2 ? 2 : 1)

/* A valid step; a masked one whose outputs repeat the states as they are; one whose outputs are zeros. */
enum { CELLGEN_MASKED_ZERO = 0, CELLGEN_VALID = 1, CELLGEN_MASKED_HOLD = 2 };

/* --- tables: `int16_t` numbers a row of another table; NONE is no row. Lengths are numbers of extents,
 * which `extents` of a function computes from the dimensions. --- */

enum { CELLGEN_NONE = -1 };

/* One member of the argument struct, of whose words of eight bytes each is one. */
enum {
    CELLGEN_REQUIRED = 1,     /* never NULL */
    CELLGEN_UNLESS_LAST = 2,  /* NULL only where outputs of the last step alone are wanted */
    CELLGEN_PACKED = 4,       /* packing reads it */
    CELLGEN_BY_ROW = 8,       /* a row for each of the batch, `width` apart */
    CELLGEN_SUMMED = 16,      /* a result: the sum over rows and steps, `width` numbers */
    CELLGEN_MADE = 32,        /* over time: a forward pass makes it, `width` numbers a row */
    CELLGEN_RESULT = 64       /* over time: this function makes it */
};
typedef struct {
    int16_t flags, width;
} cellgen_member;

/* One array over time, (T, B, width), at the caller's strides if it has a pair of them. */
enum {
    CELLGEN_OUTPUT = 1,   /* of a forward pass */
    CELLGEN_SHOWN = 2,    /* an output that is no state: a masked step repeats it */
    CELLGEN_REPEATED = 4, /* the gradient of such an output */
    CELLGEN_STAGED = 8,   /* steps read a copy where some are masked */
    CELLGEN_ACROSS = 16,  /* the deferred part reads it over many steps */
    CELLGEN_SCATTERED = 32, /* the deferred part writes it over many steps */
    CELLGEN_AGAIN = 64    /* a forward pass makes it: once more where steps are checkpointed */
};
typedef struct {
    int16_t member, width, strides, flags;
    int16_t stage, later, only, rows; /* memory: a step's copy, repeated gradients, last step, chunk */
} cellgen_series_row;

/* One state. */
enum {
    CELLGEN_STATE_OUTPUT = 1,
    CELLGEN_STATE_NOW = 2,
    CELLGEN_STATE_ACROSS = 4,
    CELLGEN_STATE_IN_PLACE = 8 /* a step may write each entry over the one before */
};
typedef struct {
    int16_t width, flags;
    int16_t series;        /* of the state after each step; NONE: not kept */
    int16_t initial, last; /* members: before the first step; after the last (backward: its gradient) */
    int16_t passed;        /* member, backward: gradient of the initial state */
    int16_t upstream;      /* series, backward: gradient of the output */
    int16_t saved;         /* member, forward: the state after each step where it is saved */
    int16_t pair;          /* memory of two steps: the state, or its gradient */
    int16_t now, rows;     /* memory: the state before a step, before many steps */
    double start;          /* of each unit where the state starts anew */
} cellgen_link;

/* Memory of the workspace: how many rows of `width`, and when it is needed. */
enum {
    CELLGEN_ONE_ROW,
    CELLGEN_BATCH_ROWS,
    CELLGEN_TWO_BATCHES,
    CELLGEN_CHUNK_OF_ROWS,
    CELLGEN_SUM_GROUPS, /* of the rows of a chunk */
    CELLGEN_PANELS,     /* packed weights, `width` deep */
    CELLGEN_AHEAD,      /* products of a hoist window of steps, in the layout of tiles */
    CELLGEN_BATCH_SLOTS, CELLGEN_CHUNK_SLOTS /* products where weights are not packed */
};
enum {
    CELLGEN_ALWAYS,
    CELLGEN_WITH_TABLES,
    CELLGEN_IF_LAST,
    CELLGEN_IF_GUARDED,
    CELLGEN_IF_GATHERED,
    CELLGEN_OF_A_ROW_BLOCK,
    CELLGEN_IF_UNPACKED
};
typedef struct {
    int16_t rows, when, width;
    int16_t is_packed;                    /* made of weights alone: kept by ..._pack */
    int16_t slots, units, widest, heads;  /* of panels and products */
} cellgen_memory;
#define CELLGEN_ARRAY(rows, when, width) {CELLGEN_##rows, CELLGEN_##when, width, 0, 0, CELLGEN_NONE, 0, CELLGEN_NONE}
#define CELLGEN_PANEL(width, slots, units, widest, heads) \
    {CELLGEN_PANELS, CELLGEN_ALWAYS, width, 1, slots, units, widest, heads}

/* Where the rows of an array are that a part of the step reads or writes. */
enum {
    CELLGEN_AT_MEMBER,  /* the same at every step */
    CELLGEN_AT_MEMORY,  /* the same at every step */
    CELLGEN_AT_SERIES,  /* of: series */
    CELLGEN_AT_STAGED,  /* of: series; a copy where steps may be masked */
    CELLGEN_AT_ACROSS,  /* of: series; rows of many steps */
    CELLGEN_IN_PLACE,   /* of: series; each row of many steps where it belongs */
    CELLGEN_AT_BEFORE,  /* of: link; the state before a step */
    CELLGEN_AT_CARRY,   /* of: link; the gradient from the step after */
    CELLGEN_AT_PASSED,  /* of: link; the gradient for the step before */
    CELLGEN_AT_SAVED,   /* of: member (T, B, width); `or`: memory where the caller gave none */
    CELLGEN_AT_PAIR,    /* of: link; a forward state that is no output */
    CELLGEN_AT_KEPT,    /* of: memory; a row for each step of a chunk */
    CELLGEN_AT_SUMS     /* of: memory; the sum over the group that the rows are of */
};
typedef struct {
    int16_t how, of, width, other;
    int16_t is_optional; /* zeros where the caller gave none */
} cellgen_place;

/* The weights of one slot of a panel. */
typedef struct {
    int16_t member, memory;  /* where they lie; one of both */
    int16_t offset, stride, head_step;
    int16_t transposed, slot, begins; /* `begins`: the first product of its slot */
} cellgen_weight;

/* One operand times one packed panel: neighbouring slots. */
typedef struct {
    int16_t use, offset; /* the operand, by its number among the places that the stage uses */
    int16_t inner, by_head;
    int16_t slots, first_slot;
    int16_t panel, ahead; /* memory; `ahead`: the product of a hoist window, NONE: not formed ahead */
    int16_t weights, first_weight;
} cellgen_run;

/* Neighbouring runs that fill the same slots, in one chain. */
typedef struct {
    int16_t first, runs;
} cellgen_chain;

/* Rows that tiles fetch while they run: `later` steps after this one. */
typedef struct {
    int16_t series, member; /* one of both */
    int16_t width, later;
} cellgen_prefetch_row;

/* Weight gradients over the same rows. */
typedef struct {
    int16_t use, offset, rows, head_step;
    int16_t packed_after;                         /* extent: rows of operands packed before this one */
} cellgen_left_row;
typedef struct {
    int16_t use, offset, columns, head_step;
} cellgen_right_row;
typedef struct {
    int16_t left, right, use, offset, stride, head_step;
    int16_t begins; /* the first chunk writes it whole */
} cellgen_outer_row;

/* Sums over all steps. */
typedef struct {
    int16_t member, memory, count; /* where the total lies; one of both */
    int16_t begun, is_batched, own; /* `own`: memory of a row block in place of the caller's */
    int16_t wants;                  /* members of which one at least must be there, else it is not formed; 0: always */
    const int16_t *want;
} cellgen_total;
typedef struct {
    int16_t member, memory, count, groups;
} cellgen_sum;
typedef struct {
    int16_t member, memory, summand, width; /* gradients of what is constant over time */
} cellgen_steps_total;
typedef struct {
    int16_t memory, width, member; /* `member`: copied from there for each step of a chunk */
} cellgen_kept;

/* What a backward pass reads of the forward pass. */
typedef struct {
    int16_t member, by; /* of the backward pass, of the forward pass */
} cellgen_made;

/* Neighbouring stages of the deferred part; if `by_rows`, a group of rows goes through them at a time. */
typedef struct {
    int16_t first, stages, by_rows;
} cellgen_stage_rows;

enum { CELLGEN_IS_LOOP, CELLGEN_IS_GROUP, CELLGEN_IS_PRODUCTS };

enum { CELLGEN_WORD = 8 }; /* bytes of a member of an argument struct */

/* The most dimensions and lengths of a function, arrays of the workspace, and arrays, operands or results of
 * a stage: tables beyond are refused when they are written. */
#define CELLGEN_DIMS_MAX 64
#define CELLGEN_EXTENTS_MAX 1024
#define CELLGEN_MEMORY_MAX 4096
#define CELLGEN_USES_MAX 512
#define CELLGEN_WORDS_MAX 1024 /* of an argument struct */

#endif /* CELLGEN_DRIVER_H */

#undef CELLGEN_REAL_LANES
#define CELLGEN_REAL_LANES (CELLGEN_VECTOR_BYTES / (int64_t)sizeof(real))

#undef cg_rows
#undef cg_frame
#undef cg_equations
#undef cg_stage
#undef cg_part
#undef cg_function
#undef cg_place_row
#undef cg_zero_row
#define cg_rows CELLGEN_NAME(cellgen_rows)
#define cg_frame CELLGEN_NAME(cellgen_frame)
#define cg_equations CELLGEN_NAME(cellgen_equations)
#define cg_stage CELLGEN_NAME(cellgen_stage)
#define cg_part CELLGEN_NAME(cellgen_part_table)
#define cg_function CELLGEN_NAME(cellgen_function)
#define cg_place_row CELLGEN_NAME(cellgen_place_row)
#define cg_zero_row CELLGEN_NAME(cellgen_zero_row)

/* The rows of one array at a step: the first, and elements from row to row (and from step to step). */
typedef struct {
    real *rows;
    int64_t row, step;
} cg_rows;

/* What equations see of a call. */
typedef struct {
    const int64_t *n;            /* dimensions, in the order of the call */
    const void *args;            /* the argument struct */
    real *const *memory;         /* of the workspace, by number */
    const cg_rows *at;           /* the arrays that the stage uses, by number */
    const unsigned char *validity; /* of each row, from the first row of the step on; NULL: all are valid */
    int64_t step;
    int keeps; /* the caller wants what only a backward pass reads */
} cg_frame;

/* Equations of a stage for rows begin <= row < end and `units` units from `first` on; `tile` holds the
 * products of these rows and units, each row [slot][width]. */
typedef void (*cg_equations)(const cg_frame *frame, int64_t begin, int64_t end, int64_t first,
                             int64_t units, real *tile);

/* One of the rows of many steps, which lies where it belongs. */
CELLGEN_INLINE real *cg_place_row(const cg_rows *of, int64_t B, int64_t step, int64_t row)
{
    const int64_t later = (uint32_t)row / (uint32_t)B; /* rows of a chunk: narrow numbers divide faster */
    return of->rows + (step + later) * of->step + (row - later * B) * of->row;
}
CELLGEN_INLINE void cg_zero_row(real *row, int64_t units)
{
    memset(row, 0, (size_t)units * sizeof(real));
}

typedef struct {
    int16_t kind, barrier; /* `barrier`: threads that share units wait for each other after it */
    int16_t units, heads, granularity; /* granularity: slots of the widest panel that units are shared by */
    cg_equations equations;
    int16_t uses;
    const int16_t *use; /* places of the part */
    int16_t keeps;      /* members whose presence says whether the caller wants what is kept */
    const int16_t *keep;
    int16_t wants;      /* members of which one at least must be there, else the stage is left out; 0: never */
    const int16_t *want;
    /* a group of products */
    int16_t slots, widest, depth, all_units, whole, is_free, fetching_depth;
    int16_t runs, chains, prefetches, in_places, zeroed;
    const cellgen_run *run;
    const cellgen_weight *weight;
    const cellgen_chain *chain;
    const cellgen_prefetch_row *prefetched;
    const int16_t *in_place; /* pairs: use, offset */
    const int16_t *zero;     /* slots */
    /* weight gradients */
    int16_t lefts, rights, outers;
    const cellgen_left_row *left;
    const cellgen_right_row *right;
    const cellgen_outer_row *outer;
} cg_stage;
/* Members of a stage that is no group of products, and of one without weight gradients. */
#undef CELLGEN_NO_GROUP
#undef CELLGEN_NO_WEIGHT_GRADIENTS
#define CELLGEN_NO_GROUP \
    0, 0, CELLGEN_NONE, CELLGEN_NONE, CELLGEN_NONE, 0, CELLGEN_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
#define CELLGEN_NO_WEIGHT_GRADIENTS 0, 0, 0, 0, 0, 0

/* A part of a function: the steps, or what is deferred. */
typedef struct {
    int16_t places, stages, runs, can_split, free_units, free_granularity;
    const cellgen_place *place;
    const cg_stage *stage;
    const cellgen_stage_rows *run;
} cg_part;

/* A function over time. */
typedef struct CELLGEN_NAME(cellgen_function_table) cg_function;
struct CELLGEN_NAME(cellgen_function_table) {
    int16_t dims, extents, is_backward, parts;
    void (*extent)(const int64_t *n, int64_t *extent);
    void (*prologue)(const cg_frame *frame);
    void (*epilogue)(const cg_frame *frame);
    const cg_part *part;
    int16_t zeros, flag_strides, reads_before, product_rows;
    int16_t members; /* the workspace, its bytes, the team and the options follow in the struct */
    int16_t series, links, memories, kept, constants, totals, sums, steps_totals;
    const cellgen_member *member;
    const cellgen_series_row *over_time;
    const cellgen_link *link;
    const cellgen_memory *memory;
    const cellgen_kept *keep;
    const cellgen_kept *constant;
    const cellgen_total *total;
    const cellgen_sum *sum;
    const cellgen_steps_total *steps_total;
    int16_t mades; /* backward */
    const cellgen_made *made;
    const cg_function *forward; /* what makes them; NULL: it takes other arguments than this one */
};

/* Equations of a stage: what is read of the frame they say by number. */
#undef CELLGEN_EQUATIONS
#define CELLGEN_EQUATIONS_OF(linkage, stem)                                                        \
    linkage void CELLGEN_NAME(stem)(                                                               \
        CELLGEN_UNUSED const cg_frame *frame, CELLGEN_UNUSED int64_t begin,                        \
        CELLGEN_UNUSED int64_t end, CELLGEN_UNUSED int64_t first, CELLGEN_UNUSED int64_t units,    \
        CELLGEN_UNUSED real *tile)
#define CELLGEN_EQUATIONS(stem) CELLGEN_EQUATIONS_OF(static, stem)
#define CELLGEN_TILE_EQUATIONS(stem) CELLGEN_EQUATIONS_OF(CELLGEN_INLINE, stem##_units)

/* Whole tiles have a width that the compiler knows: equations are compiled twice, and stand once. */
#undef CELLGEN_TILE
#define CELLGEN_TILE(stem, widest)                                                                 \
    static void CELLGEN_NAME(stem)(const cg_frame *frame, int64_t begin, int64_t end, int64_t first, \
                                   int64_t units, real *tile)                                      \
    {                                                                                              \
        enum { width = CELLGEN_SLOT_VECTORS(widest) * CELLGEN_REAL_LANES };                        \
        if (units == width)                                                                        \
            CELLGEN_NAME(stem##_units)(frame, begin, end, first, width, tile);                     \
        else                                                                                       \
            CELLGEN_NAME(stem##_units)(frame, begin, end, first, units, tile);                     \
    }

/* The functions that a caller sees: `parameters` in brackets, then the dimensions. */
#undef CELLGEN_OVER_TIME
#define CELLGEN_UNPACKED(...) __VA_ARGS__
#define CELLGEN_OVER_TIME(stem, run, parameters, ...)                                              \
    int CELLGEN_NAME(stem)(CELLGEN_UNPACKED parameters, const CELLGEN_NAME(stem##_args) *args)     \
    {                                                                                              \
        const int64_t n[] = {__VA_ARGS__};                                                         \
        return run(&CELLGEN_NAME(stem##_table), n, args);                                          \
    }                                                                                              \
    void CELLGEN_NAME(stem##_plan)(CELLGEN_UNPACKED parameters, int64_t threads,                   \
                                   const cellgen_constants *constants, cellgen_plan *plan)         \
    {                                                                                              \
        const int64_t n[] = {__VA_ARGS__};                                                         \
        cg_choose(&CELLGEN_NAME(stem##_table), n, threads, constants, plan);                       \
    }                                                                                              \
    int64_t CELLGEN_NAME(stem##_workspace_size)(CELLGEN_UNPACKED parameters,                       \
                                                const cellgen_options *options)                    \
    {                                                                                              \
        const int64_t n[] = {__VA_ARGS__};                                                         \
        return cg_workspace_size(&CELLGEN_NAME(stem##_table), n, options);                         \
    }                                                                                              \
    int64_t CELLGEN_NAME(stem##_packed_size)(CELLGEN_UNPACKED parameters,                          \
                                             const cellgen_options *options)                       \
    {                                                                                              \
        const int64_t n[] = {__VA_ARGS__};                                                         \
        return cg_packed_size(&CELLGEN_NAME(stem##_table), n, options);                            \
    }                                                                                              \
    int CELLGEN_NAME(stem##_pack)(CELLGEN_UNPACKED parameters,                                     \
                                  const CELLGEN_NAME(stem##_args) *args, void *packed,             \
                                  int64_t packed_bytes)                                            \
    {                                                                                              \
        const int64_t n[] = {__VA_ARGS__};                                                         \
        return cg_pack(&CELLGEN_NAME(stem##_table), n, args, packed, packed_bytes);                \
    }

/* How a cell's functions are called by words: see cellgen_entry. `PLAIN`, `WORKSPACE`: of one step;
 * `TEAM`: over time. An array without elements may be NULL, which the functions themselves refuse. */
#undef CELLGEN_PLAIN_BY_WORDS
#undef CELLGEN_WORKSPACE_BY_WORDS
#undef CELLGEN_TEAM_BY_WORDS
#undef CELLGEN_PLAIN_ENTRY
#undef CELLGEN_WORKSPACE_ENTRY
#undef CELLGEN_TEAM_ENTRY
#define CELLGEN_PLAIN_BY_WORDS(stem, signature, ...)                                               \
    static int CELLGEN_NAME(stem##_enter)(const int64_t *n, const void *args)                      \
    {                                                                                              \
        return CELLGEN_NAME(stem)(__VA_ARGS__, (const CELLGEN_NAME(stem##_args) *)args);           \
    }                                                                                              \
    static int CELLGEN_NAME(stem##_call)(const int64_t *n, const void *args)                       \
    {                                                                                              \
        const int code = CELLGEN_NAME(stem##_enter)(n, args);                                      \
        if (code != CELLGEN_NULL_POINTER) return code;                                             \
        return cellgen_driver_call_empty(signature, CELLGEN_NAME(stem##_enter), n, args);          \
    }
#define CELLGEN_WORKSPACE_BY_WORDS(stem, signature, ...)                                           \
    CELLGEN_PLAIN_BY_WORDS(stem, signature, __VA_ARGS__)                                           \
    static int64_t CELLGEN_NAME(stem##_size)(const int64_t *n, const void *options)                \
    {                                                                                              \
        (void)options;                                                                             \
        return CELLGEN_NAME(stem##_workspace_size)(__VA_ARGS__);                                   \
    }
#define CELLGEN_TEAM_BY_WORDS(stem, signature, ...)                                                \
    CELLGEN_PLAIN_BY_WORDS(stem, signature, __VA_ARGS__)                                           \
    static int64_t CELLGEN_NAME(stem##_size)(const int64_t *n, const void *options)                \
    {                                                                                              \
        return cg_workspace_size(&CELLGEN_NAME(stem##_table), n, (const cellgen_options *)options); \
    }                                                                                              \
    static void CELLGEN_NAME(stem##_choose)(const int64_t *n, int64_t threads,                     \
                                            const void *constants, void *plan)                     \
    {                                                                                              \
        cg_choose(&CELLGEN_NAME(stem##_table), n, threads, (const cellgen_constants *)constants,   \
                  (cellgen_plan *)plan);                                                           \
    }                                                                                              \
    static int64_t CELLGEN_NAME(stem##_size_packed)(const int64_t *n, const void *options)         \
    {                                                                                              \
        return cg_packed_size(&CELLGEN_NAME(stem##_table), n, (const cellgen_options *)options);   \
    }                                                                                              \
    static int CELLGEN_NAME(stem##_lay_out)(const int64_t *n, const void *args, void *packed,      \
                                            int64_t packed_bytes)                                  \
    {                                                                                              \
        return cg_pack(&CELLGEN_NAME(stem##_table), n, args, packed, packed_bytes);                \
    }
#define CELLGEN_PLAIN_ENTRY(stem) {CELLGEN_NAME(stem##_call), 0, 0, 0, 0}
#define CELLGEN_WORKSPACE_ENTRY(stem) {CELLGEN_NAME(stem##_call), CELLGEN_NAME(stem##_size), 0, 0, 0}
#define CELLGEN_TEAM_ENTRY(stem)                                                                   \
    {                                                                                              \
        CELLGEN_NAME(stem##_call), CELLGEN_NAME(stem##_size), CELLGEN_NAME(stem##_choose),         \
            CELLGEN_NAME(stem##_size_packed), CELLGEN_NAME(stem##_lay_out)                         \
    }

/* What a cell calls. */
#undef cg_run_forward
#undef cg_run_backward
#undef cg_workspace_size
#undef cg_choose
#undef cg_packed_size
#undef cg_pack
#define cg_run_forward CELLGEN_NAME(cellgen_run_forward)
#define cg_run_backward CELLGEN_NAME(cellgen_run_backward)
#define cg_workspace_size CELLGEN_NAME(cellgen_workspace_size)
#define cg_choose CELLGEN_NAME(cellgen_choose)
#define cg_packed_size CELLGEN_NAME(cellgen_packed_size)
#define cg_pack CELLGEN_NAME(cellgen_pack)
CELLGEN_BEGIN_DECLS
int cg_run_forward(const cg_function *f, const int64_t *n, const void *args);
int cg_run_backward(const cg_function *f, const int64_t *n, const void *args);
int64_t cg_workspace_size(const cg_function *f, const int64_t *n, const cellgen_options *options);
void cg_choose(const cg_function *f, const int64_t *n, int64_t threads,
               const cellgen_constants *constants, cellgen_plan *plan);
int64_t cg_packed_size(const cg_function *f, const int64_t *n, const cellgen_options *options);
int cg_pack(const cg_function *f, const int64_t *n, const void *args, void *packed, int64_t packed_bytes);

/* Matrix products, C (+)= A B, A B^T, A^T B. */
#ifndef CELLGEN_GEMM_H
#undef cg_gemm_nn
#undef cg_gemm_nt
#undef cg_gemm_tn
#define cg_gemm_nn CELLGEN_NAME(cellgen_product_nn)
#define cg_gemm_nt CELLGEN_NAME(cellgen_product_nt)
#define cg_gemm_tn CELLGEN_NAME(cellgen_product_tn)
#endif
#define CELLGEN_PRODUCT(name)                                                                      \
    void CELLGEN_NAME(cellgen_product_##name)(int64_t M, int64_t N, int64_t K, const real *a,      \
                                              int64_t lda, const real *b, int64_t ldb, real *c,    \
                                              int64_t ldc, int accumulate)
CELLGEN_PRODUCT(nn);
CELLGEN_PRODUCT(nt);
CELLGEN_PRODUCT(tn);
#undef CELLGEN_PRODUCT
void *cellgen_driver_team_of(int threads);
void *cellgen_driver_team_create(int threads);
void cellgen_driver_team_destroy(void *team);
extern const struct cellgen_engine cellgen_driver_engine;
int cellgen_driver_call_empty(const cellgen_signature *f, int (*enter)(const int64_t *, const void *),
                              const int64_t *n, const void *args);
CELLGEN_END_DECLS
