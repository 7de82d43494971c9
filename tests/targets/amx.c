/* Instructions of AMX and products made of them, with hardware or emulated: prints a digest of the bits of each kind of
 * operands and of all products, for tests/targets/test_amx.py to compare. A product that is not the chain that cellgen_amx.h
 * describes, or of bytes that is not what vpdpbusd gives, or that writes beside its result, ends with code 1. With an
 * argument: what hardware answers with a signal; `small`: the way that is chosen beside an alternate signal stack into
 * which tiles do not fit. */
#include <stdio.h>

#include "cellgen_amx.h"
#include "cellgen_gemm_int8.h"
#include <math.h>
#include <signal.h>

static uint64_t state = 88172645463325252ull;
static uint32_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

/* BYTES: what is drawn as any bits, multiplied as bytes. */
enum { ABOUT_ONE, ANY_BITS, ALL_EXPONENTS, NEAR_SMALLEST, BELOW_ONE, OVERFLOWING, SPECIAL, BYTES, KINDS };

/* Bits of a bfloat16. */
static uint32_t draw_half(int kind)
{
    const uint32_t r = draw(), sign = r & 0x8000u, part = r >> 20 & 127u;
    const uint32_t exponent = kind == ABOUT_ONE      ? 120 + r % 14
                              : kind == ALL_EXPONENTS ? (r % 16 ? 100 + draw() % 60 : 255 * (draw() & 1))
                              : kind == NEAR_SMALLEST ? (draw() % 3 ? 60 + r % 8 : 0)
                              : kind == BELOW_ONE     ? 1 + r % 130
                              : kind == OVERFLOWING   ? 190 + r % 3
                                                      : 255 * (r >> 3 & 1);
    if (kind == ANY_BITS || kind == BYTES) return r & 0xffffu;
    return sign | exponent << 7 | (kind == SPECIAL && draw() % 3 ? 0 : part);
}
/* Bits of a float. */
static uint32_t draw_sum(int kind)
{
    if (kind == NEAR_SMALLEST) return (draw() & 0x80000000u) | (draw() % 3 ? draw() % 12 : 0) << 23 | (draw() & 0x7fffffu);
    return draw_half(kind) << 16 | (draw() & 0xffffu);
}
static uint64_t digest(uint64_t of, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; ++i) of = (of ^ ((const unsigned char *)bytes)[i]) * 1099511628211ull;
    return of;
}

static void instructions(int kind)
{
    static uint16_t a[16 * 32], b[16 * 32];
    static uint32_t c[256];
    uint64_t of = 14695981039346656037ull;
    for (int round = 0; round < 300; ++round) {
        cellgen_amx_config config;
        const int all = round % 3 > 0, rows = all ? 16 : 1 + (int)(draw() % 16), pairs = all ? 16 : 1 + (int)(draw() % 16);
        const int columns = all ? 16 : 1 + (int)(draw() % 16);
        memset(&config, 0, sizeof config);
        config.palette = 1;
        config.rows[0] = config.rows[1] = (uint8_t)rows, config.rows[2] = (uint8_t)pairs;
        config.bytes[0] = config.bytes[2] = (uint16_t)(4 * columns), config.bytes[1] = (uint16_t)(4 * pairs);
        for (int i = 0; i < 512; ++i) a[i] = (uint16_t)draw_half(kind), b[i] = (uint16_t)draw_half(round % 5 ? kind : ABOUT_ONE);
        for (int i = 0; i < 256; ++i) c[i] = draw_sum(kind);
        cellgen_amx_configure(&config);
        cellgen_amx_load(0, c, 64);
        cellgen_amx_load(1, a, 64);
        cellgen_amx_load(2, b, 64);
        if (kind == BYTES)
            cellgen_amx_dot_bytes(0, 1, 2);
        else
            cellgen_amx_dot_bf16(0, 1, 2);
        cellgen_amx_store(0, c, 64);
        cellgen_amx_release();
        of = digest(of, c, sizeof c);
    }
    printf("kind %d: %016llx\n", kind, (unsigned long long)of);
}

static float number(uint32_t half)
{
    const uint32_t bits = half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { ROWS = 50, COLUMNS = 97, GROUPS = 3, TERMS = 2, BESIDE = 7 };
static uint32_t left[TERMS][ROWS][16 * GROUPS + 5], right[TERMS][16 * GROUPS][COLUMNS + 3];
static float sums[ROWS + 1][COLUMNS + BESIDE], before[ROWS + 1][COLUMNS + BESIDE];

static void draw_pairs(uint32_t *to, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        const uint32_t first = draw_half(ABOUT_ONE) << 16;
        to[i] = first | draw_half(ABOUT_ONE);
    }
}

static int is_chain(int64_t rows, int64_t columns, int64_t terms, const cellgen_term_tiles *term, int accumulate)
{
    for (int64_t m = 0; m <= ROWS; ++m)
        for (int64_t n = 0; n < COLUMNS + BESIDE; ++n) {
            float sum = m < rows && n < columns && !accumulate ? 0.0f : before[m][n];
            for (int64_t t = 0; t < terms && m < rows && n < columns; ++t)
                for (int64_t group = 0; group < term[t].groups; ++group) {
                    float first = 0, second = 0;
                    for (int64_t p = 16 * group; p < 16 * group + 16; ++p) {
                        first = fmaf(number(left[t][m][p] & 0xffffu), number(right[t][p][n] & 0xffffu), first);
                        second = fmaf(number(left[t][m][p] >> 16), number(right[t][p][n] >> 16), second);
                    }
                    sum += first + second;
                }
            if (memcmp(&sum, &sums[m][n], sizeof sum)) {
                printf("%lld x %lld, %lld terms: [%lld][%lld] is %a, expected %a\n", (long long)rows, (long long)columns,
                       (long long)terms, (long long)m, (long long)n, (double)sums[m][n], (double)sum);
                return 0;
            }
        }
    return 1;
}

static int products(void)
{
    static const int64_t heights[] = {1, 15, 16, 17, 32, 33, 50}, widths[] = {1, 16, 17, 31, 32, 48, 64, 70, 97};
    uint64_t of = 14695981039346656037ull;
    for (size_t h = 0; h < sizeof heights / sizeof *heights; ++h)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; ++w)
            for (int accumulate = 0; accumulate < 2; ++accumulate) {
                cellgen_amx amx = {0};
                cellgen_term_tiles term[TERMS];
                for (int t = 0; t < TERMS; ++t) {
                    const cellgen_term_tiles own = {draw() % (GROUPS + 1), left[t][0], 16 * GROUPS + 5, right[t][0], COLUMNS + 3};
                    term[t] = own;
                    draw_pairs((uint32_t *)left[t], sizeof left[t] / 4);
                    draw_pairs((uint32_t *)right[t], sizeof right[t] / 4);
                }
                for (int m = 0; m <= ROWS; ++m)
                    for (int n = 0; n < COLUMNS + BESIDE; ++n) sums[m][n] = before[m][n] = number(draw_half(ABOUT_ONE));
                cellgen_amx_product(&amx, heights[h], widths[w], term, TERMS, sums[0], COLUMNS + BESIDE, accumulate);
                cellgen_amx_end(&amx);
                if (!is_chain(heights[h], widths[w], TERMS, term, accumulate)) return 0;
                of = digest(of, sums, sizeof sums);
            }
    printf("products: %016llx\n", (unsigned long long)of);
    return 1;
}

#if CELLGEN_AMX_INT8
enum { DEEPEST = 200, VECTORS = 5, WIDEST = 16 * VECTORS, MOST_ROWS = 33, FIXED_WORDS = 16 + (DEEPEST + 63) / 64 * 48 + 5 };
static float rows_of_floats[MOST_ROWS][DEEPEST], weights[DEEPEST][WIDEST];
static float by_tiles[MOST_ROWS + 1][WIDEST + BESIDE], by_bytes[MOST_ROWS + 1][WIDEST + BESIDE];
static cellgen_pair fixed[MOST_ROWS][FIXED_WORDS];
CELLGEN_ALIGNED static int8_t panel[256 * WIDEST + 8 * WIDEST];

static int are_same_bytes(int64_t count, int64_t vectors, int64_t K, int accumulate)
{
    cellgen_amx amx = {0};
    for (int m = 0; m < MOST_ROWS; ++m)
        for (int k = 0; k < DEEPEST; ++k) rows_of_floats[m][k] = number(draw_half(ABOUT_ONE));
    for (int k = 0; k < DEEPEST; ++k)
        for (int n = 0; n < WIDEST; ++n) weights[k][n] = number(draw_half(ABOUT_ONE));
    for (int m = 0; m <= MOST_ROWS; ++m)
        for (int n = 0; n < WIDEST + BESIDE; ++n) by_tiles[m][n] = by_bytes[m][n] = number(draw_half(ABOUT_ONE));
    for (int64_t m = 0; m < count; ++m) cellgen_fix_row(rows_of_floats[m], K, fixed[m]);
    for (int64_t v = 0; v < vectors; ++v) cellgen_pack_int8(K, 16, 16, weights[0] + 16 * v, WIDEST, 0, panel, 16 * v, 16 * vectors);
    cellgen_fixed_product_amx(&amx, count, vectors, K, fixed[0], FIXED_WORDS, panel, by_tiles[0], WIDEST + BESIDE, accumulate);
    cellgen_amx_end(&amx);
    cellgen_fixed_product(count, vectors, K, fixed[0], FIXED_WORDS, panel, by_bytes[0], WIDEST + BESIDE, accumulate);
    if (!memcmp(by_tiles, by_bytes, sizeof by_tiles)) return 1;
    printf("bytes: %lld rows, %lld vectors, %lld deep differ\n", (long long)count, (long long)vectors, (long long)K);
    return 0;
}
static int products_of_bytes(void)
{
    static const int64_t depths[] = {1, 63, 64, 65, DEEPEST};
    for (int64_t count = 1; count <= MOST_ROWS; ++count)
        for (int64_t vectors = 1; vectors <= VECTORS; ++vectors)
            for (size_t k = 0; k < sizeof depths / sizeof *depths; ++k)
                if (!are_same_bytes(count, vectors, depths[k], (int)(draw() & 1))) return 0;
    return 1;
}
#else /* rows are not in fixed point */
static int products_of_bytes(void) { return 1; }
#endif

static int says_way(void)
{
    static char small[8192];
    const stack_t stack = {.ss_sp = small, .ss_size = sizeof small};
    const char *why;
    if (sigaltstack(&stack, 0)) return 2;
    const int way = cellgen_choose_bf16(&why);
    printf("%d %s\n", way, why);
    return 0;
}

int main(int count, char **words)
{
    if (count > 1 && !strcmp(words[1], "small")) return says_way();
    static uint32_t words_of_a_tile[256];
    cellgen_amx amx = {0};
    if (!cellgen_may_use_amx()) return puts("not permitted"), 2;
    if (count > 1) cellgen_amx_shape(&amx, 3, 5, 16, 16);
    if (count > 1 && !strcmp(words[1], "released")) cellgen_amx_end(&amx);
    if (count > 1) {
        cellgen_amx_load(0, words_of_a_tile, 64);
        cellgen_amx_dot_bf16(0, 5, 6); /* three rows of sums, five of A */
        return 0;
    }
    for (int kind = 0; kind < KINDS; ++kind) instructions(kind);
    return !products() || !products_of_bytes();
}
