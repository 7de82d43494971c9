/* The descriptor of the toy cell. */
#include "cellgen_driver_engine.c"

#define TOY_CALLS(function, suffix)                                                                \
    static int toy_call_##function##_##suffix(const int64_t *n, const void *args)                  \
    {                                                                                              \
        return toy_cell_##function##_##suffix(n[0], n[1], n[2], args);                             \
    }
#define TOY_SIZES(function, suffix)                                                                \
    static int64_t toy_size_##function##_##suffix(const int64_t *n, const void *options)           \
    {                                                                                              \
        (void)options;                                                                             \
        return toy_cell_##function##_workspace_size_##suffix(n[0], n[1], n[2]);                    \
    }
#define TOY_ENTRIES(suffix)                                                                        \
    TOY_CALLS(forward, suffix)                                                                     \
    TOY_SIZES(forward, suffix)                                                                     \
    TOY_CALLS(backward, suffix)                                                                    \
    TOY_SIZES(backward, suffix)                                                                    \
    TOY_CALLS(weight_gradients, suffix)                                                            \
    static const cellgen_entry toy_entries_##suffix[] = {                                          \
        {toy_call_forward_##suffix, toy_size_forward_##suffix, 0, 0, 0},                           \
        {toy_call_backward_##suffix, toy_size_backward_##suffix, 0, 0, 0},                         \
        {toy_call_weight_gradients_##suffix, 0, 0, 0, 0},                                          \
    };
TOY_ENTRIES(f32)
TOY_ENTRIES(f64)

static const int64_t toy_dims[] = {0, 1, 2};
static const char *const toy_names[] = {"B", "I", "H"};
/* factor, dims */
static const cellgen_term toy_cell_terms[] = {
    {1, {0, -1, -1}}, {1, {1, -1, -1}}, {1, {2, -1, -1}}, {2, {2, -1, -1}},
};
/* terms, term */
static const cellgen_axis toy_cell_axes[] = {
    {1, toy_cell_terms + 0}, {1, toy_cell_terms + 1}, {1, toy_cell_terms + 2}, {1, toy_cell_terms + 3},
};
/* name, of, role, flags, value, axes, axis */
static const cellgen_value toy_forward[] = {
    {"x", "", CELLGEN_ROLE_INPUT, 0, 0.0, 2, {toy_cell_axes + 0, toy_cell_axes + 1}},
    {"h_prev", "", CELLGEN_ROLE_INPUT, 0, 0.0, 2, {toy_cell_axes + 0, toy_cell_axes + 2}},
    {"w", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_WEIGHT, 0.0, 2, {toy_cell_axes + 1, toy_cell_axes + 2}},
    {"b", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_WEIGHT, 0.0, 1, {toy_cell_axes + 3}},
    {"alpha", "", CELLGEN_ROLE_SCALAR, 0, 1.0, 0, {0}},
    {"h", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_WRITTEN, 0.0, 2, {toy_cell_axes + 0, toy_cell_axes + 2}},
    {"s", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_WRITTEN, 0.0, 2, {toy_cell_axes + 0, toy_cell_axes + 2}},
};
static const cellgen_value toy_backward[] = {
    {"w", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_WEIGHT, 0.0, 2, {toy_cell_axes + 1, toy_cell_axes + 2}},
    {"b", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_WEIGHT, 0.0, 1, {toy_cell_axes + 3}},
    {"alpha", "", CELLGEN_ROLE_SCALAR, 0, 1.0, 0, {0}},
    {"d_h", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_OPTIONAL, 0.0, 2, {toy_cell_axes + 0, toy_cell_axes + 2}},
    {"d_s", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_OPTIONAL, 0.0, 2, {toy_cell_axes + 0, toy_cell_axes + 2}},
    {"d_x", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_WRITTEN, 0.0, 2, {toy_cell_axes + 0, toy_cell_axes + 1}},
    {"d_h_prev", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_WRITTEN, 0.0, 2, {toy_cell_axes + 0, toy_cell_axes + 2}},
};
static const cellgen_value toy_weight_gradients[] = {
    {"x", "", CELLGEN_ROLE_INPUT, 0, 0.0, 2, {toy_cell_axes + 0, toy_cell_axes + 1}},
    {"d_s", "", CELLGEN_ROLE_INPUT, 0, 0.0, 2, {toy_cell_axes + 0, toy_cell_axes + 2}},
    {"d_w", "", CELLGEN_ROLE_INPUT, CELLGEN_VALUE_WRITTEN | CELLGEN_VALUE_WEIGHT, 0.0, 2, {toy_cell_axes + 1, toy_cell_axes + 2}},
};
static const cellgen_signature toy_signatures[] = {
    {"forward", "", 3, toy_dims, 5, 7, toy_forward, 1, 0},
    {"backward", "", 3, toy_dims, 5, 7, toy_backward, 1, 0},
    {"weight_gradients", "", 3, toy_dims, 2, 3, toy_weight_gradients, 0, 0},
};
static const cellgen_precision toy_precisions[] = {{"f32", 4, toy_entries_f32}, {"f64", 8, toy_entries_f64}};

__attribute__((visibility("default"))) const cellgen_cell *toy_cell_cellgen(void)
{
    static const cellgen_cell cell = {
        CELLGEN_ABI_VERSION, "toy_cell", "0123456789ab", 3, toy_names, 3, toy_signatures,
        2, toy_precisions, 0, 0, 0, &cellgen_driver_engine,
    };
    return &cell;
}
