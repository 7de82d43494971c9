/* Mini runtime header of the toy cell: error codes and the spelling of symbols. */
#ifndef TOY_MINI_H
#define TOY_MINI_H

#include <stdint.h>

#define TOY_NULL_POINTER 1
#define TOY_NEGATIVE_DIM 2
#define TOY_WORKSPACE 3

#endif
