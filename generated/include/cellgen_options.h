/* Options of functions over time. Written by `cellgen build` from its table,
 * cellgen/runtime/options.py; edit that, not this file. */
#ifndef CELLGEN_OPTIONS_H
#define CELLGEN_OPTIONS_H

/* Which steps of which rows a function over time computes, which it shows, and how its arrays lie
 * in memory. NULL in place of it, or zeros throughout: every step of every row, arrays
 * (T, B, units) without gaps.
 *
 * A masked step leaves the state as it is, and x is not read there. Outputs show what the step
 * before showed (`hold`), or zeros; zeros they are beyond a length, and before the first valid
 * step.
 *
 * `strides` are two numbers, from step to step and from row to row, for each array over time of the
 * struct in its order, saved ones left out, then for mask and for reset. Where the first of them is
 * CELLGEN_NO_GAPS, an array has none. */
#define CELLGEN_NO_GAPS INT64_MIN
typedef struct {
    const int64_t *lengths; /* (B): steps of a row, later ones are masked; NULL: T */
    const unsigned char *mask; /* (T, B): 0 leaves a step out; NULL: none */
    const unsigned char *reset; /* (T, B): not 0 starts states anew */
    int64_t reverse; /* 1: from the last step to the first */
    int64_t hold; /* outputs of steps that mask leaves out: 0 zeros, 1 as before */
    int64_t last; /* forward, 1: outputs over time are not formed, may be NULL */
    int64_t partial; /* forward, 1: outputs that are NULL are not formed */
    int64_t every; /* outputs of steps n * every - 1 alone; 0, 1: of all */
    int64_t window; /* backward: no gradient passes back from step n * window */
    int64_t per_row; /* backward: 1: each row's gradients of weights, (B, ...); 2: sums of squares */
    int64_t products; /* of float arrays; 1: operands of products are rounded to bfloat16; 2, forward: weights of products to int8 */
    const cellgen_plan *plan; /* how to run; NULL: as ..._plan says */
    int64_t checkpoint; /* states are kept before steps n * checkpoint; 0: none */
    void *const *checkpoints; /* where: for each state (.., B, units), then for outputs that are none where steps may be masked */
    const void *packed; /* what ..._pack made of the weights, or NULL */
    int64_t packed_bytes; /* of it: at least ..._packed_size(...) */
    int64_t flush; /* 1: denormal numbers count as zeros during the call */
    const int64_t *strides; /* elements from step to step, row to row; NULL: no gaps */
    const int *stop; /* not 0 there, at any time: the call ends early; NULL: it cannot */
    const void *forward; /* backward, with checkpoints: arguments of the forward pass */
    const unsigned char *stored; /* float: of each member, what an array over time, or a weight that products alone read, holds (cellgen_stored); NULL: floats */
} cellgen_options;

#endif /* CELLGEN_OPTIONS_H */
