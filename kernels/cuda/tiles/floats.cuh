// F16, BF16 and F32 as halves over a power of two for each row (BF16 keeps its bits that way). F32 has a second plane with what
// the first one's rounding left.
#pragma once
#include "tile.cuh"

namespace openjet {

struct ScalesFloat { uint32_t scale0, scale1; };                       // bits of f32
template <int Planes> struct QuadFloat { uint4 w[Planes][4]; };

template <int Planes> struct TileFloat {
    static constexpr int BYTES = 8192 * Planes + 64;
    static constexpr bool BLOCK16 = false, OFFSET = false;
    using Quad = QuadFloat<Planes>;
    using Scales = ScalesFloat;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) {
#pragma unroll
        for (int p = 0; p < Planes; p++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint4& w = q.w[p][i];
                load_weights16(w.x, w.y, w.z, w.w, t + p * 8192 + quad * 2048 + i * 512 + lane * 16);
            }
        }
    }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& s, From t, int lane) {
        load_weights4(s.scale0, t + 8192 * Planes + (lane >> 2) * 4);
        load_weights4(s.scale1, t + 8192 * Planes + 32 + (lane >> 2) * 4);
    }
    static __device__ __forceinline__ Head head(const Scales& s, int) { return {__uint_as_float(s.scale0), __uint_as_float(s.scale1), 0.0f, 0.0f}; }
    static __device__ __forceinline__ void offset(const Scales&, uint32_t*) {}
    static __device__ __forceinline__ uint32_t word0(const Scales&) { return 0; }
    static __device__ __forceinline__ uint32_t word1(const Scales&) { return 0; }
    static __device__ __forceinline__ void scale(const Head& h, uint32_t, uint32_t, int, int, float& s0, float& s1) {
        s0 = h.d0;
        s1 = h.d1;
    }
    static __device__ __forceinline__ void plane(const Quad& q, int plane, int upper, int odd, uint32_t* a) {
        const uint4 v = q.w[plane][upper * 2 + odd];
        a[0] = v.x;
        a[1] = v.y;
        a[2] = v.z;
        a[3] = v.w;
    }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) { plane(q, 0, upper, odd, a); }
};
using TileF16 = TileFloat<1>;
using TileF32 = TileFloat<2>;

// Planes of halves whose products add up.
template <class T> constexpr int planes = 1;
template <> constexpr int planes<TileF32> = 2;

}  // namespace openjet
