/* Calls on a device: the same attributes and checks, with addresses of the device's memory. What launches
 * is Python's (launching.py), which has the kernels of CUDA: it is given the stream of XLA, and memory by
 * XLA's allocator, and waits for nothing. Numbers of 16 bits are not widened. The attribute `element` is
 * what arrays hold; scalars are float, or double of float64. Part of handler.c. */

/* What is launched: a function of a cell, its dimensions in order, the words of its members, of which scalars are
 * addresses, and its options, NULL: it says nothing. As launching.py has it. */
typedef struct {
    const char *cell, *function, *element;
    const int64_t *size;
    uint64_t *member;
    const cellgen_options *options;
    void *stream;
    int64_t device;
    char *text; /* what went wrong */
    int64_t text_bytes;
    XLA_FFI_CallFrame *frame;
    void *scratch;
    int64_t scratch_bytes;
} launched;

enum { XLA_ALIGNMENT = 16 }; /* the most that XLA's allocator takes */

static int (*launch)(launched *of);

/* Say who launches. */
CELLGEN_EXPORT void cellgen_jax_on_device(int (*launcher)(launched *))
{
    launch = launcher;
}

/* Forget an error of XLA's, which has been looked at; whether there was one. */
static int is_refused(const XLA_FFI_CallFrame *frame, XLA_FFI_Error *error)
{
    XLA_FFI_Error_Destroy_Args args = {.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    if (error)
        frame->api->XLA_FFI_Error_Destroy(&args);
    return error != NULL;
}

/* Memory of the device until the call has returned, then in the order of its stream; NULL: there is none. */
CELLGEN_EXPORT void *cellgen_jax_scratch(launched *of, int64_t bytes)
{
    XLA_FFI_DeviceMemory_Allocate_Args args = {.struct_size = XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE,
                                               .ctx = of->frame->ctx,
                                               .size = (size_t)bytes + ALIGNMENT,
                                               .alignment = XLA_ALIGNMENT};
    if (of->scratch || is_refused(of->frame, of->frame->api->XLA_FFI_DeviceMemory_Allocate(&args)))
        return NULL;
    of->scratch = args.data;
    of->scratch_bytes = (int64_t)args.size;
    return (void *)(((uintptr_t)args.data + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static void give_scratch(const launched *of)
{
    XLA_FFI_DeviceMemory_Free_Args args = {.struct_size = XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE,
                                           .ctx = of->frame->ctx,
                                           .size = (size_t)of->scratch_bytes,
                                           .data = of->scratch};
    if (of->scratch)
        is_refused(of->frame, of->frame->api->XLA_FFI_DeviceMemory_Free(&args));
}

/* The stream and the device that XLA runs the call on; 0: it says none. */
static int ask_where(launched *of)
{
    const XLA_FFI_Api *api = of->frame->api;
    XLA_FFI_Stream_Get_Args stream = {.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE, .ctx = of->frame->ctx};
    XLA_FFI_DeviceOrdinal_Get_Args device = {.struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE,
                                             .ctx = of->frame->ctx};
    if (is_refused(of->frame, api->XLA_FFI_Stream_Get(&stream)) ||
        is_refused(of->frame, api->XLA_FFI_DeviceOrdinal_Get(&device)))
        return 0;
    of->stream = stream.stream;
    of->device = device.device_ordinal;
    return 1;
}

/* Bytes of an element by its name; 0: kernels of CUDA have none such. */
static int64_t element_bytes(const XLA_FFI_ByteSpan *element, char *name)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } known[] = {{"float32", 4}, {"float64", 8}, {"bfloat16", 2}, {"float16", 2}};
    for (size_t k = 0; element && k < sizeof known / sizeof *known; ++k)
        if (is_called(element, known[k].name)) {
            strcpy(name, known[k].name);
            return known[k].bytes;
        }
    return 0;
}

/* Bytes of a number of a buffer of floating point. */
static int64_t number_bytes(const XLA_FFI_Buffer *buffer)
{
    return narrow(buffer) ? 2 : buffer->dtype == XLA_FFI_DataType_F32 ? 4 : 8;
}

/* The address of a buffer; one without elements is there, but nowhere. */
static uint64_t address_of(const XLA_FFI_Buffer *buffer)
{
    return !buffer ? 0 : buffer->data ? (uint64_t)(uintptr_t)buffer->data : 1;
}

/* Put addresses in order, and the options in C; 0: an array is of another width than the element. */
static int fill_addresses(call *one, launched *of, int64_t bytes)
{
    cg_call *const own = &one->call;
    for (int64_t m = 0; m < one->function->members; ++m) {
        const XLA_FFI_Buffer *buffer = one->member[m];
        const int is_scalar = one->function->member[m].role == CELLGEN_ROLE_SCALAR && m < one->function->arguments;
        if (buffer && number_bytes(buffer) != (is_scalar && bytes == 2 ? 4 : bytes))
            return disagrees(one);
        own->word[m] = address_of(buffer);
    }
    own->lengths = (const int64_t *)(uintptr_t)address_of(one->table[0]);
    for (int k = 0; k < 2; ++k)
        own->flags[k] = (const unsigned char *)(uintptr_t)address_of(one->table[k + 1]);
    own->narrow = CELLGEN_STORED_REAL; /* kernels of devices have a type for each */
    of->options = cg_write_options(own);
    return (!one->table[0] || one->table[0]->dtype == XLA_FFI_DataType_S64) || disagrees(one);
}

/* Launch a call that has begun. */
static XLA_FFI_Error *launch_call(call *one)
{
    char element[16];
    const int64_t bytes = element_bytes(attribute(one->frame, "element", XLA_FFI_AttrType_STRING), element);
    launched of = {.cell = one->named, .function = one->function->name, .element = element, .size = one->call.dims,
                   .member = one->call.word, .text = one->text, .text_bytes = sizeof one->text,
                   .frame = one->frame};
    if (!(bytes ? fill_addresses(one, &of, bytes) : disagrees(one)))
        return refuse(one, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    if (!ask_where(&of)) {
        wrong(one, "%s.%s: XLA says no stream or no device of the call", one->cell->name, one->function->name);
        return refuse(one, XLA_FFI_Error_Code_UNIMPLEMENTED);
    }
    const int failed = launch(&of);
    give_scratch(&of);
    return failed ? refuse(one, XLA_FFI_Error_Code_INTERNAL) : NULL;
}

CELLGEN_EXPORT XLA_FFI_Error *cellgen_device_call(XLA_FFI_CallFrame *frame);
CELLGEN_EXPORT XLA_FFI_Error *cellgen_device_call(XLA_FFI_CallFrame *frame)
{
    XLA_FFI_Error *error = NULL;
    call *one = begins(frame, &error);
    if (!one)
        return error;
    error = launch_call(one);
    give_memory(one->own);
    return error;
}
