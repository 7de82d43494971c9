/* Notes the cache lines that tiles fetch, in place of fetching them. */
#include <stdint.h>
extern uintptr_t cellgen_fetched[1 << 17];
extern int64_t cellgen_fetches;
__attribute__((weak, visibility("default"))) uintptr_t cellgen_fetched[1 << 17];
__attribute__((weak, visibility("default"))) int64_t cellgen_fetches;
#define CELLGEN_FETCH(p) (cellgen_fetched[cellgen_fetches++ % (1 << 17)] = (uintptr_t)(p) / 64)
