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
enum { SAVES = 1, REVERSE = 2, OF_LAYER = 4, DETACHED = 8 };

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

/* Take the tensors of a call, NULL for a state that is left out; their number, below 0: declined. */
static int take_given(Run *run, Object theta, int may_learn)
{
    const intptr_t count = PyList_Size(theta);
    int there = 0;
    if (count != run->cell->theta)
        return -1;
    for (intptr_t k = 0; k < count; ++k) {
        Object given = PyList_GetItem(theta, k);
        const cellgen_value *value = run->cell->shape[k];
        if (given == python.none ? value == NULL || value->role != CELLGEN_ROLE_STATE : !is_plain(given, may_learn))
            return -1;
        run->theta[k] = given == python.none ? NULL : given;
        there += given != python.none;
    }
    Object named = theta;
    if (there < count) {
        int next = 0;
        named = PyList_New(there);
        for (intptr_t k = 0; k < count && named != NULL; ++k)
            if (run->theta[k] != NULL)
                Py_IncRef(run->theta[k]), PyList_SetItem(named, next++, run->theta[k]);
    }
    Object handles = named == NULL ? NULL : PyObject_CallFunctionObjArgs(python.handles, named, NULL);
    if (named != NULL && named != theta)
        Py_DecRef(named);
    if (handles == NULL)
        return -1;
    int next = 0;
    for (intptr_t k = 0; k < count; ++k)
        if (run->theta[k] != NULL) {
            own(run, run->theta[k] = PyCapsule_GetPointer(PyList_GetItem(handles, next++), NULL));
            if (!is_dense_kind(run->theta[k]))
                fail(run, "cellgen: a tensor is sparse, nested or without memory");
        }
    Py_DecRef(handles);
    return (int)count;
}

static void take_numbers_of_cell(Run *run, Object scalars)
{
    const intptr_t count = PyTuple_Size(scalars);
    if (count != run->cell->scalars)
        fail(run, "cellgen: another number of scalars");
    for (intptr_t k = 0; k < count && k < MOST; ++k)
        run->scalar[k] = PyFloat_AsDouble(PyTuple_GetItem(scalars, k));
}

/* Tensors of Python from the results of a call, which it gives up. */
static Object take_results(Run *run)
{
    int count = 0, next = 0;
    for (int k = 0; k < run->function->results; ++k)
        count += run->result[k] != NULL;
    Object list = PyList_New(count);
    for (int k = 0; k < run->function->results && list != NULL; ++k)
        if (run->result[k] != NULL)
            PyList_SetItem(list, next++, PyCapsule_New(run->result[k], NULL, NULL));
    Object found = list == NULL ? NULL : PyObject_CallFunctionObjArgs(python.tensors, list, NULL);
    if (list != NULL)
        Py_DecRef(list);
    return found;
}

static void run_directly(Run *run, int flags, int count)
{
    cellgen_options options = {.reverse = (flags & REVERSE) != 0, .hold = 1, .every = 1};
    none(run->result, run->function->results);
    if (run->fault == NULL)
        look_at_theta(run, count);
    if (run->fault == NULL && run->is_layer && (run->dims[0] == 0 || run->dims[1] == 0))
        fail(run, "cellgen: torch's layers refuse sequences without steps or rows");
    options.products = run->in_bf16;
    if (run->fault == NULL)
        fill(run, flags & SAVES);
    if (run->fault == NULL)
        call(run, &options, !options.reverse && !options.products);
}

/* direct(cell, flags, theta, scalars): a list of tensors, or None. `flags`: whether the call saves, runs in
 * reverse, is of a layer, whose states are (1, B, ...), and takes tensors that require gradients, too. */
static Object direct(Object self, Object const *given, intptr_t arguments)
{
    (void)self;
    Object found = NULL;
    if (arguments != 4)
        return declined();
    const int flags = (int)PyLong_AsLong(given[1]);
    Run *run = malloc(sizeof *run);
    if (run == NULL)
        return declined();
    start(run);
    run->cell = PyLong_AsVoidPtr(given[0]), run->function = &run->cell->forward;
    run->is_layer = (flags & OF_LAYER) != 0;
    const int count = take_given(run, given[2], (flags & DETACHED) != 0);
    if (count >= 0) {
        take_numbers_of_cell(run, given[3]);
        void *thread = PyEval_SaveThread();
        run_directly(run, flags, count);
        for (int k = 0; k < run->owns; ++k)
            aoti_torch_delete_tensor_object(run->owned[k]);
        for (int k = 0; k < run->function->results && run->fault != NULL; ++k)
            if (run->result[k] != NULL)
                aoti_torch_delete_tensor_object(run->result[k]);
        PyEval_RestoreThread(thread);
        found = run->fault == NULL ? take_results(run) : NULL;
    }
    free(run);
    return found == NULL ? declined() : found;
}

/* Give Python the function; NULL where this process has no Python. `given`: what `python` holds, in order. */
Object cellgen_torch_direct(Object given)
{
    static Method method = {"cellgen_direct", direct, FAST_CALL, NULL};
    Object *const places[] = {&python.handles, &python.tensors, &python.is_negative, &python.requires_grad,
                              &python.tensor, &python.parameter, &python.none, &python.no};
    for (int k = 0; k < (int)(sizeof places / sizeof *places); ++k) {
        *places[k] = PyTuple_GetItem(given, k);
        Py_IncRef(*places[k]);
    }
    return PyCFunction_NewEx(&method, NULL, NULL);
}

/* A cell by its text; NULL where there is no such. */
const Cell *cellgen_torch_cell(const char *text)
{
    const Cell *found = look_up(text);
    return found == NULL && find_cell != NULL && find_cell(text) == 0 ? look_up(text) : found;
}
