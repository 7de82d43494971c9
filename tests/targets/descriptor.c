/* Calls every function of a compiled cell that it knows nothing of, and prints the results' bytes:
 *     descriptor kernel.so <cell>_cellgen precision threads sizes...     (in the order of cell->dim) */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cellgen_descriptor.h"

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
    void *shared = count > 5 ? dlopen(given[1], RTLD_NOW) : NULL;
    const cellgen_cell *(*find)(void) = NULL;
    if (shared) *(void **)&find = dlsym(shared, given[2]);
    if (!find) return 2;
    const cellgen_cell *cell = find();
    for (int k = 5; k < count; ++k) sizes[k - 5] = atoll(given[k]);
    for (int64_t p = 0; p < cell->precisions; ++p)
        for (int64_t f = 0; f < cell->functions && !strcmp(cell->precision[p].name, given[3]); ++f)
            if (run(cell, f, cell->precision + p, atoi(given[4]))) return 3;
    return 0;
}
