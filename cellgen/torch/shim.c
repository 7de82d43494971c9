/* torch's two operators of every cell, in C against libtorch's stable C interface: no header of torch,
 * no C++. Loaded once in a process; cells are added by what their descriptors say.
 *
 * cellgen::forward(str cell, Tensor[] theta, float[] scalars, bool save, Tensor[] tables, int given,
 *                  ...the options of cellgen_numbers.h) -> Tensor[]
 * cellgen::backward(str cell, Tensor[] theta, float[] scalars, Tensor[] kept, Tensor[] upstream,
 *                   int present, int wanted, Tensor[] tables, int given, ...as above) -> Tensor[]
 *
 * Tensors of 16 bits: those that have steps go to the kernel as they are (`stored` of the options), all
 * others are widened to float32 before the call and results rounded after it.
 *
 * Everything of a call is checked here, in few words: who calls from Python finds the long ones. */
#include "shim.h"
#include "shim_arrays.inc.h"
#include "shim_arguments.inc.h"

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

/* Whether an array that is kept lies in the one tensor of a call. */
static int is_kept_in_one(const Run *run, const Member *member)
{
    const int is_kept = member->source == KEPT || (member->source == RESULT && run->function == &run->cell->forward);
    return run->kept_at != NULL && is_kept && run->kept_offset[member->number] >= 0;
}

/* A result: its address, NULL where it is not formed, and what it holds (cellgen_stored). Of the last step alone, (B, ...), it starts at zero. */
static void *make_result(Run *run, int m, int saves, unsigned char *stored)
{
    const Member *member = &run->function->member[m];
    const cellgen_value *value = member->value;
    const int is_wanted = run->wanted < 0 || (run->wanted >> member->number & 1); /* in the order of theta */
    const cg_result result = cg_result_of(run->function->signature, m, &run->say, saves, is_wanted ? -1 : 0);
    const int is_one_step = run->is_step && value->flags & CELLGEN_VALUE_OVER_TIME;
    const int is_timed = cg_has_steps(value, &result.change, run->cell->steps) && !is_one_step;
    void *word = NULL;
    if (run->is_step && run->function == &run->cell->forward && value->role != CELLGEN_ROLE_FINAL)
        return saves ? run->kept_at + run->kept_offset[member->number] : NULL;
    if (!result.is_formed)
        return NULL;
    if (is_kept_in_one(run, member)) {
        *stored = (unsigned char)(is_timed ? kind_of(run, member) : CELLGEN_STORED_REAL);
        return run->kept_at + run->kept_offset[member->number];
    }
    const int32_t dtype = run->narrow && !is_timed ? aoti_torch_dtype_float32() : dtype_of(run, member);
    const int before = has_layer(run, member);
    int64_t sizes[CG_AXES + 2] = {1}, count = run->is_double ? sizeof(double) : sizeof(float);
    int64_t *length = sizes + before, rank = cg_shape_of(run->cell->cell, value, result.change, run->dims, length);
    if (is_one_step)
        memmove(length, length + 1, (size_t)(rank -= 1) * sizeof *length);
    for (int64_t k = 0; k < rank; ++k)
        count *= length[k];
    Tensor made = make(run, before + rank, sizes, dtype);
    if (made == NULL)
        return NULL;
    aoti_torch_get_data_ptr(made, &word);
    if (count == 0)
        word = run; /* torch has no address of nothing, by which a kernel knows a result that is not formed */
    else if (result.change.last_step)
        memset(word, 0, (size_t)count);
    if (!is_wanted)
        own(run, made);
    run->result[member->number] = is_wanted ? made : NULL;
    run->is_wide[member->number] = run->narrow && !is_timed && !(value->flags & CELLGEN_VALUE_SAVED);
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
    size_t count = 1;
    for (int64_t k = 0; k < value->axes; ++k)
        count *= (size_t)length(value->axis[k], run->dims);
    void *word = run->starts < 2 * MOST ? malloc(count * sizeof(double) + 1) : NULL;
    if (word == NULL) {
        fail(run, "cellgen: no memory for a state");
        return NULL;
    }
    run->start[run->starts++] = word;
    for (size_t k = 0; k < count; ++k) {
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
        case KEPT:
            if (is_kept_in_one(run, member)) {
                word = run->kept_at + run->kept_offset[member->number];
                run->stored[m] = (unsigned char)kind_of(run, member);
            } else {
                tensor = run->say.checkpoint ? NULL : run->kept[member->number];
            }
            break;
        case UPSTREAM: tensor = run->upstream[member->number]; break;
        case SCALAR: memcpy(&word, &run->scalar[member->number], sizeof word); break;
        case RESULT: word = make_result(run, m, saves, &run->stored[m]); break;
        }
        if (tensor != NULL) {
            word = value->role == CELLGEN_ROLE_SCALAR ? scalar_word(run, tensor) : address(run, tensor, member);
            run->stored[m] = (unsigned char)kind_of(run, member);
        } else if (member->source == THETA && value->role == CELLGEN_ROLE_STATE) {
            word = make_state(run, value);
        }
        if ((value->flags & CELLGEN_VALUE_OVER_TIME) && run->spans == before)
            dense_span(run, value);
        run->word[m] = word;
    }
}

/* --- checkpoints --------------------------------------------------------------------------------- */

/* Make the arrays of checkpoints, or take those that the forward pass made. */
static void place_checkpoints(Run *run, Tensor *given, int count)
{
    const int wanted = (int)(run->skips ? run->cell->most : run->cell->always);
    if (given != NULL && count != wanted) {
        fail(run, "cellgen: another number of kept tensors, expected the checkpoints of save=True");
        return;
    }
    for (int k = 0; k < wanted && run->fault == NULL; ++k) {
        int64_t sizes[CG_AXES + 1], rank = 0, *found = NULL;
        const int64_t axes = cg_checkpoint_shape(run->cell->cell, run->cell->held[k], run->say.checkpoint,
                                                 run->dims, sizes);
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
        else if (is_theta && tensor == NULL)
            word = make_state(run, member->value);
        else if (is_theta)
            word = member->value->role == CELLGEN_ROLE_SCALAR ? scalar_word(run, tensor)
                                                              : address(run, tensor, member);
        again->stored[m] = (unsigned char)(is_theta ? kind_of(run, member) : CELLGEN_STORED_REAL);
        if ((member->value->flags & CELLGEN_VALUE_OVER_TIME) && run->spans == before)
            dense_span(run, member->value);
        again->word[m] = word;
    }
    span(run, run->dims[1], 1), span(run, run->dims[1], 1); /* of mask and reset */
    again->options = cg_options_again(options);
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
    const int64_t steps = run->dims[0], row = cg_wrong_length(lengths, run->dims[1], steps);
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
    bytes = bytes_of(run, entry, dims, given);
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
    give_up(run);
    if (fault != NULL)
        _ZSt21__throw_runtime_errorPKc(fault);
    stack[0] = (Value)list;
}

/* Look at the numbers of a call. */
static void check_numbers(Run *run)
{
    if (cg_wrong_numbers(&run->say) != NULL)
        fail(run, cg_wrong_numbers(&run->say));
}

/* The numbers among the arguments that both operators end with. */
static void take_numbers(Run *run, const Value *rest)
{
    const Value *next = rest + 2;
#define TAKE(name, usual) run->say.name = (int64_t)*next++;
    CELLGEN_EACH_NUMBER(TAKE)
    check_numbers(run);
}

/* Make a call whose tensors are known: `table` are addresses of lengths, mask and reset, `given` says which there
 * are. A backward pass always `saves`. */
static void compute(Run *run, int64_t given, void *const *table, int saves)
{
    cellgen_options options;
    Again *again = NULL;
    const int is_forward = run->function == &run->cell->forward;
    if (is_forward && !saves)
        run->say.checkpoint = 0;
    if (!is_forward)
        run->say.last_only = 0;
    cellgen_set_numbers(&options, &run->say);
    options.partial |= run->is_step && !saves;
    options.lengths = table[0], options.mask = table[1], options.reset = table[2];
    run->skips = given != 0;
    if (options.products && run->is_double)
        fail(run, "cellgen: products in bfloat16 are of float32 tensors");
    const int is_usual = given == 0 && !(run->is_step && !saves) && cg_are_usual(&run->say);
    if (run->fault == NULL)
        fill(run, saves);
    if (run->fault == NULL && options.checkpoint && is_forward)
        place_checkpoints(run, NULL, 0);
    if (run->fault == NULL && options.checkpoint && !is_forward)
        again = fill_again(run, &options);
    options.checkpoints = options.checkpoint ? run->checkpoint_at : NULL;
    options.forward = again == NULL ? NULL : again->word;
    if (run->fault == NULL)
        call(run, &options, is_usual);
    free(again);
}

/* The call of an operator; `rest`: the arguments that both end with. */
static void run_on(Run *run, const Value *rest, Value *stack, int saves)
{
    void *tables[TABLES] = {NULL, NULL, NULL};
    take_tables(run, rest[0], (int64_t)rest[1], tables);
    if (run->fault == NULL)
        compute(run, (int64_t)rest[1], tables, saves);
    finish(run, stack);
}

static void start(Run *run)
{
    run->kept_at = NULL;
    run->cell = NULL, run->function = NULL, run->fault = NULL;
    run->owns = run->starts = run->spans = run->is_apart = run->is_double = run->narrow = run->checkpoints = 0;
    run->skips = run->is_layer = run->is_step = run->is_in_one = 0;
    run->say = CG_USUAL, run->say.products = -1;
    run->strides = run->own_strides;
    run->wanted = -1;
}

/* `rest`: as of run_on. */
static Run *begin(const Value *stack, const Value *rest)
{
    Run *run = take_run();
    if (run == NULL)
        _ZSt21__throw_runtime_errorPKc("cellgen: no memory for a call");
    start(run);
    take_numbers(run, rest);
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
    Run *run = begin(stack, stack + 4);
    if (run->cell != NULL)
        run->function = &run->cell->forward, none(run->result, run->function->results);
    run_on(run, stack + 4, stack, (_Bool)stack[3]);
}

/* Put upstream gradients in their places: `present` are bits of those whose outputs the call shows. */
static void place_upstream(Run *run, const Tensor *given, int count, int64_t present)
{
    int next = 0, shown = 0;
    for (int k = 0; k < run->cell->upstream; ++k) {
        run->upstream[k] = NULL;
        if (!(run->say.outputs >> run->cell->output_of[k] & 1))
            continue;
        if ((present >> shown++ & 1) && next < count)
            run->upstream[k] = given[next++];
    }
}

/* Take what the forward pass kept, `count` tensors. */
static void place_kept_tensors(Run *run, int count)
{
    if (run->say.checkpoint && run->fault == NULL)
        place_checkpoints(run, run->kept, count);
    else if (count != run->cell->outputs + run->cell->saved)
        fail(run, "cellgen: another number of kept tensors, expected those of save=True");
}

static void backward(Value *stack, uint64_t arguments, uint64_t results)
{
    (void)arguments, (void)results;
    Run *run = begin(stack, stack + 7);
    Tensor given[MOST];
    const int kept = take_tensors(run, stack[3], run->kept);
    const int count = take_tensors(run, stack[4], given);
    run->skips = stack[8] != 0;
    if (run->cell != NULL) {
        run->function = &run->cell->backward, none(run->result, run->function->results);
        place_kept_tensors(run, kept);
        place_upstream(run, given, count, (int64_t)stack[5]);
    }
    run->wanted = (int64_t)stack[6];
    run_on(run, stack + 7, stack, 1);
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

#include "shim_cells.inc.h"

#include "direct.c"
