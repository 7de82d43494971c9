/* Makes the calls that a file holds, of one cell that is linked in, and writes what they return:
 *     main calls results        compiled with -DCELL=<cell>_cellgen; C11 and C++17
 *     main calls results DLL    the cell of a DLL instead, where it is compiled with -DFROM_DLL for Windows
 *
 * A call is numbers of eight bytes: function, precision, threads, then its dimensions, then for each
 * member the bytes of its array, -1 for NULL; the arrays of arguments follow, each in whole numbers of
 * eight bytes, a scalar as a double. A result is the code, then each array, in the same order. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cellgen.h"
#include "cellgen_descriptor.h"

#if defined(FROM_DLL)
#include <windows.h>
#define NAMED(name) #name
#define NAME_OF(name) NAMED(name)
typedef const cellgen_cell *cell_of_dll(void);

static const cellgen_cell *find_cell(int count, char **names)
{
    const HMODULE library = count == 4 ? LoadLibraryA(names[3]) : NULL;
    cell_of_dll *const find = library ? (cell_of_dll *)(void *)GetProcAddress(library, NAME_OF(CELL)) : NULL;
    if (!find) exit(8);
    return find();
}
#else
CELLGEN_BEGIN_DECLS
const cellgen_cell *CELL(void);
CELLGEN_END_DECLS

static const cellgen_cell *find_cell(int count, char **names)
{
    (void)names;
    return count == 3 ? CELL() : NULL;
}
#endif

enum { MEMBERS = 256, DIMS = 32 };

/* Whole cache lines, zeroed; never freed, since the program ends soon. */
static void *aligned(int64_t bytes)
{
    char *const memory = (char *)calloc(1, (size_t)bytes + 128);
    if (!memory) exit(4);
    return memory + (64 - (uintptr_t)memory % 64) % 64;
}

static int64_t whole(int64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

static int read_exactly(void *to, int64_t bytes, FILE *from)
{
    return fread(to, 1, (size_t)bytes, from) == (size_t)bytes;
}

static void call(const cellgen_cell *cell, const int64_t *head, FILE *from, FILE *to)
{
    const cellgen_signature *const f = cell->function + head[0];
    const cellgen_entry *const entry = cell->precision[head[1]].entry + head[0];
    int64_t n[DIMS], bytes[MEMBERS];
    uint64_t words[MEMBERS + 4] = {0};
    void *arrays[MEMBERS] = {0};
    if (f->dims > DIMS || f->members > MEMBERS) exit(5);
    if (!read_exactly(n, 8 * f->dims, from) || !read_exactly(bytes, 8 * f->members, from)) exit(6);
    for (int64_t m = 0; m < f->members; ++m) {
        if (bytes[m] < 0) continue;
        arrays[m] = aligned(whole(bytes[m]));
        if (m < f->arguments && !read_exactly(arrays[m], whole(bytes[m]), from)) exit(6);
        words[m] = (uintptr_t)arrays[m];
        if (f->member[m].role == CELLGEN_ROLE_SCALAR) memcpy(words + m, arrays[m], sizeof(double));
    }
    int64_t w = f->members;
    if (f->has_workspace) {
        const int64_t size = entry->size(n, NULL);
        words[w++] = (uintptr_t)aligned(size);
        words[w++] = (uint64_t)size;
    }
    if (f->has_team) words[w] = (uintptr_t)cell->team((int)head[2]);
    const int64_t code = entry->call(n, words);
    fwrite(&code, 8, 1, to);
    for (int64_t m = f->arguments; m < f->members; ++m)
        if (bytes[m] > 0) fwrite(arrays[m], 1, (size_t)whole(bytes[m]), to);
}

int main(int count, char **names)
{
    const cellgen_cell *const cell = find_cell(count, names);
    FILE *const from = count >= 3 ? fopen(names[1], "rb") : NULL;
    FILE *const to = count >= 3 ? fopen(names[2], "wb") : NULL;
    int64_t head[3];
    if (!cell || !from || !to) return 2;
    if (cell->abi != CELLGEN_ABI_VERSION) return 3;
    while (read_exactly(head, sizeof head, from)) call(cell, head, from, to);
    return fclose(to) == 0 ? 0 : 7;
}
