/* A function of a kernel as a type whose calls are C's from the start: keywords go to its door as the interpreter has
 * them, with no frame of Python between. Python's own `__call__` of the class makes what this does not take. Part of
 * cellgen_door.c. */

/* What a class of functions has as `_way`: what has each thread's workspace; the multiply-adds of a long call, or where the
 * name LONG says them; Python's own `__call__`; what `threads` has to be, None: neither it nor `save` is a keyword. */
enum way { PER_THREAD, LONGEST, BY_PYTHON, THREADS, WAYS };

static PyObject *way_name, *door_name, *make_name, *memory_name, *address_name, *bytes_name, *threads_name, *save_name,
    *with_saved_name, *long_name, *zero;

static PyObject *call_by_python(PyObject *self, PyObject *function, PyObject *args, PyObject *keywords) {
    const Py_ssize_t count = PyTuple_GET_SIZE(args);
    PyObject *all = PyTuple_New(count + 1);
    if (!all) return NULL;
    for (Py_ssize_t i = 0; i <= count; i++) {
        PyObject *value = i ? PyTuple_GET_ITEM(args, i - 1) : self;
        Py_INCREF(value);
        PyTuple_SET_ITEM(all, i, value);
    }
    PyObject *found = PyObject_Call(function, all, keywords);
    Py_DECREF(all);
    return found;
}

/* Whether a call saves, of keywords that a door may be asked for: those of one thread; NULL: it may not. */
static PyObject *saves_by_door(PyObject *way, PyObject *args, PyObject *keywords) {
    PyObject *threads = PyTuple_GET_ITEM(way, THREADS);
    if (!keywords || !PyDict_CheckExact(keywords) || PyTuple_GET_SIZE(args)) return NULL;
    if (threads == Py_None) return Py_False;
    if (PyDict_GetItemWithError(keywords, threads_name) != threads) return NULL;
    PyObject *save = PyDict_GetItemWithError(keywords, save_name);
    if (PyErr_Occurred()) return NULL;
    return !save ? Py_False : PyBool_Check(save) ? save : NULL;
}

/* The results of a call, None where Python makes it. */
static PyObject *call_by_door(PyObject *self, PyObject *way, PyObject *keywords, PyObject *save) {
    PyObject *longest = PyTuple_GET_ITEM(way, LONGEST), *found = NULL;
    PyObject *memory = PyObject_GetAttr(PyTuple_GET_ITEM(way, PER_THREAD), memory_name);
    PyObject *address = memory ? PyObject_GetAttr(memory, address_name) : NULL;
    PyObject *bytes = address ? PyObject_GetAttr(memory, bytes_name) : NULL;
    if (bytes && PyDict_CheckExact(longest)) longest = PyDict_GetItemWithError(longest, long_name);
    PyObject *door = bytes && longest ? PyObject_GetAttr(self, door_name) : NULL;
    PyObject *make = door ? PyObject_GetAttr(door, make_name) : NULL;
    if (make && make != Py_None) {
        PyObject *given[] = {keywords, save, address, bytes, zero, longest, Py_None};
        found = PyObject_Vectorcall(make, given, 7, NULL);
    }
    if (found && found != Py_None && save == Py_True) {
        PyObject *all = PyObject_CallMethodObjArgs(self, with_saved_name, found, keywords, NULL);
        Py_DECREF(found);
        found = all;
    }
    Py_XDECREF(door);
    Py_XDECREF(make);
    Py_XDECREF(memory);
    Py_XDECREF(address);
    Py_XDECREF(bytes);
    return found;
}

static PyObject *direct_call(PyObject *self, PyObject *args, PyObject *keywords) {
    PyObject *way = PyObject_GetAttr(self, way_name), *found = NULL;
    if (!way) return NULL;
    if (!PyTuple_CheckExact(way) || PyTuple_GET_SIZE(way) != WAYS) {
        Py_DECREF(way);
        return PyErr_Format(PyExc_TypeError, "a function of a kernel has another _way");
    }
    PyObject *save = saves_by_door(way, args, keywords);
    if (save) found = call_by_door(self, way, keywords, save);
    if (found == Py_None || (!found && !PyErr_Occurred())) {
        Py_XDECREF(found);
        found = call_by_python(self, PyTuple_GET_ITEM(way, BY_PYTHON), args, keywords);
    }
    Py_DECREF(way);
    return found;
}

static PyType_Slot direct_slots[] = {{Py_tp_call, direct_call}, {0, NULL}};
static PyType_Spec direct_spec = {"cellgen_door.Direct", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, direct_slots};

/* Add the type to the module; 0: it went well. */
static int fill_direct(PyObject *module) {
    PyObject **const names[] = {&way_name,     &door_name,  &make_name,    &memory_name, &address_name,
                                &bytes_name,   &threads_name, &save_name, &with_saved_name, &long_name};
    const char *const texts[] = {"_way",  "_door",   "make", "memory",      "address",
                                 "bytes", "threads", "save", "_with_saved", "LONG"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!*names[i] && !(*names[i] = PyUnicode_InternFromString(texts[i]))) return -1;
    if (!zero && !(zero = PyLong_FromLong(0))) return -1;
    PyObject *type = PyType_FromSpec(&direct_spec);
    if (!type) return -1;
    const int code = PyObject_SetAttrString(module, "Direct", type);
    Py_DECREF(type);
    return code;
}
