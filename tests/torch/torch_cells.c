/* How the operators of torch make a cell known, without torch: a cell of so many members, and allocations of
 * which one fails. torch_cells MEMBERS UNREAD FAILING: prints what cellgen_torch_add returns, whether the cell is
 * known after it, and how many allocations there were. UNREAD: arguments that no function reads. FAILING: the
 * allocation that fails, -1 for none. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int allocations, failing = -1;
static void *counted_calloc(size_t count, size_t size)
{
    return allocations++ == failing ? NULL : calloc(count, size);
}
static char *counted_strdup(const char *text)
{
    return allocations++ == failing ? NULL : strdup(text);
}
#define calloc counted_calloc
#define strdup counted_strdup
#include "shim.h"

static const Cell *look_up(const char *text)
{
    for (const Cell *cell = cells; cell != NULL; cell = cell->next)
        if (strcmp(cell->text, text) == 0)
            return cell;
    return NULL;
}
#include "shim_cells.inc.h"

enum { LONGEST = 2048 };
static char text[LONGEST][16];
static const char *name[LONGEST];
static cellgen_value forward[LONGEST], backward[LONGEST];

int main(int count, char **argument)
{
    const int members = count > 1 ? atoi(argument[1]) : 0;
    const int unread = count > 2 ? atoi(argument[2]) : 0;
    failing = count > 3 ? atoi(argument[3]) : -1;
    /* forward: all are arguments but one result; backward: the same and one gradient in its place */
    const int theta = members - 1;
    for (int k = 0; k < members; ++k) {
        snprintf(text[k], sizeof text[k], k < theta ? "w%d" : "h", k);
        name[k] = text[k];
        const cellgen_value value = {text[k], "", k < theta ? CELLGEN_ROLE_WEIGHT : CELLGEN_ROLE_OUTPUT, 0, 0, 0, {0}};
        forward[k] = backward[k] = value;
    }
    for (int k = members; k < members + unread; ++k) {
        snprintf(text[k], sizeof text[k], "unread%d", k);
        name[k] = text[k];
    }
    name[theta] = "unread";
    backward[theta].name = "d_w0";
    static const char *const dims[] = {"T", "B"}, *const kept[] = {"h"}, *const gradients[] = {"d_w0"};
    const cellgen_signature functions[] = {
        {"sequence_forward", "", 2, 0, theta, members, forward, 0, 0},
        {"sequence_backward", "", 2, 0, theta, members, backward, 0, 0},
    };
    static const cellgen_entry entries[2];
    const cellgen_precision precisions[] = {{"f32", 4, entries}, {"f64", 8, entries}};
    const cellgen_cell cell = {CELLGEN_ABI_VERSION, "wide", "", 2, dims, 2, functions, 2, precisions, 0, 0, 0};
    const int64_t counts[] = {theta + unread, 0, 1, 0, 0, 1};
    const int code = cellgen_torch_add("wide", &cell, counts, name, name, kept, name, gradients);
    printf("%d %d %d", code, look_up("wide") != NULL, allocations);
    return 0;
}
