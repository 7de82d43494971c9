/* The time driver in double: see cellgen_driver.inc.h. */
#define CELLGEN_PRECISION 64
#define CELLGEN_TILES_ARE CELLGEN_TILES_FOR_ALL
#include "cellgen_driver.inc.h"
