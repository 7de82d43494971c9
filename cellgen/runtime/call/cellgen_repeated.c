/* Calls that look like earlier ones, made without Python: arrays looked at, results made, the struct
 * filled, the kernel called with the interpreter's lock released.
 *
 * A Kind is a call that passed every check, as repeated.py tells of it. make() compares a call with some of
 * them. What looks like none of them, or comes to any harm before the kernel runs, gives None and has
 * changed nothing: Python then makes the whole call by itself, and has the words for what is wrong.
 * Nothing here is shared between threads. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <stdint.h>
#include <string.h>

enum { MOST_WORDS = 512, MOST_AXES = 8 };

/* What an argument of a call was: an array, a number, or an object that has to be the same. */
enum look { ARRAY, NUMBER, CONSTANT };

/* An argument or a result: its word in the struct, -1 for one that has none, and its shape. */
typedef struct {
    PyObject *name, *constant; /* of an argument */
    Py_ssize_t word;
    int look, axes;
    npy_intp shape[MOST_AXES];
} Item;

typedef struct {
    PyObject_HEAD
    int (*call)(int64_t *, void *);
    int64_t *dims;
    PyObject *keep;         /* what lies at these addresses */
    PyArray_Descr *element; /* native */
    PyTypeObject *named;    /* the named tuple of the results; fields without a result are None */
    Py_ssize_t words, fields, given, made;
    Py_ssize_t workspace, team; /* words, -1: it takes none */
    long long bytes;            /* of workspace */
    Item *item;                 /* arguments in the order of the call, then results */
    uint64_t *word;             /* the struct, but for what a call gives */
} Kind;

typedef struct {
    PyTypeObject *kind;
} State;

/* --- kinds of calls ----------------------------------------------------------------------------- */

static void kind_free(PyObject *self) {
    Kind *kind = (Kind *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; kind->item && i < kind->given + kind->made; i++) {
        Py_XDECREF(kind->item[i].name);
        Py_XDECREF(kind->item[i].constant);
    }
    PyMem_Free(kind->item);
    PyMem_Free(kind->word);
    Py_XDECREF(kind->keep);
    Py_XDECREF((PyObject *)kind->element);
    Py_XDECREF((PyObject *)kind->named);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Read (name, look, word, shape, constant). */
static int read_item(Item *item, PyObject *from, Py_ssize_t words) {
    PyObject *name, *shape, *constant;
    if (!PyTuple_Check(from)) return PyErr_BadArgument();
    if (!PyArg_ParseTuple(from, "UinO!O", &name, &item->look, &item->word, &PyTuple_Type, &shape, &constant))
        return 0;
    Py_ssize_t axes = PyTuple_GET_SIZE(shape);
    if (axes > MOST_AXES || item->word >= words) return PyErr_BadArgument();
    item->axes = (int)axes;
    for (Py_ssize_t axis = 0; axis < axes; axis++) {
        item->shape[axis] = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, axis));
        if (PyErr_Occurred()) return 0;
    }
    Py_INCREF(name), Py_INCREF(constant);
    item->name = name, item->constant = constant;
    return 1;
}

static int read_items(Kind *kind, PyObject *given, PyObject *made) {
    Py_ssize_t count = PyTuple_GET_SIZE(given) + PyTuple_GET_SIZE(made);
    kind->item = PyMem_Calloc((size_t)count + 1, sizeof *kind->item);
    if (!kind->item) return PyErr_NoMemory() != NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++, kind->given++)
        if (!read_item(kind->item + kind->given, PyTuple_GET_ITEM(given, i), kind->words)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(made); i++, kind->made++)
        if (!read_item(kind->item + kind->given + kind->made, PyTuple_GET_ITEM(made, i), kind->words)) return 0;
    return 1;
}

/* kind(call, dims, keep, element, named, fields, struct, workspace, bytes, team, given, made) */
static PyObject *new_kind(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    unsigned long long call, dims;
    PyObject *keep, *named, *given, *made;
    PyArray_Descr *element;
    const char *word;
    Py_ssize_t fields, bytes, workspace, team;
    long long needed;
    if (!PyArg_ParseTuple(args, "KKOO!O!ny#nLnO!O!", &call, &dims, &keep, &PyArrayDescr_Type, &element,
                          &PyType_Type, &named, &fields, &word, &bytes, &workspace, &needed, &team,
                          &PyTuple_Type, &given, &PyTuple_Type, &made))
        return NULL;
    Py_ssize_t words = bytes / (Py_ssize_t)sizeof(uint64_t), last = workspace > team ? workspace + 1 : team;
    if (words > MOST_WORDS || last >= words || !PyType_IsSubtype((PyTypeObject *)named, &PyTuple_Type)
        || fields < PyTuple_GET_SIZE(made)) {
        PyErr_BadArgument();
        return NULL;
    }
    Kind *kind = (Kind *)state->kind->tp_alloc(state->kind, 0);
    if (!kind) return NULL;
    kind->call = (int (*)(int64_t *, void *))(uintptr_t)call;
    kind->dims = (int64_t *)(uintptr_t)dims;
    Py_INCREF(keep), Py_INCREF((PyObject *)element), Py_INCREF(named);
    kind->keep = keep, kind->element = element, kind->named = (PyTypeObject *)named;
    kind->words = words, kind->fields = fields;
    kind->workspace = workspace, kind->team = team, kind->bytes = needed;
    kind->word = PyMem_Malloc((size_t)bytes + sizeof(uint64_t));
    if (!kind->word)
        PyErr_NoMemory();
    else if (memcpy(kind->word, word, (size_t)bytes) && read_items(kind, given, made))
        return (PyObject *)kind;
    Py_DECREF(kind);
    return NULL;
}

/* --- a call ------------------------------------------------------------------------------------- */

static int same_name(PyObject *one, PyObject *other) {
    if (one == other) return 1;
    return PyUnicode_CheckExact(one) && PyUnicode_GET_LENGTH(one) == PyUnicode_GET_LENGTH(other)
           && PyUnicode_KIND(one) == PyUnicode_KIND(other)
           && !memcmp(PyUnicode_DATA(one), PyUnicode_DATA(other),
                      (size_t)PyUnicode_GET_LENGTH(one) * PyUnicode_KIND(one));
}

static int same_array(PyObject *value, const Item *item, int type) {
    if (Py_TYPE(value) != &PyArray_Type) return 0; /* a subclass may say anything of itself */
    PyArrayObject *array = (PyArrayObject *)value;
    return PyArray_TYPE(array) == type && PyArray_ISNOTSWAPPED(array) && PyArray_NDIM(array) == item->axes
           && PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED)
           && !memcmp(PyArray_DIMS(array), item->shape, (size_t)item->axes * sizeof *item->shape);
}

/* Compare a call with a kind, and put what it gives into the struct. */
static int looks_like(const Kind *kind, PyObject *arguments, uint64_t *word) {
    if (PyDict_GET_SIZE(arguments) != kind->given) return 0;
    const Item *item = kind->item;
    int type = kind->element->type_num;
    PyObject *name, *value;
    memcpy(word, kind->word, (size_t)kind->words * sizeof *word);
    for (Py_ssize_t place = 0; PyDict_Next(arguments, &place, &name, &value); item++) {
        if (!same_name(name, item->name)) return 0;
        if (item->look == CONSTANT) {
            if (value != item->constant) return 0;
        } else if (item->look == NUMBER) {
            if (!PyFloat_CheckExact(value)) return 0;
            double number = PyFloat_AS_DOUBLE(value);
            if (item->word >= 0) memcpy(word + item->word, &number, sizeof number);
        } else {
            if (!same_array(value, item, type)) return 0;
            if (item->word >= 0) word[item->word] = (uintptr_t)PyArray_DATA((PyArrayObject *)value);
        }
    }
    return 1;
}

/* Make results; NULL, and no error, where there is no memory. */
static PyObject *new_results(const Kind *kind, uint64_t *word) {
    PyObject *fields = PyTuple_New(kind->fields), *named = NULL, *args = NULL;
    const Item *item = kind->item + kind->given;
    for (Py_ssize_t i = 0; fields && i < kind->fields; i++) {
        PyObject *made = Py_None;
        if (i >= kind->made) {
            Py_INCREF(made);
        } else {
            Py_INCREF((PyObject *)kind->element); /* which the array takes */
            made = PyArray_NewFromDescr(&PyArray_Type, kind->element, item[i].axes, (npy_intp *)item[i].shape, NULL,
                                        NULL, 0, NULL);
            if (made && item[i].word >= 0) word[item[i].word] = (uintptr_t)PyArray_DATA((PyArrayObject *)made);
        }
        if (made)
            PyTuple_SET_ITEM(fields, i, made);
        else
            Py_CLEAR(fields);
    }
    if (fields) args = PyTuple_Pack(1, fields);
    if (args) named = PyTuple_Type.tp_new(kind->named, args, NULL);
    Py_XDECREF(args);
    Py_XDECREF(fields);
    if (!named) PyErr_Clear();
    return named;
}

static PyObject *run(const Kind *kind, uint64_t *word, uint64_t memory, int64_t bytes, uint64_t team) {
    PyObject *results = new_results(kind, word);
    if (!results) return NULL;
    if (kind->workspace >= 0) word[kind->workspace] = memory, word[kind->workspace + 1] = (uint64_t)bytes;
    if (kind->team >= 0) word[kind->team] = team;
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = kind->call(kind->dims, word);
    Py_END_ALLOW_THREADS
    if (code) Py_CLEAR(results); /* Python calls again, and says what it means */
    return results;
}

/* make(kinds, arguments, address of workspace, its bytes, address of a team): results, or None */
static PyObject *make(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    State *state = PyModule_GetState(module);
    if (count != 5 || !PyTuple_Check(args[0]) || !PyDict_CheckExact(args[1])) {
        PyErr_BadArgument();
        return NULL;
    }
    unsigned long long memory = PyLong_AsUnsignedLongLong(args[2]), team = PyLong_AsUnsignedLongLong(args[4]);
    long long bytes = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); i++) {
        Kind *kind = (Kind *)PyTuple_GET_ITEM(args[0], i);
        if (Py_TYPE((PyObject *)kind) != state->kind) continue;
        uint64_t word[MOST_WORDS];
        if (!looks_like(kind, args[1], word)) continue;
        PyObject *results = bytes < kind->bytes ? NULL : run(kind, word, memory, bytes, team);
        if (results) return results;
        break;
    }
    Py_RETURN_NONE;
}

/* --- the module --------------------------------------------------------------------------------- */

static PyType_Slot kind_slots[] = {{Py_tp_dealloc, kind_free}, {0, NULL}};
static PyType_Spec kind_spec = {
    "cellgen_repeated.Kind", sizeof(Kind), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, kind_slots};

static int fill(PyObject *module) {
    State *state = PyModule_GetState(module);
    import_array1(-1);
    state->kind = (PyTypeObject *)PyType_FromModuleAndSpec(module, &kind_spec, NULL);
    return state->kind ? 0 : -1;
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState(module);
    Py_VISIT(state->kind);
    return 0;
}

static int clear(PyObject *module) {
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->kind);
    return 0;
}

static PyMethodDef functions[] = {
    {"kind", new_kind, METH_VARARGS, "Describe calls of one kind."},
    {"make", (PyCFunction)(void (*)(void))make, METH_FASTCALL, "Make a call of one of some kinds, or give None."},
    {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
#ifdef Py_mod_multiple_interpreters /* NumPy is in one */
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "cellgen_repeated", .m_size = sizeof(State),
                                 .m_methods = functions, .m_slots = slots, .m_traverse = traverse, .m_clear = clear};

PyMODINIT_FUNC PyInit_cellgen_repeated(void) { return PyModuleDef_Init(&definition); }
