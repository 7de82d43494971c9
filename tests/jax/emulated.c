/* Let a handler for devices run on the CPU: XLA's interface with a stream, a device and memory as a device
 * has them. Everything else is XLA's own: the frame of the call, its buffers, attributes and errors. */
#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "xla/ffi/api/c_api.h"

enum { STREAMS = 0x1000, CALLS = 0, ALLOCATED = 1, HELD = 2, NO_STREAM = 1, NO_MEMORY = 2 };

static XLA_FFI_Error *(*handler)(XLA_FFI_CallFrame *);
static const XLA_FFI_Api *own; /* of the call that runs */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

int64_t emulated_counts[3]; /* calls, bytes allocated, allocations that are held */
int emulated_lacks;         /* NO_STREAM, NO_MEMORY, 0: nothing */
int emulated_devices = 1;

void emulated_set(void *address) { handler = (XLA_FFI_Error * (*)(XLA_FFI_CallFrame *)) address; }

static XLA_FFI_Error *refusal(const char *message)
{
    XLA_FFI_Error_Create_Args args = {.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
                                      .message = message,
                                      .errc = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED};
    return own->XLA_FFI_Error_Create(&args);
}

static XLA_FFI_Error *ordinal(XLA_FFI_DeviceOrdinal_Get_Args *args)
{
    XLA_FFI_Error *error = own->XLA_FFI_DeviceOrdinal_Get(args);
    if (!error && emulated_devices == 1) args->device_ordinal = 0;
    return error;
}

static XLA_FFI_Error *stream(XLA_FFI_Stream_Get_Args *args)
{
    XLA_FFI_DeviceOrdinal_Get_Args device = {.struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE,
                                             .ctx = args->ctx};
    XLA_FFI_Error *error = emulated_lacks == NO_STREAM ? refusal("no stream") : ordinal(&device);
    args->stream = (void *)(uintptr_t)(STREAMS + device.device_ordinal);
    return error;
}

static XLA_FFI_Error *allocate(XLA_FFI_DeviceMemory_Allocate_Args *args)
{
    if (args->alignment > 16) return refusal("Unsupported alignment"); /* as XLA on GPUs says */
    if (emulated_lacks == NO_MEMORY || posix_memalign(&args->data, args->alignment, args->size))
        return refusal("no memory");
    emulated_counts[ALLOCATED] += (int64_t)args->size;
    ++emulated_counts[HELD];
    return NULL;
}

static XLA_FFI_Error *give_back(XLA_FFI_DeviceMemory_Free_Args *args)
{
    free(args->data);
    --emulated_counts[HELD];
    return NULL;
}

XLA_FFI_Error *emulated_call(XLA_FFI_CallFrame *frame)
{
    if (frame->extension_start) return handler(frame); /* asks what the handler is */
    pthread_mutex_lock(&one_at_a_time);                /* the emulation has one thread */
    own = frame->api;
    XLA_FFI_Api api = *own;
    api.XLA_FFI_Stream_Get = stream;
    api.XLA_FFI_DeviceOrdinal_Get = ordinal;
    api.XLA_FFI_DeviceMemory_Allocate = allocate;
    api.XLA_FFI_DeviceMemory_Free = give_back;
    frame->api = &api;
    ++emulated_counts[CALLS];
    XLA_FFI_Error *error = handler(frame);
    frame->api = own;
    pthread_mutex_unlock(&one_at_a_time);
    return error;
}
