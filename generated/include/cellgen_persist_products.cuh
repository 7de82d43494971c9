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
 * 8 t on of row g. Eight numbers of float become `pieces` of 16 bytes. */
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
    enum { pieces = 3 };

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
    static inline __device__ void add(
        float (&c)[4], const uint4 (&low)[pieces], const uint4 (&high)[pieces], const uint4 (&w)[pieces])
    {
        CELLGEN_UNROLL
        for (int both = pieces - 1; both >= 0; --both)
            CELLGEN_UNROLL
            for (int part = both; part >= 0; --part)
                cellgen_multiply<__nv_bfloat16>(c, low[part], high[part], w[both - part]);
    }
};

template <> struct cellgen_fragments<CELLGEN_TF32> {
    enum { pieces = 2 };

    static inline __device__ void split(float (&x)[8], uint4 (&to)[pieces])
    {
        CELLGEN_UNROLL
        for (int half = 0; half < pieces; ++half) {
            const float *const own = x + half * 4;
            to[half] = uint4{cellgen_tf32(own[0]), cellgen_tf32(own[1]), cellgen_tf32(own[2]), cellgen_tf32(own[3])};
        }
    }
    static inline __device__ void add(
        float (&c)[4], const uint4 (&low)[pieces], const uint4 (&high)[pieces], const uint4 (&w)[pieces])
    {
        CELLGEN_UNROLL
        for (int half = 0; half < pieces; ++half) cellgen_multiply<float>(c, low[half], high[half], w[half]);
    }
};

#endif /* CELLGEN_PERSIST_PRODUCTS_CUH */
