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

/* Memory of a result: a tensor, or a place in that of all that is kept. A result that nobody wants ends with the call. */
static void *allocate(cg_call *call, int64_t m, int kind, int64_t rank, const int64_t *length, int is_zero)
{
    Run *run = call->door;
    const Member *member = m < 0 ? NULL : &run->function->member[m];
    if (member != NULL && is_kept_in_one(run, member))
        return run->kept_at + run->kept_offset[member->number];
    const int before = member != NULL && has_layer(run, member->value);
    const int after = member != NULL && run->is_step && member->value->flags & CELLGEN_VALUE_OVER_TIME;
    const int32_t dtype = dtype_of_kind(run, kind);
    int64_t sizes[CG_AXES + 2] = {1};
    void *data = NULL;
    memcpy(sizes + before, length + after, (size_t)(rank - after) * sizeof *length);
    Tensor made = make(run, before + rank - after, sizes, dtype);
    if (made == NULL)
        return NULL;
    if (member == NULL)
        run->checkpoint[run->checkpoints++] = made;
    else if (cg_has_bit(run->wanted, member->number))
        run->result[member->number] = made;
    else
        own(run, made);
    if (run->fault != NULL)
        return NULL;
    aoti_torch_get_data_ptr(made, &data);
    if (is_zero && data != NULL)
        memset(data, 0, (size_t)cg_count(rank, length) * aoti_torch_dtype_element_size(dtype));
    return data == NULL ? run : data; /* torch has no address of nothing, by which a kernel knows what is not formed */
}

/* Take the arrays of checkpoints that a forward pass made. */
static void place_checkpoints(Run *run, const Tensor *given, int count)
{
    cg_call *call = &run->call;
    const int64_t wanted = cg_skips(call) ? run->cell->most : run->cell->always;
    const int32_t own_dtype = dtype_of_kind(run, CELLGEN_STORED_REAL);
    if (count != wanted)
        fail(run, "cellgen: another number of kept tensors, expected the checkpoints of save=True");
    for (int k = 0; k < wanted && run->fault == NULL; ++k) {
        int64_t sizes[CG_AXES + 1], rank = 0, *found = NULL;
        const int64_t axes = cg_checkpoint_shape(run->cell->cell, run->cell->held[k], call->say.checkpoint, call->size, sizes);
        int32_t dtype = -1;
        _Bool dense = 1;
        Tensor at = given[k];
        aoti_torch_get_dim(at, &rank), aoti_torch_get_sizes(at, &found);
        aoti_torch_get_dtype(at, &dtype), aoti_torch_is_contiguous(at, &dense);
        if (rank != axes || dtype != own_dtype || memcmp(found, sizes, (size_t)axes * sizeof *sizes)) {
            fail(run, "cellgen: checkpoints have other shapes");
            return;
        }
        at = dense ? at : copied(run, at, axes, sizes, dtype);
        if (at == NULL)
            return;
        aoti_torch_get_data_ptr(at, &call->checkpoint_at[k]);
    }
}

/* Name the first row whose length is none, in text that this thread keeps until its next fault. */
static void fail_length(Run *run)
{
    static _Thread_local char text[256];
    const cg_call *call = &run->call;
    const int64_t steps = call->size[run->cell->steps];
    const int64_t row = cg_wrong_length(call->lengths, call->size[run->cell->rows], steps);
    snprintf(text, sizeof text,
             "%.100s.%s: lengths[%lld] is %lld, expected 0 to T = %lld; shorten it or pass longer tensors",
             run->cell->cell->name, run->function->signature->name, (long long)row,
             (long long)call->lengths[row], (long long)steps);
    fail(run, text);
}

/* Run a call that is prepared. */
static void run_kernel(Run *run)
{
    cg_call *call = &run->call;
    const int64_t bytes = bytes_of(run);
    void *space = bytes < 0 ? NULL : workspace(bytes);
    if (space == NULL) {
        fail(run, "cellgen: no memory for the workspace");
        return;
    }
    cg_lend(call, space, bytes);
    const int code = call->entry->call(call->dims, call->word);
    if (code == CELLGEN_LENGTH_OUT_OF_RANGE)
        fail_length(run);
    else if (code)
        fail(run, "cellgen: the kernel refused the call");
}

/* Make a call whose tensors are bound. */
static void compute(Run *run)
{
    uint32_t threads = 1;
    if (run->fault != NULL)
        return;
    torch_get_num_threads(&threads);
    threads = threads < processors ? threads : processors;
    const int refusal = cg_prepare(&run->call, threads > 1 ? run->cell->cell->team((int)threads) : NULL);
    if (refusal)
        fail(run, refusal == CG_MISSING ? "cellgen: a tensor is missing" : "cellgen: no memory for a call");
    else
        run_kernel(run);
    cg_end(&run->call, run->fault == NULL);
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
    if (cg_wrong_numbers(&run->call.say) != NULL)
        fail(run, cg_wrong_numbers(&run->call.say));
}

/* The numbers among the arguments that both operators end with. */
static void take_numbers(Run *run, const Value *rest)
{
    const Value *next = rest + 2;
#define TAKE(name, usual) run->call.say.name = (int64_t)*next++;
    CELLGEN_EACH_NUMBER(TAKE)
    check_numbers(run);
}

static void none(Tensor *tensors, int count)
{
    for (int k = 0; k < count; ++k)
        tensors[k] = NULL;
}

/* A call of no cell yet; NULL: no memory. */
static Run *start(void)
{
    Run *run = take_run();
    if (run == NULL)
        return NULL;
    run->cell = NULL, run->function = NULL, run->fault = NULL, run->kept_at = NULL;
    run->owns = run->checkpoints = run->is_layer = run->is_step = run->is_in_one = 0;
    run->wanted = -1;
    return run;
}

/* Say what is called. */
static void start_on(Run *run, const Cell *cell, int is_backward)
{
    run->cell = cell, run->function = is_backward ? &cell->backward : &cell->forward;
    cg_begin(&run->call, cell->cell, run->function->signature);
    run->call.starts = 1, run->call.say.products = -1;
    run->call.allocate = allocate, run->call.door = run;
    none(run->result, run->function->results);
}

/* Begin the call of an operator; `rest`: the arguments that both end with. */
static Run *begin(const Value *stack, const Value *rest, int is_backward)
{
    Run *run = start();
    if (run == NULL)
        _ZSt21__throw_runtime_errorPKc("cellgen: no memory for a call");
    const Cell *cell = take_cell(run, stack[0]);
    if (cell != NULL)
        start_on(run, cell, is_backward);
    take_numbers(run, rest);
    return run;
}

static void forward(Value *stack, uint64_t arguments, uint64_t results)
{
    (void)arguments, (void)results;
    Run *run = begin(stack, stack + 4, 0);
    const int count = take_tensors(run, stack[1], run->theta);
    take_scalars(run, stack[2]);
    bind(run, count, (_Bool)stack[3]);
    take_tables(run, stack[4], (int64_t)stack[5]);
    compute(run);
    finish(run, stack);
}

/* Put upstream gradients in their places: `present` are bits of those whose outputs the call shows. */
static void place_upstream(Run *run, const Tensor *given, int count, int64_t present)
{
    int next = 0, shown = 0;
    for (int k = 0; k < run->cell->upstream; ++k) {
        run->upstream[k] = NULL;
        if (!(cg_has_bit(run->call.say.outputs, run->cell->output_of[k])))
            continue;
        if (cg_has_bit(present, shown++) && next < count)
            run->upstream[k] = given[next++];
    }
}

/* Look whether a forward pass kept so many tensors, where these are no checkpoints. */
static void check_kept(Run *run, int count)
{
    if (!run->call.say.checkpoint && count != run->cell->outputs + run->cell->saved)
        fail(run, "cellgen: another number of kept tensors, expected those of save=True");
}

static void backward(Value *stack, uint64_t arguments, uint64_t results)
{
    (void)arguments, (void)results;
    Run *run = begin(stack, stack + 7, 1);
    Tensor given[MOST];
    const int count = take_tensors(run, stack[1], run->theta);
    take_scalars(run, stack[2]);
    const int kept = take_tensors(run, stack[3], run->kept), upstream = take_tensors(run, stack[4], given);
    run->wanted = (int64_t)stack[6];
    if (run->cell != NULL)
        check_kept(run, kept), place_upstream(run, given, upstream, (int64_t)stack[5]);
    bind(run, count, 1);
    take_tables(run, stack[7], (int64_t)stack[8]);
    if (run->fault == NULL && run->call.say.checkpoint)
        place_checkpoints(run, run->kept, kept);
    compute(run);
    finish(run, stack);
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
