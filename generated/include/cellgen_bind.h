/* Dimensions of a call from the shapes of its arrays, and whether these have the shapes that follow: what a
 * bridge to a framework asks before it calls a kernel. Needs the descriptor of a cell and the options of a
 * call as numbers, no kernel and no framework. cellgen/runtime/call/dimensions.py says the same of arrays in
 * Python, and faults.py what a fault means in words. C99 and C++. */
#ifndef CELLGEN_BIND_H
#define CELLGEN_BIND_H

#include <string.h>

#include "cellgen_descriptor.h"
#include "cellgen_numbers.h"

/* What options change of a value's shape. */
typedef struct {
    int64_t by_row;    /* 1: rows (B) stand in front of its axes */
    int64_t last_step; /* 1: its axis of steps is left out */
    int64_t every;     /* its steps are every so many-th; 1: all */
} cg_change;

/* An array of a call. */
typedef struct {
    const cellgen_value *value;
    cg_change change;
    int64_t rank;
    const int64_t *length; /* of its axes */
} cg_view;

enum cg_fault_code {
    CG_FITS = 0,
    CG_RANK = 1,   /* a view has another number of axes */
    CG_LENGTH = 2, /* no length of the dimensions makes an axis as long */
    CG_SHAPE = 3,  /* an axis is not as long as other arrays say */
    CG_UNBOUND = 4 /* no array tells a dimension of the function: `axis` is its number in the cell */
};

typedef struct {
    int code;
    int64_t view, axis; /* the axis of the array */
    int64_t expected;   /* of the rank or the length */
} cg_fault;

/* Whether a value is an output over time that a call forms, or the gradient of one: of the steps that it shows.
 * What a backward pass reads of outputs are all steps. */
static inline int cg_is_shown(const cellgen_value *value)
{
    const int is_formed = value->role == CELLGEN_ROLE_OUTPUT && (value->flags & CELLGEN_VALUE_WRITTEN);
    return (value->flags & CELLGEN_VALUE_OVER_TIME) && (is_formed || value->role == CELLGEN_ROLE_UPSTREAM);
}

static inline cg_change cg_change_of(const cellgen_value *value, const cellgen_numbers *say)
{
    const int is_shown = cg_is_shown(value);
    cg_change change;
    change.by_row = say->per_row && value->role == CELLGEN_ROLE_GRADIENT && (value->flags & CELLGEN_VALUE_WEIGHT);
    change.last_step = is_shown && say->last_only;
    change.every = is_shown && say->every > 1 ? say->every : 1;
    return change;
}

/* The options of a call that says nothing. */
#define CG_NUMBER(name, usual) usual,
static const cellgen_numbers CG_USUAL = {CELLGEN_EACH_NUMBER(CG_NUMBER)};
#undef CG_NUMBER

static inline int cg_are_usual(const cellgen_numbers *say)
{
    return memcmp(say, &CG_USUAL, sizeof CG_USUAL) == 0;
}

/* The number of a dimension by its name; -1: the cell has none. */
static inline int64_t cg_dim_named(const cellgen_cell *cell, const char *name)
{
    for (int64_t k = 0; k < cell->dims; ++k)
        if (strcmp(cell->dim[k], name) == 0)
            return k;
    return -1;
}

/* A function of a cell by its name; NULL: it has none. */
static inline const cellgen_signature *cg_function_named(const cellgen_cell *cell, const char *name)
{
    for (int64_t k = 0; k < cell->functions; ++k)
        if (strcmp(cell->function[k].name, name) == 0)
            return &cell->function[k];
    return NULL;
}

/* A term; *unknown is the dimension of it that is not known, -2 of several. */
static inline int64_t cg_term(const cellgen_term *term, const int64_t *size, int64_t *unknown)
{
    int64_t product = term->factor;
    for (int k = 0; k < CELLGEN_TERM_DIMS && term->dim[k] >= 0; ++k) {
        if (size[term->dim[k]] >= 0)
            product *= size[term->dim[k]];
        else
            *unknown = *unknown == -1 ? term->dim[k] : -2;
    }
    return product;
}

/* The dimension that is an axis alone, as most are; -1: it is more than that. */
static inline int64_t cg_alone(const cellgen_axis *axis)
{
    const cellgen_term *term = axis->term;
    return axis->terms == 1 && term->factor == 1 && term->dim[1] < 0 ? term->dim[0] : -1;
}

/* The length of an axis; -1: it has a dimension that is not known. */
static inline int64_t cg_length(const cellgen_axis *axis, const int64_t *size)
{
    const int64_t alone = cg_alone(axis);
    if (alone >= 0)
        return size[alone];
    int64_t sum = 0, unknown = -1;
    for (int64_t k = 0; k < axis->terms; ++k)
        sum += cg_term(&axis->term[k], size, &unknown);
    return unknown == -1 ? sum : -1;
}

/* The length of an axis of a view, by its number in the value. */
static inline int64_t cg_view_length(const cg_view *view, int64_t axis, const int64_t *size)
{
    const int64_t length = cg_length(view->value->axis[axis], size);
    return axis == 0 && length >= 0 && view->change.every > 1 ? length / view->change.every : length;
}

/* Whether an array has a row for each step, saved ones too; `steps`: the number of the dimension T. */
static inline int cg_has_steps(const cellgen_value *value, const cg_change *change, int64_t steps)
{
    if (value->flags & CELLGEN_VALUE_OVER_TIME)
        return !change->last_step;
    if (!(value->flags & CELLGEN_VALUE_SAVED) || value->axes == 0 || value->axis[0]->terms != 1)
        return 0;
    const cellgen_term *term = value->axis[0]->term;
    return term->factor == 1 && term->dim[0] >= 0 && term->dim[0] == steps && term->dim[1] < 0;
}

/* The place of an axis of a value among those of the array. */
static inline int64_t cg_place(const cg_view *view, int64_t axis)
{
    return axis + view->change.by_row - view->change.last_step;
}

/* Let an axis tell the one dimension of it that is not known. 1: it does; 0: none, several, or two in one
 * term; -1: no length fits. */
static inline int cg_tell(const cellgen_axis *axis, int64_t length, int64_t *size)
{
    int64_t missing = -1, factor = 0;
    const int64_t alone = cg_alone(axis);
    if (alone >= 0) {
        if (size[alone] >= 0)
            return 0;
        if (length >= 0)
            size[alone] = length;
        return length >= 0 ? 1 : -1;
    }
    for (int64_t k = 0; k < axis->terms; ++k) {
        int64_t unknown = -1;
        const int64_t value = cg_term(&axis->term[k], size, &unknown);
        if (unknown == -1) {
            length -= value;
            continue;
        }
        if (unknown == -2 || missing != -1 || axis->term[k].dim[1] >= 0)
            return 0;
        missing = unknown;
        factor = value;
    }
    if (missing == -1)
        return 0;
    if (length < 0 || length % factor)
        return -1;
    size[missing] = length / factor;
    return 1;
}

/* The rank of an axis among those that tell: of fewer terms first, then of a smaller factor. */
static inline int64_t cg_order(const cellgen_axis *axis)
{
    return (axis->terms << 32) + axis->term[0].factor;
}

/* The first dimension of a function that nothing told; -1: there is none. */
static inline int64_t cg_missing(const cellgen_signature *function, const int64_t *size)
{
    for (int64_t k = 0; k < function->dims; ++k)
        if (size[function->dim[k]] < 0)
            return function->dim[k];
    return -1;
}

/* Whether all dimensions of a cell are told, so that no axis can tell another. */
static inline int cg_are_known(const cellgen_cell *cell, const int64_t *size)
{
    int64_t known = 0;
    while (known < cell->dims && size[known] >= 0)
        ++known;
    return known == cell->dims;
}

/* One round over the axes of all views, in order, while a dimension is missing; how many it told, -1: a fault. */
static inline int64_t cg_round(const cellgen_cell *cell, const cellgen_signature *function, const cg_view *view,
                               int64_t views, int64_t *size, cg_fault *fault)
{
    int64_t found = 0, order = ((int64_t)1 << 32) + 1, next = 0; /* the first: one dimension alone */
    for (; next != INT64_MAX && cg_missing(function, size) >= 0; order = next) {
        next = INT64_MAX;
        for (int64_t v = 0; v < views; ++v)
            for (int64_t a = view[v].change.last_step; a < view[v].value->axes; ++a) {
                const cellgen_axis *axis = view[v].value->axis[a];
                const int64_t own = cg_order(axis), place = cg_place(&view[v], a);
                if (own > order && own < next)
                    next = own;
                if (own != order || (a == 0 && view[v].change.every > 1))
                    continue;
                const int told = cg_tell(axis, view[v].length[place], size);
                if (told < 0) {
                    fault->code = CG_LENGTH, fault->view = v, fault->axis = place;
                    return -1;
                }
                found += told;
                if (told && cg_are_known(cell, size))
                    return found;
            }
    }
    return found;
}

/* Tell the dimensions of a function (`size`, by their numbers in the cell; -1: nothing tells it) from the
 * shapes of arrays, and look whether all shapes are those that follow. */
static inline cg_fault cg_bind(const cellgen_cell *cell, const cellgen_signature *function, const cg_view *view,
                               int64_t views, int64_t *size)
{
    cg_fault fault = {CG_FITS, 0, 0, 0};
    int64_t told = 1;
    for (int64_t k = 0; k < cell->dims; ++k)
        size[k] = -1;
    for (int64_t v = 0; v < views; ++v) {
        fault.expected = cg_place(&view[v], view[v].value->axes);
        if (view[v].rank != fault.expected) {
            fault.code = CG_RANK, fault.view = v;
            return fault;
        }
    }
    while (told > 0)
        told = cg_round(cell, function, view, views, size, &fault);
    if (told < 0)
        return fault;
    if ((told = cg_missing(function, size)) >= 0) {
        fault.code = CG_UNBOUND, fault.axis = told;
        return fault;
    }
    const int64_t rows = cg_dim_named(cell, "B");
    for (int64_t v = 0; v < views; ++v)
        for (int64_t a = view[v].change.last_step - view[v].change.by_row; a < view[v].value->axes; ++a) {
            const int64_t place = cg_place(&view[v], a);
            fault.expected = a < 0 ? size[rows] : cg_view_length(&view[v], a, size);
            if (fault.expected >= 0 && view[v].length[place] != fault.expected) {
                fault.code = CG_SHAPE, fault.view = v, fault.axis = place;
                return fault;
            }
        }
    fault.expected = 0;
    return fault;
}

#endif /* CELLGEN_BIND_H */
