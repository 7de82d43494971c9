/* How float is multiplied in layers that stay: by fused multiply-adds, or on matrix units.
 *
 *     CELLGEN_FMA     fused multiply-adds
 *     CELLGEN_PARTS   a number is the sum of three of bfloat16, and of the nine products of parts the six
 *                     largest are summed in float, the smallest first: what is left out is 2^-26 of a product.
 *                     Weights take 6 bytes in the place of 4. An infinite factor gives NaN
 *     CELLGEN_TF32    numbers are rounded to 11 bits
 * CELLGEN_PRODUCTS (nvcc.py) names one of the last two, for layers whose weights fit so.
 *
 * Fragments are those of cellgen_persist.cuh: of a block of 32 factors, lane (g, t) has the neighbours from
 * 8 t on of row g. Eight numbers of float become `pieces` of 16 bytes, of which a lane has `at_once`: those that
 * meet all others of their eight, or a part of the eight, which needs fewer registers. */
#ifndef CELLGEN_PERSIST_PRODUCTS_CUH
#define CELLGEN_PERSIST_PRODUCTS_CUH

#include "cellgen_cuda_elements.cuh"

enum { CELLGEN_FMA, CELLGEN_PARTS, CELLGEN_TF32 };
#if !defined(CELLGEN_PRODUCTS)
#define CELLGEN_PRODUCTS CELLGEN_FMA
#endif

/* How an element type may be multiplied otherwise than it is: float alone. */
template <typename E> struct cellgen_other_products {
    enum { are = CELLGEN_FMA };
};
template <> struct cellgen_other_products<float> {
    enum { are = CELLGEN_PRODUCTS };
};

/* Bytes that a weight takes. */
template <typename E> inline __host__ __device__ int64_t cellgen_held_bytes(int products)
{
    return products == CELLGEN_PARTS ? 6 : (int64_t)sizeof(E);
}

/* c += a b of 16 rows, 8 columns and 32 factors, 16 bytes of each row and column in a lane. */
template <typename E>
inline __device__ void cellgen_multiply(float (&c)[4], const uint4 &low, const uint4 &high, const uint4 &w)
{
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    const uint32_t ahead[2] = {w.x, w.y}, behind[2] = {w.z, w.w};
    cellgen_mma<E>(c, first, ahead);
    cellgen_mma<E>(c, second, behind);
}

template <int products> struct cellgen_fragments;

template <> struct cellgen_fragments<CELLGEN_PARTS> {
    enum { pieces = 3, at_once = 3 };

    /* Two numbers, rounded, and what is left of them. */
    static inline __device__ uint32_t taken(float &first, float &second)
    {
        const uint32_t two = cellgen_two_of_bf16(first, second), bits[2] = {two << 16, two & 0xffff0000u};
        float rounded[2];
        memcpy(rounded, bits, sizeof bits);
        first -= rounded[0], second -= rounded[1];
        return two;
    }
    static inline __device__ void split(float (&x)[8], uint4 (&to)[pieces])
    {
        CELLGEN_UNROLL
        for (int part = 0; part < pieces; ++part)
            to[part] = uint4{taken(x[0], x[1]), taken(x[2], x[3]), taken(x[4], x[5]), taken(x[6], x[7])};
    }
    /* Eight neighbours of a row. */
    static inline __device__ void take(const uint4 *from, int, uint4 (&to)[at_once])
    {
        const uint4 bits[2] = {from[0], from[1]};
        float x[8];
        memcpy(x, bits, sizeof bits);
        split(x, to);
    }
    static inline __device__ void add(
        float (&c)[4], const uint4 (&low)[at_once], const uint4 (&high)[at_once], const uint4 (&w)[at_once])
    {
        CELLGEN_UNROLL
        for (int both = pieces - 1; both >= 0; --both)
            CELLGEN_UNROLL
            for (int part = both; part >= 0; --part)
                cellgen_multiply<__nv_bfloat16>(c, low[part], high[part], w[both - part]);
    }
};

template <> struct cellgen_fragments<CELLGEN_TF32> {
    enum { pieces = 2, at_once = 1 };

    static inline __device__ void split(float (&x)[8], uint4 (&to)[pieces])
    {
        CELLGEN_UNROLL
        for (int half = 0; half < pieces; ++half) to[half] = rounded(x + half * 4);
    }
    static inline __device__ uint4 rounded(const float *x)
    {
        return uint4{cellgen_tf32(x[0]), cellgen_tf32(x[1]), cellgen_tf32(x[2]), cellgen_tf32(x[3])};
    }
    /* Four neighbours, those of a half. */
    static inline __device__ void take(const uint4 *from, int half, uint4 (&to)[at_once])
    {
        float x[4];
        memcpy(x, from + half, sizeof x);
        to[0] = rounded(x);
    }
    static inline __device__ void add(
        float (&c)[4], const uint4 (&low)[at_once], const uint4 (&high)[at_once], const uint4 (&w)[at_once])
    {
        cellgen_multiply<float>(c, low[0], high[0], w[0]);
    }
};

#endif /* CELLGEN_PERSIST_PRODUCTS_CUH */
