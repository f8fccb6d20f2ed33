// Products of one weight tile with the rows of a fragment buffer, on the tensor cores of one warp.
#pragma once
#include "fragment.cuh"
#include "tiles/dispatch.cuh"

namespace openjet {

// The word of the lane in this group of four that holds a quad's scales.
__device__ __forceinline__ uint32_t of_quad(uint32_t word, int lane, int quad) { return __shfl_sync(0xffffffffu, word, (lane & ~3) | quad); }

// Products of one quad of a weight tile with `tiles` fragment tiles (N of them unless `Dynamic`), added to acc: each sub-block's
// by its scale in f32, ...
template <class T, int N, bool Dynamic>
__device__ __forceinline__ void multiply_quad(float (&acc)[N][4], const typename T::Quad& q, const Head& head, uint32_t w0, uint32_t w1,
                                              int quad, const char* x, int lane, int tiles) {
    const uint32_t x0 = of_quad(w0, lane, quad), x1 = of_quad(w1, lane, quad);
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        const char* columns = x + ((quad + 4 * upper) * 32 + lane) * 16;
        float s0, s1, t0, t1;
        uint32_t a[4], c[4], e[4], f[4];
        T::scale(head, x0, x1, upper, 0, s0, s1);
        if (T::BLOCK16) T::scale(head, x0, x1, upper, 1, t0, t1);
        T::fragment(q, upper, 0, a);
        T::fragment(q, upper, 1, c);
        if constexpr (planes<T> == 2) {
            T::plane(q, 1, upper, 0, e);
            T::plane(q, 1, upper, 1, f);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (Dynamic && n >= tiles) continue;
            const uint4 b = *reinterpret_cast<const uint4*>(columns + n * FRAGMENT_BYTES);
            float p[4];
            mma_first(p, a, b.x, b.y);
            if (T::BLOCK16) {
                float r[4];
                mma_first(r, c, b.z, b.w);
                acc[n][0] = fmaf(t0, r[0], fmaf(s0, p[0], acc[n][0]));
                acc[n][1] = fmaf(t0, r[1], fmaf(s0, p[1], acc[n][1]));
                acc[n][2] = fmaf(t1, r[2], fmaf(s1, p[2], acc[n][2]));
                acc[n][3] = fmaf(t1, r[3], fmaf(s1, p[3], acc[n][3]));
            } else {
                mma(p, c, b.z, b.w);
                if constexpr (planes<T> == 2) {
                    mma(p, e, b.x, b.y);
                    mma(p, f, b.z, b.w);
                }
                acc[n][0] = fmaf(s0, p[0], acc[n][0]);
                acc[n][1] = fmaf(s0, p[1], acc[n][1]);
                acc[n][2] = fmaf(s1, p[2], acc[n][2]);
                acc[n][3] = fmaf(s1, p[3], acc[n][3]);
            }
        }
    }
}
// ... or with the scales of the sub-blocks in the weights. `x0`, `x1` are what the type's `folded` wants to know of the quad.
template <class T, int N, bool Dynamic>
__device__ __forceinline__ void multiply_quad_folded(float (&acc)[N][4], const typename T::Quad& q, uint32_t x0, uint32_t x1, int quad, const char* x,
                                                     int lane, int tiles) {
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        const char* columns = x + ((quad + 4 * upper) * 32 + lane) * 16;
        uint32_t a[4], c[4];
        T::folded(q, x0, x1, upper, a, c);
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (Dynamic && n >= tiles) continue;
            const uint4 b = *reinterpret_cast<const uint4*>(columns + n * FRAGMENT_BYTES);
            mma(acc[n], a, b.x, b.y);
            mma(acc[n], c, b.z, b.w);
        }
    }
}

// What comes after a tile's quads: the superblock's scale where it is not in yet, the zero points' or minima's part, the scales of
// the activations.
template <class T, int N, bool Dynamic>
__device__ __forceinline__ void finish_tile(float (&acc)[N][4], const typename T::Scales& scales, const Head& head, const char* x, int lane, int tiles) {
    constexpr bool OFFSET = offset_apart<T>;
    uint32_t a[4];
    if (OFFSET) T::offset(scales, a);
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (Dynamic && n >= tiles) continue;
        if constexpr (folds_scales<T>) {
            acc[n][0] *= head.d0 * T::FOLDED0;
            acc[n][1] *= head.d0 * T::FOLDED0;
            acc[n][2] *= head.d1 * T::FOLDED1;
            acc[n][3] *= head.d1 * T::FOLDED1;
        }
        if (OFFSET) {
            const uint4 s = *reinterpret_cast<const uint4*>(x + n * FRAGMENT_BYTES + FRAGMENT_SUMS + lane * 16);
            float p[4];
            mma_first(p, a, s.x, s.y);
            mma(p, a, s.z, s.w);
            acc[n][0] = fmaf(head.m0, p[0], acc[n][0]);
            acc[n][1] = fmaf(head.m0, p[1], acc[n][1]);
            acc[n][2] = fmaf(head.m1, p[2], acc[n][2]);
            acc[n][3] = fmaf(head.m1, p[3], acc[n][3]);
        }
        const float2 scale = *reinterpret_cast<const float2*>(x + n * FRAGMENT_BYTES + FRAGMENT_SCALES + (lane & 3) * 8);
        acc[n][0] *= scale.x;
        acc[n][1] *= scale.y;
        acc[n][2] *= scale.x;
        acc[n][3] *= scale.y;
    }
}

template <int N> __device__ __forceinline__ void zero(float (&acc)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
}

// Weight tiles of a warp on their way from memory: Held keeps `Depth` whole tiles in registers, ...
template <class T, int Depth> struct Held {
    struct Tile {
        typename T::Quad q[4];
        typename T::Scales s;
    } tile[Depth];
    __device__ __forceinline__ void load(int i, const char* t, int lane) {
#pragma unroll
        for (int quad = 0; quad < 4; quad++) T::load_quad(tile[i].q[quad], t, quad, lane);
        T::load_scales(tile[i].s, t, lane);
    }
    template <int N, bool Dynamic> __device__ __forceinline__ void multiply(int i, float (&acc)[N][4], const char* x, int lane, int tiles) {
        Head head;
        if constexpr (folds_scales<T>) {
            uint32_t w0, w1;
            T::fold(tile[i].s, w0, w1);
            uint32_t x0 = of_quad(w0, lane, 0), x1 = of_quad(w1, lane, 0);
#pragma unroll
            for (int quad = 0; quad < 4; quad++) {
                // What comes from other lanes is asked for one quad ahead.
                const uint32_t now0 = x0, now1 = x1;
                if (quad < 3) x0 = of_quad(w0, lane, quad + 1), x1 = of_quad(w1, lane, quad + 1);
                else head = T::head(tile[i].s, lane);
                multiply_quad_folded<T, N, Dynamic>(acc, tile[i].q[quad], now0, now1, quad, x, lane, tiles);
            }
        } else {
            head = T::head(tile[i].s, lane);
            const uint32_t w0 = T::word0(tile[i].s), w1 = T::word1(tile[i].s);
#pragma unroll
            for (int quad = 0; quad < 4; quad++) multiply_quad<T, N, Dynamic>(acc, tile[i].q[quad], head, w0, w1, quad, x, lane, tiles);
        }
        finish_tile<T, N, Dynamic>(acc, tile[i].s, head, x, lane, tiles);
    }
};
// ... Streamed the scales and the first quad, and fetches each further quad while it multiplies the one before: few registers and
// little code, for many rows and for rare types.
template <class T> struct Streamed {
    typename T::Quad first;
    typename T::Scales s;
    const char* from;
    __device__ __forceinline__ void load(int, const char* t, int lane) {
        T::load_quad(first, t, 0, lane);
        T::load_scales(s, t, lane);
        from = t;
    }
    template <int N, bool Dynamic> __device__ __forceinline__ void multiply(int, float (&acc)[N][4], const char* x, int lane, int tiles) {
        const Head head = T::head(s, lane);
        uint32_t w0 = T::word0(s), w1 = T::word1(s);
        if constexpr (folds_scales<T>) T::fold(s, w0, w1);
        typename T::Quad q = first;
#pragma unroll 1
        for (int quad = 0; quad < 4; quad++) {
            constexpr bool WIDE = sizeof(q) > 32;
            if (WIDE && quad > 0) T::load_quad(q, from, quad, lane);
            const typename T::Quad now = q;
            if (!WIDE && quad < 3) T::load_quad(q, from, quad + 1, lane);
            if constexpr (folds_scales<T>) {
                multiply_quad_folded<T, N, Dynamic>(acc, now, of_quad(w0, lane, quad), of_quad(w1, lane, quad), quad, x, lane, tiles);
            } else {
                multiply_quad<T, N, Dynamic>(acc, now, head, w0, w1, quad, x, lane, tiles);
            }
        }
        finish_tile<T, N, Dynamic>(acc, s, head, x, lane, tiles);
    }
};

}  // namespace openjet
