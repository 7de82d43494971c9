/* Notes the cache lines that tiles fetch, in place of fetching them; sizes of parts are variables. */
#include <stdint.h>
#define OF_THE_LIBRARY __attribute__((weak, visibility("default")))
extern uintptr_t cellgen_fetched[1 << 17];
extern int64_t cellgen_fetches, cellgen_stored_bytes, cellgen_deep_bytes, cellgen_slice;
OF_THE_LIBRARY uintptr_t cellgen_fetched[1 << 17];
OF_THE_LIBRARY int64_t cellgen_fetches;
OF_THE_LIBRARY int64_t cellgen_stored_bytes = 256 << 10, cellgen_deep_bytes = 512 << 10, cellgen_slice = 512;
#define CELLGEN_FETCH(p) (cellgen_fetched[cellgen_fetches++ % (1 << 17)] = (uintptr_t)(p) / 64)
#define CELLGEN_STORED_BYTES cellgen_stored_bytes
#define CELLGEN_DEEP_BYTES cellgen_deep_bytes
#define CELLGEN_SLICE cellgen_slice
