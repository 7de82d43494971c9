/* torch's two operators of every cell, in C against libtorch's stable C interface: no header of torch,
 * no C++. Loaded once in a process; cells are added by what their descriptors say.
 *
 * cellgen::forward(str cell, Tensor[] theta, float[] scalars, bool save, Tensor[] tables, int given,
 *                  bool reverse, bool zero_output_for_mask, int window, bool flush_denormals,
 *                  int products, int checkpoint, int every, int hidden, bool last_only) -> Tensor[]
 * cellgen::backward(str cell, Tensor[] theta, float[] scalars, Tensor[] kept, Tensor[] upstream,
 *                   int present, int wanted, Tensor[] tables, int given, ...as above) -> Tensor[]
 *
 * Tensors of 16 bits: those that have steps go to the kernel as they are (`stored` of the options), all
 * others are widened to float32 before the call and results rounded after it.
 *
 * Everything of a call is checked here, in few words: who calls from Python finds the long ones. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cellgen.h"
#include "cellgen_descriptor.h"

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
int32_t aoti_torch_dtype_bool(void), aoti_torch_device_type_cpu(void), aoti_torch_layout_strided(void);
void _ZSt21__throw_runtime_errorPKc(const char *) __attribute__((noreturn)); /* of libstdc++ */

enum { MOST = 512, AXES = CELLGEN_VALUE_AXES, DIMS = 16, TABLES = 3 };

/* `products` of a call. */
enum { AS_TENSORS = 0, IN_FULL = 1, IN_BF16 = 2 };

/* Where the word of a struct's member comes from. */
enum source { THETA, SCALAR, KEPT, UPSTREAM, RESULT };

typedef struct {
    const cellgen_value *value;
    int source, number;
} Member;

typedef struct {
    const cellgen_signature *signature;
    const cellgen_entry *entry[2]; /* float, double */
    int members, results;
    Member *member;
    const cellgen_value **result;
} Function;

/* How an axis of one tensor tells a dimension. */
typedef struct {
    int64_t dim, tensor, axis;
} Tells;

typedef struct Cell {
    struct Cell *next;
    char *text;
    const cellgen_cell *cell;
    int theta, scalars, outputs, saved, upstream, told;
    const cellgen_value **shape; /* of theta; NULL where no function reads one */
    const cellgen_value **state; /* final states, then outputs that are none: what checkpoints hold */
    int states, held;
    int *is_gate; /* of outputs and saved arrays: 16 bits of it are float16 */
    int *is_operand; /* of theta: a weight that products alone read */
    int *output_of; /* for each upstream gradient the number of its output */
    Tells *tells;
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
    int64_t dims[DIMS];
    int32_t dtype;
    int is_double, is_apart;
    int narrow;                      /* cellgen_stored: of tensors of 16 bits */
    int in_bf16;                     /* products */
    int64_t products;                /* as the call says */
    unsigned char stored[MOST];      /* of each member */
    unsigned char is_wide[MOST];     /* of each result: float32 yet, to be rounded */
    Tensor theta[MOST], kept[MOST], upstream[MOST], table[TABLES], result[MOST];
    Tensor checkpoint[MOST];
    int checkpoints;
    void *checkpoint_at[MOST];
    double scalar[MOST];
    void *word[MOST + 4];
    int64_t *strides, own_strides[2 * MOST + 4];
    int spans;
    int64_t wanted; /* bits of the results that the caller wants; -1: all */
    int64_t every, hidden, segment;
    int last, skips;
    int is_layer; /* states are (1, B, ...), those of one layer */
} Run;

/* What a backward pass with checkpoints runs forward once more. */
typedef struct {
    void *word[MOST + 4];
    int64_t strides[2 * MOST + 4];
    unsigned char stored[MOST];
    cellgen_options options;
} Again;

static void fail(Run *run, const char *fault)
{
    if (run->fault == NULL)
        run->fault = fault;
}

/* --- workspace: each thread keeps what it has --------------------------------------------------- */

typedef struct {
    void *memory;
    int64_t bytes;
} Space;

static pthread_key_t spaces;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_space(void *held)
{
    free(((Space *)held)->memory);
    free(held);
}
static void make_key(void) { pthread_key_create(&spaces, free_space); }

static void *workspace(int64_t bytes)
{
    pthread_once(&once, make_key);
    Space *space = pthread_getspecific(spaces);
    if (space == NULL) {
        space = calloc(1, sizeof *space);
        if (space == NULL || pthread_setspecific(spaces, space))
            return NULL;
    }
    if (space->bytes < bytes || space->memory == NULL) {
        free(space->memory);
        space->bytes = 0;
        if (posix_memalign(&space->memory, 64, (size_t)(bytes > 64 ? bytes : 64))) {
            space->memory = NULL;
            return NULL;
        }
        space->bytes = bytes;
    }
    return space->memory;
}

/* --- shapes ------------------------------------------------------------------------------------- */

static int64_t length(const cellgen_axis *axis, const int64_t *dims)
{
    int64_t sum = 0;
    for (int64_t k = 0; k < axis->terms; ++k) {
        int64_t part = axis->term[k].factor;
        for (int j = 0; j < CELLGEN_TERM_DIMS && axis->term[k].dim[j] >= 0; ++j)
            part *= dims[axis->term[k].dim[j]];
        sum += part;
    }
    return sum;
}

/* Solve an axis for one dimension, the others known: it stands alone in its term. */
static int64_t told(const cellgen_axis *axis, int64_t dim, int64_t size, const int64_t *dims)
{
    int64_t factor = 1;
    for (int64_t k = 0; k < axis->terms; ++k) {
        int64_t part = axis->term[k].factor;
        if (axis->term[k].dim[0] == dim) {
            factor = part;
            continue;
        }
        for (int j = 0; j < CELLGEN_TERM_DIMS && axis->term[k].dim[j] >= 0; ++j)
            part *= dims[axis->term[k].dim[j]];
        size -= part;
    }
    return size / factor;
}

static void own(Run *run, Tensor tensor)
{
    if (run->owns < 4 * MOST)
        run->owned[run->owns++] = tensor;
    else
        aoti_torch_delete_tensor_object(tensor);
}

static Tensor make(Run *run, int64_t rank, const int64_t *sizes, int32_t dtype)
{
    int64_t strides[AXES + 1], dense = 1;
    Tensor made = NULL;
    for (int64_t k = rank; k-- > 0;) {
        strides[k] = dense;
        dense *= sizes[k] > 0 ? sizes[k] : 1;
    }
    if (aoti_torch_empty_strided(rank, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &made))
        fail(run, "cellgen: no memory for a result");
    return made;
}

/* Whether units lie side by side, whatever lies between steps and rows. */
static int has_dense_units(int64_t rank, const int64_t *sizes, const int64_t *strides)
{
    int64_t dense = 1;
    for (int64_t k = rank; k-- > 2;) {
        if (sizes[k] > 1 && strides[k] != dense)
            return 0;
        dense *= sizes[k];
    }
    return 1;
}

static void span(Run *run, int64_t steps, int64_t rows)
{
    run->strides[run->spans++] = steps;
    run->strides[run->spans++] = rows;
}

/* The length of an axis, where outputs over time and their gradients are those of every so many-th step. */
static int64_t shown_length(const Run *run, const cellgen_value *value, int64_t axis, int is_shown)
{
    const int64_t found = length(value->axis[axis], run->dims);
    return is_shown && axis == 0 && (value->flags & CELLGEN_VALUE_OVER_TIME) ? found / run->every : found;
}

/* Whether an array has a row for each step, saved ones too. */
static int has_steps(const Run *run, const cellgen_value *value)
{
    if (value->flags & CELLGEN_VALUE_OVER_TIME)
        return 1;
    if (!(value->flags & CELLGEN_VALUE_SAVED) || value->axes == 0 || value->axis[0]->terms != 1)
        return 0;
    const cellgen_term *term = value->axis[0]->term;
    return term->factor == 1 && term->dim[1] < 0 && term->dim[0] >= 0 &&
           strcmp(run->cell->cell->dim[term->dim[0]], "T") == 0;
}

/* Whether a tensor is a weight that products in bfloat16 read as it is. */
static int is_raw(const Run *run, const Member *member)
{
    return member->source == THETA && run->narrow == CELLGEN_STORED_BF16 && run->in_bf16 &&
           run->cell->is_operand[member->number];
}

/* What the 16 bits of an array hold that is not widened (cellgen_stored). */
static int kind_of(const Run *run, const Member *member)
{
    const int is_kept = member->source == KEPT || (member->source == RESULT && run->function == &run->cell->forward);
    return run->narrow && is_kept && run->cell->is_gate[member->number] ? CELLGEN_STORED_F16 : run->narrow;
}

/* The type of a tensor that stands for a member. */
static int32_t dtype_of(const Run *run, const Member *member)
{
    const cellgen_value *value = member->value;
    if (!run->narrow)
        return run->dtype;
    if (has_steps(run, value) || is_raw(run, member))
        return kind_of(run, member) == CELLGEN_STORED_F16 ? aoti_torch_dtype_float16() : run->dtype;
    return member->source == THETA || value->flags & CELLGEN_VALUE_SAVED ? aoti_torch_dtype_float32() : run->dtype;
}

/* Another tensor with the numbers of one, without gaps. */
static Tensor copied(Run *run, Tensor tensor, int64_t rank, const int64_t *sizes, int32_t dtype)
{
    Tensor copy = make(run, rank, sizes, dtype);
    if (copy == NULL)
        return NULL;
    own(run, copy);
    if (aoti_torch_copy_(copy, tensor, 0))
        fail(run, "cellgen: a tensor cannot be copied");
    return copy;
}

/* The address of a tensor that a kernel can read; what it cannot is copied first. */
static void *address(Run *run, Tensor tensor, const Member *member)
{
    const cellgen_value *value = member->value;
    const int is_shown = member->source == UPSTREAM;
    int64_t rank = 0, *sizes = NULL, *strides = NULL;
    int32_t dtype = -1, device = -1;
    _Bool dense = 0;
    void *found = NULL;
    int first = 0;
    aoti_torch_get_dim(tensor, &rank), aoti_torch_get_sizes(tensor, &sizes);
    aoti_torch_get_dtype(tensor, &dtype), aoti_torch_get_device_type(tensor, &device);
    if (run->is_layer && value->role == CELLGEN_ROLE_STATE)
        first = rank > 0 && sizes[0] == 1, sizes += first, rank = first ? rank - 1 : -1;
    if (rank != value->axes || dtype != dtype_of(run, member) || device != aoti_torch_device_type_cpu()) {
        fail(run, "cellgen: a tensor has another rank, dtype or device");
        return NULL;
    }
    for (int64_t k = 0; k < rank; ++k)
        if (sizes[k] != shown_length(run, value, k, is_shown)) {
            fail(run, "cellgen: shapes do not agree");
            return NULL;
        }
    const int timed = (value->flags & CELLGEN_VALUE_OVER_TIME) != 0;
    const int is_widened = run->narrow && dtype == run->dtype && !has_steps(run, value) && !is_raw(run, member);
    aoti_torch_is_contiguous(tensor, &dense);
    if (!dense || is_widened) {
        aoti_torch_get_strides(tensor, &strides);
        if (timed && has_dense_units(rank, sizes, strides)) {
            run->is_apart = 1;
            span(run, strides[0], strides[1]);
            aoti_torch_get_data_ptr(tensor, &found);
            return found;
        }
        tensor = copied(run, tensor, rank + first, sizes - first, is_widened ? aoti_torch_dtype_float32() : dtype);
        if (tensor == NULL)
            return NULL;
    }
    aoti_torch_get_data_ptr(tensor, &found);
    return found;
}

/* Steps and rows of an array over time without gaps. */
static void dense_span(Run *run, const cellgen_value *value)
{
    int64_t units = 1;
    for (int64_t k = 2; k < value->axes; ++k)
        units *= length(value->axis[k], run->dims);
    span(run, length(value->axis[1], run->dims) * units, units);
}

/* --- arguments ----------------------------------------------------------------------------------- */

static int take_tensors(Run *run, Value value, Tensor *into)
{
    size_t count = 0;
    torch_list_size((List)value, &count);
    for (size_t k = 0; k < count; ++k) {
        Value item = 0;
        if (k >= MOST || torch_list_get_item((List)value, k, &item)) {
            fail(run, "cellgen: a list of tensors cannot be read");
            break;
        }
        into[k] = (Tensor)item;
        own(run, into[k]);
    }
    torch_delete_list((List)value);
    return (int)count;
}

static void take_scalars(Run *run, Value value)
{
    size_t count = 0;
    torch_list_size((List)value, &count);
    for (size_t k = 0; k < count && k < MOST; ++k) {
        Value item = 0;
        torch_list_get_item((List)value, k, &item);
        memcpy(&run->scalar[k], &item, sizeof run->scalar[k]);
    }
    torch_delete_list((List)value);
    if (run->cell != NULL && (int)count != run->cell->scalars)
        fail(run, "cellgen: another number of scalars");
}

static const Cell *look_up(const char *text)
{
    for (const Cell *cell = __atomic_load_n(&cells, __ATOMIC_ACQUIRE); cell != NULL; cell = cell->next)
        if (strcmp(cell->text, text) == 0)
            return cell;
    return NULL;
}

static void take_cell(Run *run, Value value)
{
    const char *text = "";
    torch_string_c_str((void *)value, &text);
    run->cell = look_up(text);
    if (run->cell == NULL && find_cell != NULL && find_cell(text) == 0)
        run->cell = look_up(text);
    if (run->cell == NULL)
        fail(run, "cellgen: the operators do not know this cell");
    torch_delete_string((void *)value);
}

/* What tensors hold; 0: no kernel has it. */
static int take_dtype(Run *run)
{
    aoti_torch_get_dtype(run->theta[0], &run->dtype);
    run->is_double = run->dtype == aoti_torch_dtype_float64();
    run->narrow = run->dtype == aoti_torch_dtype_bfloat16()  ? CELLGEN_STORED_BF16
                  : run->dtype == aoti_torch_dtype_float16() ? CELLGEN_STORED_F16
                                                             : CELLGEN_STORED_REAL;
    run->in_bf16 = run->products == IN_BF16 || (run->products == AS_TENSORS && run->narrow == CELLGEN_STORED_BF16);
    return run->is_double || run->narrow || run->dtype == aoti_torch_dtype_float32();
}

/* Widen the tensors of a call that have no steps, but for weights that products read as they are. */
static void widen_theta(Run *run)
{
    for (int k = 0; k < run->cell->theta && run->fault == NULL; ++k) {
        int64_t rank = 0, *sizes = NULL;
        int32_t dtype = -1, device = -1;
        const cellgen_value *value = run->cell->shape[k];
        const Member member = {value, THETA, k};
        if (value == NULL || value->flags & CELLGEN_VALUE_OVER_TIME || is_raw(run, &member) || run->theta[k] == NULL)
            continue;
        aoti_torch_get_dtype(run->theta[k], &dtype), aoti_torch_get_device_type(run->theta[k], &device);
        if (dtype != run->dtype || device != aoti_torch_device_type_cpu()) {
            fail(run, "cellgen: a tensor has another dtype or device");
            return;
        }
        aoti_torch_get_dim(run->theta[k], &rank), aoti_torch_get_sizes(run->theta[k], &sizes);
        if (rank != value->axes + (run->is_layer && value->role == CELLGEN_ROLE_STATE)) {
            fail(run, "cellgen: a tensor has another rank");
            return;
        }
        Tensor wide = copied(run, run->theta[k], rank, sizes, aoti_torch_dtype_float32());
        if (wide != NULL)
            run->theta[k] = wide;
    }
}

static void look_at_theta(Run *run, int count)
{
    const Cell *cell = run->cell;
    if (cell == NULL || run->fault != NULL)
        return;
    if (count != cell->theta) {
        fail(run, "cellgen: another number of tensors");
        return;
    }
    if (!take_dtype(run)) {
        fail(run, "cellgen: tensors are none of float32, float64, bfloat16 and float16");
        return;
    }
    for (int k = 0; k < cell->told; ++k) {
        const Tells tells = cell->tells[k];
        const cellgen_value *shape = cell->shape[tells.tensor];
        int64_t rank = 0, *sizes = NULL;
        if (run->theta[tells.tensor] == NULL) {
            fail(run, "cellgen: a state is left out that alone tells a dimension");
            return;
        }
        aoti_torch_get_dim(run->theta[tells.tensor], &rank);
        if (rank != shape->axes) {
            fail(run, "cellgen: a tensor has another rank");
            return;
        }
        aoti_torch_get_sizes(run->theta[tells.tensor], &sizes);
        run->dims[tells.dim] = told(shape->axis[tells.axis], tells.dim, sizes[tells.axis], run->dims);
        if (run->dims[tells.dim] < 0)
            fail(run, "cellgen: shapes do not agree");
    }
    if (run->narrow)
        widen_theta(run);
}

static void take_theta(Run *run, Value value)
{
    look_at_theta(run, take_tensors(run, value, run->theta));
}

/* Lengths (B), mask and reset (T, B), as `given` says which there are. */
static void take_tables(Run *run, Value list, int64_t given, void **addresses)
{
    Tensor found[MOST];
    const int count = take_tensors(run, list, found);
    for (int k = 0, next = 0; k < TABLES && run->fault == NULL; ++k) {
        addresses[k] = NULL;
        if (!(given >> k & 1))
            continue;
        if (next >= count) {
            fail(run, "cellgen: a table is missing");
            return;
        }
        Tensor table = found[next++];
        int64_t rank = 0, *sizes = NULL;
        int32_t dtype = -1;
        _Bool dense = 0;
        aoti_torch_get_dim(table, &rank), aoti_torch_get_sizes(table, &sizes);
        aoti_torch_get_dtype(table, &dtype), aoti_torch_is_contiguous(table, &dense);
        const int fits = k ? rank == 2 && dtype == aoti_torch_dtype_bool() && sizes[0] == run->dims[0] &&
                                 sizes[1] == run->dims[1]
                           : rank == 1 && dtype == aoti_torch_dtype_int64() && sizes[0] == run->dims[1];
        if (!fits) {
            fail(run, "cellgen: lengths, mask or reset do not fit");
            return;
        }
        if (!dense) {
            table = copied(run, table, rank, sizes, dtype);
            if (table == NULL)
                return;
        }
        aoti_torch_get_data_ptr(table, &addresses[k]);
    }
}

/* --- a call -------------------------------------------------------------------------------------- */

static void *scalar_word(const Run *run, Tensor tensor)
{
    double number = 0;
    void *data = NULL, *word = NULL;
    aoti_torch_get_data_ptr(tensor, &data);
    number = data == NULL ? 0 : run->is_double ? *(double *)data : (double)*(float *)data;
    memcpy(&word, &number, sizeof word);
    return word;
}

/* A result: its address, NULL where it is not formed, and what it holds (cellgen_stored). Of the last step alone, (B, ...), it starts at zero. */
static void *make_result(Run *run, const Member *member, int saves, unsigned char *stored)
{
    const cellgen_value *value = member->value;
    const int is_wanted = run->wanted < 0 || (run->wanted >> member->number & 1);
    const int is_saved = (value->flags & CELLGEN_VALUE_SAVED) != 0;
    const int is_output = run->function == &run->cell->forward && !is_saved;
    void *word = NULL;
    if (is_output && (run->hidden >> member->number & 1))
        return NULL;
    if (is_wanted ? is_saved && (!saves || run->segment) : (value->flags & CELLGEN_VALUE_OPTIONAL) != 0)
        return NULL;
    const int64_t first = is_output && run->last && (value->flags & CELLGEN_VALUE_OVER_TIME);
    const int64_t before = run->is_layer && value->role == CELLGEN_ROLE_FINAL;
    const int is_timed = has_steps(run, value) && !first;
    const int32_t dtype = run->narrow && !is_timed ? aoti_torch_dtype_float32() : dtype_of(run, member);
    int64_t sizes[AXES + 1] = {1}, count = run->is_double ? sizeof(double) : sizeof(float);
    for (int64_t k = first; k < value->axes; ++k)
        count *= sizes[before + k - first] = shown_length(run, value, k, is_output);
    Tensor made = make(run, before + value->axes - first, sizes, dtype);
    if (made == NULL)
        return NULL;
    aoti_torch_get_data_ptr(made, &word);
    if (first && count > 0)
        memset(word, 0, (size_t)count);
    if (!is_wanted)
        own(run, made);
    run->result[member->number] = is_wanted ? made : NULL;
    run->is_wide[member->number] = run->narrow && !is_timed && !is_saved;
    *stored = (unsigned char)(is_timed ? kind_of(run, member) : CELLGEN_STORED_REAL);
    return word;
}

/* Round results that have no steps. */
static void round_results(Run *run)
{
    for (int k = 0; k < run->function->results && run->fault == NULL; ++k) {
        int64_t rank = 0, *sizes = NULL;
        const Tensor wide = run->result[k];
        if (wide == NULL || !run->is_wide[k])
            continue;
        aoti_torch_get_dim(wide, &rank), aoti_torch_get_sizes(wide, &sizes);
        Tensor made = make(run, rank, sizes, run->dtype);
        if (made == NULL)
            return;
        if (aoti_torch_copy_(made, wide, 0))
            fail(run, "cellgen: a result cannot be rounded");
        own(run, wide);
        run->result[k] = made;
    }
}

/* A state that a call leaves out: where the cell starts. */
static void *make_state(Run *run, const cellgen_value *value)
{
    int64_t sizes[AXES], count = 1;
    void *word = NULL;
    for (int64_t k = 0; k < value->axes; ++k)
        count *= sizes[k] = length(value->axis[k], run->dims);
    Tensor made = make(run, value->axes, sizes, run->narrow ? aoti_torch_dtype_float32() : run->dtype);
    if (made == NULL)
        return NULL;
    own(run, made);
    aoti_torch_get_data_ptr(made, &word);
    for (int64_t k = 0; k < count; ++k) {
        if (run->is_double)
            ((double *)word)[k] = value->value;
        else
            ((float *)word)[k] = (float)value->value;
    }
    return word;
}

static void fill(Run *run, int saves)
{
    const Function *function = run->function;
    for (int m = 0; m < function->members && run->fault == NULL; ++m) {
        const Member *member = &function->member[m];
        const cellgen_value *value = member->value;
        const int before = run->spans;
        void *word = NULL;
        Tensor tensor = NULL;
        run->stored[m] = CELLGEN_STORED_REAL;
        switch (member->source) {
        case THETA: tensor = run->theta[member->number]; break;
        case KEPT: tensor = run->segment ? NULL : run->kept[member->number]; break;
        case UPSTREAM: tensor = run->upstream[member->number]; break;
        case SCALAR: memcpy(&word, &run->scalar[member->number], sizeof word); break;
        case RESULT: word = make_result(run, member, saves, &run->stored[m]); break;
        }
        if (tensor != NULL) {
            word = value->role == CELLGEN_ROLE_SCALAR ? scalar_word(run, tensor) : address(run, tensor, member);
            const int is_narrow = has_steps(run, value) || is_raw(run, member);
            run->stored[m] = (unsigned char)(is_narrow ? kind_of(run, member) : CELLGEN_STORED_REAL);
        } else if (member->source == THETA && value->role == CELLGEN_ROLE_STATE) {
            word = make_state(run, value);
        }
        if ((value->flags & CELLGEN_VALUE_OVER_TIME) && run->spans == before)
            dense_span(run, value);
        run->word[m] = word;
    }
}

/* --- checkpoints --------------------------------------------------------------------------------- */

/* The shape of one of the arrays of checkpoints, (checkpoints, B, ...); its rank. */
static int64_t shape_of_checkpoint(const Run *run, int number, int64_t *sizes)
{
    const cellgen_value *value = run->cell->state[number];
    const int64_t first = number >= run->cell->states; /* outputs over time have a step each */
    sizes[0] = run->dims[0] > 0 ? (run->dims[0] - 1) / run->segment : 0;
    for (int64_t k = first; k < value->axes; ++k)
        sizes[k + 1 - first] = length(value->axis[k], run->dims);
    return value->axes + 1 - first;
}

/* Make the arrays of checkpoints, or take those that the forward pass made. */
static void place_checkpoints(Run *run, Tensor *given, int count)
{
    const int wanted = run->cell->states + (run->skips ? run->cell->held : 0);
    if (given != NULL && count != wanted) {
        fail(run, "cellgen: another number of kept tensors, expected the checkpoints of save=True");
        return;
    }
    for (int k = 0; k < wanted && run->fault == NULL; ++k) {
        int64_t sizes[AXES + 1], rank = 0, *found = NULL;
        const int64_t axes = shape_of_checkpoint(run, k, sizes);
        const int32_t own_dtype = run->narrow ? aoti_torch_dtype_float32() : run->dtype;
        int32_t dtype = -1;
        _Bool dense = 1;
        Tensor at = given == NULL ? make(run, axes, sizes, own_dtype) : given[k];
        if (at == NULL)
            return;
        if (given == NULL) {
            run->checkpoint[run->checkpoints++] = at;
        } else {
            aoti_torch_get_dim(at, &rank), aoti_torch_get_sizes(at, &found);
            aoti_torch_get_dtype(at, &dtype), aoti_torch_is_contiguous(at, &dense);
            if (rank != axes || dtype != own_dtype || memcmp(found, sizes, (size_t)axes * sizeof *sizes)) {
                fail(run, "cellgen: checkpoints have other shapes");
                return;
            }
            at = dense ? at : copied(run, at, axes, sizes, dtype);
            if (at == NULL)
                return;
        }
        aoti_torch_get_data_ptr(at, &run->checkpoint_at[k]);
    }
}

/* The forward pass of a backward one: its arguments, no results, the same options. */
static Again *fill_again(Run *run, const cellgen_options *options)
{
    Again *again = malloc(sizeof *again);
    const Function *own = run->function;
    const int spans = run->spans, is_apart = run->is_apart;
    if (again == NULL) {
        fail(run, "cellgen: no memory for a call");
        return NULL;
    }
    const Function *function = run->function = &run->cell->forward;
    run->strides = again->strides, run->spans = run->is_apart = 0;
    for (int m = 0; m < function->members && run->fault == NULL; ++m) {
        const Member *member = &function->member[m];
        const int before = run->spans, is_theta = member->source == THETA;
        Tensor tensor = is_theta ? run->theta[member->number] : NULL;
        void *word = NULL;
        if (member->source == SCALAR)
            memcpy(&word, &run->scalar[member->number], sizeof word);
        else if (is_theta)
            word = member->value->role == CELLGEN_ROLE_SCALAR ? scalar_word(run, tensor)
                                                              : address(run, tensor, member);
        const int is_narrow = is_theta && (has_steps(run, member->value) || is_raw(run, member));
        again->stored[m] = (unsigned char)(is_narrow ? run->narrow : CELLGEN_STORED_REAL);
        if ((member->value->flags & CELLGEN_VALUE_OVER_TIME) && run->spans == before)
            dense_span(run, member->value);
        again->word[m] = word;
    }
    span(run, run->dims[1], 1), span(run, run->dims[1], 1); /* of mask and reset */
    again->options = *options;
    again->options.window = again->options.checkpoint = again->options.every = again->options.partial = 0;
    again->options.checkpoints = NULL;
    again->options.strides = run->is_apart ? again->strides : NULL;
    again->options.stored = run->narrow ? again->stored : NULL;
    void *const tail[] = {NULL, NULL, NULL, &again->options};
    memcpy(again->word + function->members, tail, sizeof tail);
    run->function = own, run->strides = run->own_strides, run->spans = spans, run->is_apart = is_apart;
    return again;
}

/* Name the first row whose length is none, in text that this thread keeps until its next fault. */
static void fail_length(Run *run, const int64_t *lengths)
{
    static _Thread_local char text[256];
    const int64_t steps = run->dims[0];
    int64_t row = 0;
    while (row + 1 < run->dims[1] && lengths[row] >= 0 && lengths[row] <= steps)
        ++row;
    snprintf(text, sizeof text,
             "%.100s.%s: lengths[%lld] is %lld, expected 0 to T = %lld; shorten it or pass longer tensors",
             run->cell->cell->name, run->function->signature->name, (long long)row,
             (long long)lengths[row], (long long)steps);
    fail(run, text);
}

static void call(Run *run, cellgen_options *options, int is_usual)
{
    const Function *function = run->function;
    const cellgen_entry *entry = function->entry[run->is_double];
    int64_t dims[DIMS], bytes;
    uint32_t threads = 1;
    span(run, run->dims[1], 1), span(run, run->dims[1], 1); /* of mask and reset */
    options->strides = run->is_apart ? run->strides : NULL;
    options->stored = run->narrow ? run->stored : NULL;
    const cellgen_options *given = is_usual && !run->is_apart && !run->narrow ? NULL : options;
    for (int64_t k = 0; k < function->signature->dims; ++k)
        dims[k] = run->dims[function->signature->dim[k]];
    bytes = entry->size(dims, given);
    void *space = bytes < 0 ? NULL : workspace(bytes);
    if (space == NULL) {
        fail(run, "cellgen: no memory for the workspace");
        return;
    }
    torch_get_num_threads(&threads);
    threads = threads < processors ? threads : processors;
    int n = function->members;
    run->word[n++] = space;
    run->word[n++] = (void *)(intptr_t)bytes;
    run->word[n++] = threads > 1 ? run->cell->cell->team((int)threads) : NULL;
    run->word[n++] = (void *)given;
    const int code = entry->call(dims, run->word);
    if (code == CELLGEN_LENGTH_OUT_OF_RANGE)
        fail_length(run, options->lengths);
    else if (code)
        fail(run, "cellgen: the kernel refused the call");
    else if (run->narrow)
        round_results(run);
}

static void finish(Run *run, Value *stack)
{
    List list = NULL;
    const int count = run->function == NULL ? 0 : run->function->results;
    for (int k = 0; k < run->owns; ++k)
        aoti_torch_delete_tensor_object(run->owned[k]);
    if (run->fault == NULL && torch_new_list_reserve_size((size_t)count, &list))
        fail(run, "cellgen: no memory for the list of results");
    for (int k = 0; k < count + run->checkpoints; ++k) {
        Tensor result = k < count ? run->result[k] : run->checkpoint[k - count];
        if (result == NULL)
            continue;
        if (run->fault == NULL)
            torch_list_push_back(list, (Value)result);
        else
            aoti_torch_delete_tensor_object(result);
    }
    const char *fault = run->fault;
    free(run);
    if (fault != NULL)
        _ZSt21__throw_runtime_errorPKc(fault);
    stack[0] = (Value)list;
}

/* The numbers among the arguments that both operators end with. */
static void take_numbers(Run *run, const Value *rest, cellgen_options *options)
{
    memset(options, 0, sizeof *options);
    options->reverse = (_Bool)rest[2];
    options->hold = !(_Bool)rest[3];
    options->window = (int64_t)rest[4];
    options->flush = (_Bool)rest[5];
    options->products = run->in_bf16;
    options->checkpoint = run->segment = (int64_t)rest[7];
    options->every = run->every = (int64_t)rest[8];
    options->partial = (int64_t)rest[9] != 0;
    options->last = run->last = (_Bool)rest[10];
    run->hidden = (int64_t)rest[9];
    run->skips = rest[1] != 0;
    if (run->every < 1 || run->segment < 0)
        fail(run, "cellgen: every is less than 1, or checkpoint less than 0");
    if (options->products && run->is_double)
        fail(run, "cellgen: products in bfloat16 are of float32 tensors");
}

/* The call; `rest`: the arguments that both operators end with. */
static void run_on(Run *run, const Value *rest, cellgen_options *options, Value *stack, int saves)
{
    void *tables[TABLES] = {NULL, NULL, NULL};
    Again *again = NULL;
    take_tables(run, rest[0], (int64_t)rest[1], tables);
    options->lengths = tables[0], options->mask = tables[1], options->reset = tables[2];
    const int is_usual = rest[1] == 0 && !options->reverse && !options->window && !options->flush &&
                         !options->products && !options->checkpoint && options->every == 1 &&
                         !options->partial && !options->last;
    if (run->fault == NULL)
        fill(run, saves);
    if (run->fault == NULL && run->segment && run->function == &run->cell->forward)
        place_checkpoints(run, NULL, 0);
    if (run->fault == NULL && run->segment && run->function == &run->cell->backward)
        options->forward = again = fill_again(run, options);
    options->checkpoints = run->segment ? run->checkpoint_at : NULL;
    if (again != NULL)
        options->forward = again->word;
    if (run->fault == NULL)
        call(run, options, is_usual);
    free(again);
    finish(run, stack);
}

static void start(Run *run)
{
    run->cell = NULL, run->function = NULL, run->fault = NULL;
    run->owns = run->spans = run->is_apart = run->is_double = run->narrow = run->in_bf16 = run->checkpoints = 0;
    run->products = run->hidden = run->segment = run->last = run->skips = run->is_layer = 0;
    run->every = 1;
    run->strides = run->own_strides;
    run->wanted = -1;
}

/* `rest`: as of run_on. */
static Run *begin(const Value *stack, const Value *rest)
{
    Run *run = malloc(sizeof *run);
    if (run == NULL)
        _ZSt21__throw_runtime_errorPKc("cellgen: no memory for a call");
    start(run);
    run->products = (int64_t)rest[6];
    take_cell(run, stack[0]);
    take_theta(run, stack[1]);
    take_scalars(run, stack[2]);
    return run;
}

static void none(Tensor *tensors, int count)
{
    for (int k = 0; k < count; ++k)
        tensors[k] = NULL;
}

static void forward(Value *stack, uint64_t arguments, uint64_t results)
{
    (void)arguments, (void)results;
    const int saves = (_Bool)stack[3];
    cellgen_options options;
    Run *run = begin(stack, stack + 4);
    take_numbers(run, stack + 4, &options);
    if (!saves)
        options.checkpoint = run->segment = 0;
    if (run->cell != NULL)
        run->function = &run->cell->forward, none(run->result, run->function->results);
    run_on(run, stack + 4, &options, stack, saves);
}

/* Put upstream gradients in their places: `present` are bits of those whose outputs the call shows. */
static void place_upstream(Run *run, const Tensor *given, int count, int64_t present)
{
    int next = 0, shown = 0;
    for (int k = 0; k < run->cell->upstream; ++k) {
        run->upstream[k] = NULL;
        if (run->hidden >> run->cell->output_of[k] & 1)
            continue;
        if ((present >> shown++ & 1) && next < count)
            run->upstream[k] = given[next++];
    }
}

static void backward(Value *stack, uint64_t arguments, uint64_t results)
{
    (void)arguments, (void)results;
    cellgen_options options;
    Run *run = begin(stack, stack + 7);
    Tensor given[MOST];
    const int kept = take_tensors(run, stack[3], run->kept);
    const int count = take_tensors(run, stack[4], given);
    take_numbers(run, stack + 7, &options);
    options.last = run->last = 0;
    if (run->cell != NULL) {
        run->function = &run->cell->backward, none(run->result, run->function->results);
        if (run->segment && run->fault == NULL)
            place_checkpoints(run, run->kept, kept);
        else if (kept != run->cell->outputs + run->cell->saved)
            fail(run, "cellgen: another number of kept tensors, expected those of save=True");
        place_upstream(run, given, count, (int64_t)stack[5]);
    }
    run->wanted = (int64_t)stack[6];
    run_on(run, stack + 7, &options, stack, 1);
}

/* --- what Python calls --------------------------------------------------------------------------- */

int cellgen_torch_abi(void) { return CELLGEN_ABI_VERSION; }

/* Register both operators by their names with overload; `find` is called with the text of a cell that
 * is not known and adds it. */
int cellgen_torch_register(uint64_t version, uint32_t usable, int (*find)(const char *),
                           const char *forward_name, const char *backward_name)
{
    void *library = NULL;
    processors = usable;
    find_cell = find;
    if (aoti_torch_library_init_impl("cellgen", "CPU", __FILE__, __LINE__, &library))
        return 1;
    return torch_library_impl(library, forward_name, forward, version) ||
           torch_library_impl(library, backward_name, backward, version);
}

static int place(const char *name, const char *const *names, int count)
{
    for (int k = 0; k < count; ++k)
        if (strcmp(names[k], name) == 0)
            return k;
    return -1;
}

static int describe(Function *function, const Cell *cell, const char *name, const char *const *theta,
                    const char *const *scalars, const char *const *kept, const char *const *upstream,
                    const char *const *results, int count)
{
    const cellgen_cell *of = cell->cell;
    int64_t number = 0;
    while (number < of->functions && strcmp(of->function[number].name, name))
        ++number;
    if (number == of->functions || of->precisions != 2)
        return 1;
    const cellgen_signature *signature = function->signature = &of->function[number];
    for (int k = 0; k < 2; ++k)
        function->entry[k] = &of->precision[k].entry[number];
    function->members = (int)signature->members;
    function->results = count;
    function->member = calloc((size_t)signature->members + 1, sizeof *function->member);
    if (function->member == NULL || signature->members > MOST)
        return 2;
    for (int64_t m = 0; m < signature->members; ++m) {
        const cellgen_value *value = &signature->member[m];
        Member *member = &function->member[m];
        const struct {
            const char *const *names;
            int count, source;
        } from[] = {{results, count, RESULT},
                    {theta, cell->theta, THETA},
                    {scalars, cell->scalars, SCALAR},
                    {kept, kept == NULL ? 0 : cell->outputs + cell->saved, KEPT},
                    {upstream, upstream == NULL ? 0 : cell->upstream, UPSTREAM}};
        const int first = m >= signature->arguments ? 0 : 1, last = first ? 5 : 1;
        member->value = value, member->number = -1;
        for (int k = first; k < last && member->number < 0; ++k) {
            member->source = from[k].source;
            member->number = place(value->name, from[k].names, from[k].count);
        }
        if (member->number < 0)
            return 3;
        if (member->source == THETA)
            cell->shape[member->number] = value;
    }
    return 0;
}

/* Note what checkpoints hold: final states in order, then outputs over time that are no states. */
static int note_states(Cell *cell)
{
    const Function *forward = &cell->forward;
    char final[256];
    cell->state = calloc((size_t)forward->members + 1, sizeof *cell->state);
    if (cell->state == NULL)
        return 2;
    for (int turn = 0; turn < 2; ++turn)
        for (int m = 0; m < forward->members; ++m) {
            const cellgen_value *value = forward->member[m].value;
            int is_state = value->role == CELLGEN_ROLE_FINAL;
            if (forward->member[m].source != RESULT || value->flags & CELLGEN_VALUE_SAVED)
                continue;
            snprintf(final, sizeof final, "%s_last", value->name);
            for (int other = 0; other < forward->members && turn; ++other)
                is_state |= strcmp(forward->member[other].value->name, final) == 0;
            if (turn == 0 ? is_state : !is_state)
                cell->state[cell->states + cell->held] = value, *(turn ? &cell->held : &cell->states) += 1;
        }
    return 0;
}

/* Make a cell known: names in the order of the operators' lists, and which axis of which tensor tells
 * which dimension; `gates` says of each that is kept whether 16 bits of it are float16, `operands` of each
 * of theta whether it is a weight that products alone read. Returns 0, or what is wrong. */
int cellgen_torch_add(const char *text, const cellgen_cell *of, const int64_t *counts,
                      const char *const *theta, const char *const *scalars, const char *const *kept,
                      const char *const *upstream, const char *const *gradients, const int64_t *tells,
                      const int64_t *gates, const int64_t *operands)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (of->abi != CELLGEN_ABI_VERSION || of->dims > DIMS || of->dims < 2)
        return 4;
    Cell *cell = calloc(1, sizeof *cell);
    if (cell == NULL)
        return 2;
    cell->cell = of, cell->text = strdup(text);
    cell->theta = (int)counts[0], cell->scalars = (int)counts[1], cell->outputs = (int)counts[2];
    cell->saved = (int)counts[3], cell->upstream = (int)counts[4], cell->told = (int)counts[6];
    cell->shape = calloc((size_t)cell->theta + 1, sizeof *cell->shape);
    cell->tells = calloc((size_t)cell->told + 1, sizeof *cell->tells);
    if (cell->text == NULL || cell->shape == NULL || cell->tells == NULL || cell->theta > MOST)
        return 2;
    memcpy(cell->tells, tells, (size_t)cell->told * sizeof *cell->tells);
    const int all = cell->outputs + cell->saved;
    int code = describe(&cell->forward, cell, "sequence_forward", theta, scalars, NULL, NULL, kept, all);
    if (!code)
        code = describe(&cell->backward, cell, "sequence_backward", theta, scalars, kept, upstream,
                        gradients, (int)counts[5]);
    cell->is_gate = calloc((size_t)all + 1, sizeof *cell->is_gate);
    for (int k = 0; k < all && !code; ++k) {
        code = cell->is_gate == NULL ? 2 : 0;
        if (!code)
            cell->is_gate[k] = gates[k] != 0;
    }
    cell->is_operand = calloc((size_t)cell->theta + 1, sizeof *cell->is_operand);
    for (int k = 0; k < cell->theta && !code; ++k) {
        code = cell->is_operand == NULL ? 2 : 0;
        if (!code)
            cell->is_operand[k] = operands[k] != 0;
    }
    cell->output_of = calloc((size_t)cell->upstream + 1, sizeof *cell->output_of);
    for (int k = 0; k < cell->upstream && !code; ++k) {
        code = cell->output_of == NULL ? 2 : 0;
        if (!code)
            cell->output_of[k] = place(upstream[k] + 2, kept, cell->outputs); /* behind "d_" */
        if (!code && cell->output_of[k] < 0)
            code = 3;
    }
    code = code ? code : note_states(cell);
    for (int k = 0; k < cell->told && !code; ++k)
        code = cell->shape[cell->tells[k].tensor] == NULL ? 5 : 0;
    if (code)
        return code;
    pthread_mutex_lock(&lock);
    if (look_up(text) == NULL) {
        cell->next = cells;
        __atomic_store_n(&cells, cell, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

#include "direct.c"
