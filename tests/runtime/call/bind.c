/* `cg_bind` for tests/runtime/call/test_dimensions.py: views by members of a function, in the caller's order. */
#include "cellgen_bind.h"

int64_t bind_dims(const cellgen_cell *cell, int64_t function, int64_t views, const int64_t *member,
                  const int64_t *rank, const int64_t *const *length, const cellgen_numbers *say, int64_t *size,
                  int64_t *where)
{
    cg_view view[512];
    for (int64_t v = 0; v < views; ++v) {
        view[v].value = &cell->function[function].member[member[v]];
        view[v].change = cg_change_of(view[v].value, say);
        view[v].rank = rank[v];
        view[v].length = length[v];
    }
    const cg_fault fault = cg_bind(cell, &cell->function[function], view, views, size);
    where[0] = fault.view, where[1] = fault.axis, where[2] = fault.expected;
    return fault.code;
}
