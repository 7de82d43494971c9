/* Calls every function of a compiled cell that it knows nothing of, and prints the results' bytes:
 *     descriptor kernel.so <cell>_cellgen precision threads way sizes...     (in the order of cell->dim)
 * The way is `words`, `engine`, or `misfit`: by the engine with one row more in its first array. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cellgen_engine.h"

static int64_t sizes[16];

static int64_t elements(const cellgen_value *value)
{
    int64_t count = 1;
    for (int64_t axis = 0; axis < value->axes; ++axis) {
        int64_t length = 0;
        for (int64_t t = 0; t < value->axis[axis]->terms; ++t) {
            const cellgen_term *term = value->axis[axis]->term + t;
            int64_t product = term->factor;
            for (int d = 0; d < CELLGEN_TERM_DIMS && term->dim[d] >= 0; ++d) product *= sizes[term->dim[d]];
            length += product;
        }
        count *= length;
    }
    return count;
}

static void *filled(const cellgen_value *value, int64_t member, int64_t bytes)
{
    const int64_t count = elements(value);
    char *array = calloc((size_t)(count + 1), (size_t)bytes);
    for (int64_t k = 0; k < count && !(value->flags & CELLGEN_VALUE_WRITTEN); ++k) {
        const double number = (double)((k * 7919 + member * 104729) % 1000 + 1) / 1001;
        if (bytes == 4) ((float *)array)[k] = (float)number;
        else ((double *)array)[k] = number;
    }
    return array;
}

static int64_t lengths_of(const cellgen_value *value, int64_t *length)
{
    cellgen_value one = *value;
    for (one.axes = 1; one.axes <= value->axes; ++one.axes) {
        one.axis[0] = value->axis[one.axes - 1];
        const int64_t axes = one.axes;
        one.axes = 1, length[axes - 1] = elements(&one), one.axes = axes;
    }
    return value->axes;
}

static int run_by_engine(const cellgen_cell *cell, int64_t number, const cellgen_precision *as, int threads, int is_misfit)
{
    const cellgen_signature *f = cell->function + number;
    const cellgen_engine *engine = cell->engine;
    void *call = malloc((size_t)engine->bytes);
    cellgen_request request = {.function = number, .is_double = as->bytes == 8, .again = -1, .saves = 1};
    cellgen_array arrays[64], results[64];
    cellgen_fault fault;
    int64_t n[16], count = 0;
#define NUMBER(name, usual) request.say.name = usual;
    CELLGEN_EACH_NUMBER(NUMBER)
    request.flag_stride[0][0] = request.flag_stride[1][0] = CELLGEN_NO_GAPS;
    for (int64_t m = 0; m < f->arguments; ++m) {
        if (f->member[m].role == CELLGEN_ROLE_SCALAR) continue;
        cellgen_array *array = arrays + count++;
        *array = (cellgen_array){.value = f->member + m, .member = m, .again = -1};
        array->data = filled(f->member + m, m, as->bytes);
        array->rank = lengths_of(f->member + m, array->length);
        if (is_misfit && m == 0) array->length[0] += 1;
    }
    int code = engine->bind(call, cell, &request, arrays, count, n);
    if (code) {
        engine->fault(call, &fault, n);
        fprintf(stderr, "refused %d: %s is %d, axis %d, expected %d\n", code, arrays[fault.array].value->name,
                (int)fault.reason, (int)fault.axis, (int)fault.expected);
        return engine->end(call), code;
    }
    count = engine->results(call, results);
    for (int64_t k = 0; k < count; ++k)
        results[k].data = filled(results[k].value, results[k].member, as->bytes);
    code = engine->prepare(call, &request, results, count);
    if (!code) {
        const int64_t bytes = engine->size(call);
        void *workspace = aligned_alloc(64, (size_t)(bytes + 127) / 64 * 64);
        code = engine->run(call, workspace, bytes, cell->team(threads));
    }
    for (int64_t k = 0; !code && k < count; ++k) {
        int64_t elements = 1;
        for (int64_t axis = 0; axis < results[k].rank; ++axis) elements *= results[k].length[axis];
        fwrite(results[k].data, (size_t)as->bytes, (size_t)elements, stdout);
    }
    engine->end(call);
    return code;
}

static int run(const cellgen_cell *cell, int64_t number, const cellgen_precision *as, int threads)
{
    const cellgen_signature *f = cell->function + number;
    const cellgen_entry *entry = as->entry + number;
    int64_t n[16];
    void *words[64] = {0};
    for (int64_t d = 0; d < f->dims; ++d) n[d] = sizes[f->dim[d]];
    for (int64_t m = 0; m < f->members; ++m) {
        if (f->member[m].role == CELLGEN_ROLE_SCALAR) memcpy(words + m, &f->member[m].value, 8);
        else words[m] = filled(f->member + m, m, as->bytes);
    }
    int64_t w = f->members;
    if (f->has_workspace) {
        const int64_t bytes = entry->size(n, NULL);
        words[w++] = aligned_alloc(64, (size_t)(bytes + 127) / 64 * 64);
        memcpy(words + w++, &bytes, 8);
    }
    if (f->has_team) words[w] = cell->team(threads);
    const int code = entry->call(n, words);
    for (int64_t m = f->arguments; m < f->members; ++m)
        fwrite(words[m], (size_t)as->bytes, (size_t)elements(f->member + m), stdout);
    return code;
}

int main(int count, char **given)
{
    void *shared = count > 6 ? dlopen(given[1], RTLD_NOW) : NULL;
    const cellgen_cell *(*find)(void) = NULL;
    if (shared) *(void **)&find = dlsym(shared, given[2]);
    if (!find) return 2;
    const cellgen_cell *cell = find();
    const int by_words = !strcmp(given[5], "words"), is_misfit = !strcmp(given[5], "misfit");
    for (int k = 6; k < count; ++k) sizes[k - 6] = atoll(given[k]);
    for (int64_t p = 0; p < cell->precisions; ++p)
        for (int64_t f = 0; f < cell->functions && !strcmp(cell->precision[p].name, given[3]); ++f)
            if (by_words ? run(cell, f, cell->precision + p, atoi(given[4]))
                         : run_by_engine(cell, f, cell->precision + p, atoi(given[4]), is_misfit))
                return 3;
    return 0;
}
