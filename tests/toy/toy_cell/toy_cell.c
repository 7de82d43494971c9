#include "toy_cell.h"

#define REAL float
#define NAME(function) function##_f32
#include "toy_body.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(function) function##_f64
#include "toy_body.h"

#include "toy_described.h"
