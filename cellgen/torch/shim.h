/* What the operators are made of: libtorch's stable C interface, as far as they call it, cells, and a call.
 * Part of shim.c. */
#ifndef CELLGEN_TORCH_SHIM_H
#define CELLGEN_TORCH_SHIM_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 512, DIMS = 16, TABLES = 3 }; /* the most of each that a call has */
#define CG_MOST_MEMBERS MOST
#define CG_MOST_VIEWS (2 * MOST) /* all of theta, and what a backward pass takes besides */
#include "cellgen.h"
#include "cellgen_call.h"

typedef uint64_t Value; /* what the stack of an operator holds: a handle, or a number's bits */
typedef void *Tensor;
typedef void *List;
typedef int32_t Error;

Error aoti_torch_get_data_ptr(Tensor, void **);
Error aoti_torch_get_dim(Tensor, int64_t *);
Error aoti_torch_get_sizes(Tensor, int64_t **);
Error aoti_torch_get_strides(Tensor, int64_t **);
Error aoti_torch_get_dtype(Tensor, int32_t *);
Error aoti_torch_get_device_type(Tensor, int32_t *);
Error aoti_torch_get_layout(Tensor, int32_t *);
Error aoti_torch_is_contiguous(Tensor, _Bool *);
Error aoti_torch_get_storage_offset(Tensor, int64_t *);
Error aoti_torch_get_storage_size(Tensor, int64_t *);
size_t aoti_torch_dtype_element_size(int32_t);
Error aoti_torch_copy_(Tensor, Tensor, int32_t);
Error aoti_torch_empty_strided(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t,
                               Tensor *);
Error aoti_torch_delete_tensor_object(Tensor);
Error aoti_torch_library_init_impl(const char *, const char *, const char *, uint32_t, void **);
Error torch_library_impl(void *, const char *, void (*)(Value *, uint64_t, uint64_t), uint64_t);
Error torch_new_list_reserve_size(size_t, List *);
Error torch_list_size(List, size_t *);
Error torch_list_get_item(List, size_t, Value *);
Error torch_list_push_back(List, Value);
Error torch_delete_list(List);
Error torch_string_c_str(void *, const char **);
Error torch_delete_string(void *);
Error torch_get_num_threads(uint32_t *);
int32_t aoti_torch_dtype_float32(void), aoti_torch_dtype_float64(void), aoti_torch_dtype_int64(void);
int32_t aoti_torch_dtype_bfloat16(void), aoti_torch_dtype_float16(void);
int32_t aoti_torch_dtype_bool(void), aoti_torch_dtype_uint8(void), aoti_torch_device_type_cpu(void), aoti_torch_layout_strided(void);
void _ZSt21__throw_runtime_errorPKc(const char *) __attribute__((noreturn)); /* of libstdc++ */

/* Where the word of a struct's member comes from. */
enum source { THETA, SCALAR, KEPT, UPSTREAM, RESULT };

typedef struct {
    const cellgen_value *value;
    int source, number;
} Member;

typedef struct {
    const cellgen_signature *signature;
    int results;
    Member *member;
    int64_t *of_theta; /* the member that each of theta is; -1: the function does not read it */
} Function;

typedef struct Cell {
    struct Cell *next;
    char *text;
    const cellgen_cell *cell;
    int theta, scalars, outputs, saved, upstream;
    int64_t steps, rows; /* the numbers of the dimensions T and B */
    Member *of_theta; /* without a value where no function reads one */
    const cellgen_value **held; /* what checkpoints hold: first what they always do */
    int64_t always, most;
    int *output_of; /* for each upstream gradient the number of its output */
    Function forward, backward;
} Cell;

static Cell *cells;
static int (*find_cell)(const char *);
static uint32_t processors = 1;

/* What a call holds until it ends. */
typedef struct {
    const Cell *cell;
    const Function *function;
    const char *fault;
    Tensor owned[4 * MOST];
    int owns;
    int32_t dtype;
    Tensor theta[MOST], kept[MOST], upstream[MOST], result[MOST], checkpoint[MOST];
    int checkpoints;
    double scalar[MOST];
    int64_t wanted; /* bits of the results that the caller wants, in the order of theta; -1: all */
    int is_layer; /* states are (1, B, ...), those of one layer */
    int is_step;  /* arrays over time are (B, ...), those of one step, and so is what is kept, in one tensor */
    int is_in_one; /* what is kept beside results lies in one tensor */
    char *kept_at; /* the memory of that tensor */
    int64_t kept_offset[MOST]; /* in it, of each that is kept; -1: final states, which are results */
    cg_call call;
} Run;

static void fail(Run *run, const char *fault)
{
    if (run->fault == NULL)
        run->fault = fault;
}

#endif
