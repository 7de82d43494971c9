/* The time driver in float: see cellgen_driver.inc.h. Tiles of bfloat16 and int8, which float alone needs, are in the
 * object of double: both take the compiler as long. */
#define CELLGEN_PRECISION 32
#define CELLGEN_TILES_ARE CELLGEN_TILES_ELSEWHERE
#include "cellgen_driver.inc.h"

#include "cellgen_words.inc.h" /* of both precisions */
