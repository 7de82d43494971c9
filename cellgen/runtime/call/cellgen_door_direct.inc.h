/* A function of a kernel as a type whose calls are C's from the start: keywords go to its door as the interpreter has
 * them, with no frame of Python between. Python's own `__call__` of the class makes what this does not take. Part of
 * cellgen_door.c. */

/* What a class of functions has as `_way`: what has each thread's workspace; the multiply-adds of a long call, or where the
 * name LONG says them; Python's own `__call__`; what `threads` has to be, None: neither it nor `save` is a keyword. */
enum way { PER_THREAD, LONGEST, BY_PYTHON, THREADS, WAYS };

static PyObject *way_name, *door_name, *make_name, *memory_name, *address_name, *bytes_name, *threads_name, *save_name,
    *with_saved_name, *long_name, *zero, *places_name, *lock_name, *acquire_name, *release_name, *results_name,
    *own_memory_name;

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

/* --- bound calls ---------------------------------------------------------------------------------- */

enum { PLACE_OF_THREADS, PLACE_OF_CALL, PLACE_OF_DIMS, PLACE_OF_STRUCT, PLACE_OF_PYTHON, PLACES };

/* Run a bound call whose workspace is this thread's own still: 1: it did, 0: Python makes it, -1: an error. */
static int run_bound(PyObject *self, PyObject *places) {
    PyObject *own = PyObject_GetAttr(self, own_memory_name);
    PyObject *memory = own ? PyObject_GetAttr(PyTuple_GET_ITEM(places, PLACE_OF_THREADS), memory_name) : NULL;
    const int is_own = memory && own == memory;
    Py_XDECREF(own);
    Py_XDECREF(memory);
    if (!is_own) return memory ? 0 : -1;
    PyObject *lock = PyObject_GetAttr(self, lock_name);
    PyObject *taken = lock ? PyObject_CallMethodOneArg(lock, acquire_name, Py_False) : NULL, *given_back = NULL;
    int code = 1;
    if (taken == Py_True) {
        int (*call)(const int64_t *, const void *) =
            (int (*)(const int64_t *, const void *))(uintptr_t)PyLong_AsVoidPtr(PyTuple_GET_ITEM(places, PLACE_OF_CALL));
        const int64_t *dims = PyLong_AsVoidPtr(PyTuple_GET_ITEM(places, PLACE_OF_DIMS));
        const void *members = PyLong_AsVoidPtr(PyTuple_GET_ITEM(places, PLACE_OF_STRUCT));
        Py_BEGIN_ALLOW_THREADS
        code = call(dims, members);
        Py_END_ALLOW_THREADS
        given_back = PyObject_CallMethodNoArgs(lock, release_name);
    }
    const int failed = !taken || (taken == Py_True && !given_back);
    Py_XDECREF(lock);
    Py_XDECREF(taken);
    Py_XDECREF(given_back);
    return failed ? -1 : code == 0;
}

/* A bound call of one thread, without 16 bits and without a flag that ends it: all that Python says of it is `_places`. */
static PyObject *bound_call(PyObject *self, PyObject *args, PyObject *keywords) {
    PyObject *places = PyObject_GetAttr(self, places_name), *found = NULL;
    if (!places) return NULL;
    if (!PyTuple_CheckExact(places) || PyTuple_GET_SIZE(places) != PLACES) {
        Py_DECREF(places);
        return PyErr_Format(PyExc_TypeError, "a bound call has other _places");
    }
    const int is_plain = !PyTuple_GET_SIZE(args) && (!keywords || !PyDict_GET_SIZE(keywords));
    const int ran = is_plain ? run_bound(self, places) : 0;
    if (ran > 0) found = PyObject_GetAttr(self, results_name);
    if (ran == 0) found = call_by_python(self, PyTuple_GET_ITEM(places, PLACE_OF_PYTHON), args, keywords);
    Py_DECREF(places);
    return found;
}

static PyType_Slot bound_slots[] = {{Py_tp_call, bound_call}, {0, NULL}};
static PyType_Spec bound_spec = {"cellgen_door.Bound", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, bound_slots};

static PyType_Slot direct_slots[] = {{Py_tp_call, direct_call}, {0, NULL}};
static PyType_Spec direct_spec = {"cellgen_door.Direct", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, direct_slots};

/* Add the type to the module; 0: it went well. */
static int fill_direct(PyObject *module) {
    PyObject **const names[] = {&way_name,     &door_name,  &make_name,    &memory_name, &address_name,
                                &bytes_name,   &threads_name, &save_name, &with_saved_name, &long_name,
                                &places_name, &lock_name, &acquire_name, &release_name, &results_name,
                                &own_memory_name};
    const char *const texts[] = {"_way",  "_door",   "make", "memory",      "address",
                                 "bytes", "threads", "save", "_with_saved", "LONG",
                                 "_places", "_lock", "acquire", "release", "results", "_memory"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!*names[i] && !(*names[i] = PyUnicode_InternFromString(texts[i]))) return -1;
    if (!zero && !(zero = PyLong_FromLong(0))) return -1;
    PyObject *type = PyType_FromSpec(&direct_spec), *bound = type ? PyType_FromSpec(&bound_spec) : NULL;
    int code = bound ? PyObject_SetAttrString(module, "Direct", type) : -1;
    if (!code) code = PyObject_SetAttrString(module, "Bound", bound);
    Py_XDECREF(type);
    Py_XDECREF(bound);
    return code;
}
