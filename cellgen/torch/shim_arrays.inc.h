/* Workspaces of threads, shapes, and tensors as a kernel reads them. Part of shim.c. */

/* --- each thread keeps its workspace, and the record of a call, which takes more than malloc has at hand ----------- */

/* How many bytes a kernel asked for at these dimensions, without options. */
typedef struct {
    const cellgen_entry *entry;
    int64_t dims[DIMS], bytes;
} Size;

typedef struct {
    void *memory;
    int64_t bytes;
    Run *spare;
    Size size[2]; /* of the last call forward, and of the last one back */
} Space;

static pthread_key_t spaces;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_space(void *held)
{
    free(((Space *)held)->memory);
    free(((Space *)held)->spare);
    free(held);
}
static void make_key(void) { pthread_key_create(&spaces, free_space); }

/* What this thread keeps; NULL: no memory. */
static Space *space_of_thread(void)
{
    pthread_once(&once, make_key);
    Space *space = pthread_getspecific(spaces);
    if (space != NULL)
        return space;
    space = calloc(1, sizeof *space);
    if (space != NULL && pthread_setspecific(spaces, space)) {
        free(space);
        return NULL;
    }
    return space;
}

/* A record for a call; NULL: no memory. A call within another one, as of a copy that a hook makes, has one of its own. */
static Run *take_run(void)
{
    Space *space = space_of_thread();
    Run *run = space == NULL ? NULL : space->spare;
    if (run == NULL)
        return malloc(sizeof *run);
    space->spare = NULL;
    return run;
}

static void give_up(Run *run)
{
    while (run->starts > 0)
        free(run->start[--run->starts]);
    Space *space = space_of_thread();
    if (space == NULL || space->spare != NULL)
        free(run);
    else
        space->spare = run;
}

static void *workspace(int64_t bytes)
{
    Space *space = space_of_thread();
    if (space == NULL)
        return NULL;
    if (space->bytes < bytes || space->memory == NULL) {
        free(space->memory);
        space->bytes = 0;
        if (posix_memalign(&space->memory, 64, (size_t)(bytes > 64 ? bytes : 64))) {
            space->memory = NULL;
            return NULL;
        }
        space->bytes = bytes;
    }
    return space->memory;
}

/* How many bytes of workspace a call takes: what a thread's last call of the kind asked for, or what the kernel says. */
static int64_t bytes_of(const Run *run, const cellgen_entry *entry, const int64_t *dims, const cellgen_options *options)
{
    const size_t length = (size_t)run->function->signature->dims * sizeof *dims;
    Space *space = options == NULL ? space_of_thread() : NULL;
    if (space == NULL)
        return entry->size(dims, options);
    Size *size = &space->size[run->function == &run->cell->backward];
    if (size->entry != entry || memcmp(size->dims, dims, length))
        size->entry = entry, memcpy(size->dims, dims, length), size->bytes = entry->size(dims, NULL);
    return size->bytes;
}

/* --- shapes ------------------------------------------------------------------------------------- */

static int64_t length(const cellgen_axis *axis, const int64_t *dims) { return cg_length(axis, dims); }

static void own(Run *run, Tensor tensor)
{
    if (run->owns < 4 * MOST)
        run->owned[run->owns++] = tensor;
    else
        aoti_torch_delete_tensor_object(tensor);
}

static Tensor make(Run *run, int64_t rank, const int64_t *sizes, int32_t dtype)
{
    int64_t strides[AXES + 1], dense = 1;
    Tensor made = NULL;
    for (int64_t k = rank; k-- > 0;) {
        strides[k] = dense;
        dense *= sizes[k] > 0 ? sizes[k] : 1;
    }
    if (aoti_torch_empty_strided(rank, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &made))
        fail(run, "cellgen: no memory for a result");
    return made;
}

/* Whether the memory of a tensor holds all its entries: what it views can be cut short behind it. */
static int is_in_memory(Tensor tensor)
{
    int64_t rank = 0, *sizes = NULL, *strides = NULL, last = 0, bytes = 0;
    int32_t dtype = -1;
    void *data = NULL;
    if (aoti_torch_get_dim(tensor, &rank) || aoti_torch_get_sizes(tensor, &sizes) ||
        aoti_torch_get_strides(tensor, &strides) || aoti_torch_get_dtype(tensor, &dtype) ||
        aoti_torch_get_storage_offset(tensor, &last) || aoti_torch_get_storage_size(tensor, &bytes) ||
        aoti_torch_get_data_ptr(tensor, &data))
        return 0;
    for (int64_t k = 0; k < rank; ++k) {
        if (sizes[k] == 0)
            return 1;
        last += (sizes[k] - 1) * strides[k];
    }
    return data != NULL && (last + 1) * (int64_t)aoti_torch_dtype_element_size(dtype) <= bytes;
}

/* Whether units, the axes from `first` on, lie side by side, whatever lies between steps and rows. */
static int has_dense_units(int64_t rank, int64_t first, const int64_t *sizes, const int64_t *strides)
{
    int64_t dense = 1;
    for (int64_t k = rank; k-- > first;) {
        if (sizes[k] > 1 && strides[k] != dense)
            return 0;
        dense *= sizes[k];
    }
    return 1;
}

static void span(Run *run, int64_t steps, int64_t rows)
{
    run->strides[run->spans++] = steps;
    run->strides[run->spans++] = rows;
}

static const cg_change whole = {0, 0, 1}; /* of what options do not change */

/* Whether an array has a row for each step, saved ones too. */
static int has_steps(const Run *run, const cellgen_value *value)
{
    return cg_has_steps(value, &whole, run->cell->steps);
}

/* What a kernel finds in the tensor of a member (cellgen_stored). */
static int kind_of(const Run *run, const Member *member)
{
    return cg_held(member->value, &whole, run->cell->steps, run->narrow, run->say.products);
}

/* Whether the tensor of a member has a first axis of one layer: states, those after the last step, gradients of both. */
static int has_layer(const Run *run, const Member *member)
{
    const int64_t role = member->value->role, flags = member->value->flags;
    if (!run->is_layer || flags & (CELLGEN_VALUE_OVER_TIME | CELLGEN_VALUE_WEIGHT))
        return 0;
    return role == CELLGEN_ROLE_STATE || role == CELLGEN_ROLE_FINAL || role == CELLGEN_ROLE_UPSTREAM ||
           role == CELLGEN_ROLE_GRADIENT;
}

/* The type of a tensor that stands for a member. */
static int32_t dtype_of(const Run *run, const Member *member)
{
    const int kind = kind_of(run, member), is_saved = (member->value->flags & CELLGEN_VALUE_SAVED) != 0;
    if (run->narrow && !kind)
        return member->source == THETA || is_saved ? aoti_torch_dtype_float32() : run->dtype;
    return kind == CELLGEN_STORED_F16 ? aoti_torch_dtype_float16() : run->dtype;
}

/* Another tensor with the numbers of one, without gaps. */
static Tensor copied(Run *run, Tensor tensor, int64_t rank, const int64_t *sizes, int32_t dtype)
{
    Tensor copy = make(run, rank, sizes, dtype);
    if (copy == NULL)
        return NULL;
    own(run, copy);
    if (aoti_torch_copy_(copy, tensor, 0))
        fail(run, "cellgen: a tensor cannot be copied");
    return copy;
}

/* The address of a tensor that a kernel can read; what it cannot is copied first. */
static void *address(Run *run, Tensor tensor, const Member *member)
{
    const cellgen_value *value = member->value;
    int64_t rank = 0, *sizes = NULL, *strides = NULL;
    int32_t dtype = -1, device = -1;
    _Bool dense = 0;
    void *found = NULL;
    int first = 0;
    aoti_torch_get_dim(tensor, &rank), aoti_torch_get_sizes(tensor, &sizes);
    aoti_torch_get_dtype(tensor, &dtype), aoti_torch_get_device_type(tensor, &device);
    const int timed = (value->flags & CELLGEN_VALUE_OVER_TIME) != 0;
    const int64_t before = run->is_step && timed;
    if (has_layer(run, member))
        first = rank > 0 && sizes[0] == 1, sizes += first, rank = first ? rank - 1 : -1;
    if (rank != value->axes - before || dtype != dtype_of(run, member) || device != aoti_torch_device_type_cpu()) {
        fail(run, "cellgen: a tensor has another rank, dtype or device");
        return NULL;
    }
    const cg_view view = {value, cg_change_of(value, &run->say), 0, NULL};
    for (int64_t k = 0; k < rank && member->source != THETA; ++k) /* whose shapes are bound */
        if (sizes[k] != cg_view_length(&view, k + before, run->dims)) {
            fail(run, "cellgen: shapes do not agree");
            return NULL;
        }
    const int is_widened = run->narrow && dtype == run->dtype && !kind_of(run, member);
    aoti_torch_is_contiguous(tensor, &dense);
    if (!dense || is_widened) {
        aoti_torch_get_strides(tensor, &strides);
        if (timed && has_dense_units(rank, 2 - before, sizes, strides)) {
            run->is_apart = 1;
            span(run, strides[0], strides[1 - before]);
            aoti_torch_get_data_ptr(tensor, &found);
            return found;
        }
        tensor = copied(run, tensor, rank + first, sizes - first, is_widened ? aoti_torch_dtype_float32() : dtype);
        if (tensor == NULL)
            return NULL;
    }
    aoti_torch_get_data_ptr(tensor, &found);
    return found;
}

/* Steps and rows of an array over time without gaps. */
static void dense_span(Run *run, const cellgen_value *value)
{
    int64_t units = 1;
    for (int64_t k = 2; k < value->axes; ++k)
        units *= length(value->axis[k], run->dims);
    span(run, length(value->axis[1], run->dims) * units, units);
}
