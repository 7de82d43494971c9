/* `cg_bind` for tests/runtime/call/test_dimensions.py: views by members of a function, in the order of the caller. */
#include "cellgen.h"
#include "cellgen_call.h"

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

/* Which results a call forms, and their lengths, for tests/runtime/call/test_signature.py; -1: it does not. */
void results_of(const cellgen_cell *cell, int64_t function, const cellgen_numbers *say, int64_t saves, int64_t wanted,
                const int64_t *size, int64_t *rank, int64_t (*length)[CG_AXES])
{
    const cellgen_signature *of = &cell->function[function];
    for (int64_t m = of->arguments; m < of->members; ++m) {
        const cg_result result = cg_result_of(of, m, say, (int)saves, wanted);
        const int64_t number = m - of->arguments;
        rank[number] = result.is_formed ? cg_shape_of(cell, &of->member[m], result.change, size, length[number]) : -1;
    }
}

/* What checkpoints of a function hold, and their lengths, for tests/runtime/call/test_signature.py; how many. */
int64_t checkpoints_of(const cellgen_cell *cell, int64_t function, int64_t skips, int64_t steps, const int64_t *size,
                       const char **name, int64_t *rank, int64_t (*length)[CG_AXES + 1])
{
    const cellgen_value *held[512];
    const int64_t count = cg_checkpoints_of(&cell->function[function], (int)skips, held);
    for (int64_t k = 0; k < count; ++k) {
        name[k] = held[k]->name;
        rank[k] = cg_checkpoint_shape(cell, held[k], steps, size, length[k]);
    }
    return count;
}

/* What a kernel finds in the members of a function where arrays have 16 bits, for tests/runtime/call/test_signature.py. */
void held_of(const cellgen_cell *cell, int64_t function, int64_t narrow, int64_t products, int64_t *held)
{
    const cellgen_signature *of = &cell->function[function];
    const cg_change whole = {0, 0, 1};
    for (int64_t m = 0; m < of->members; ++m)
        held[m] = cg_held(&of->member[m], &whole, cg_dim_named(cell, "T"), (int)narrow, products);
}
