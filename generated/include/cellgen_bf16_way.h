/* In which way operands that are rounded to bfloat16 are multiplied and added: what the machine is decides, once
 * for each driver loaded in a process, and no timing. Each way gives the same bits on every machine that has it:
 *
 *   TILES   AMX-BF16, where the system permits it and its headers declare how it is asked: cellgen_amx.h
 *   PAIRS   AVX512-BF16, where vdpbf16ps, two multiplications and additions, has the rate of a fused multiply-add.
 *           On Intel's cores it has half of that, and products would take longer than those in float32
 *   FLOATS  anywhere: rounded operands stay float32, in the tiles of float32
 *
 * The environment variable CELLGEN_BF16 names one of those that the machine has: amx, avx512 or float32. Another
 * name counts as none. */
#ifndef CELLGEN_BF16_WAY_H
#define CELLGEN_BF16_WAY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cellgen_compiler.h"

#if CELLGEN_GNU && defined(__AVX512BF16__)
#define CELLGEN_AVX512BF16 1
#include <cpuid.h>
#else
#define CELLGEN_AVX512BF16 0
#endif

/* CELLGEN_AMX_EMULATED: in C on any machine, for tests (cellgen_amx_emulation.h). */
#if CELLGEN_GNU && defined(CELLGEN_AMX_EMULATED)
#define CELLGEN_AMX 1
#elif CELLGEN_AVX512BF16 && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__) && \
    (defined(_DEFAULT_SOURCE) || defined(_GNU_SOURCE) || defined(_BSD_SOURCE)) /* syscall is declared */
#define CELLGEN_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define CELLGEN_AMX 0
#endif

enum { CELLGEN_BF16_TILES = 1, CELLGEN_BF16_PAIRS, CELLGEN_BF16_FLOATS }; /* 0: operands are not rounded */

/* Words of 32 bits that K numbers of a row take, or K rows of a panel: whole tiles of 16 pairs, pairs, floats. */
CELLGEN_INLINE int64_t cellgen_bf16_words(int way, int64_t K)
{
    return way == CELLGEN_BF16_TILES ? (K + 31) / 32 * 16 : way == CELLGEN_BF16_PAIRS ? (K + 1) / 2 : K;
}

/* Whether this process may use tiles. The system is asked, which lets all of its threads. */
CELLGEN_STATIC int cellgen_may_use_amx(void)
{
#if !CELLGEN_AMX
    return 0;
#elif defined(CELLGEN_AMX_EMULATED)
    return 1;
#else
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#endif
}

/* Whether vdpbf16ps is as fast as a fused multiply-add. */
CELLGEN_STATIC int cellgen_has_fast_pairs(void)
{
#if CELLGEN_AVX512BF16
    unsigned most, name[3];
    return !__get_cpuid(0, &most, name, name + 2, name + 1) || memcmp(name, "GenuineIntel", sizeof name) != 0;
#else
    return 0;
#endif
}

/* The way of this machine, and why. */
CELLGEN_STATIC int cellgen_choose_bf16(const char **why)
{
    const char *const named = getenv("CELLGEN_BF16");
    const int names_pairs = named && strcmp(named, "avx512") == 0;
    *why = "CELLGEN_BF16 says so";
    if (named && strcmp(named, "float32") == 0) return CELLGEN_BF16_FLOATS;
    if (names_pairs && CELLGEN_AVX512BF16) return CELLGEN_BF16_PAIRS;
    if (!names_pairs && cellgen_may_use_amx()) {
        *why = "the processor has AMX-BF16, and the system permits it";
        return CELLGEN_BF16_TILES;
    }
    if (cellgen_has_fast_pairs()) {
        *why = "the processor has AVX512-BF16, at the rate of fused multiply-adds";
        return CELLGEN_BF16_PAIRS;
    }
    *why = CELLGEN_AMX && names_pairs ? "CELLGEN_BF16 leaves AMX out, and the compiler's target has no AVX512-BF16"
           : CELLGEN_AMX              ? "the system does not permit AMX, and vdpbf16ps is slower than fused multiply-adds"
           : CELLGEN_AVX512BF16       ? "vdpbf16ps of this processor is slower than fused multiply-adds"
                                      : "the compiler's target has neither AMX-BF16 nor AVX512-BF16";
    return CELLGEN_BF16_FLOATS;
}

/* The way of this driver in this process: what was chosen first holds, for every thread and every later call, though
 * the environment changes: who calls reserves memory for the same way. */
CELLGEN_STATIC int cellgen_bf16_way(void)
{
    static int chosen;
    const int way = CELLGEN_READ_SHARED(&chosen);
    const char *why;
    return way ? way : cellgen_keep_first(&chosen, cellgen_choose_bf16(&why));
}

#endif
