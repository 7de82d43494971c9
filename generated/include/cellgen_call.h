/* A call of a kernel from arrays as they are: whether a kernel can read what it is given, and the words of its
 * struct (`cg_check`, `cg_prepare`), by what cellgen_signature.h says of its results. A door to a library of arrays
 * adds views (`cg_add`), gives memory by a callback, lends a workspace (`cg_lend`), calls `entry->call` itself, and ends
 * what it began (`cg_end`). A member that is no array of its own, as one of many in a single array, has its address in
 * `word`, and what lies there in `stored`. Needs the descriptor of a cell and the options of a call as numbers. What is
 * refused here is told by a number; who has words for it looks at the call again.
 *
 * Arrays of 16 bits: a kernel reads and writes those that have steps as they are; others are widened to float32 before
 * the call, and results that have none rounded after it. C99 and C++17. */
#ifndef CELLGEN_CALL_H
#define CELLGEN_CALL_H

#include <stdlib.h>

#include "cellgen_half.h"
#include "cellgen_signature.h"

#ifndef CG_MOST_MEMBERS /* as a door has it */
#define CG_MOST_MEMBERS 512
#endif
#ifndef CG_MOST_VIEWS /* of arrays that stand for members, and of those that are checked alone */
#define CG_MOST_VIEWS CG_MOST_MEMBERS
#endif
enum { CG_MOST_ROOMS = 2 * CG_MOST_VIEWS };

/* An array of a call: where it is, and the elements from one index to the next of its first two axes. */
typedef struct {
    void *data;
    int kind;     /* what it holds (cellgen_stored) */
    int is_apart; /* steps or rows have gaps, as `stride` says */
    int is_alone; /* it is checked, and stands for no member */
    double count; /* of elements */
    int64_t length[CG_AXES], stride[2];
} cg_array;

typedef struct cg_call cg_call;

/* Memory of a result of a kind, which lies as `length` says, zeros where `is_zero`; NULL: there is none. Member -1 - k is
 * the k-th array of checkpoints. */
typedef void *(*cg_allocate)(cg_call *call, int64_t member, int kind, int64_t rank, const int64_t *length, int is_zero);

/* What a backward pass with checkpoints runs forward once more; without a function there is nothing. */
typedef struct {
    const cellgen_signature *function;
    cellgen_options options;
    int64_t flush, products;          /* as the run had them that saved */
    const void *packed;               /* weights laid out for it; NULL: none */
    int64_t packed_bytes;
    int64_t place[CG_MOST_MEMBERS];   /* of each argument among the views; -1: it is a scalar, or not there */
    uint64_t word[CG_MOST_MEMBERS + 4];
    int64_t strides[2 * CG_MOST_MEMBERS + 4];
    unsigned char stored[CG_MOST_MEMBERS];
} cg_again;

/* Memory of a call until it ends: numbers that are read of an array of 16 bits, those that are rounded into one, or neither. */
typedef struct {
    void *memory;
    const cg_array *to;
    const void *from;
    int64_t count;
    int kind;
} cg_room;

struct cg_call {
    const cellgen_cell *cell;
    const cellgen_signature *function;
    const cellgen_entry *entry;
    int is_double;
    cellgen_numbers say;
    int saves, batch_first;
    int narrow;           /* what arrays of 16 bits hold (cellgen_stored); floats or doubles otherwise */
    int are_given;        /* results are the arrays that have been added, checkpoints those at `checkpoint_at` */
    int is_far;           /* its arrays lie on a device: nothing in them is read or written here */
    int starts;           /* states that are left out are where their cell starts; else they are missing */
    int64_t wanted;       /* bits of the results of a backward pass, by their number; -1: all */
    double longest;       /* multiply-adds of a call that is refused, below 0: of none */
    cg_allocate allocate;
    void *door;
    /* tables of steps; NULL: none. Flags with gaps have strides, of steps and of rows */
    const int64_t *lengths;
    const unsigned char *flags[2]; /* mask, reset */
    int64_t flag_stride[2][2];
    const void *packed;
    int64_t packed_bytes;
    const cellgen_plan *plan; /* NULL: as the kernel chooses */
    const int *stop;          /* NULL: nothing ends it */
    /* what follows from these */
    cg_fault fault; /* why shapes do not fit */
    int64_t views, size[CG_MOST_MEMBERS], dims[CG_MOST_MEMBERS];
    cg_view view[CG_MOST_VIEWS];
    cg_array array[CG_MOST_VIEWS];
    int64_t place[CG_MOST_MEMBERS]; /* of each member among the views; -1: it is not there */
    cellgen_options options;
    int64_t strides[2 * CG_MOST_MEMBERS + 4];
    uint64_t word[CG_MOST_MEMBERS + 4];
    unsigned char stored[CG_MOST_MEMBERS];
    int64_t rooms;
    cg_room room[CG_MOST_ROOMS];
    void *checkpoint_at[CG_MOST_MEMBERS];
    cg_again again;
};

enum cg_refusal { CG_RUNS = 0, CG_MISFIT, CG_MISSING, CG_GAPS, CG_NOTHING, CG_LONG, CG_TABLES, CG_MEMORY };

/* Let the words of a function have its scalars as the cell has them, and nothing else. */
static inline void cg_begin_words(const cellgen_signature *function, int64_t *place, uint64_t *word)
{
    for (int64_t m = 0; m < function->members; ++m) {
        place[m] = -1, word[m] = 0;
        if (function->member[m].role == CELLGEN_ROLE_SCALAR)
            memcpy(&word[m], &function->member[m].value, sizeof(double));
    }
}

/* Begin a call without arrays and options. */
static inline void cg_begin(cg_call *call, const cellgen_cell *cell, const cellgen_signature *function)
{
    call->cell = cell, call->function = function, call->say = CG_USUAL;
    call->saves = call->batch_first = call->are_given = call->is_far = call->starts = 0;
    call->wanted = -1, call->longest = -1;
    call->lengths = NULL, call->flags[0] = call->flags[1] = NULL;
    for (int k = 0; k < 2; ++k)
        call->flag_stride[k][0] = CELLGEN_NO_GAPS, call->flag_stride[k][1] = 0;
    call->packed = NULL, call->packed_bytes = 0, call->views = call->rooms = 0;
    call->plan = NULL, call->stop = NULL;
    call->narrow = CELLGEN_STORED_REAL, call->again.function = NULL;
    cg_begin_words(function, call->place, call->word);
    for (int64_t m = 0; m < function->members; ++m)
        call->stored[m] = CELLGEN_STORED_REAL;
}

/* Let a backward pass go on from checkpoints: the forward pass that it runs once more has two numbers of the run that
 * saved. */
static inline void cg_begin_again(cg_call *call, const cellgen_signature *forward, int64_t flush, int64_t products)
{
    cg_again *again = &call->again;
    again->function = forward, again->flush = flush, again->products = products;
    again->packed = NULL, again->packed_bytes = 0;
    cg_begin_words(forward, again->place, again->word);
}

/* Say what a call computes in: doubles, or floats. A descriptor whose functions cannot be called is of a device. */
static inline void cg_compute_in(cg_call *call, int is_double)
{
    call->is_double = is_double;
    call->entry = &call->cell->precision[is_double].entry[call->function - call->cell->function];
    call->is_far = call->entry->call == NULL;
}

/* Add an array that stands for a member (-1: for none, it is checked alone), of a rank of at most CG_AXES; strides in
 * elements, NULL: nothing has gaps. It holds floats or doubles; where it holds 16 bits, its maker sets `kind`.
 * NULL: units lie apart, or the rank is another. */
static inline cg_array *cg_add(cg_call *call, const cellgen_value *value, int64_t member, void *data, int64_t rank,
                               const int64_t *length, const int64_t *stride)
{
    const int64_t number = call->views;
    cg_array *array = &call->array[number];
    const int is_timed = (value->flags & CELLGEN_VALUE_OVER_TIME) != 0, swaps = is_timed && call->batch_first;
    if (number >= CG_MOST_VIEWS || rank > CG_AXES || (stride != NULL && !is_timed) || (is_timed && rank < 2 && (stride != NULL || swaps)))
        return NULL;
    array->stride[0] = array->stride[1] = 1;
    int64_t dense = 1;
    for (int64_t axis = rank; axis-- > 0;) {
        array->length[axis] = length[axis];
        if (axis >= 2 && stride != NULL && length[axis] > 1 && stride[axis] != dense)
            return NULL;
        if (is_timed && axis < 2)
            array->stride[axis] = stride == NULL ? dense : stride[axis];
        dense *= length[axis];
    }
    if (swaps) {
        const int64_t other = array->length[0], step = array->stride[0];
        array->length[0] = array->length[1], array->length[1] = other;
        array->stride[0] = array->stride[1], array->stride[1] = step;
    }
    array->data = data, array->is_apart = is_timed && (stride != NULL || swaps), array->count = (double)dense;
    array->kind = CELLGEN_STORED_REAL, array->is_alone = member < 0;
    call->view[number].value = value, call->view[number].rank = rank, call->view[number].length = array->length;
    call->views += 1;
    if (member >= 0)
        call->place[member] = number, call->word[member] = (uintptr_t)data;
    return array;
}

/* --- memory of a call --- */

/* Memory until the call ends; NULL: there is none. `to`: the array that floats in it are rounded to, or NULL. */
static inline void *cg_make_room(cg_call *call, double bytes, const cg_array *to)
{
    void *memory = call->rooms < CG_MOST_ROOMS && bytes < 0x1p62 ? malloc((size_t)bytes + 1) : NULL;
    const cg_room room = {memory, to, NULL, 0, CELLGEN_STORED_REAL};
    if (memory != NULL)
        call->room[call->rooms++] = room;
    return memory;
}

/* Widen the arrays that a kernel reads in float32, as they are by now. */
static inline void cg_read_rooms(const cg_call *call)
{
    for (const cg_room *room = call->room; room < call->room + call->rooms; ++room)
        if (room->from != NULL)
            cellgen_widen((float *)room->memory, (const char *)room->from, room->count, room->kind);
}

/* Round the results that a kernel wrote in float32. */
static inline void cg_write_rooms(const cg_call *call)
{
    for (const cg_room *room = call->room; room < call->room + call->rooms; ++room)
        if (room->to != NULL)
            cellgen_narrow((char *)room->to->data, (const float *)room->memory, (int64_t)room->to->count, room->to->kind);
}

/* End a call: round results if it `went_well`, and give back what it held. */
static inline void cg_end(cg_call *call, int went_well)
{
    if (went_well)
        cg_write_rooms(call);
    for (int64_t k = 0; k < call->rooms; ++k)
        free(call->room[k].memory);
    call->rooms = 0;
}

/* Make the states that a call of a function leaves out, where the cell starts. */
static inline int cg_make_states(cg_call *call, const cellgen_signature *function, const int64_t *place, uint64_t *word)
{
    for (int64_t m = 0; m < function->arguments; ++m) {
        const cellgen_value *value = &function->member[m];
        const cg_change whole = {0, 0, 1};
        int64_t length[CG_AXES];
        if (value->role != CELLGEN_ROLE_STATE || place[m] >= 0 || word[m])
            continue;
        const double count = cg_count(cg_shape_of(call->cell, value, whole, call->size, length), length);
        void *state = cg_make_room(call, count * (call->is_double ? sizeof(double) : sizeof(float)), NULL);
        if (state == NULL)
            return CG_MEMORY;
        for (int64_t k = 0; k < (int64_t)count; ++k) {
            if (call->is_double)
                ((double *)state)[k] = value->value;
            else
                ((float *)state)[k] = (float)value->value;
        }
        word[m] = (uintptr_t)state;
    }
    return CG_RUNS;
}

/* --- numbers of 16 bits --- */

/* What a kernel finds in an array of a call that holds `narrow` (cellgen_stored). A weight stays in 16 bits where all products read that alone, those of a
 * forward pass that is run once more too. */
static inline int cg_kind_of(const cg_call *call, const cellgen_value *value, cg_change change, int narrow)
{
    const int is_wide = call->again.function != NULL && call->again.products != CELLGEN_PRODUCTS_BF16;
    if (!narrow)
        return CELLGEN_STORED_REAL;
    return cg_held(value, &change, cg_dim_named(call->cell, "T"), narrow,
                   is_wide ? (int64_t)CELLGEN_PRODUCTS_FULL : call->say.products);
}

/* What a result holds for whoever asked for it: what its call does, but what is kept stays as a backward pass reads it. */
static inline int cg_kind_of_result(const cg_call *call, const cellgen_value *value, cg_change change)
{
    const int kind = cg_kind_of(call, value, change, call->narrow);
    const int is_kept = (value->flags & CELLGEN_VALUE_SAVED) && call->function->has_team;
    return call->narrow && !kind && !is_kept ? call->narrow : kind;
}

/* Make room for the arrays of 16 bits that a kernel reads in float32. */
static inline int cg_make_wide(cg_call *call)
{
    for (int64_t v = 0; v < call->views; ++v) {
        cg_array *array = &call->array[v];
        const cellgen_value *value = call->view[v].value;
        if (!array->kind || value->flags & CELLGEN_VALUE_WRITTEN || cg_kind_of(call, value, call->view[v].change, array->kind))
            continue;
        float *numbers = (float *)cg_make_room(call, array->count * sizeof *numbers, NULL);
        if (numbers == NULL)
            return CG_MEMORY;
        cg_room *room = &call->room[call->rooms - 1];
        room->from = array->data, room->count = (int64_t)array->count, room->kind = array->kind;
        array->data = numbers, array->kind = CELLGEN_STORED_REAL;
    }
    return CG_RUNS;
}

/* Multiply-adds of a call: one for every weight, row and step, 64 for the functions of every number over time. */
static inline double cg_work(const cg_call *call)
{
    const int64_t steps = cg_dim_named(call->cell, "T"), rows = cg_dim_named(call->cell, "B");
    const cg_change whole = {0, 0, 1};
    double weights = 0, timed = 0;
    int64_t length[CG_AXES];
    if (steps < 0 || rows < 0 || call->size[steps] < 0)
        return 0;
    for (int64_t m = 0; m < call->function->members; ++m) {
        const cellgen_value *value = &call->function->member[m];
        if (value->flags & CELLGEN_VALUE_OVER_TIME)
            timed += call->place[m] >= 0 ? call->array[call->place[m]].count
                                         : cg_count(cg_shape_of(call->cell, value, whole, call->size, length), length);
        else if (call->place[m] >= 0 && (value->flags & CELLGEN_VALUE_WEIGHT))
            weights += call->array[call->place[m]].count;
    }
    return (double)call->size[steps] * (double)call->size[rows] * weights + 64 * (timed + (double)call->size[steps]);
}

/* Make an array for a result; NULL: there is no memory. */
static inline cg_array *cg_make_result(cg_call *call, int64_t m, cg_change change, int kind)
{
    const cellgen_value *value = &call->function->member[m];
    const int is_timed = (value->flags & CELLGEN_VALUE_OVER_TIME) != 0 && !change.last_step;
    if (call->views >= CG_MOST_VIEWS)
        return NULL;
    cg_array *array = &call->array[call->views];
    int64_t *length = array->length, units = 1;
    const int64_t rank = cg_shape_of(call->cell, value, change, call->size, length);
    for (int64_t axis = 2; axis < rank; ++axis)
        units *= length[axis];
    array->is_apart = is_timed && call->batch_first;
    if (array->is_apart) {
        const int64_t steps = length[0];
        length[0] = length[1], length[1] = steps;
        array->stride[0] = units, array->stride[1] = steps * units;
    }
    array->kind = kind, array->count = cg_count(rank, length);
    array->data = call->allocate(call, m, kind, rank, length, change.last_step != 0);
    if (array->data == NULL)
        return NULL;
    call->place[m] = call->views++;
    return array;
}

/* Give the results memory, and those that are rounded after the call room for floats. */
static inline int cg_make_results(cg_call *call)
{
    const cellgen_signature *function = call->function;
    for (int64_t m = function->arguments; m < function->members; ++m) {
        const cellgen_value *value = &function->member[m];
        const cg_result result = cg_result_of(function, m, &call->say, call->saves, call->wanted);
        if (call->are_given ? call->place[m] < 0 : !result.is_formed)
            continue;
        const int narrow = call->are_given ? call->array[call->place[m]].kind : call->narrow;
        const int kind = cg_kind_of(call, value, result.change, narrow), is_zero = result.change.last_step != 0;
        cg_array *array = call->are_given ? &call->array[call->place[m]]
                                          : cg_make_result(call, m, result.change, cg_kind_of_result(call, value, result.change));
        if (array == NULL)
            return CG_MEMORY;
        const int is_rounded = array->kind != kind;
        void *data = is_rounded ? cg_make_room(call, array->count * sizeof(float), array) : array->data;
        if (is_rounded && data == NULL)
            return CG_MEMORY;
        if (is_zero && !call->is_far && (is_rounded || call->are_given))
            memset(data, 0, (size_t)array->count * (kind ? 2 : call->is_double ? sizeof(double) : sizeof(float)));
        call->word[m] = (uintptr_t)data;
        call->stored[m] = (unsigned char)kind;
    }
    return CG_RUNS;
}

#include "cellgen_call_options.inc.h"

/* Bind a call whose arrays have been added: whether a kernel can run it. CG_NOTHING: it can, but there are no elements. */
static inline int cg_check(cg_call *call)
{
    const cellgen_signature *function = call->function;
    int has_elements = 1;
    const cg_change whole = {0, 0, 1};
    for (int64_t v = 0; v < call->views; ++v)
        call->view[v].change = call->array[v].is_alone ? whole : cg_change_of(call->view[v].value, &call->say);
    call->fault = cg_bind(call->cell, function, call->view, call->views, call->size);
    if (call->fault.code)
        return CG_MISFIT;
    for (int64_t k = 0; k < function->dims; ++k) {
        call->dims[k] = call->size[function->dim[k]];
        has_elements &= call->dims[k] > 0;
    }
    if (!has_elements)
        return CG_NOTHING;
    return call->longest >= 0 && cg_work(call) >= call->longest ? CG_LONG : CG_RUNS;
}

/* Whether an argument of a function is missing, of those that a call has at `place` or as a word. */
static inline int cg_misses(const cg_call *call, const cellgen_signature *function, const int64_t *place, const uint64_t *word)
{
    for (int64_t m = 0; m < function->arguments; ++m) {
        const cellgen_value *value = &function->member[m];
        if (place[m] < 0 && !word[m] && value->role != CELLGEN_ROLE_SCALAR &&
            !(value->flags & CELLGEN_VALUE_OPTIONAL) && !cg_is_made_again(call, value))
            return 1;
    }
    return 0;
}

/* Look whether all arguments are there, those of a forward pass that is run once more too; make states that are left out. */
static inline int cg_complete(cg_call *call)
{
    cg_again *again = &call->again;
    int refusal = call->starts ? cg_make_states(call, call->function, call->place, call->word) : CG_RUNS;
    if (!refusal && call->starts && again->function != NULL)
        refusal = cg_make_states(call, again->function, again->place, again->word);
    if (refusal)
        return refusal;
    const int misses = cg_misses(call, call->function, call->place, call->word) ||
                       (again->function != NULL && cg_misses(call, again->function, again->place, again->word));
    return misses ? CG_MISSING : CG_RUNS;
}

/* The words of a call for its team and its options. */
static inline uint64_t *cg_behind_workspace(cg_call *call)
{
    return call->word + call->function->members + (call->function->has_workspace ? 2 : 0);
}

/* Give a call a team, NULL: its caller alone. */
static inline void cg_lead(cg_call *call, void *team)
{
    if (call->function->has_team)
        cg_behind_workspace(call)[0] = (uintptr_t)team;
}

/* Make the results of a call that has been checked, and fill its words but for those of the workspace. Who asked then
 * lends that and calls `entry->call` with `dims` and `word`. */
static inline int cg_fill(cg_call *call, void *team)
{
    const cellgen_signature *function = call->function;
    int refusal = cg_complete(call);
    if (!refusal && call->narrow)
        refusal = cg_make_wide(call);
    refusal = refusal ? refusal : cg_make_results(call);
    if (!refusal && call->say.checkpoint && call->again.function == NULL && !call->are_given)
        refusal = cg_make_checkpoints(call);
    if (refusal)
        return refusal;
    for (int64_t m = 0; call->narrow && m < function->arguments; ++m) {
        const cg_array *array = call->place[m] < 0 ? NULL : &call->array[call->place[m]];
        if (array != NULL)
            call->stored[m] = (unsigned char)array->kind, call->word[m] = (uintptr_t)array->data;
    }
    if (function->has_team)
        cg_behind_workspace(call)[1] = (uintptr_t)cg_write_options(call);
    cg_lead(call, team);
    return CG_RUNS;
}

/* The same, and widen what the kernel reads in float32. */
static inline int cg_prepare(cg_call *call, void *team)
{
    const int refusal = cg_fill(call, team);
    if (!refusal)
        cg_read_rooms(call);
    return refusal;
}

/* The options of a call that has been prepared; NULL: it says nothing. */
static inline const cellgen_options *cg_options_of(const cg_call *call)
{
    const cellgen_signature *function = call->function;
    if (!function->has_team)
        return NULL;
    return (const cellgen_options *)(uintptr_t)call->word[function->members + (function->has_workspace ? 2 : 0) + 1];
}

/* Lend a call a workspace. Of one that is too small a kernel says so itself. */
static inline void cg_lend(cg_call *call, void *workspace, int64_t bytes)
{
    uint64_t *next = call->word + call->function->members;
    if (call->function->has_workspace)
        next[0] = (uintptr_t)workspace, next[1] = (uint64_t)bytes;
}

#endif /* CELLGEN_CALL_H */
