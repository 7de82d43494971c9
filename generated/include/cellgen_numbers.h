/* Options of functions over time as numbers, by their keywords: arguments of
 * torch's operators, in this order, and attributes of programs of XLA. Written by `cellgen build`
 * from the table cellgen/runtime/options.py; edit that, not this file. */
#ifndef CELLGEN_NUMBERS_H
#define CELLGEN_NUMBERS_H

#include <string.h>

#include "cellgen.h"

/* Of each its keyword, and its number where a call says nothing. Bit k of `outputs`: the k-th
 * output of the cell is formed; -1: all are. -1 as `products`: the type of the arrays tells. */
#define CELLGEN_EACH_NUMBER(each) \
    each(reverse, 0) \
    each(zero_output_for_mask, 0) \
    each(last_only, 0) \
    each(outputs, -1) \
    each(every, 1) \
    each(window, 0) \
    each(per_row, 0) \
    each(products, 0) \
    each(checkpoint, 0) \
    each(flush_denormals, 0)

typedef struct {
    int64_t reverse;
    int64_t zero_output_for_mask;
    int64_t last_only;
    int64_t outputs;
    int64_t every;
    int64_t window;
    int64_t per_row;
    int64_t products;
    int64_t checkpoint;
    int64_t flush_denormals;
} cellgen_numbers;

/* Set the members that are numbers, and all others to zero. */
static inline void cellgen_set_numbers(cellgen_options *options, const cellgen_numbers *numbers)
{
    memset(options, 0, sizeof *options);
    options->reverse = numbers->reverse;
    options->hold = !numbers->zero_output_for_mask;
    options->last = numbers->last_only;
    options->partial = numbers->outputs != -1;
    options->every = numbers->every;
    options->window = numbers->window;
    options->per_row = numbers->per_row;
    options->products = numbers->products;
    options->checkpoint = numbers->checkpoint;
    options->flush = numbers->flush_denormals;
}

#endif /* CELLGEN_NUMBERS_H */
