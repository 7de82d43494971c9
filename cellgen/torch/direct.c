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
Object PyTuple_New(intptr_t) WEAK;
int PyTuple_SetItem(Object, intptr_t, Object) WEAK;
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
enum { SAVES = 1, OF_LAYER = 2, DETACHED = 4, OF_STEP = 8, IN_ONE = 16 };
_Bool is_negative_view(Tensor) __asm__("_ZN2at6native6is_negERKNS_6TensorE") WEAK; /* at::native::is_neg */

/* What a call asks of Python, given once: torch's functions, types, a name, and its constants. Where it is known, a
 * tensor's object has torch's own behind `offset` bytes, which is what a handle is, and `wrap` makes an object of one. */
static struct {
    Object handles, tensors, is_negative, requires_grad, tensor, parameter, none, no;
    intptr_t offset;
    Object (*wrap)(Tensor);
} python;

/* The handle within an object of torch's own kinds, which keeps it. */
static Tensor within(Object given) { return (char *)given + python.offset; }

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
    Object found = NULL;
    int is_so = 0;
    if (python.offset && is_negative_view != NULL) {
        is_so = !is_negative_view(within(given));
    } else {
        found = PyObject_CallFunctionObjArgs(python.is_negative, given, NULL);
        is_so = found == python.no;
        if (found != NULL)
            Py_DecRef(found);
    }
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

/* Have torch make handles of the `there` objects among `count` in `into`, and the call own them; not 0: declined. */
static int make_handles(Run *run, Tensor *into, intptr_t count, int there)
{
    int next = 0;
    Object named = PyList_New(there);
    for (intptr_t k = 0; k < count && named != NULL; ++k)
        if (into[k] != NULL)
            Py_IncRef(into[k]), PyList_SetItem(named, next++, into[k]);
    Object handles = named == NULL ? NULL : PyObject_CallFunctionObjArgs(python.handles, named, NULL);
    if (named != NULL)
        Py_DecRef(named);
    if (handles == NULL)
        return -1;
    next = 0;
    for (intptr_t k = 0; k < count; ++k)
        if (into[k] != NULL)
            own(run, into[k] = PyCapsule_GetPointer(PyList_GetItem(handles, next++), NULL));
    Py_DecRef(handles);
    return 0;
}

/* Turn tensors, which the caller keeps, into handles, NULL for None; their number, below 0: declined. */
static int take_handles(Run *run, Object const *items, intptr_t count, Tensor *into, int may_learn)
{
    int there = 0;
    if (count < 0 || count > 2 * MOST)
        return -1;
    for (intptr_t k = 0; k < count; ++k) {
        Object given = items[k];
        if (given != python.none && !is_plain(given, may_learn))
            return -1;
        into[k] = given == python.none ? NULL : python.offset ? within(given) : given;
        there += given != python.none;
    }
    if (!python.offset && make_handles(run, into, count, there))
        return -1;
    for (intptr_t k = 0; k < count; ++k)
        if (into[k] != NULL && !is_dense_kind(into[k]))
            fail(run, "cellgen: a tensor is sparse, nested or without memory");
    return (int)count;
}

/* The items of a list, at most 2 * MOST; how many, below 0: others. */
static intptr_t take_items(Object list, Object *into)
{
    const intptr_t count = PyList_Size(list);
    for (intptr_t k = 0; k < count && count <= 2 * MOST; ++k)
        into[k] = PyList_GetItem(list, k);
    return count > 2 * MOST ? -1 : count;
}

/* Take the tensors of a call, NULL for a state that is left out; their number, below 0: declined. */
static int take_given(Run *run, Object const *theta, intptr_t given, int may_learn)
{
    if (given != run->cell->theta)
        return -1;
    const int count = take_handles(run, theta, given, run->theta, may_learn);
    for (int k = 0; k < count; ++k) {
        const cellgen_value *value = run->cell->of_theta[k].value;
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
#define READ(name, usual) run->call.say.name = next < count ? PyLong_AsLong(PyTuple_GetItem(numbers, next)) : (usual), ++next;
    CELLGEN_EACH_NUMBER(READ)
    if (next != count || PyErr_Occurred() != NULL)
        fail(run, "cellgen: another number of options");
    check_numbers(run);
}

/* An object for a result, which the call gives up: the tensor of Python, or what torch makes one of. */
static Object give(Tensor result)
{
    if (python.wrap == NULL)
        return PyCapsule_New(result, NULL, NULL);
    Object given = python.wrap(result);
    aoti_torch_delete_tensor_object(result);
    return given;
}

/* Tensors of Python from the results of a call, which it gives up; NULL where memory for one of them is lacking. */
static Object take_results(Run *run)
{
    int count = run->checkpoints, next = 0;
    for (int k = 0; k < run->function->results; ++k)
        count += run->result[k] != NULL;
    Object list = PyList_New(count);
    for (int k = 0; k < run->function->results && list != NULL; ++k)
        if (run->result[k] != NULL)
            PyList_SetItem(list, next++, give(run->result[k]));
    for (int k = 0; k < run->checkpoints && list != NULL; ++k)
        PyList_SetItem(list, next++, give(run->checkpoint[k]));
    if (list != NULL && PyErr_Occurred() != NULL) {
        Py_DecRef(list);
        return NULL;
    }
    if (python.wrap != NULL || list == NULL)
        return list;
    Object found = PyObject_CallFunctionObjArgs(python.tensors, list, NULL);
    Py_DecRef(list);
    return found;
}

/* The type of the one tensor that a call keeps: of 16 bits it holds several, so that it is bytes, which no hook of saved
 * tensors takes for numbers that it may round. */
static int32_t dtype_of_kept(const Run *run) { return run->call.narrow ? aoti_torch_dtype_uint8() : run->dtype; }

/* Where everything lies that a call keeps in one tensor, each at a multiple of 64 bytes; how many numbers the tensor has.
 * A step keeps its outputs there, other calls what is no result. */
static int64_t place_kept(Run *run)
{
    int64_t bytes = 0;
    for (int64_t m = 0; m < run->cell->forward.signature->members; ++m) {
        const Member *member = &run->cell->forward.member[m];
        const int is_result = member->value->role == CELLGEN_ROLE_FINAL || !(run->is_step || member->number >= run->cell->outputs);
        if (member->source != RESULT || is_result)
            continue;
        int64_t lengths[CG_AXES + 1];
        int64_t size = (int64_t)aoti_torch_dtype_element_size(dtype_of_kind(run, kind_of(run, member->value)));
        const int64_t rank = cg_shape_of(run->cell->cell, member->value, whole, run->call.size, lengths);
        run->kept_offset[member->number] = bytes;
        for (int64_t k = 0; k < rank; ++k)
            size *= lengths[k];
        bytes += (size + 63) / 64 * 64;
    }
    return bytes / (int64_t)aoti_torch_dtype_element_size(dtype_of_kept(run));
}

/* Make the tensor of all that a call keeps beside results. */
static void make_kept(Run *run)
{
    const int64_t numbers = place_kept(run);
    void *found = NULL;
    Tensor made = make(run, 1, &numbers, dtype_of_kept(run));
    if (made == NULL)
        return;
    run->checkpoint[run->checkpoints++] = made;
    aoti_torch_get_data_ptr(made, &found);
    run->kept_at = found == NULL ? (char *)run : found; /* a kernel takes no address for what is not kept */
}

static void run_directly(Run *run, int flags, int count)
{
    const cg_call *call = &run->call;
    bind(run, count, flags & SAVES);
    if (run->fault != NULL)
        return;
    if (run->is_layer && (call->size[run->cell->steps] == 0 || call->size[run->cell->rows] == 0))
        fail(run, "cellgen: torch's layers refuse sequences without steps or rows");
    if (run->is_step && call->narrow)
        fail(run, "cellgen: a step is of float32 or float64");
    if (call->say.checkpoint && run->is_in_one)
        fail(run, "cellgen: checkpoints are tensors of their own");
    if (run->fault == NULL && run->is_in_one && (flags & SAVES))
        make_kept(run);
    compute(run);
}

/* Take the one tensor of all that a call kept beside results. */
static void take_kept(Run *run, Tensor kept)
{
    int64_t rank = 0, *sizes = NULL;
    int32_t dtype = -1, device = -1;
    _Bool dense = 0;
    void *found = NULL;
    aoti_torch_get_dim(kept, &rank), aoti_torch_get_sizes(kept, &sizes), aoti_torch_get_dtype(kept, &dtype);
    aoti_torch_is_contiguous(kept, &dense), aoti_torch_get_device_type(kept, &device);
    if (run->call.say.checkpoint || rank != 1 || dtype != dtype_of_kept(run) || sizes[0] != place_kept(run) || !dense ||
        device != aoti_torch_device_type_cpu()) {
        fail(run, "cellgen: what is kept is of another call, or lies elsewhere");
        return;
    }
    aoti_torch_get_data_ptr(kept, &found);
    run->kept_at = found == NULL ? (char *)run : found;
    for (int64_t m = 0; m < run->function->signature->arguments; ++m) {
        const Member *member = &run->function->member[m];
        if (!is_kept_in_one(run, member))
            continue;
        run->call.word[m] = (uintptr_t)(run->kept_at + run->kept_offset[member->number]);
        run->call.stored[m] = (unsigned char)kind_of(run, member->value);
    }
}

/* The backward pass of `tensors`: theta, what is kept of the forward pass, and upstream gradients. */
static void run_back(Run *run, Tensor *tensors, int kept, int upstream)
{
    const int theta = run->cell->theta;
    Tensor given[MOST];
    int64_t present = 0;
    int count = 0;
    memcpy(run->kept, tensors + theta, (size_t)kept * sizeof *tensors);
    for (int k = 0; k < upstream; ++k)
        if (tensors[theta + kept + k] != NULL)
            present |= (int64_t)1 << k, given[count++] = tensors[theta + kept + k];
    place_upstream(run, given, count, present);
    if (!run->is_in_one)
        check_kept(run, kept);
    bind(run, theta, 1);
    if (run->fault == NULL && run->is_in_one)
        take_kept(run, run->kept[kept - 1]);
    else if (run->fault == NULL && run->call.say.checkpoint)
        place_checkpoints(run, run->kept, kept);
    compute(run);
}

/* A call that begins; NULL: no memory. */
static Run *begin_call(const Cell *cell, int is_backward, int flags)
{
    Run *run = start();
    if (run == NULL)
        return NULL;
    start_on(run, cell, is_backward);
    run->is_layer = (flags & OF_LAYER) != 0;
    run->is_step = (flags & OF_STEP) != 0;
    run->is_in_one = run->is_step || (flags & IN_ONE);
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
 * (B, ...): it gives final states, and where it saves one tensor of all that is kept; or gives its results, and one
 * tensor of all that is kept beside them. `options` are numbers, () the usual ones. */
static Object direct(Object self, Object const *given, intptr_t arguments)
{
    (void)self;
    Object found = NULL;
    if (arguments != 5)
        return declined();
    const int flags = (int)PyLong_AsLong(given[1]);
    Run *run = begin_call(PyLong_AsVoidPtr(given[0]), 0, flags);
    Object theta[2 * MOST];
    if (run == NULL)
        return declined();
    const int count = take_given(run, theta, take_items(given[2], theta), (flags & DETACHED) != 0);
    if (count >= 0) {
        take_numbers_of_cell(run, given[3]);
        take_options(run, given[4]);
        void *thread = PyEval_SaveThread();
        run_directly(run, flags, count);
        end_directly(run);
        PyEval_RestoreThread(thread);
        found = run->fault == NULL ? take_results(run) : NULL;
    }
    give_up(run);
    return found == NULL ? declined() : found;
}

/* The tensors of a backward pass among Python's: whether those that must be there are. */
static int are_there(const Run *run, Tensor *tensors, int kept)
{
    const int theta = run->cell->theta, last = theta + kept - 1;
    for (int k = 0; k <= last; ++k) {
        const cellgen_value *value = k < theta ? run->cell->of_theta[k].value : NULL;
        const int is_state = value != NULL && value->role == CELLGEN_ROLE_STATE;
        const int is_result = k >= theta && k < last && run->is_in_one; /* take_kept looks for those that are read */
        if (tensors[k] == NULL && !(is_state && run->is_layer) && !is_result)
            return 0;
    }
    return 1;
}

/* back(cell, tensors, scalars, wanted, upstream, options): gradients, or None. `tensors`: theta, what is kept, and so
 * many `upstream` gradients of the outputs in order, None for those that are not there. */
static Object back(Object self, Object const *given, intptr_t arguments)
{
    (void)self;
    Object found = NULL;
    Run *run = arguments == 6 ? begin_call(PyLong_AsVoidPtr(given[0]), 1, 0) : NULL;
    if (run == NULL)
        return declined();
    Object items[2 * MOST];
    Tensor tensors[2 * MOST];
    const int upstream = (int)PyLong_AsLong(given[4]);
    const intptr_t all = take_items(given[1], items), kept = all - run->cell->theta - upstream;
    if (upstream >= 0 && upstream <= CG_BITS && kept >= 0 && kept < MOST &&
        take_handles(run, items, all, tensors, 1) >= 0 && are_there(run, tensors, (int)kept)) {
        memcpy(run->theta, tensors, (size_t)run->cell->theta * sizeof *tensors);
        take_numbers_of_cell(run, given[2]);
        take_options(run, given[5]);
        run->wanted = (int64_t)PyLong_AsLong(given[3]);
        void *thread = PyEval_SaveThread();
        if (run->fault == NULL)
            run_back(run, tensors, (int)kept, upstream);
        PyEval_RestoreThread(thread);
    } else {
        fail(run, "cellgen: another number of tensors, or one is missing");
    }
    end_directly(run);
    found = run->fault == NULL ? take_results(run) : NULL;
    give_up(run);
    return found == NULL ? declined() : found;
}

/* Where all of these tensors' objects have torch's own, by the handles that torch makes: right behind Python's head,
 * which is two words; 0: elsewhere, then torch is asked for handles. */
static intptr_t offset_within(Object tensors, Object handles)
{
    enum { HEAD = 2 * sizeof(void *) };
    const intptr_t count = PyList_Size(tensors);
    for (intptr_t k = 0; k < count; ++k) {
        void *const *handle = PyCapsule_GetPointer(PyList_GetItem(handles, k), NULL);
        if (handle == NULL || memcmp(handle, (char *)PyList_GetItem(tensors, k) + HEAD, sizeof *handle))
            return 0;
    }
    return count > 0 ? HEAD : 0;
}

/* Look for shorter ways between objects and handles: `tensors` are some of every kind, `wrap` is where libtorch makes an
 * object of a tensor, NULL: unknown. */
void cellgen_torch_shorten(Object tensors, void *wrap)
{
    Object handles = PyObject_CallFunctionObjArgs(python.handles, tensors, NULL);
    if (handles == NULL) {
        PyErr_Clear();
        return;
    }
    python.offset = offset_within(tensors, handles);
    for (intptr_t k = 0; k < PyList_Size(tensors); ++k)
        aoti_torch_delete_tensor_object(PyCapsule_GetPointer(PyList_GetItem(handles, k), NULL));
    Py_DecRef(handles);
    memcpy(&python.wrap, &wrap, sizeof wrap);
}

#include "tracked.inc.h"

/* Give Python the functions; NULL where this process has no Python. `given`: what `python` holds, in order. */
Object cellgen_torch_direct(Object given)
{
    static Method methods[] = {{"cellgen_direct", direct, FAST_CALL, NULL}, {"cellgen_back", back, FAST_CALL, NULL},
                               {"cellgen_plan", plan_call, FAST_CALL, NULL}, {"cellgen_track", track, FAST_CALL, NULL},
                               {"cellgen_track_back", track_back, FAST_CALL, NULL}};
    enum { FUNCTIONS = sizeof methods / sizeof *methods };
    Object *const places[] = {&python.handles, &python.tensors, &python.is_negative, &python.requires_grad,
                              &python.tensor, &python.parameter, &python.none, &python.no};
    for (int k = 0; k < (int)(sizeof places / sizeof *places); ++k) {
        *places[k] = PyTuple_GetItem(given, k);
        Py_IncRef(*places[k]);
    }
    Object functions = PyList_New(FUNCTIONS);
    for (int k = 0; k < FUNCTIONS && functions != NULL; ++k)
        PyList_SetItem(functions, k, PyCFunction_NewEx(&methods[k], NULL, NULL));
    return functions;
}

/* A cell by its text; NULL where there is no such. */
const Cell *cellgen_torch_cell(const char *text)
{
    const Cell *found = look_up(text);
    return found == NULL && find_cell != NULL && find_cell(text) == 0 ? look_up(text) : found;
}
