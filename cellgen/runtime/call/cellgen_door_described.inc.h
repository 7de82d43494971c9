/* A Door, as door.py describes a function of a kernel to it. Part of cellgen_door.c. */

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
    } else if (keyword->kind < MEMBER || keyword->kind > WANTED || keyword->number < 0 ||
               keyword->number >= (keyword->kind == TABLE ? 3 : (int64_t)(sizeof(cellgen_numbers) / sizeof(int64_t)))) {
        return PyErr_BadArgument();
    }
    if (keyword->kind == BATCH_FIRST) door->batch_first = name; /* which the keyword keeps */
    if (keyword->kind == KEPT) door->kept = name;
    keyword->again = door->forward ? member_named(door->forward, text, 0, door->forward->arguments) : -1;
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
    if (!PyArg_ParseTuple(packed, "KLiiO!", &address, &bytes, &door->packed_precision, &door->packed_products,
                          &PyDict_Type, &sizes))
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

/* door(cell, function, its forward pass or None, keep, named, empty, keywords, fields, saves, outputs of the last step, packed or
 * None) */
static PyObject *new_door(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    unsigned long long cell;
    const char *name, *forward;
    PyObject *keep, *named, *empty, *keywords, *fields, *saves, *packed;
    long long of_last;
    if (!PyArg_ParseTuple(args, "KszOO!OO!O!O!LO", &cell, &name, &forward, &keep, &PyType_Type, &named, &empty, &PyTuple_Type,
                          &keywords, &PyTuple_Type, &fields, &PyTuple_Type, &saves, &of_last, &packed))
        return NULL;
    const cellgen_cell *of = (const cellgen_cell *)(uintptr_t)cell;
    const cellgen_signature *function = of->abi == CELLGEN_ABI_VERSION ? cg_function_named(of, name) : NULL;
    if (!function || of->precisions != 2 || function->members > CG_MOST_MEMBERS || of->dims > CG_MOST_MEMBERS ||
        !PyType_IsSubtype((PyTypeObject *)named, &PyTuple_Type)) {
        PyErr_BadArgument();
        return NULL;
    }
    Door *door = (Door *)state->door->tp_alloc(state->door, 0);
    if (!door) return NULL;
    door->cell = of, door->function = function;
    door->forward = forward ? cg_function_named(of, forward) : NULL;
    if (door->forward && door->forward->members > CG_MOST_MEMBERS) door->forward = NULL;
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
