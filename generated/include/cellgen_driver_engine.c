/* The engine of cellgen_engine.h, of every kernel: what cellgen_call.h says, behind addresses. Part of the driver. */
#define CG_MOST_MEMBERS 1024 /* as many as a function has at most */
#define CG_MOST_VIEWS 2048
#include "cellgen_call.h"
#include "cellgen_engine.h"

/* The refusal of an engine for one of a call. */
static int refusal_of(int refusal)
{
    static const int of[] = {CELLGEN_RUNS, CELLGEN_MISFIT, CELLGEN_MISSING, CELLGEN_GAPS, CELLGEN_NOTHING,
                             CELLGEN_RUNS, CELLGEN_MISFIT, CELLGEN_NO_MEMORY};
    return of[refusal];
}

/* Bytes of an element of a call. */
static int64_t item_bytes(const cg_call *call, int64_t kind)
{
    return kind != CELLGEN_STORED_REAL ? 2 : call->cell->precision[call->is_double].bytes;
}

/* Add arrays to a call: whether a kernel can read each of them where it lies. */
static int add_all(cg_call *call, const cellgen_array *first, int64_t count)
{
    for (const cellgen_array *array = first; array < first + count; ++array) {
        call->fault.code = CG_FITS, call->fault.view = array - first; /* of one that lies as no kernel reads it */
        call->fault.axis = call->fault.expected = 0;
        int64_t stride[CG_AXES];
        const int64_t bytes = item_bytes(call, array->kind);
        for (int64_t axis = 0; array->has_gaps && axis < array->rank; ++axis) {
            if (array->stride[axis] % bytes)
                return 0;
            stride[axis] = array->stride[axis] / bytes;
        }
        cg_array *added = cg_add(call, array->value, array->member, array->data, array->rank, array->length,
                                 array->has_gaps ? stride : NULL);
        if (added == NULL)
            return 0;
        added->kind = (int)array->kind;
        if (array->again >= 0)
            call->again.place[array->again] = call->views - 1;
    }
    return 1;
}

static int bind(void *memory, const cellgen_cell *cell, const cellgen_request *request, const cellgen_array *array,
                int64_t count, int64_t *n)
{
    cg_call *call = (cg_call *)memory;
    cg_begin(call, cell, &cell->function[request->function]);
    cg_compute_in(call, request->is_double != 0);
    call->say = request->say, call->saves = request->saves != 0, call->narrow = (int)request->narrow;
    call->say.products = cg_products_of(request->say.products, call->narrow);
    call->are_given = 1;
    if (request->again >= 0)
        cg_begin_again(call, &cell->function[request->again], request->again_flush, request->again_products);
    for (int64_t k = 0; k < request->scalars; ++k) {
        const cellgen_scalar *scalar = &request->scalar[k];
        if (scalar->member >= 0)
            memcpy(&call->word[scalar->member], &scalar->number, sizeof scalar->number);
        if (scalar->again >= 0)
            memcpy(&call->again.word[scalar->again], &scalar->number, sizeof scalar->number);
    }
    for (int64_t k = 0; k < cell->dims; ++k)
        call->size[k] = -1;
    if (!add_all(call, array, count))
        return CELLGEN_GAPS;
    const int refusal = refusal_of(cg_check(call));
    if (refusal == CELLGEN_RUNS || refusal == CELLGEN_NOTHING)
        memcpy(n, call->dims, (size_t)call->function->dims * sizeof *n);
    return refusal;
}

static void fault(const void *memory, cellgen_fault *to, int64_t *known)
{
    static const int64_t of[] = {CELLGEN_REASON_GAPS, CELLGEN_REASON_RANK, CELLGEN_REASON_LENGTH,
                                 CELLGEN_REASON_SHAPE, CELLGEN_REASON_UNBOUND};
    const cg_call *call = (const cg_call *)memory;
    to->reason = of[call->fault.code], to->array = call->fault.view;
    to->axis = call->fault.axis, to->expected = call->fault.expected;
    memcpy(known, call->size, (size_t)call->cell->dims * sizeof *known);
}

static int64_t results(const void *memory, cellgen_array *result)
{
    const cg_call *call = (const cg_call *)memory;
    const cellgen_signature *function = call->function;
    int64_t count = 0;
    for (int64_t m = function->arguments; m < function->members; ++m) {
        const cg_result of = cg_result_of(function, m, &call->say, call->saves, call->wanted);
        if (!of.is_formed || call->place[m] >= 0)
            continue;
        cellgen_array *array = &result[count++];
        memset(array, 0, sizeof *array);
        array->value = &function->member[m], array->member = m, array->again = -1;
        array->kind = cg_kind_of_result(call, array->value, of.change);
        array->rank = cg_shape_of(call->cell, array->value, of.change, call->size, array->length);
    }
    return count;
}

static double work(const void *call)
{
    return cg_work((const cg_call *)call);
}

static int prepare(void *memory, const cellgen_request *request, const cellgen_array *result, int64_t count)
{
    cg_call *call = (cg_call *)memory;
    if (!add_all(call, result, count))
        return CELLGEN_GAPS;
    call->lengths = request->lengths;
    for (int k = 0; k < 2; ++k)
        if ((call->flags[k] = request->flags[k]) != NULL)
            memcpy(call->flag_stride[k], request->flag_stride[k], sizeof call->flag_stride[k]);
    call->packed = request->packed, call->packed_bytes = request->packed_bytes;
    call->again.packed = request->packed_again, call->again.packed_bytes = request->packed_again_bytes;
    call->plan = request->plan, call->stop = request->stop;
    if (request->checkpoints != NULL) {
        const cellgen_signature *forward = call->again.function == NULL ? call->function : call->again.function;
        const int64_t held = cg_checkpoints_of(forward, cg_skips(call), NULL);
        memcpy(call->checkpoint_at, request->checkpoints, (size_t)held * sizeof *call->checkpoint_at);
    }
    return refusal_of(cg_fill(call, NULL));
}

static int64_t size(const void *memory)
{
    const cg_call *call = (const cg_call *)memory;
    return call->function->has_workspace ? call->entry->size(call->dims, cg_options_of(call)) : 0;
}

static int run(void *memory, void *workspace, int64_t bytes, void *team)
{
    cg_call *call = (cg_call *)memory;
    cg_lend(call, workspace, bytes);
    cg_lead(call, team);
    cg_read_rooms(call);
    const int code = call->entry->call(call->dims, call->word);
    if (code == CELLGEN_OK)
        cg_write_rooms(call);
    return code;
}

static void end(void *call)
{
    cg_end((cg_call *)call, 0);
}

static int words(const void *memory, uintptr_t *function, uintptr_t *n, uintptr_t *words)
{
    const cg_call *call = (const cg_call *)memory;
    *function = (uintptr_t)call->entry->call, *n = (uintptr_t)call->dims, *words = (uintptr_t)call->word;
    return call->rooms == 0;
}

const cellgen_engine cellgen_driver_engine = {(int64_t)sizeof(cg_call), bind, fault, results, work,
                                               prepare, size, run, end, words};
