/* The keywords of a call: arrays, scalars, options and tables, as a Door knows them. Part of cellgen_door.c. */

static int same_name(PyObject *one, PyObject *other) {
    if (one == other) return 1;
    return PyUnicode_CheckExact(one) && PyUnicode_GET_LENGTH(one) == PyUnicode_GET_LENGTH(other)
           && PyUnicode_KIND(one) == PyUnicode_KIND(other)
           && !memcmp(PyUnicode_DATA(one), PyUnicode_DATA(other),
                      (size_t)PyUnicode_GET_LENGTH(one) * PyUnicode_KIND(one));
}

/* Find a keyword, from `start` on and then from the first; NULL: the door has none of this name. */
static const Keyword *look_up(const Door *door, PyObject *name, Py_ssize_t *start) {
    for (int turn = 0; turn < 2; turn++) /* the same object, as a rule the next one */
        for (Py_ssize_t step = 0; step < door->keywords; step++) {
            Py_ssize_t i = *start + step;
            i -= i >= door->keywords ? door->keywords : 0;
            const int is_it = turn ? same_name(name, door->keyword[i].name) : name == door->keyword[i].name;
            if (is_it) {
                *start = i + 1 == door->keywords ? 0 : i + 1;
                return &door->keyword[i];
            }
        }
    return NULL;
}

/* Whether an object is an array of NumPy's own type that a call of C reads as it is: a subclass may say anything. */
static PyArrayObject *plain_array(PyObject *value) {
    if (Py_TYPE(value) != &PyArray_Type) return NULL;
    PyArrayObject *array = (PyArrayObject *)value;
    return PyArray_ISNOTSWAPPED(array) && PyArray_CHKFLAGS(array, NPY_ARRAY_ALIGNED) ? array : NULL;
}

/* What an array holds (cellgen_stored); -1: what no kernel reads. NumPy's bfloat16 is a type of another package. */
static int kind_of(PyArrayObject *array) {
    const int type = PyArray_TYPE(array);
    if (type == NPY_FLOAT || type == NPY_DOUBLE) return CELLGEN_STORED_REAL;
    if (type == NPY_HALF) return CELLGEN_STORED_F16;
    if (type < NPY_USERDEF || PyArray_ITEMSIZE(array) != 2) return -1;
    const char *name = PyArray_DESCR(array)->typeobj->tp_name, *last = strrchr(name, '.');
    return strcmp(last ? last + 1 : name, "bfloat16") ? -1 : CELLGEN_STORED_BF16;
}

/* The type of NumPy of an array of a call. */
static int type_of(const Making *making, int kind) {
    if (!making->call.narrow) return making->type;
    return kind == CELLGEN_STORED_REAL ? NPY_FLOAT : kind == CELLGEN_STORED_F16 ? NPY_HALF : making->type;
}

/* Whether an array has the type of the call, or where that has 16 bits, the type of what a forward pass keeps. The first
 * array of a call says which that is. */
static int has_type(Making *making, const Keyword *keyword, PyArrayObject *array, int kind) {
    cg_call *call = &making->call;
    const int type = PyArray_TYPE(array), is_kept = (keyword->value->flags & CELLGEN_VALUE_SAVED) != 0;
    const cg_change whole = {0, 0, 1};
    if (making->type < 0 && kind >= 0 && !is_kept) making->type = type, call->narrow = kind;
    if (!call->narrow || !is_kept) return type == making->type;
    const int64_t steps = cg_dim_named(call->cell, "T");
    return kind == cg_held(keyword->value, &whole, steps, call->narrow, CELLGEN_PRODUCTS_FULL) &&
           type == type_of(making, kind);
}

static int take_array(Making *making, const Keyword *keyword, PyObject *value) {
    PyArrayObject *array = plain_array(value);
    if (!array || !keyword->value) return 0;
    const int rank = PyArray_NDIM(array), kind = kind_of(array);
    if (!has_type(making, keyword, array, kind) || rank > CG_AXES) return 0;
    int64_t length[CG_AXES], stride[CG_AXES];
    const int64_t bytes = PyArray_ITEMSIZE(array);
    const int is_dense = PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS);
    for (int axis = 0; axis < rank; axis++) {
        length[axis] = PyArray_DIM(array, axis);
        if (is_dense) continue;
        if (PyArray_STRIDE(array, axis) % bytes) return 0;
        stride[axis] = PyArray_STRIDE(array, axis) / bytes;
    }
    cg_array *added = cg_add(&making->call, keyword->value, keyword->number, PyArray_DATA(array), rank, length,
                             is_dense ? NULL : stride);
    if (!added) return 0;
    added->kind = kind;
    if (making->kept && keyword->again >= 0) making->call.again.place[keyword->again] = making->call.views - 1;
    return 1;
}

static int take_scalar(Making *making, const Keyword *keyword, PyObject *value) {
    if (!PyFloat_CheckExact(value)) return 0;
    const double number = PyFloat_AS_DOUBLE(value);
    if (keyword->kind == MEMBER) memcpy(&making->call.word[keyword->number], &number, sizeof number);
    if (making->kept && keyword->again >= 0)
        memcpy(&making->call.again.word[keyword->again], &number, sizeof number);
    return 1;
}

static int take_steps(Making *making, const Keyword *keyword, PyObject *value) {
    if (!PyLong_CheckExact(value)) return 0;
    const long long steps = PyLong_AsLongLong(value);
    if (steps == -1 && PyErr_Occurred()) return 0;
    ((int64_t *)&making->call.say)[keyword->number] = steps;
    return steps >= keyword->least;
}

static int take_choice(Making *making, const Keyword *keyword, PyObject *value) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keyword->extra); i++) {
        PyObject *choice = PyTuple_GET_ITEM(keyword->extra, i);
        if (value != choice && !(PyUnicode_CheckExact(choice) && same_name(value, choice))) continue;
        ((int64_t *)&making->call.say)[keyword->number] = i;
        return 1;
    }
    return 0;
}

/* Names of results as their bits; `extra` are the names of results that may be left out, in order, None else. */
static int take_names(const Keyword *keyword, PyObject *value, int64_t *bits) {
    if (!PyTuple_CheckExact(value)) return 0;
    int64_t formed = -1;
    Py_ssize_t known = 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(keyword->extra); k++) {
        PyObject *name = PyTuple_GET_ITEM(keyword->extra, k);
        const Py_ssize_t before = known;
        if (name == Py_None) continue;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) known += same_name(PyTuple_GET_ITEM(value, i), name);
        if (known == before && k >= CG_BITS) return 0;
        if (known == before) formed &= ~((int64_t)1 << k);
    }
    *bits = formed;
    return known == PyTuple_GET_SIZE(value);
}

/* Whether a caller wants a result, by its member. */
static int is_wanted(const Making *making, int64_t member) {
    return cg_has_bit(making->call.wanted, member - making->door->function->arguments);
}

/* Lengths as int64 without gaps, a copy where they are other whole numbers; NULL: none, or no memory. */
static PyArrayObject *counts_of(Making *making, PyArrayObject *array) {
    const int is_counted = PyArray_TYPE(array) == NPY_INT64 && PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS);
    if (is_counted || !PyTypeNum_ISINTEGER(PyArray_TYPE(array)) || making->helds == MOST_HELD)
        return is_counted ? array : NULL;
    PyObject *counts = PyArray_CastToType(array, PyArray_DescrFromType(NPY_INT64), 0);
    if (counts) making->held[making->helds++] = counts;
    return (PyArrayObject *)counts;
}

static int take_table(Making *making, const Keyword *keyword, PyObject *value) {
    PyArrayObject *array = plain_array(value);
    const int is_lengths = keyword->number == 0;
    if (!array || PyArray_NDIM(array) != (is_lengths ? 1 : 2)) return 0;
    if (!is_lengths && PyArray_TYPE(array) != NPY_BOOL) return 0;
    making->table[keyword->number] = is_lengths ? counts_of(making, array) : array;
    return making->table[keyword->number] != NULL;
}

/* Begin with what a run kept that saved checkpoints: what that forward pass makes, the backward pass is not given. */
static int take_kept(Making *making, PyObject *kept) {
    cg_call *call = &making->call;
    const cellgen_signature *forward = making->door->forward;
    long long steps, flush, products;
    if (!forward || !PyTuple_CheckExact(kept) || PyTuple_GET_SIZE(kept) < 3) return 0;
    steps = PyLong_AsLongLong(PyTuple_GET_ITEM(kept, 0)), flush = PyLong_AsLongLong(PyTuple_GET_ITEM(kept, 1));
    products = PyLong_AsLongLong(PyTuple_GET_ITEM(kept, 2));
    if (PyErr_Occurred() || steps < 1) return 0;
    making->kept = kept, call->say.checkpoint = steps;
    cg_begin_again(call, forward, flush, products);
    return 1;
}

static int take(Making *making, const Keyword *keyword, PyObject *value) {
    if (value == Py_None && keyword->may_be_none) return 1;
    if (making->kept && keyword->value && cg_is_made_again(&making->call, keyword->value)) return 1;
    switch (keyword->kind) {
    case MEMBER:
        if (keyword->value->role == CELLGEN_ROLE_SCALAR) return take_scalar(making, keyword, value);
        return take_array(making, keyword, value);
    case CHECKED:
        if (keyword->value && keyword->value->role == CELLGEN_ROLE_SCALAR) return take_scalar(making, keyword, value);
        return take_array(making, keyword, value);
    case SWITCH:
        if (!PyBool_Check(value)) return 0;
        ((int64_t *)&making->call.say)[keyword->number] = value == Py_True;
        return 1;
    case STEPS: return take_steps(making, keyword, value);
    case CHOICE: return take_choice(making, keyword, value);
    case TABLE: return take_table(making, keyword, value);
    case OUTPUTS: return take_names(keyword, value, &making->call.say.outputs);
    case WANTED: return take_names(keyword, value, &making->call.wanted);
    case RESULTS: /* looked at behind the arrays */
        making->out = PyDict_CheckExact(value) ? PyDict_Copy(value) : value;
        if (making->out == value) Py_INCREF(value);
        return making->out != NULL;
    case KEPT: return 1; /* read before the arrays, as is the next one */
    case BATCH_FIRST:
    case BESIDE: return PyBool_Check(value);
    default: return value == keyword->extra;
    }
}

/* Take all keywords of a call: whether the door knows what each of them means. */
static int take_keywords(Making *making, PyObject *arguments) {
    const Door *door = making->door;
    Py_ssize_t place = 0, start = 0;
    PyObject *name, *value;
    if (door->batch_first) making->call.batch_first = PyDict_GetItem(arguments, door->batch_first) == Py_True;
    PyObject *kept = door->kept ? PyDict_GetItem(arguments, door->kept) : NULL;
    if (kept && !take_kept(making, kept)) return 0;
    while (PyDict_Next(arguments, &place, &name, &value)) {
        const Keyword *keyword = look_up(door, name, &start);
        if (!keyword || !take(making, keyword, value) || making->helds == MOST_HELD) return 0;
        Py_INCREF(value);
        making->held[making->helds++] = value;
    }
    return making->type >= 0;
}

/* --- arrays that results are written to ---------------------------------------------------------- */

/* Note where an array's first byte lies and its last one ends; whether it shares memory with none noted before. */
static int note_span(Making *making, PyArrayObject *array) {
    Span own = {PyArray_DATA(array), PyArray_DATA(array)};
    const int is_empty = !PyArray_SIZE(array);
    for (int axis = 0; !is_empty && axis < PyArray_NDIM(array); axis++) {
        const npy_intp last = (PyArray_DIM(array, axis) - 1) * PyArray_STRIDE(array, axis);
        *(last < 0 ? &own.first : &own.end) += last;
    }
    if (!is_empty) own.end += PyArray_ITEMSIZE(array);
    int is_apart = 1;
    for (Py_ssize_t i = 0; i < making->spans; i++)
        is_apart &= own.first >= making->span[i].end || making->span[i].first >= own.end;
    making->span[making->spans++] = own;
    return is_apart;
}

/* Whether a kernel may write a result to an array: dense, of the call's type, in no other array's memory. */
static int take_own(Making *making, int64_t member, PyObject *value) {
    enum { AS_WRITTEN = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_WRITEABLE };
    if (value == Py_None) return 1;
    PyArrayObject *array = plain_array(value);
    if (!array || PyArray_TYPE(array) != making->type || !PyArray_CHKFLAGS(array, AS_WRITTEN)) return 0;
    if (!is_wanted(making, member)) return 0;
    making->own[member] = array;
    return note_span(making, array);
}

/* Take `out`: a dict by the names of results, or a tuple in their order; with the last step alone Python looks at it. */
static int take_out(Making *making) {
    const Door *door = making->door;
    PyObject *out = making->out, *name, *value;
    Py_ssize_t place = 0, fields = door->fields;
    if (!out) return 1;
    while (fields && door->field[fields - 1] < 0) fields--; /* what is saved is no field of `out` */
    if (making->call.say.last_only) return 0;
    for (Py_ssize_t i = 0; i < making->helds; i++)
        if (PyArray_Check(making->held[i])) note_span(making, (PyArrayObject *)making->held[i]);
    for (Py_ssize_t i = 3; making->kept && i < PyTuple_GET_SIZE(making->kept) && i < CG_MOST_MEMBERS + 3; i++) {
        PyObject *checkpoint = PyTuple_GET_ITEM(making->kept, i);
        if (PyArray_Check(checkpoint)) note_span(making, (PyArrayObject *)checkpoint);
    }
    if (PyTuple_Check(out)) {
        int goes_on = PyTuple_GET_SIZE(out) == fields;
        for (Py_ssize_t i = 0; goes_on && i < fields; i++)
            goes_on = take_own(making, door->field[i], PyTuple_GET_ITEM(out, i));
        return goes_on;
    }
    while (PyDict_CheckExact(out) && PyDict_Next(out, &place, &name, &value)) {
        Py_ssize_t i = 0, length = 0;
        const char *text = PyUnicode_CheckExact(name) ? PyUnicode_AsUTF8AndSize(name, &length) : NULL;
        if (!text || strlen(text) != (size_t)length) return 0; /* "h\0" is not "h" */
        while (i < fields && strcmp(door->function->member[door->field[i]].name, text)) i++;
        if (i == fields || !take_own(making, door->field[i], value)) return 0;
    }
    return PyDict_CheckExact(out);
}
