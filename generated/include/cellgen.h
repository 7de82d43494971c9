/* What every generated function shares: error codes, linkage, restrict. C99 and C++. */
#ifndef CELLGEN_H
#define CELLGEN_H

#include <stdint.h>

/* Raised by one whenever an argument struct, a code below or a symbol's meaning changes. */
#define CELLGEN_ABI_VERSION 1

#if defined(__cplusplus)
#define CELLGEN_BEGIN_DECLS extern "C" {
#define CELLGEN_END_DECLS }
#else
#define CELLGEN_BEGIN_DECLS
#define CELLGEN_END_DECLS
#endif

/* No other pointer of the function reaches this memory. C++ has no `restrict`. */
#if defined(__GNUC__) || defined(__clang__)
#define CELLGEN_RESTRICT __restrict
#elif defined(__cplusplus)
#define CELLGEN_RESTRICT
#else
#define CELLGEN_RESTRICT restrict
#endif

/* The iterations of the next loop are independent: arrays never overlap, which callers see to. */
#if defined(__clang__)
#define CELLGEN_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CELLGEN_VECTORIZE _Pragma("GCC ivdep")
#else
#define CELLGEN_VECTORIZE
#endif

/* What a generated function returns. Nothing is written unless it is CELLGEN_OK. */
enum cellgen_error {
    CELLGEN_OK = 0,
    CELLGEN_NULL_POINTER = 1,       /* a required array of the argument struct is missing */
    CELLGEN_NEGATIVE_DIMENSION = 2, /* 0 is allowed: an empty batch or sequence */
    CELLGEN_WORKSPACE_TOO_SMALL = 3 /* fewer bytes than <cell>_<function>_workspace asks for */
};

#endif /* CELLGEN_H */
