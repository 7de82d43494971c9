/* A call of a cell by Python without torch's dispatcher, where nothing would come of it: no gradients, no
 * modes, plain tensors of the CPU. Part of shim.c.
 *
 * A builtin function of Python, against its stable interface: no header of it. Tensors become handles of
 * libtorch by a function of torch's own, and results tensors by another. What this cannot compute it
 * declines by None; then the operator computes it, or says what is wrong. */

typedef void *Object;

typedef struct {
    const char *name;
    Object (*call)(Object, Object const *, intptr_t);
    int flags;
    const char *text;
} Method;

#define WEAK __attribute__((weak)) /* where Python is not part of the process, nothing else is lost */
Object PyCFunction_NewEx(Method *, Object, Object) WEAK;
Object PyObject_CallFunctionObjArgs(Object, ...) WEAK;
Object PyObject_GetAttr(Object, Object) WEAK;
Object PyObject_Type(Object) WEAK;
Object PyList_New(intptr_t) WEAK;
Object PyList_GetItem(Object, intptr_t) WEAK;
int PyList_SetItem(Object, intptr_t, Object) WEAK;
intptr_t PyList_Size(Object) WEAK;
Object PyTuple_GetItem(Object, intptr_t) WEAK;
intptr_t PyTuple_Size(Object) WEAK;
Object PyCapsule_New(void *, const char *, void (*)(Object)) WEAK;
void *PyCapsule_GetPointer(Object, const char *) WEAK;
void *PyLong_AsVoidPtr(Object) WEAK;
long PyLong_AsLong(Object) WEAK;
double PyFloat_AsDouble(Object) WEAK;
Object PyErr_Occurred(void) WEAK;
void PyErr_Clear(void) WEAK;
void *PyEval_SaveThread(void) WEAK;
void PyEval_RestoreThread(void *) WEAK;
void Py_IncRef(Object) WEAK;
void Py_DecRef(Object) WEAK;

enum { FAST_CALL = 0x0080 }; /* METH_FASTCALL */
enum { SAVES = 1, OF_LAYER = 2, DETACHED = 4, OF_STEP = 8 };

/* What a call asks of Python, given once: torch's functions, types, a name, and its constants. */
static struct {
    Object handles, tensors, is_negative, requires_grad, tensor, parameter, none, no;
} python;

static Object declined(void)
{
    if (PyErr_Occurred() != NULL)
        PyErr_Clear();
    Py_IncRef(python.none);
    return python.none;
}

/* Whether an object is a tensor of torch's own kinds whose memory holds its numbers. */
static int is_plain(Object given, int may_learn)
{
    Object type = PyObject_Type(given);
    Py_DecRef(type); /* its objects keep it */
    if (type != python.tensor && type != python.parameter)
        return 0;
    Object found = PyObject_CallFunctionObjArgs(python.is_negative, given, NULL);
    int is_so = found == python.no;
    if (found != NULL)
        Py_DecRef(found);
    if (is_so && !may_learn) {
        found = PyObject_GetAttr(given, python.requires_grad);
        is_so = found == python.no;
        if (found != NULL)
            Py_DecRef(found);
    }
    return is_so;
}

/* Whether a tensor has sizes, strides and memory: of those that are sparse, nested or wrapped, others say. */
static int is_dense_kind(Tensor tensor)
{
    int32_t layout = -1;
    return !aoti_torch_get_layout(tensor, &layout) && layout == aoti_torch_layout_strided() && is_in_memory(tensor);
}

/* Turn the tensors of a list into handles, which the call owns, NULL for None; their number, below 0: declined. */
static int take_handles(Run *run, Object list, Tensor *into, int may_learn)
{
    const intptr_t count = PyList_Size(list);
    int there = 0, next = 0;
    if (count < 0 || count > 2 * MOST)
        return -1;
    for (intptr_t k = 0; k < count; ++k) {
        Object given = PyList_GetItem(list, k);
        if (given != python.none && !is_plain(given, may_learn))
            return -1;
        into[k] = given == python.none ? NULL : given;
        there += given != python.none;
    }
    Object named = list;
    if (there < count) {
        named = PyList_New(there);
        for (intptr_t k = 0; k < count && named != NULL; ++k)
            if (into[k] != NULL)
                Py_IncRef(into[k]), PyList_SetItem(named, next++, into[k]);
    }
    Object handles = named == NULL ? NULL : PyObject_CallFunctionObjArgs(python.handles, named, NULL);
    if (named != NULL && named != list)
        Py_DecRef(named);
    if (handles == NULL)
        return -1;
    next = 0;
    for (intptr_t k = 0; k < count; ++k)
        if (into[k] != NULL) {
            own(run, into[k] = PyCapsule_GetPointer(PyList_GetItem(handles, next++), NULL));
            if (!is_dense_kind(into[k]))
                fail(run, "cellgen: a tensor is sparse, nested or without memory");
        }
    Py_DecRef(handles);
    return (int)count;
}

/* Take the tensors of a call, NULL for a state that is left out; their number, below 0: declined. */
static int take_given(Run *run, Object theta, int may_learn)
{
    if (PyList_Size(theta) != run->cell->theta)
        return -1;
    const int count = take_handles(run, theta, run->theta, may_learn);
    for (int k = 0; k < count; ++k) {
        const cellgen_value *value = run->cell->shape[k];
        if (run->theta[k] == NULL && (value == NULL || value->role != CELLGEN_ROLE_STATE))
            fail(run, "cellgen: a tensor is missing");
    }
    return count;
}

static void take_numbers_of_cell(Run *run, Object scalars)
{
    const intptr_t count = PyTuple_Size(scalars);
    if (count != run->cell->scalars)
        fail(run, "cellgen: another number of scalars");
    for (intptr_t k = 0; k < count && k < MOST; ++k)
        run->scalar[k] = PyFloat_AsDouble(PyTuple_GetItem(scalars, k));
}

/* The options of a call, all that are numbers in order, or none: then they are the usual ones. */
static void take_options(Run *run, Object numbers)
{
    const intptr_t count = PyTuple_Size(numbers);
    intptr_t next = 0;
    if (count == 0)
        return;
#define READ(name, usual) run->say.name = next < count ? PyLong_AsLong(PyTuple_GetItem(numbers, next)) : (usual), ++next;
    CELLGEN_EACH_NUMBER(READ)
    if (next != count || PyErr_Occurred() != NULL)
        fail(run, "cellgen: another number of options");
    check_numbers(run);
}

/* Tensors of Python from the results of a call, which it gives up. */
static Object take_results(Run *run)
{
    int count = run->checkpoints, next = 0;
    for (int k = 0; k < run->function->results; ++k)
        count += run->result[k] != NULL;
    Object list = PyList_New(count);
    for (int k = 0; k < run->function->results && list != NULL; ++k)
        if (run->result[k] != NULL)
            PyList_SetItem(list, next++, PyCapsule_New(run->result[k], NULL, NULL));
    for (int k = 0; k < run->checkpoints && list != NULL; ++k)
        PyList_SetItem(list, next++, PyCapsule_New(run->checkpoint[k], NULL, NULL));
    Object found = list == NULL ? NULL : PyObject_CallFunctionObjArgs(python.tensors, list, NULL);
    if (list != NULL)
        Py_DecRef(list);
    return found;
}

/* Where everything lies that a step keeps, in one tensor, 16 numbers aligned; how many numbers it has. */
static int64_t place_kept(Run *run)
{
    int64_t numbers = 0;
    for (int m = 0; m < run->cell->forward.members; ++m) {
        const Member *member = &run->cell->forward.member[m];
        const cellgen_value *value = member->value;
        int64_t count = 1;
        if (member->source != RESULT)
            continue;
        run->kept_offset[member->number] = value->role == CELLGEN_ROLE_FINAL ? -1 : numbers * (run->is_double ? 8 : 4);
        for (int64_t k = 0; k < value->axes; ++k)
            count *= length(value->axis[k], run->dims);
        numbers += value->role == CELLGEN_ROLE_FINAL ? 0 : (count + 15) / 16 * 16;
    }
    return numbers;
}

/* Make the tensor of all that a step keeps. */
static void make_kept(Run *run)
{
    const int64_t numbers = place_kept(run);
    void *found = NULL;
    Tensor made = make(run, 1, &numbers, run->dtype);
    if (made == NULL)
        return;
    run->checkpoint[run->checkpoints++] = made;
    aoti_torch_get_data_ptr(made, &found);
    run->kept_at = found;
}

static void *const no_tables[TABLES];

static void run_directly(Run *run, int flags, int count)
{
    if (run->fault == NULL)
        look_at_theta(run, count);
    if (run->fault == NULL && run->is_layer && (run->dims[0] == 0 || run->dims[1] == 0))
        fail(run, "cellgen: torch's layers refuse sequences without steps or rows");
    if (run->fault == NULL && run->is_step && run->narrow)
        fail(run, "cellgen: a step is of float32 or float64");
    if (run->fault == NULL && run->is_step && (flags & SAVES))
        make_kept(run);
    if (run->fault == NULL)
        compute(run, 0, no_tables, flags & SAVES);
}

/* Take the one tensor of all that a step kept. */
static void take_kept(Run *run, Tensor kept)
{
    int64_t rank = 0, *sizes = NULL;
    int32_t dtype = -1, device = -1;
    _Bool dense = 0;
    void *found = NULL;
    aoti_torch_get_dim(kept, &rank), aoti_torch_get_sizes(kept, &sizes), aoti_torch_get_dtype(kept, &dtype);
    aoti_torch_is_contiguous(kept, &dense), aoti_torch_get_device_type(kept, &device);
    if (run->narrow || rank != 1 || dtype != run->dtype || sizes[0] != place_kept(run) || !dense ||
        device != aoti_torch_device_type_cpu()) {
        fail(run, "cellgen: what is kept is of another call, or lies elsewhere");
        return;
    }
    aoti_torch_get_data_ptr(kept, &found);
    run->kept_at = found;
    for (int m = 0; m < run->function->members; ++m)
        if (run->function->member[m].source == KEPT && run->kept_offset[run->function->member[m].number] < 0)
            fail(run, "cellgen: a backward pass reads final states");
}

/* The backward pass of `tensors`: theta, what is kept of the forward pass, and upstream gradients. */
static void run_back(Run *run, Tensor *tensors, int kept, int upstream)
{
    const int theta = run->cell->theta;
    Tensor given[MOST];
    int64_t present = 0;
    int count = 0;
    look_at_theta(run, theta);
    if (run->fault != NULL)
        return;
    if (run->is_step) {
        take_kept(run, tensors[theta]);
    } else {
        memcpy(run->kept, tensors + theta, (size_t)kept * sizeof *tensors);
        place_kept_tensors(run, kept);
    }
    for (int k = 0; k < upstream; ++k)
        if (tensors[theta + kept + k] != NULL)
            present |= (int64_t)1 << k, given[count++] = tensors[theta + kept + k];
    place_upstream(run, given, count, present);
    if (run->fault == NULL)
        compute(run, 0, no_tables, 1);
}

/* A call that begins, of a cell by its number; NULL: no memory. */
static Run *begin_directly(Object number, int is_backward, int flags)
{
    Run *run = malloc(sizeof *run);
    if (run == NULL)
        return NULL;
    start(run);
    run->cell = PyLong_AsVoidPtr(number);
    run->function = is_backward ? &run->cell->backward : &run->cell->forward;
    run->is_layer = (flags & OF_LAYER) != 0;
    run->is_step = (flags & OF_STEP) != 0;
    return run;
}

/* Give up what the call owns, and its results if it has a fault. */
static void end_directly(Run *run)
{
    for (int k = 0; k < run->owns; ++k)
        aoti_torch_delete_tensor_object(run->owned[k]);
    for (int k = 0; k < run->function->results && run->fault != NULL; ++k)
        if (run->result[k] != NULL)
            aoti_torch_delete_tensor_object(run->result[k]);
    for (int k = 0; k < run->checkpoints && run->fault != NULL; ++k)
        aoti_torch_delete_tensor_object(run->checkpoint[k]);
}

/* direct(cell, flags, theta, scalars, options): a list of tensors, or None. `flags`: whether the call saves, is of a
 * layer, whose states are (1, B, ...), takes tensors that require gradients, too, and is of one step, whose input is
 * (B, ...): it gives final states, and where it saves one tensor of all that is kept. `options` are numbers, () the
 * usual ones. */
static Object direct(Object self, Object const *given, intptr_t arguments)
{
    (void)self;
    Object found = NULL;
    if (arguments != 5)
        return declined();
    const int flags = (int)PyLong_AsLong(given[1]);
    Run *run = begin_directly(given[0], 0, flags);
    if (run == NULL)
        return declined();
    none(run->result, run->function->results);
    const int count = take_given(run, given[2], (flags & DETACHED) != 0);
    if (count >= 0) {
        take_numbers_of_cell(run, given[3]);
        take_options(run, given[4]);
        void *thread = PyEval_SaveThread();
        run_directly(run, flags, count);
        end_directly(run);
        PyEval_RestoreThread(thread);
        found = run->fault == NULL ? take_results(run) : NULL;
    }
    free(run);
    return found == NULL ? declined() : found;
}

/* The tensors of a backward pass among Python's: whether those that must be there are. */
static int are_there(const Run *run, Tensor *tensors, int kept)
{
    for (int k = 0; k < run->cell->theta + kept; ++k)
        if (tensors[k] == NULL && !(k < run->cell->theta && run->is_layer && run->cell->shape[k] != NULL &&
                                    run->cell->shape[k]->role == CELLGEN_ROLE_STATE))
            return 0;
    return 1;
}

/* back(cell, flags, tensors, scalars, wanted, upstream, options): gradients, or None. `tensors`: theta, what is kept,
 * and so many `upstream` gradients of the outputs in order, None for those that are not there. */
static Object back(Object self, Object const *given, intptr_t arguments)
{
    (void)self;
    Object found = NULL;
    if (arguments != 7)
        return declined();
    Run *run = begin_directly(given[0], 1, (int)PyLong_AsLong(given[1]));
    if (run == NULL)
        return declined();
    const int upstream = (int)PyLong_AsLong(given[5]);
    const intptr_t kept = PyList_Size(given[2]) - run->cell->theta - upstream;
    Tensor tensors[2 * MOST];
    none(run->result, run->function->results);
    if (upstream >= 0 && upstream < 64 && kept >= run->is_step && kept < MOST && (kept == 1 || !run->is_step) &&
        take_handles(run, given[2], tensors, 1) >= 0 && are_there(run, tensors, (int)kept)) {
        memcpy(run->theta, tensors, (size_t)run->cell->theta * sizeof *tensors);
        take_numbers_of_cell(run, given[3]);
        take_options(run, given[6]);
        run->wanted = (int64_t)PyLong_AsLong(given[4]);
        void *thread = PyEval_SaveThread();
        if (run->fault == NULL)
            run_back(run, tensors, (int)kept, upstream);
        PyEval_RestoreThread(thread);
    } else {
        fail(run, "cellgen: another number of tensors, or one is missing");
    }
    end_directly(run);
    found = run->fault == NULL ? take_results(run) : NULL;
    free(run);
    return found == NULL ? declined() : found;
}

/* Give Python both functions; NULL where this process has no Python. `given`: what `python` holds, in order. */
Object cellgen_torch_direct(Object given)
{
    static Method methods[] = {{"cellgen_direct", direct, FAST_CALL, NULL}, {"cellgen_back", back, FAST_CALL, NULL}};
    Object *const places[] = {&python.handles, &python.tensors, &python.is_negative, &python.requires_grad,
                              &python.tensor, &python.parameter, &python.none, &python.no};
    for (int k = 0; k < (int)(sizeof places / sizeof *places); ++k) {
        *places[k] = PyTuple_GetItem(given, k);
        Py_IncRef(*places[k]);
    }
    Object pair = PyList_New(2);
    for (int k = 0; k < 2 && pair != NULL; ++k)
        PyList_SetItem(pair, k, PyCFunction_NewEx(&methods[k], NULL, NULL));
    return pair;
}

/* A cell by its text; NULL where there is no such. */
const Cell *cellgen_torch_cell(const char *text)
{
    const Cell *found = look_up(text);
    return found == NULL && find_cell != NULL && find_cell(text) == 0 ? look_up(text) : found;
}
