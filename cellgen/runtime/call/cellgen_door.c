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
 * something that has to be one object; a switch that `make` is told beside; arrays that results are written to; steps
 * from one checkpoint of a run to the next, its numbers of `flush_denormals` and `products`, and its checkpoints; names
 * of the results that are wanted. */
enum kind { MEMBER, CHECKED, SWITCH, STEPS, CHOICE, TABLE, BATCH_FIRST, OUTPUTS, CONSTANT, BESIDE, RESULTS, KEPT, WANTED };

typedef struct {
    PyObject *name, *extra; /* choices, names of results, or the one object */
    int kind, may_be_none;
    int64_t number; /* of the member, of the option among those that are numbers, or of the table */
    int64_t least;  /* of a number of steps */
    int64_t again;  /* of an argument, its number in the forward pass; -1: it has none */
    const cellgen_value *value;
} Keyword;

typedef struct {
    PyObject_HEAD
    const cellgen_cell *cell;
    const cellgen_signature *function, *forward; /* the forward pass of a backward one, NULL: it is none */
    PyObject *keep;                /* what lies at these addresses */
    PyTypeObject *named;           /* the named tuple of the results */
    PyObject *empty;               /* makes a large array of a shape and a type */
    PyObject *batch_first, *kept;  /* the names of these keywords, NULL: it has none */
    Py_ssize_t keywords, fields, saves;
    Keyword *keyword;
    int64_t *field, *save; /* members that are results, -1: None; those that are saved */
    int64_t outputs_of_last; /* bits of results that a call of the last step alone forms; 0: bits cannot tell */
    const void *packed;
    int64_t packed_bytes, *packed_size; /* of each dimension of the cell, -1: any */
    int packed_precision, packed_products;
} Door;

typedef struct {
    PyTypeObject *door;
} State;

typedef struct {
    char *first, *end;
} Span;

enum { MOST_HELD = CG_MOST_MEMBERS + 64 };

/* A call that is under way. */
typedef struct {
    cg_call call;
    const Door *door;
    PyObject *result[CG_MOST_MEMBERS], *out; /* `out` as it is given; a dict: a copy, which others do not change */
    PyArrayObject *own[CG_MOST_MEMBERS]; /* of it the array of each result */
    int type; /* of NumPy, -1: no array yet */
    PyObject *checkpoint[CG_MOST_MEMBERS], *kept; /* those that are made; of a backward pass the whole keyword */
    int64_t checkpoints;
    int64_t *lengths;
    int64_t few_lengths[64];
    PyArrayObject *table[3];
    PyObject *held[MOST_HELD]; /* what keywords are: whose dict it is may change it meanwhile */
    Py_ssize_t helds, spans;
    Span span[3 * CG_MOST_MEMBERS + 64]; /* of arrays that are read, of checkpoints, and of those of `out` */
} Making;

enum { SMALL = 1 << 16 }; /* bytes below which malloc serves well; host/memory.py has it */
static const int64_t MOST = (int64_t)1 << 60; /* bytes of an array that NumPy can describe */

#include "cellgen_door_described.inc.h"
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
static void *allocate(cg_call *call, int64_t member, int kind, int64_t rank, const int64_t *length, int is_zero) {
    Making *making = call->door;
    npy_intp shape[CG_AXES + 1];
    const double bytes = cg_count(rank, length) * (kind ? 2 : making->type == NPY_DOUBLE ? 8 : 4);
    if (bytes > (double)MOST) return PyErr_NoMemory();
    if (member >= 0 && making->own[member]) return place_own(making, member, rank, length);
    PyArray_Descr *element = PyArray_DescrFromType(type_of(making, kind));
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
    if (!made) return NULL;
    *(member < 0 ? &making->checkpoint[making->checkpoints++] : &making->result[member]) = made;
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
        if (first || !PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS))
            call->flag_stride[k][0] = PyArray_STRIDE(array, first), call->flag_stride[k][1] = PyArray_STRIDE(array, !first);
    }
    return 1;
}

/* Look at the checkpoints that a backward pass goes on from, now that dimensions and tables are known. */
static int place_kept(Making *making) {
    cg_call *call = &making->call;
    const cellgen_value *held[CG_MOST_MEMBERS];
    if (!making->kept) return 1;
    const int64_t count = cg_checkpoints_of(call->again.function, cg_skips(call), held);
    if (PyTuple_GET_SIZE(making->kept) != count + 3) return 0;
    for (int64_t k = 0; k < count; k++) {
        PyArrayObject *array = plain_array(PyTuple_GET_ITEM(making->kept, k + 3));
        int64_t length[CG_AXES + 1];
        const int64_t rank = cg_checkpoint_shape(call->cell, held[k], call->say.checkpoint, call->size, length);
        if (!array || PyArray_TYPE(array) != type_of(making, CELLGEN_STORED_REAL) || PyArray_NDIM(array) != rank ||
            !PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS))
            return 0;
        for (int64_t axis = 0; axis < rank; axis++)
            if (PyArray_DIM(array, axis) != length[axis]) return 0;
        call->checkpoint_at[k] = PyArray_DATA(array);
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
    say->products = cg_products_of(say->products, call->narrow);
    if (say->products && (making->type == NPY_DOUBLE || (say->products == 2 && call->saves))) return 0;
    if (say->last_only && say->every > 1) return 0;
    if (!making->kept && !call->saves) say->checkpoint = 0;
    if (call->saves && !say->checkpoint && (say->last_only || say->every > 1 || say->outputs != -1)) {
        if (making->out) return 0;
        say->last_only = 0, say->every = 1, say->outputs = -1; /* a backward pass reads all: Python shows some of them */
    }
    if (say->last_only && !door->outputs_of_last) return 0;
    if (say->last_only) say->outputs &= door->outputs_of_last;
    if (say->per_row > 1) return 0;
    if (door->packed) {
        const int is_double = making->type == NPY_DOUBLE;
        if (call->narrow || say->products != door->packed_products || is_double != door->packed_precision) return 0;
        if (making->kept) return 0; /* a forward pass that is run once more has another layout */
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

/* A tuple of the checkpoints that a call has made. */
static PyObject *checkpoints_of(Making *making) {
    PyObject *tuple = PyTuple_New(making->checkpoints);
    for (int64_t k = 0; tuple && k < making->checkpoints; k++) {
        Py_INCREF(making->checkpoint[k]);
        PyTuple_SET_ITEM(tuple, k, making->checkpoint[k]);
    }
    return tuple;
}

static PyObject *tuple_of(Making *making, const int64_t *member, Py_ssize_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) {
        const int is_shown = member[i] >= 0 && making->result[member[i]] && is_wanted(making, member[i]);
        PyObject *value = is_shown ? making->result[member[i]] : Py_None;
        Py_INCREF(value);
        PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

/* Copies of the tables of steps, lengths (B), mask and reset (T, B); None where there is none of them. */
static PyObject *copies_of(Making *making) {
    PyObject *copies = NULL;
    if (!cg_skips(&making->call)) Py_RETURN_NONE;
    copies = PyTuple_New(3);
    for (int k = 0; copies && k < 3; k++) {
        PyArrayObject *table = making->table[k];
        const int swaps = table && k && making->call.batch_first;
        PyObject *seen = swaps ? PyArray_SwapAxes(table, 0, 1) : table ? (PyObject *)table : Py_None;
        PyObject *copy = table && seen ? PyArray_NewCopy((PyArrayObject *)seen, NPY_CORDER) : seen;
        if (swaps) Py_XDECREF(seen);
        if (copy == Py_None) Py_INCREF(copy);
        if (copy && table && !k) /* those that the call had, whatever others write meanwhile */
            memcpy(PyArray_DATA((PyArrayObject *)copy), making->lengths, (size_t)PyArray_NBYTES(table));
        if (!copy) Py_CLEAR(copies);
        if (copy) PyTuple_SET_ITEM(copies, k, copy);
    }
    return copies;
}

/* What a call gives: its named tuple; where it saves, fields, what is saved, dimensions, the number of `products`, and copies
 * of its tables. */
static PyObject *give(Making *making) {
    const Door *door = making->door;
    PyObject *fields = tuple_of(making, door->field, door->fields), *all = NULL;
    if (fields && !making->call.saves) {
        PyObject *args = PyTuple_Pack(1, fields);
        if (args) all = PyTuple_Type.tp_new((PyTypeObject *)door->named, args, NULL);
        Py_XDECREF(args);
    } else if (fields) {
        const int has_checkpoints = making->call.say.checkpoint != 0;
        PyObject *saved = has_checkpoints ? checkpoints_of(making) : tuple_of(making, door->save, door->saves);
        PyObject *products = PyLong_FromLongLong(making->call.say.products), *tables = copies_of(making), *dims = PyTuple_New(door->function->dims);
        for (int64_t k = 0; dims && k < door->function->dims; k++) {
            PyObject *size = PyLong_FromLongLong(making->call.dims[k]);
            if (!size) Py_CLEAR(dims);
            if (dims) PyTuple_SET_ITEM(dims, k, size);
        }
        if (saved && dims && products && tables) all = PyTuple_Pack(5, fields, saved, dims, products, tables);
        Py_XDECREF(tables);
        Py_XDECREF(saved);
        Py_XDECREF(products);
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
    const long long longest = PyLong_AsLongLong(args[5]);
    if (PyErr_Occurred()) return NULL;
    cg_begin(&making.call, door->cell, door->function);
    making.call.saves = args[1] == Py_True, making.call.longest = (double)longest;
    making.call.allocate = allocate, making.call.door = &making;
    making.door = door, making.type = -1, making.lengths = NULL, making.helds = making.spans = 0, making.out = NULL;
    making.table[0] = making.table[1] = making.table[2] = NULL;
    making.call.say.products = -1, making.kept = NULL, making.checkpoints = 0;
    for (int64_t m = door->function->arguments; m < door->function->members; m++)
        making.result[m] = NULL, making.own[m] = NULL;
    int goes_on = take_keywords(&making, args[0]) && settle(&making) && take_out(&making);
    cg_compute_in(&making.call, making.type == NPY_DOUBLE);
    goes_on = goes_on && !cg_check(&making.call) && place_tables(&making) && has_sizes(&making.call, args[6]) &&
              fits_packed(&making) && place_kept(&making);
    PyErr_Clear(); /* of numbers that are too large: no code of others has run */
    goes_on = goes_on && !cg_prepare(&making.call, (void *)(uintptr_t)team) && are_formed(&making);
    if (goes_on) {
        cg_lend(&making.call, (void *)(uintptr_t)memory, bytes);
        goes_on = run(&making.call);
    }
    cg_end(&making.call, goes_on);
    if (goes_on) all = give(&making);
    for (int64_t m = door->function->arguments; m < door->function->members; m++) Py_XDECREF(making.result[m]);
    for (int64_t k = 0; k < making.checkpoints; k++) Py_DECREF(making.checkpoint[k]);
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
