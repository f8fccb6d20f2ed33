// F16, BF16 and F32 as halves over a power of two for each row (BF16 keeps its bits that way). F32 has a second plane with what
// the first one's rounding left.
#pragma once
#include "tile.cuh"

namespace openjet {

// Halves are read where they are used: keeping a tile of them in registers would leave room for nothing else.
struct RawFloat { const char* tile; float scale0, scale1; };

template <int Planes> struct TileFloat {
    static constexpr int BYTES = 8192 * Planes + 64;
    static constexpr bool BLOCK16 = false, OFFSET = false;
    using Raw = RawFloat;
    static __device__ __forceinline__ void load(Raw& r, const char* t, int lane) {
        r.tile = t + lane * 16;
        r.scale0 = __uint_as_float(load_weights4(t + 8192 * Planes + (lane >> 2) * 4));
        r.scale1 = __uint_as_float(load_weights4(t + 8192 * Planes + 32 + (lane >> 2) * 4));
    }
    static __device__ __forceinline__ Head head(const Raw& r, int) { return {r.scale0, r.scale1, 0.0f, 0.0f}; }
    static __device__ __forceinline__ void offset(const Raw&, uint32_t*) {}
    static __device__ __forceinline__ uint32_t word0(const Raw&) { return 0; }
    static __device__ __forceinline__ uint32_t word1(const Raw&) { return 0; }
    static __device__ __forceinline__ void scale(const Head& h, uint32_t, uint32_t, int, int, float& s0, float& s1) {
        s0 = h.d0;
        s1 = h.d1;
    }
    // Plane 1 is only there for F32.
    static __device__ __forceinline__ void plane(const Raw& r, int plane, int step, uint32_t* a) {
        const uint4 v = load_weights16(r.tile + plane * 8192 + step * 512);
        a[0] = v.x;
        a[1] = v.y;
        a[2] = v.z;
        a[3] = v.w;
    }
    static __device__ __forceinline__ void fragment(const Raw& r, int step, uint32_t* a) { plane(r, 0, step, a); }
};
using TileF16 = TileFloat<1>;
using TileF32 = TileFloat<2>;

// Planes of halves whose products add up.
template <class T> constexpr int planes = 1;
template <> constexpr int planes<TileF32> = 2;

}  // namespace openjet
