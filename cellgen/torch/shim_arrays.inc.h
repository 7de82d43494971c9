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
static int64_t bytes_of(const Run *run)
{
    const cellgen_entry *entry = run->call.entry;
    const int64_t *dims = run->call.dims;
    const cellgen_options *options = cg_options_of(&run->call);
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

static void own(Run *run, Tensor tensor)
{
    if (run->owns < 4 * MOST)
        run->owned[run->owns++] = tensor;
    else
        aoti_torch_delete_tensor_object(tensor), fail(run, "cellgen: a call has more arrays than it can hold");
}

static Tensor make(Run *run, int64_t rank, const int64_t *sizes, int32_t dtype)
{
    int64_t strides[CG_AXES + 2], dense = 1;
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

static const cg_change whole = {0, 0, 1}; /* of what options do not change */

/* Whether the tensor of a member has a first axis of one layer: states, those after the last step, gradients of both. */
static int has_layer(const Run *run, const cellgen_value *value)
{
    const int64_t role = value->role, flags = value->flags;
    if (!run->is_layer || flags & (CELLGEN_VALUE_OVER_TIME | CELLGEN_VALUE_WEIGHT))
        return 0;
    return role == CELLGEN_ROLE_STATE || role == CELLGEN_ROLE_FINAL || role == CELLGEN_ROLE_UPSTREAM ||
           role == CELLGEN_ROLE_GRADIENT;
}

/* The type of a tensor of numbers of a kind (cellgen_stored) in a call. */
static int32_t dtype_of_kind(const Run *run, int kind)
{
    if (!run->call.narrow)
        return run->dtype;
    return kind == CELLGEN_STORED_REAL  ? aoti_torch_dtype_float32()
           : kind == CELLGEN_STORED_F16 ? aoti_torch_dtype_float16()
                                        : aoti_torch_dtype_bfloat16();
}

/* What the tensor of a member holds (cellgen_stored): what a kernel keeps is as it finds it, all else as the call has it. */
static int kind_of(const Run *run, const cellgen_value *value)
{
    return value->flags & CELLGEN_VALUE_SAVED ? cg_kind_of(&run->call, value, whole, run->call.narrow) : run->call.narrow;
}

/* Another tensor with the numbers of one, without gaps. */
static Tensor copied(Run *run, Tensor tensor, int64_t rank, const int64_t *sizes, int32_t dtype)
{
    Tensor copy = make(run, rank, sizes, dtype);
    if (copy == NULL)
        return NULL;
    own(run, copy);
    if (run->fault != NULL)
        return NULL;
    if (aoti_torch_copy_(copy, tensor, 0))
        fail(run, "cellgen: a tensor cannot be copied");
    return copy;
}

/* Add the tensor of a member to a call, -1: one that the function does not read; what a kernel cannot read is copied
 * first. NULL: it has a fault. */
static cg_array *add(Run *run, Tensor tensor, const cellgen_value *value, int64_t m)
{
    const int is_timed = (value->flags & CELLGEN_VALUE_OVER_TIME) != 0, before = has_layer(run, value);
    const int is_one_step = run->is_step && is_timed, kind = kind_of(run, value);
    int64_t rank = 0, *sizes = NULL, *strides = NULL, length[CG_AXES] = {1}, stride[CG_AXES] = {0};
    int32_t dtype = -1, device = -1;
    _Bool dense = 0;
    void *data = NULL;
    aoti_torch_get_dim(tensor, &rank), aoti_torch_get_sizes(tensor, &sizes);
    aoti_torch_get_dtype(tensor, &dtype), aoti_torch_get_device_type(tensor, &device);
    if (rank != value->axes + before - is_one_step || (before && sizes[0] != 1) || dtype != dtype_of_kind(run, kind) ||
        device != aoti_torch_device_type_cpu()) {
        fail(run, "cellgen: a tensor has another rank, dtype or device");
        return NULL;
    }
    aoti_torch_is_contiguous(tensor, &dense);
    if (!dense)
        aoti_torch_get_strides(tensor, &strides);
    if (!dense && !(is_timed && has_dense_units(rank, 2 - is_one_step, sizes, strides))) {
        tensor = copied(run, tensor, rank, sizes, dtype), dense = 1;
        if (tensor == NULL)
            return NULL;
    }
    aoti_torch_get_data_ptr(tensor, &data);
    rank -= before;
    memcpy(length + is_one_step, sizes + before, (size_t)rank * sizeof *length);
    if (!dense)
        memcpy(stride + is_one_step, strides, (size_t)rank * sizeof *stride);
    cg_array *array = cg_add(&run->call, value, m, data, rank + is_one_step, length, dense ? NULL : stride);
    if (array == NULL)
        fail(run, "cellgen: a call has too many tensors");
    else
        array->kind = kind;
    return array;
}
