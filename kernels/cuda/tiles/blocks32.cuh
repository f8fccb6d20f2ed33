// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL: blocks of 32 with halves as scales.
#pragma once
#include "tile.cuh"

namespace openjet {

// Scales (d_j, d_{j+4}) of rows g and g+8 as two words; with minima, two more.
template <bool Minima> struct Scales32 { uint32_t d0, d1, m0, m1; };

template <bool Minima, class From> __device__ __forceinline__ void load_scales32(Scales32<Minima>& s, From p, int lane) {
    load_weights4(s.d0, p + lane * 4);
    load_weights4(s.d1, p + 128 + lane * 4);
    if (Minima) {
        load_weights4(s.m0, p + 256 + lane * 4);
        load_weights4(s.m1, p + 384 + lane * 4);
    }
}

// Factor0, Factor1 undo what the fragments of rows g and g+8 are too small by; Zero is the zero point where there are no minima.
template <bool Minima, int Zero> struct Scaled32 {
    static constexpr bool BLOCK16 = false, OFFSET = true;
    using Scales = Scales32<Minima>;
    static __device__ __forceinline__ void offset(const Scales& s, uint32_t* a) {
        const uint32_t x0 = Minima ? s.m0 : s.d0, x1 = Minima ? s.m1 : s.d1;
        a[0] = __byte_perm(x0, 0, 0x1010u);
        a[1] = __byte_perm(x1, 0, 0x1010u);
        a[2] = __byte_perm(x0, 0, 0x3232u);
        a[3] = __byte_perm(x1, 0, 0x3232u);
    }
    static __device__ __forceinline__ Head factors(float factor0, float factor1) {
        const float m = Minima ? 1.0f : -(float)Zero;
        return {factor0, factor1, m, m};
    }
    static __device__ __forceinline__ uint32_t word0(const Scales& s) { return s.d0; }
    static __device__ __forceinline__ uint32_t word1(const Scales& s) { return s.d1; }
    static __device__ __forceinline__ void scale(const Head& h, uint32_t x0, uint32_t x1, int upper, int, float& s0, float& s1) {
        s0 = (upper ? high_float(x0) : low_float(x0)) * h.d0;
        s1 = (upper ? high_float(x1) : low_float(x1)) * h.d1;
    }
};

struct Quad4 { uint32_t w[4]; };
struct Quad5 { uint32_t w[4], b; };
struct Quad8 { uint32_t w[8]; };

template <bool Minima> struct TileQ4 : Scaled32<Minima, 8> {
    static constexpr int BYTES = Minima ? 2560 : 2304;
    using Quad = Quad4;
    using Scales = Scales32<Minima>;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) { load_nibbles(q.w, t, quad, lane); }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& s, From t, int lane) { load_scales32(s, t + 2048, lane); }
    static __device__ __forceinline__ Head head(const Scales&, int) { return Scaled32<Minima, 8>::factors(SUBNORMAL, SUBNORMAL / 16); }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) { fragment4(q.w[upper * 2 + odd], a); }
};
using TileQ4_0 = TileQ4<false>;
using TileQ4_1 = TileQ4<true>;

// Nibble and fifth bit of one step.
__device__ __forceinline__ void fragment5(uint32_t x, uint32_t u, int upper, int odd, uint32_t* a) {
    const uint32_t y = x >> 8, first = pairs1<4>(u, upper, odd, 0), second = pairs1<4>(u, upper, odd, 1);
    a[0] = and_or(x, 0x000F000Fu, first & 0x00100010u);
    a[1] = and_or(x, 0x00F000F0u, first & 0x01000100u);
    a[2] = and_or(y, 0x000F000Fu, second & 0x00100010u);
    a[3] = and_or(y, 0x00F000F0u, second & 0x01000100u);
}

template <bool Minima> struct TileQ5 : Scaled32<Minima, 16> {
    static constexpr int BYTES = Minima ? 3072 : 2816;
    using Quad = Quad5;
    using Scales = Scales32<Minima>;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) {
        load_nibbles(q.w, t, quad, lane);
        load_bits(q.b, t + 2048, quad, lane);
    }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& s, From t, int lane) { load_scales32(s, t + 2560, lane); }
    static __device__ __forceinline__ Head head(const Scales&, int) { return Scaled32<Minima, 16>::factors(SUBNORMAL, SUBNORMAL / 16); }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) {
        fragment5(q.w[upper * 2 + odd], q.b, upper, odd, a);
    }
};
using TileQ5_0 = TileQ5<false>;
using TileQ5_1 = TileQ5<true>;

// Bytes are the signed numbers plus 128.
struct TileQ8_0 : Scaled32<false, 128> {
    static constexpr int BYTES = 4352;
    using Quad = Quad8;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load_weights16(q.w[4 * i], q.w[4 * i + 1], q.w[4 * i + 2], q.w[4 * i + 3], t + quad * 1024 + i * 512 + lane * 16);
        }
    }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& s, From t, int lane) { load_scales32(s, t + 4096, lane); }
    static __device__ __forceinline__ Head head(const Scales&, int) { return factors(SUBNORMAL, SUBNORMAL); }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) {
        const uint32_t x = q.w[upper * 4 + odd * 2], y = q.w[upper * 4 + odd * 2 + 1];
        a[0] = x & 0x00FF00FFu;
        a[1] = (x >> 8) & 0x00FF00FFu;
        a[2] = y & 0x00FF00FFu;
        a[3] = (y >> 8) & 0x00FF00FFu;
    }
};

// Four nibbles (bits 0..15 of x) to the table's bytes, each plus 128.
__device__ __forceinline__ uint32_t iq4_lookup(uint32_t x) {
    // -127 -104 -83 -65 | -49 -35 -22 -10 | 1 13 25 38 | 53 69 89 113, plus 128
    const uint32_t index = x & 0x7777u;
    const uint32_t low = __byte_perm(0x3F2D1801u, 0x766A5D4Fu, index);
    const uint32_t high = __byte_perm(0xA6998D81u, 0xF1D9C5B5u, index);
    return __byte_perm(low, high, 0x3210u | (x & 0x8888u) >> 1);
}
__device__ __forceinline__ void fragment_iq4(uint32_t x, uint32_t* a) {
    const uint32_t low = iq4_lookup(x & 0xFFFFu), high = iq4_lookup(x >> 16);
#pragma unroll
    for (int p = 0; p < 4; p++) a[p] = __byte_perm(low, high, (uint32_t)(p | (4 + p) << 8)) & 0x00FF00FFu;
}

struct TileIQ4_NL : Scaled32<false, 128> {
    static constexpr int BYTES = 2304;
    using Quad = Quad4;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) { load_nibbles(q.w, t, quad, lane); }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& s, From t, int lane) { load_scales32(s, t + 2048, lane); }
    static __device__ __forceinline__ Head head(const Scales&, int) { return factors(SUBNORMAL, SUBNORMAL); }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) { fragment_iq4(q.w[upper * 2 + odd], a); }
};

}  // namespace openjet
