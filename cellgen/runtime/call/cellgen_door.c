/* Calls on NumPy's arrays, made without Python: keywords become views, numbers and tables, results are made, the
 * kernel is called with the interpreter's lock released. What a call means is said by cellgen_call.h.
 *
 * A Door is one function of a kernel, as door.py tells of it. What it does not take, or comes to any harm before the
 * kernel runs, gives None and has changed nothing: Python then makes the whole call by itself, and has the words for
 * what is wrong. What else is raised where memory for results is made, as by the handler of a signal, goes on to the
 * caller. A Door never changes, so that threads share it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <stdint.h>
#include <string.h>

#include "cellgen.h"
#include "cellgen_call.h"

/* What a keyword is: a member of the struct; an array that is checked and not read; an option that is on or off, a
 * number of steps, or one of a few values; lengths, mask or reset; the order of the first two axes; names of outputs;
 * something that has to be one object; a switch that `make` is told beside; arrays that results are written to. */
enum kind { MEMBER, CHECKED, SWITCH, STEPS, CHOICE, TABLE, BATCH_FIRST, OUTPUTS, CONSTANT, BESIDE, RESULTS };

typedef struct {
    PyObject *name, *extra; /* choices, names of results, or the one object */
    int kind, may_be_none;
    int64_t number; /* of the member, of the option among those that are numbers, or of the table */
    int64_t least;  /* steps */
    const cellgen_value *value;
} Keyword;

typedef struct {
    PyObject_HEAD
    const cellgen_cell *cell;
    const cellgen_signature *function;
    const cellgen_entry *entry[2]; /* float, double */
    PyObject *keep;                /* what lies at these addresses */
    PyTypeObject *named;           /* the named tuple of the results */
    PyObject *empty;               /* makes a large array of a shape and a type */
    PyObject *batch_first;         /* the name of the keyword, NULL: it has none */
    Py_ssize_t keywords, fields, saves;
    Keyword *keyword;
    int64_t *field, *save; /* members that are results, -1: None; those that are saved */
    int64_t outputs_of_last; /* bits of results that a call of the last step alone forms */
    const void *packed;
    int64_t packed_bytes, *packed_size; /* of each dimension of the cell, -1: any */
    int packed_precision;
} Door;

typedef struct {
    PyTypeObject *door;
} State;

typedef struct {
    char *first, *end;
} Span;

/* A call that is under way. */
typedef struct {
    cg_call call;
    const Door *door;
    PyObject *result[CG_MOST_MEMBERS], *out; /* `out` as it is given; a dict: a copy, which others do not change */
    PyArrayObject *own[CG_MOST_MEMBERS]; /* of it the array of each result */
    int type; /* of NumPy, -1: no array yet */
    int64_t *lengths;
    int64_t few_lengths[64];
    PyArrayObject *table[3];
    PyObject *held[CG_MOST_MEMBERS + 64]; /* what keywords are: whose dict it is may change it meanwhile */
    Py_ssize_t helds, spans;
    Span span[2 * CG_MOST_MEMBERS + 64]; /* of arrays that are read, and of those of `out` */
} Making;

enum { SMALL = 1 << 16 }; /* bytes below which malloc serves well; host/memory.py has it */
static const int64_t MOST = (int64_t)1 << 60; /* bytes of an array that NumPy can describe */

/* --- doors -------------------------------------------------------------------------------------- */

static void door_free(PyObject *self) {
    Door *door = (Door *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; door->keyword && i < door->keywords; i++) {
        Py_XDECREF(door->keyword[i].name);
        Py_XDECREF(door->keyword[i].extra);
    }
    PyMem_Free(door->keyword);
    PyMem_Free(door->field);
    PyMem_Free(door->save);
    PyMem_Free(door->packed_size);
    Py_XDECREF(door->keep);
    Py_XDECREF((PyObject *)door->named);
    Py_XDECREF(door->empty);
    type->tp_free(self);
    Py_DECREF(type);
}

static int64_t member_named(const cellgen_signature *function, const char *name, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++)
        if (!strcmp(function->member[m].name, name)) return m;
    return -1;
}

/* The value of a name in any function of the cell; NULL: none has it. */
static const cellgen_value *value_named(const cellgen_cell *cell, const char *name) {
    for (int64_t f = 0; f < cell->functions; f++) {
        const cellgen_signature *function = &cell->function[f];
        const int64_t m = member_named(function, name, 0, function->members);
        if (m >= 0) return &function->member[m];
    }
    return NULL;
}

/* Read (name, kind, number, least, may be None, extra). */
static int read_keyword(Door *door, Keyword *keyword, PyObject *from) {
    PyObject *name, *extra;
    if (!PyTuple_Check(from)) return PyErr_BadArgument();
    long long number, least;
    if (!PyArg_ParseTuple(from, "UiLLpO", &name, &keyword->kind, &number, &least, &keyword->may_be_none, &extra))
        return 0;
    keyword->number = number, keyword->least = least;
    Py_INCREF(name), Py_INCREF(extra);
    keyword->name = name, keyword->extra = extra;
    const char *text = PyUnicode_AsUTF8(name);
    if (!text) return 0;
    if (keyword->kind == MEMBER) {
        keyword->number = member_named(door->function, text, 0, door->function->arguments);
        if (keyword->number < 0) return PyErr_BadArgument();
        keyword->value = &door->function->member[keyword->number];
    } else if (keyword->kind == CHECKED) {
        keyword->number = -1, keyword->value = value_named(door->cell, text);
    } else if (keyword->kind < MEMBER || keyword->kind > RESULTS || keyword->number < 0 ||
               keyword->number >= (keyword->kind == TABLE ? 3 : (int64_t)(sizeof(cellgen_numbers) / sizeof(int64_t)))) {
        return PyErr_BadArgument();
    }
    if (keyword->kind == BATCH_FIRST) door->batch_first = name; /* which the keyword keeps */
    return 1;
}

/* Members of the function by their names, -1 for what is none. */
static int64_t *read_results(const Door *door, PyObject *names) {
    const Py_ssize_t count = PyTuple_GET_SIZE(names);
    int64_t *member = PyMem_Calloc((size_t)count + 1, sizeof *member);
    for (Py_ssize_t i = 0; member && i < count; i++) {
        const char *text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, i));
        if (!text) {
            PyMem_Free(member);
            return NULL;
        }
        member[i] = member_named(door->function, text, door->function->arguments, door->function->members);
    }
    if (!member) PyErr_NoMemory();
    return member;
}

static int read_packed(Door *door, PyObject *packed) {
    unsigned long long address;
    long long bytes;
    PyObject *sizes;
    if (packed == Py_None) return 1;
    if (!PyTuple_Check(packed)) return PyErr_BadArgument();
    if (!PyArg_ParseTuple(packed, "KLiO!", &address, &bytes, &door->packed_precision, &PyDict_Type, &sizes))
        return 0;
    door->packed = (const void *)(uintptr_t)address, door->packed_bytes = bytes;
    door->packed_size = PyMem_Calloc((size_t)door->cell->dims + 1, sizeof *door->packed_size);
    if (!door->packed_size) return PyErr_NoMemory() != NULL;
    for (int64_t k = 0; k < door->cell->dims; k++) {
        PyObject *size = PyDict_GetItemString(sizes, door->cell->dim[k]);
        door->packed_size[k] = size ? PyLong_AsLongLong(size) : -1;
    }
    return !PyErr_Occurred();
}

/* door(cell, function, keep, named, empty, keywords, fields, saves, outputs of the last step, packed or None) */
static PyObject *new_door(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    unsigned long long cell;
    const char *name;
    PyObject *keep, *named, *empty, *keywords, *fields, *saves, *packed;
    long long of_last;
    if (!PyArg_ParseTuple(args, "KsOO!OO!O!O!LO", &cell, &name, &keep, &PyType_Type, &named, &empty, &PyTuple_Type,
                          &keywords, &PyTuple_Type, &fields, &PyTuple_Type, &saves, &of_last, &packed))
        return NULL;
    const cellgen_cell *of = (const cellgen_cell *)(uintptr_t)cell;
    int64_t number = 0;
    while (number < of->functions && strcmp(of->function[number].name, name)) number++;
    if (of->abi != CELLGEN_ABI_VERSION || number == of->functions || of->precisions != 2 ||
        of->function[number].members > CG_MOST_MEMBERS || of->dims > CG_MOST_MEMBERS ||
        !PyType_IsSubtype((PyTypeObject *)named, &PyTuple_Type)) {
        PyErr_BadArgument();
        return NULL;
    }
    Door *door = (Door *)state->door->tp_alloc(state->door, 0);
    if (!door) return NULL;
    door->cell = of, door->function = &of->function[number];
    for (int k = 0; k < 2; k++) door->entry[k] = &of->precision[k].entry[number];
    Py_INCREF(keep), Py_INCREF(named), Py_INCREF(empty);
    door->keep = keep, door->named = (PyTypeObject *)named, door->empty = empty;
    door->outputs_of_last = of_last;
    door->fields = PyTuple_GET_SIZE(fields), door->saves = PyTuple_GET_SIZE(saves);
    door->field = read_results(door, fields);
    door->save = door->field ? read_results(door, saves) : NULL;
    const Py_ssize_t count = PyTuple_GET_SIZE(keywords);
    door->keyword = door->save ? PyMem_Calloc((size_t)count + 1, sizeof *door->keyword) : NULL;
    int is_read = door->keyword && read_packed(door, packed);
    for (Py_ssize_t i = 0; is_read && i < count; i++, door->keywords++)
        is_read = read_keyword(door, &door->keyword[i], PyTuple_GET_ITEM(keywords, i));
    if (is_read) return (PyObject *)door;
    if (!PyErr_Occurred()) PyErr_NoMemory();
    Py_DECREF(door);
    return NULL;
}

#include "cellgen_door_keywords.inc.h"

/* --- a call ------------------------------------------------------------------------------------- */

/* The array of `out` for a result; NULL where it has another shape. */
static void *place_own(Making *making, int64_t member, int64_t rank, const int64_t *length) {
    PyArrayObject *array = making->own[member];
    int fits = PyArray_NDIM(array) == rank;
    for (int axis = 0; fits && axis < rank; axis++) fits = PyArray_DIM(array, axis) == length[axis];
    if (!fits) return NULL;
    Py_INCREF(array);
    making->result[member] = (PyObject *)array;
    return PyArray_DATA(array);
}

/* Whether every array of `out` is one that this call forms. */
static int are_formed(const Making *making) {
    const cellgen_signature *function = making->door->function;
    for (int64_t m = function->arguments; making->out && m < function->members; m++)
        if (making->own[m] && making->result[m] != (PyObject *)making->own[m]) return 0;
    return 1;
}

/* An array for a result; NULL where there is none, with the error that this is. */
static void *allocate(cg_call *call, int64_t member, int64_t rank, const int64_t *length, int is_zero) {
    Making *making = call->door;
    npy_intp shape[CG_AXES];
    const double bytes = cg_count(rank, length) * (making->type == NPY_FLOAT ? 4 : 8);
    if (bytes > (double)MOST) return PyErr_NoMemory();
    if (making->own[member]) return place_own(making, member, rank, length);
    PyArray_Descr *element = PyArray_DescrFromType(making->type);
    PyObject *made = NULL;
    for (int64_t axis = 0; axis < rank; axis++) shape[axis] = (npy_intp)length[axis];
    if (bytes < SMALL) {
        made = PyArray_NewFromDescr(&PyArray_Type, element, (int)rank, shape, NULL, NULL, 0, NULL);
    } else {
        PyObject *lengths = PyArray_IntTupleFromIntp((int)rank, shape);
        if (lengths) made = PyObject_CallFunctionObjArgs(making->door->empty, lengths, (PyObject *)element, NULL);
        Py_XDECREF(lengths);
        Py_DECREF(element);
    }
    making->result[member] = made;
    if (!made) return NULL;
    if (is_zero) memset(PyArray_DATA((PyArrayObject *)made), 0, (size_t)PyArray_NBYTES((PyArrayObject *)made));
    return PyArray_DATA((PyArrayObject *)made);
}

/* Look at the tables of steps, now that dimensions are known; lengths are copied, as others may write to them. */
static int place_tables(Making *making) {
    cg_call *call = &making->call;
    const int64_t t = cg_dim_named(call->cell, "T"), b = cg_dim_named(call->cell, "B");
    for (int k = 0; k < 3; k++)
        if (making->table[k] && (t < 0 || b < 0)) return 0;
    if (making->table[0]) {
        const int64_t rows = PyArray_DIM(making->table[0], 0), *given = PyArray_DATA(making->table[0]);
        making->lengths = rows <= 64 ? making->few_lengths : PyMem_Malloc((size_t)rows * sizeof *given);
        if (!making->lengths || rows != call->size[b]) return 0;
        memcpy(making->lengths, given, (size_t)rows * sizeof *given);
        for (int64_t row = 0; row < rows; row++)
            if (making->lengths[row] < 0 || making->lengths[row] > call->size[t]) return 0;
        call->lengths = making->lengths;
    }
    for (int k = 0; k < 2; k++) {
        PyArrayObject *array = making->table[k + 1];
        const int first = call->batch_first;
        if (!array) continue;
        if (PyArray_DIM(array, first) != call->size[t] || PyArray_DIM(array, !first) != call->size[b]) return 0;
        call->flags[k] = PyArray_DATA(array);
        call->flag_stride[k][0] = PyArray_STRIDE(array, first), call->flag_stride[k][1] = PyArray_STRIDE(array, !first);
    }
    return 1;
}

/* Whether dimensions are those that `sizes` says, in the order of the function. */
static int has_sizes(const cg_call *call, PyObject *sizes) {
    if (sizes == Py_None) return 1;
    if (!PyTuple_Check(sizes) || PyTuple_GET_SIZE(sizes) != call->function->dims) return 0;
    for (int64_t k = 0; k < call->function->dims; k++)
        if (PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, k)) != call->size[call->function->dim[k]]) return 0;
    return 1;
}

/* Whether the options of a call may stand together; what they say of the results. */
static int settle(Making *making) {
    const Door *door = making->door;
    cg_call *call = &making->call;
    cellgen_numbers *say = &call->say;
    if (say->products && (making->type == NPY_DOUBLE || (say->products == 2 && call->saves))) return 0;
    if (say->last_only && say->every > 1) return 0;
    if (say->last_only) say->outputs = (say->outputs == -1 ? door->outputs_of_last : say->outputs & door->outputs_of_last);
    if (call->saves && (say->last_only || say->every > 1 || say->outputs != -1 || say->checkpoint)) return 0;
    say->checkpoint = 0;
    if (say->per_row > 1) return 0;
    if (door->packed) {
        if (say->products || (making->type == NPY_DOUBLE) != door->packed_precision) return 0;
        call->packed = door->packed, call->packed_bytes = door->packed_bytes;
    }
    return 1;
}

static int fits_packed(const Making *making) {
    const Door *door = making->door;
    for (int64_t k = 0; door->packed && k < door->cell->dims; k++)
        if (door->packed_size[k] >= 0 && door->packed_size[k] != making->call.size[k]) return 0;
    return 1;
}

static PyObject *tuple_of(Making *making, const int64_t *member, Py_ssize_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) {
        PyObject *value = member[i] < 0 || !making->result[member[i]] ? Py_None : making->result[member[i]];
        Py_INCREF(value);
        PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

/* What a call gives: its named tuple; where it saves, fields, what is saved, and dimensions. */
static PyObject *give(Making *making) {
    const Door *door = making->door;
    PyObject *fields = tuple_of(making, door->field, door->fields), *all = NULL;
    if (fields && !making->call.saves) {
        PyObject *args = PyTuple_Pack(1, fields);
        if (args) all = PyTuple_Type.tp_new((PyTypeObject *)door->named, args, NULL);
        Py_XDECREF(args);
    } else if (fields) {
        PyObject *saved = tuple_of(making, door->save, door->saves), *dims = PyTuple_New(door->function->dims);
        for (int64_t k = 0; dims && k < door->function->dims; k++) {
            PyObject *size = PyLong_FromLongLong(making->call.dims[k]);
            if (!size) Py_CLEAR(dims);
            if (dims) PyTuple_SET_ITEM(dims, k, size);
        }
        if (saved && dims) all = PyTuple_Pack(3, fields, saved, dims);
        Py_XDECREF(saved);
        Py_XDECREF(dims);
    }
    Py_XDECREF(fields);
    return all;
}

/* Run a call that is filled: whether it went well. */
static int run(cg_call *call) {
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = call->entry->call(call->dims, call->word);
    Py_END_ALLOW_THREADS
    return code == 0;
}

/* make(arguments, whether it saves, workspace, its bytes, team, multiply-adds of a long call, dimensions or None) */
static PyObject *make(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Making making;
    Door *door = (Door *)self;
    PyObject *all = NULL;
    if (count != 7 || !PyDict_CheckExact(args[0])) {
        PyErr_BadArgument();
        return NULL;
    }
    const unsigned long long memory = PyLong_AsUnsignedLongLong(args[2]), team = PyLong_AsUnsignedLongLong(args[4]);
    const long long bytes = PyLong_AsLongLong(args[3]);
    making.call.longest = (double)PyLong_AsLongLong(args[5]);
    if (PyErr_Occurred()) return NULL;
    cg_begin(&making.call, door->cell, door->function);
    making.call.saves = args[1] == Py_True;
    making.call.allocate = allocate, making.call.door = &making;
    making.door = door, making.type = -1, making.lengths = NULL, making.helds = making.spans = 0, making.out = NULL;
    making.table[0] = making.table[1] = making.table[2] = NULL;
    for (int64_t m = door->function->arguments; m < door->function->members; m++)
        making.result[m] = NULL, making.own[m] = NULL;
    int goes_on = take_keywords(&making, args[0]) && settle(&making) && take_out(&making);
    making.call.entry = door->entry[making.type == NPY_DOUBLE];
    goes_on = goes_on && !cg_check(&making.call) && place_tables(&making) && has_sizes(&making.call, args[6]) &&
              fits_packed(&making);
    PyErr_Clear(); /* of numbers that are too large: no code of others has run */
    goes_on = goes_on && !cg_prepare(&making.call, (void *)(uintptr_t)memory, bytes, (void *)(uintptr_t)team) &&
              are_formed(&making) && run(&making.call);
    if (goes_on) all = give(&making);
    for (int64_t m = door->function->arguments; m < door->function->members; m++) Py_XDECREF(making.result[m]);
    for (Py_ssize_t i = 0; i < making.helds; i++) Py_DECREF(making.held[i]);
    Py_XDECREF(making.out);
    if (making.lengths != making.few_lengths) PyMem_Free(making.lengths);
    if (all) return all;
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* --- the module --------------------------------------------------------------------------------- */

#include "cellgen_door_direct.inc.h"

static PyMethodDef methods[] = {
    {"make", (PyCFunction)(void (*)(void))make, METH_FASTCALL, "Make a call, or give None."}, {NULL, NULL, 0, NULL}};
static PyType_Slot door_slots[] = {{Py_tp_dealloc, door_free}, {Py_tp_methods, methods}, {0, NULL}};
static PyType_Spec door_spec = {
    "cellgen_door.Door", sizeof(Door), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, door_slots};

static int fill(PyObject *module) {
    State *state = PyModule_GetState(module);
    import_array1(-1);
    state->door = (PyTypeObject *)PyType_FromModuleAndSpec(module, &door_spec, NULL);
    return state->door ? fill_direct(module) : -1;
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState(module);
    Py_VISIT(state->door);
    return 0;
}

static int clear(PyObject *module) {
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->door);
    return 0;
}

static PyMethodDef functions[] = {{"door", new_door, METH_VARARGS, "Describe a function of a kernel."},
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

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "cellgen_door", .m_size = sizeof(State),
                                 .m_methods = functions, .m_slots = slots, .m_traverse = traverse, .m_clear = clear};

PyMODINIT_FUNC PyInit_cellgen_door(void) { return PyModuleDef_Init(&definition); }
