/* The highest level of x86-64 that processor and system have, as a number: 0 none, 1 v2, 2 v3, 3 v4,
 * 4 v4 with AVX512-VNNI, AVX512-BF16 and AMX. Compiled for any x86-64. */
#include <cpuid.h>

#define HAS(word, bit) (((word) >> (bit)) & 1u)

/* Which registers the system saves when it changes threads. */
static unsigned saved_state(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

__attribute__((visibility("default"))) int cellgen_level(void)
{
    enum { VECTORS = 0x6, MASKS = 0xe6, TILES = 0x60000 }; /* of the saved state */
    unsigned a, b, c, d, ext_a, ext_b, ext_c, ext_d, b7 = 0, c7 = 0, d7 = 0, a71 = 0, state;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!__get_cpuid(0x80000001u, &ext_a, &ext_b, &ext_c, &ext_d)) return 0;
    /* SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF */
    if (!(HAS(c, 0) && HAS(c, 9) && HAS(c, 13) && HAS(c, 19) && HAS(c, 20) && HAS(c, 23) && HAS(ext_c, 0))) return 0;
    if (!HAS(c, 27)) return 1; /* OSXSAVE */
    state = saved_state();
    if (__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) && a >= 1) __get_cpuid_count(7, 1, &a71, &b, &ext_b, &d);
    /* FMA, MOVBE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT */
    if (!(HAS(c, 12) && HAS(c, 22) && HAS(c, 28) && HAS(c, 29) && HAS(b7, 3) && HAS(b7, 5) && HAS(b7, 8) && HAS(ext_c, 5))) return 1;
    if ((state & VECTORS) != VECTORS) return 1;
    /* AVX512F, DQ, CD, BW, VL */
    if (!(HAS(b7, 16) && HAS(b7, 17) && HAS(b7, 28) && HAS(b7, 30) && HAS(b7, 31))) return 2;
    if ((state & MASKS) != MASKS) return 2;
    /* AVX512-VNNI; AMX-BF16, AMX-TILE, AMX-INT8; AVX512-BF16 */
    if (!(HAS(c7, 11) && HAS(d7, 22) && HAS(d7, 24) && HAS(d7, 25) && HAS(a71, 5))) return 3;
    return (state & TILES) == TILES ? 4 : 3;
}
