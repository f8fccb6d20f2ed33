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
// A step's fragments of the inputs: steps 0 .. 3 are the quads' lower halves, 4 .. 7 their upper ones.
template <int N, bool Dynamic> __device__ __forceinline__ void load_inputs(uint4 (&b)[N], const char* x, int step, int lane, int tiles) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (!Dynamic || n < tiles) b[n] = *reinterpret_cast<const uint4*>(x + n * FRAGMENT_BYTES + (step * 32 + lane) * 16);
    }
}
// ... or with the scales of the sub-blocks in the weights. `x0`, `x1` are what the type's `folded` wants to know of the quad; `b` has
// the inputs of its first half, and then those of the next quad's.
template <class T, int N, bool Dynamic>
__device__ __forceinline__ void multiply_quad_folded(float (&acc)[N][4], const typename T::Quad& q, uint32_t x0, uint32_t x1, int quad, uint4 (&b)[N],
                                                     const char* x, int lane, int tiles) {
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        uint4 now[N];
#pragma unroll
        for (int n = 0; n < N; n++) now[n] = b[n];
        if (upper == 0 || quad < 3) load_inputs<N, Dynamic>(b, x, upper == 0 ? quad + 4 : quad + 1, lane, tiles);
        uint32_t a[4], c[4];
        T::folded(q, x0, x1, upper, a, c);
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (!Dynamic || n < tiles) mma(acc[n], a, now[n].x, now[n].y);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (!Dynamic || n < tiles) mma(acc[n], c, now[n].z, now[n].w);
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

// A warp's weight tile, and the next one on its way from memory. `multiply` asks for `next`, where there is one, and multiplies the
// tile that was asked for before: Refilled holds a whole tile in registers, and each quad's place is filled again when it was
// multiplied; ...
template <class T> struct Refilled {
    static constexpr int TILES = 1;
    typename T::Quad q[4];
    typename T::Scales s;
    template <class From> __device__ __forceinline__ void load(From t, int lane) {
#pragma unroll
        for (int quad = 0; quad < 4; quad++) T::load_quad(q[quad], t, quad, lane);
        T::load_scales(s, t, lane);
    }
    template <int N, bool Dynamic> __device__ __forceinline__ void multiply(float (&acc)[N][4], const char* x, int lane, int tiles, Place next) {
        const typename T::Scales scales = s;
        T::load_scales(s, next, lane);
        Head head;
        if constexpr (folds_scales<T>) {
            uint4 b[N];
            load_inputs<N, Dynamic>(b, x, 0, lane, tiles);
            uint32_t w0, w1, x0[4], x1[4];
            T::fold(scales, w0, w1);
#pragma unroll
            for (int quad = 0; quad < 4; quad++) x0[quad] = of_quad(w0, lane, quad), x1[quad] = of_quad(w1, lane, quad);
#pragma unroll
            for (int quad = 0; quad < 4; quad++) {
                multiply_quad_folded<T, N, Dynamic>(acc, q[quad], x0[quad], x1[quad], quad, b, x, lane, tiles);
                T::load_quad(q[quad], next, quad, lane);
            }
            head = T::head(scales, lane);
        } else {
            head = T::head(scales, lane);
            const uint32_t w0 = T::word0(scales), w1 = T::word1(scales);
#pragma unroll
            for (int quad = 0; quad < 4; quad++) {
                multiply_quad<T, N, Dynamic>(acc, q[quad], head, w0, w1, quad, x, lane, tiles);
                T::load_quad(q[quad], next, quad, lane);
            }
        }
        finish_tile<T, N, Dynamic>(acc, scales, head, x, lane, tiles);
    }
};
// ... Doubled two such tiles, a piece, so that each has been asked for two tiles before: a warp waits for memory a third of its time
// with one; ...
template <class T> struct Doubled {
    static constexpr int TILES = 2;
    Refilled<T> tile[2];
};
// ... Streamed the scales and one quad, and fetches each quad while it multiplies the one before: few registers and little code,
// for many rows and for rare types.
template <class T> struct Streamed {
    static constexpr int TILES = 1;
    static constexpr bool WIDE = sizeof(typename T::Quad) > 32;      // not held ahead
    typename T::Quad q;
    typename T::Scales s;
    const char* from;
    __device__ __forceinline__ void load(const char* t, int lane) {
        if (!WIDE) T::load_quad(q, t, 0, lane);
        T::load_scales(s, t, lane);
        from = t;
    }
    template <int N, bool Dynamic> __device__ __forceinline__ void multiply(float (&acc)[N][4], const char* x, int lane, int tiles, Place next) {
        const typename T::Scales scales = s;
        T::load_scales(s, next, lane);
        const Head head = T::head(scales, lane);
        uint32_t w0 = T::word0(scales), w1 = T::word1(scales);
        uint4 b[N];
        if constexpr (folds_scales<T>) {
            T::fold(scales, w0, w1);
            load_inputs<N, Dynamic>(b, x, 0, lane, tiles);
        }
#pragma unroll 1
        for (int quad = 0; quad < 4; quad++) {
            if (WIDE) T::load_quad(q, from, quad, lane);
            const typename T::Quad now = q;
            if (!WIDE && quad < 3) T::load_quad(q, from, quad + 1, lane);
            else if (!WIDE) T::load_quad(q, next, 0, lane);
            if constexpr (folds_scales<T>) {
                multiply_quad_folded<T, N, Dynamic>(acc, now, of_quad(w0, lane, quad), of_quad(w1, lane, quad), quad, b, x, lane, tiles);
            } else {
                multiply_quad<T, N, Dynamic>(acc, now, head, w0, w1, quad, x, lane, tiles);
            }
        }
        from = next.p;
        finish_tile<T, N, Dynamic>(acc, scales, head, x, lane, tiles);
    }
};

}  // namespace openjet
