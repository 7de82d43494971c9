/* What a call of a function has: which results it forms and of which lengths, what its checkpoints hold, and the
 * forward pass that a backward pass with checkpoints runs once more. Every door asks here, NumPy's
 * (cellgen_call.h), torch's operators and programs of XLA; call/signature.py, outputs.py and checkpoints.py say the
 * same in Python, of lengths that are symbols too. C99 and C++. */
#ifndef CELLGEN_SIGNATURE_H
#define CELLGEN_SIGNATURE_H

#include "cellgen_bind.h"

enum { CG_AXES = CELLGEN_VALUE_AXES + 1 };

/* The products of a call that may leave them to the type of its arrays (below 0). */
static inline int64_t cg_products_of(int64_t products, int narrow)
{
    if (products >= 0)
        return products;
    return narrow == CELLGEN_STORED_BF16 ? CELLGEN_PRODUCTS_BF16 : CELLGEN_PRODUCTS_FULL;
}

/* What a kernel finds in an array (cellgen_stored) where those of its call have 16 bits, `narrow`. What has steps
 * stays: bounded numbers that are kept in float16, since they need digits and no range, others as they are. So do weights in
 * bfloat16 of which products in it alone read. All else is widened. `steps`: the number of the dimension T. */
static inline int cg_held(const cellgen_value *value, const cg_change *change, int64_t steps, int narrow, int64_t products)
{
    if (!narrow)
        return CELLGEN_STORED_REAL;
    if (cg_has_steps(value, change, steps))
        return value->flags & CELLGEN_VALUE_BOUNDED ? CELLGEN_STORED_F16 : narrow;
    const int is_read = value->flags & CELLGEN_VALUE_OPERAND && narrow == CELLGEN_STORED_BF16 && products == CELLGEN_PRODUCTS_BF16;
    return is_read ? CELLGEN_STORED_BF16 : CELLGEN_STORED_REAL;
}

enum { CG_BITS = 63 }; /* places that bits tell one by one; the sign tells all that follow */

/* Whether bits have a place. -1: they have every one. */
static inline int cg_has_bit(int64_t bits, int64_t place)
{
    return (int)(bits >> (place < CG_BITS ? place : (int64_t)CG_BITS) & 1);
}

/* A result: whether a call forms it, and what options change of its shape. */
typedef struct {
    int is_formed;
    cg_change change;
} cg_result;

/* Say it of a member that is written, by its number. `wanted`: bits of results by their number, -1: all. One that is
 * not wanted is formed all the same where others follow from it. */
static inline cg_result cg_result_of(const cellgen_signature *function, int64_t member, const cellgen_numbers *say,
                                     int saves, int64_t wanted)
{
    const cellgen_value *value = &function->member[member];
    const int64_t number = member - function->arguments;
    cg_result result = {1, cg_change_of(value, say)};
    if (value->flags & CELLGEN_VALUE_SAVED)
        result.is_formed = saves && !say->checkpoint;
    else if (value->role == CELLGEN_ROLE_OUTPUT || value->role == CELLGEN_ROLE_FINAL)
        result.is_formed = cg_has_bit(say->outputs, number);
    else if (value->flags & CELLGEN_VALUE_OPTIONAL)
        result.is_formed = cg_has_bit(wanted, number);
    return result;
}

/* The lengths of an array of a call; their number. */
static inline int64_t cg_shape_of(const cellgen_cell *cell, const cellgen_value *value, cg_change change,
                                  const int64_t *size, int64_t *length)
{
    const cg_view view = {value, change, 0, NULL};
    int64_t rank = 0;
    if (change.by_row)
        length[rank++] = size[cg_dim_named(cell, "B")];
    for (int64_t axis = change.last_step; axis < value->axes; ++axis)
        length[rank++] = cg_view_length(&view, axis, size);
    return rank;
}

/* How many elements; as a number that cannot overflow. */
static inline double cg_count(int64_t rank, const int64_t *length)
{
    double count = 1;
    for (int64_t axis = 0; axis < rank; ++axis)
        count *= (double)length[axis];
    return count;
}

/* What is wrong with the numbers of a call that a bridge to a framework makes; NULL: nothing. */
static inline const char *cg_wrong_numbers(const cellgen_numbers *say)
{
    if (say->every < 1 || say->checkpoint < 0)
        return "cellgen: every is less than 1, or checkpoint less than 0";
    if (say->products > CELLGEN_PRODUCTS_BF16 || say->per_row > 1)
        return "cellgen: products are in int8, or per_row gives norms: calls of frameworks have neither";
    return NULL;
}

/* What checkpoints of a forward pass hold, in order: states, by their final ones, then, where steps may be left
 * out (`skips`), outputs over time that are none, which such steps repeat. Their number; `held`: NULL, or room
 * for as many as there are results. */
static inline int64_t cg_checkpoints_of(const cellgen_signature *forward, int skips, const cellgen_value **held)
{
    const cellgen_value *first = &forward->member[forward->arguments], *end = &forward->member[forward->members];
    int64_t count = 0;
    for (int outputs = 0; outputs <= skips; ++outputs)
        for (const cellgen_value *value = first; value < end; ++value) {
            const int is_held = outputs ? value->role == CELLGEN_ROLE_OUTPUT && !(value->flags & CELLGEN_VALUE_CARRIED)
                                        : value->role == CELLGEN_ROLE_FINAL;
            if (!is_held)
                continue;
            if (held != NULL)
                held[count] = value;
            count += 1;
        }
    return count;
}

/* The lengths of what checkpoints hold of a value, (checkpoints, B, ...), one every `steps` steps; their number. */
static inline int64_t cg_checkpoint_shape(const cellgen_cell *cell, const cellgen_value *value, int64_t steps,
                                          const int64_t *size, int64_t *length)
{
    const int64_t all = size[cg_dim_named(cell, "T")];
    const cg_change of_step = {0, (value->flags & CELLGEN_VALUE_OVER_TIME) != 0, 1};
    length[0] = all > 0 ? (all - 1) / steps : 0;
    return 1 + cg_shape_of(cell, value, of_step, size, length + 1);
}

/* The options of the forward pass that a backward pass with `options` runs once more; a door adds its own
 * strides and types. */
static inline cellgen_options cg_options_again(const cellgen_options *options)
{
    cellgen_options again = *options;
    again.window = again.checkpoint = again.every = again.partial = again.per_row = 0;
    again.checkpoints = NULL, again.strides = NULL, again.stored = NULL;
    return again;
}

/* The first row whose length is none of 0 to `steps`; the last one where there is no other. */
static inline int64_t cg_wrong_length(const int64_t *lengths, int64_t rows, int64_t steps)
{
    int64_t row = 0;
    while (row + 1 < rows && lengths[row] >= 0 && lengths[row] <= steps)
        ++row;
    return row;
}

#endif /* CELLGEN_SIGNATURE_H */
