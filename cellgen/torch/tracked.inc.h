/* Calls that autograd tracks, as a layer or a cell makes the same one again and again: what Python says of it is read once.
 * Part of shim.c, behind direct.c. */

static const char plan_name[] = "cellgen_torch_plan";

/* Of such a call the cell, flags, scalars and options; by numbers the results that its backward pass reads, for each of
 * the cell's upstream gradients the result whose it is, -1 where it is none's, and the places of what has gradients. */
typedef struct {
    const Cell *cell;
    int flags, reads, upstreams, learns;
    double scalar[MOST];
    cellgen_numbers say;
    int read[MOST], upstream[MOST], learn[MOST];
} Plan;

static void free_plan(Object capsule) { free(PyCapsule_GetPointer(capsule, plan_name)); }

/* The numbers of a tuple, at most MOST; how many, below 0: these are none. */
static int read_places(Object tuple, int *into)
{
    const intptr_t count = PyTuple_Size(tuple);
    if (count < 0 || count > MOST)
        return -1;
    for (intptr_t k = 0; k < count; ++k)
        into[k] = (int)PyLong_AsLong(PyTuple_GetItem(tuple, k));
    return PyErr_Occurred() == NULL ? (int)count : -1;
}

/* plan(cell, flags, scalars, options, reads, upstream, learns): a capsule for `track` and `track_back`, or None. */
static Object plan_call(Object self, Object const *given, intptr_t arguments)
{
    (void)self;
    Run *run = arguments == 7 ? begin_call(PyLong_AsVoidPtr(given[0]), 0, 0) : NULL;
    Plan *plan = run == NULL ? NULL : calloc(1, sizeof *plan);
    Object capsule = NULL;
    if (plan != NULL) {
        take_numbers_of_cell(run, given[2]);
        take_options(run, given[3]);
        plan->cell = run->cell, plan->flags = (int)PyLong_AsLong(given[1]), plan->say = run->call.say;
        memcpy(plan->scalar, run->scalar, (size_t)run->cell->scalars * sizeof *plan->scalar);
        plan->reads = read_places(given[4], plan->read);
        plan->upstreams = read_places(given[5], plan->upstream);
        plan->learns = read_places(given[6], plan->learn);
        if (run->fault == NULL && plan->reads >= 0 && plan->upstreams == run->cell->upstream && plan->upstreams <= CG_BITS &&
            plan->learns == run->cell->backward.results)
            capsule = PyCapsule_New(plan, plan_name, free_plan);
        if (capsule == NULL)
            free(plan);
    }
    if (run != NULL)
        give_up(run);
    return capsule == NULL ? declined() : capsule;
}

static Run *begin_plan(const Plan *plan, int is_backward)
{
    Run *run = plan == NULL ? NULL : begin_call(plan->cell, is_backward, plan->flags);
    if (run == NULL)
        return NULL;
    run->call.say = plan->say;
    memcpy(run->scalar, plan->scalar, (size_t)plan->cell->scalars * sizeof *run->scalar);
    return run;
}

static void put(Object tuple, intptr_t place, Object item)
{
    Py_IncRef(item);
    PyTuple_SetItem(tuple, place, item);
}

/* A pair of tuples: the results of a call, and what its backward pass reads. `made` are results and what is kept. */
static Object tracked(const Plan *plan, Object const *theta, Object made)
{
    const intptr_t count = made == NULL ? 0 : PyList_Size(made), before = plan->cell->theta;
    if (count < 1)
        return NULL;
    Object results = PyTuple_New(count - 1), saved = PyTuple_New(before + plan->reads + 1), pair = PyTuple_New(2);
    if (results == NULL || saved == NULL || pair == NULL)
        return NULL;
    for (intptr_t k = 0; k < count - 1; ++k)
        put(results, k, PyList_GetItem(made, k));
    for (intptr_t k = 0; k < before; ++k)
        put(saved, k, theta[k]);
    for (int k = 0; k < plan->reads; ++k)
        put(saved, before + k, PyList_GetItem(made, plan->read[k]));
    put(saved, before + plan->reads, PyList_GetItem(made, count - 1));
    PyTuple_SetItem(pair, 0, results), PyTuple_SetItem(pair, 1, saved);
    return pair;
}

/* track(plan, *theta): a pair of tuples, results and what `track_back` takes, or None. */
static Object track(Object self, Object const *given, intptr_t arguments)
{
    (void)self;
    const Plan *plan = arguments < 1 ? NULL : PyCapsule_GetPointer(given[0], plan_name);
    Run *run = begin_plan(plan, 0);
    Object made = NULL, pair = NULL;
    if (run == NULL)
        return declined();
    const int count = take_given(run, given + 1, arguments - 1, 1);
    if (count >= 0) {
        void *thread = PyEval_SaveThread();
        run_directly(run, SAVES, count);
        end_directly(run);
        PyEval_RestoreThread(thread);
        made = run->fault == NULL ? take_results(run) : NULL;
        pair = tracked(plan, given + 1, made);
    }
    give_up(run);
    if (made != NULL)
        Py_DecRef(made);
    return pair == NULL ? declined() : pair;
}

/* Of what has gradients the bits of what needs one, by `needed`, which ends with the tensors of a call; -1: all. */
static int64_t wanted_of(const Plan *plan, Object needed)
{
    const intptr_t before = PyTuple_Size(needed) - plan->cell->theta;
    int64_t wanted = 0;
    int count = 0;
    if (plan->learns > CG_BITS)
        return -1;
    for (int k = 0; k < plan->learns; ++k)
        if (PyTuple_GetItem(needed, before + plan->learn[k]) != python.no)
            wanted |= (int64_t)1 << k, ++count;
    return count == plan->learns ? -1 : wanted;
}

/* Gradients in the places of the call's arguments, of which `needed` says which need one. */
static Object spread(const Plan *plan, Object needed, int64_t wanted, Object gradients)
{
    const intptr_t all = PyTuple_Size(needed), count = gradients == NULL ? -1 : PyList_Size(gradients);
    intptr_t next = 0;
    for (int k = 0; k < plan->learns; ++k)
        next += cg_has_bit(wanted, k);
    Object tuple = next == count ? PyTuple_New(all) : NULL;
    if (tuple == NULL)
        return NULL;
    next = 0;
    for (intptr_t k = 0; k < all; ++k)
        put(tuple, k, python.none);
    for (int k = 0; k < plan->learns; ++k)
        if (cg_has_bit(wanted, k))
            put(tuple, all - plan->cell->theta + plan->learn[k], PyList_GetItem(gradients, next++));
    return tuple;
}

/* The tensors of a backward pass in the order of run_back, of tuples; how many are kept, below 0: another number. */
static int gather(const Run *run, const Plan *plan, Object saved, Object upstream, Object *into)
{
    const int theta = run->cell->theta, results = run->is_step ? 0 : run->cell->outputs;
    const intptr_t given = PyTuple_Size(upstream);
    if (PyTuple_Size(saved) != theta + plan->reads + 1 || theta + results + 1 + plan->upstreams > 2 * MOST)
        return -1;
    for (int k = 0; k < theta; ++k)
        into[k] = PyTuple_GetItem(saved, k);
    for (int k = 0; k < results; ++k)
        into[theta + k] = python.none;
    for (int k = 0; k < plan->reads; ++k)
        if (plan->read[k] >= 0 && plan->read[k] < results)
            into[theta + plan->read[k]] = PyTuple_GetItem(saved, theta + k);
    into[theta + results] = PyTuple_GetItem(saved, theta + plan->reads);
    for (int k = 0; k < plan->upstreams; ++k) {
        const int place = plan->upstream[k];
        into[theta + results + 1 + k] = place >= 0 && place < given ? PyTuple_GetItem(upstream, place) : python.none;
    }
    return results + 1;
}

/* track_back(plan, needed, saved, upstream): gradients in the places of `needed`, or None. */
static Object track_back(Object self, Object const *given, intptr_t arguments)
{
    (void)self;
    const Plan *plan = arguments == 4 ? PyCapsule_GetPointer(given[0], plan_name) : NULL;
    Run *run = begin_plan(plan, 1);
    Object items[2 * MOST], gradients = NULL, found = NULL;
    Tensor tensors[2 * MOST];
    if (run == NULL)
        return declined();
    const int kept = PyTuple_Size(given[1]) < plan->cell->theta ? -1 : gather(run, plan, given[2], given[3], items);
    const int all = plan->cell->theta + kept + plan->upstreams;
    if (kept > 0 && take_handles(run, items, all, tensors, 1) >= 0 && are_there(run, tensors, kept)) {
        memcpy(run->theta, tensors, (size_t)plan->cell->theta * sizeof *tensors);
        run->wanted = wanted_of(plan, given[1]);
        void *thread = PyEval_SaveThread();
        run_back(run, tensors, kept, plan->upstreams);
        PyEval_RestoreThread(thread);
        const int64_t wanted = run->wanted;
        end_directly(run);
        gradients = run->fault == NULL ? take_results(run) : NULL;
        found = spread(plan, given[1], wanted, gradients);
    } else {
        end_directly(run);
    }
    give_up(run);
    if (gradients != NULL)
        Py_DecRef(gradients);
    return found == NULL ? declined() : found;
}
