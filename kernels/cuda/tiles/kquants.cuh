// Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS: blocks of 256 whose sub-blocks have small integer scales.
#pragma once
#include "blocks32.cuh"

namespace openjet {

// A scale word of Q4_K and Q5_K: scale and minimum of sub-block j at bits 0 and 6, of j+4 at 16 and 22; at 12 and 28 the low and
// high nibble of byte j of the pair (d, dmin).
struct Scales45 { uint32_t h0, h1; };

__device__ __forceinline__ uint32_t gather_d(uint32_t x, int j) {
    uint32_t p = (((x >> 12) & 15) | ((x >> 24) & 0xF0)) << (8 * j);
    p |= __shfl_xor_sync(0xffffffffu, p, 1);
    p |= __shfl_xor_sync(0xffffffffu, p, 2);
    return p;
}

struct Scaled45 {
    static constexpr bool BLOCK16 = false, OFFSET = true;
    using Scales = Scales45;
    static __device__ __forceinline__ Head head(const Scales& r, int lane) {
        const uint32_t d0 = gather_d(r.h0, lane & 3), d1 = gather_d(r.h1, lane & 3);
        return {low_float(d0) * SUBNORMAL, low_float(d1) * (SUBNORMAL / 16), high_float(d0) * -SUBNORMAL, high_float(d1) * -SUBNORMAL};
    }
    static __device__ __forceinline__ void offset(const Scales& r, uint32_t* a) {
        a[0] = both_halves((r.h0 >> 6) & 63);
        a[1] = both_halves((r.h1 >> 6) & 63);
        a[2] = both_halves((r.h0 >> 22) & 63);
        a[3] = both_halves((r.h1 >> 22) & 63);
    }
    static __device__ __forceinline__ uint32_t word0(const Scales& r) { return r.h0; }
    static __device__ __forceinline__ uint32_t word1(const Scales& r) { return r.h1; }
    static __device__ __forceinline__ void scale(const Head& h, uint32_t x0, uint32_t x1, int upper, int, float& s0, float& s1) {
        s0 = small_float((upper ? x0 >> 16 : x0) & 63) * h.d0;
        s1 = small_float((upper ? x1 >> 16 : x1) & 63) * h.d1;
    }
    // The scales of sub-blocks j, j+4 as halves, times 2^10 for row g and times 2^6 for row g+8: subnormal number times scale is a
    // half without rounding, since it has at most 11 bits.
    static constexpr float FOLDED0 = 1.0f / 1024, FOLDED1 = 1.0f / 64;
    static __device__ __forceinline__ void fold(const Scales& r, uint32_t& x0, uint32_t& x1) {
        const half2 base = __float2half2_rn(1024.0f);
        x0 = bits(__hmul2(__hsub2(as_half2(and_or(r.h0, 0x003F003Fu, 0x64006400u)), base), base));
        x1 = bits(__hmul2(__hsub2(as_half2(and_or(r.h1, 0x003F003Fu, 0x64006400u)), base), __float2half2_rn(64.0f)));
    }
    // Multiplies the fragments of two steps by their sub-block's scales.
    static __device__ __forceinline__ void times_scales(uint32_t x0, uint32_t x1, int upper, uint32_t* a, uint32_t* c) {
        const half2 s0 = upper ? __high2half2(as_half2(x0)) : __low2half2(as_half2(x0));
        const half2 s1 = upper ? __high2half2(as_half2(x1)) : __low2half2(as_half2(x1));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i] = bits(__hmul2(as_half2(a[i]), i & 1 ? s1 : s0));
            c[i] = bits(__hmul2(as_half2(c[i]), i & 1 ? s1 : s0));
        }
    }
};

struct TileQ4_K : Scaled45 {
    static constexpr int BYTES = 2304;
    using Quad = Quad4;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) { load_nibbles(q.w, t, quad, lane); }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& s, From t, int lane) {
        load_weights4(s.h0, t + 2048 + lane * 4);
        load_weights4(s.h1, t + 2176 + lane * 4);
    }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) { fragment4(q.w[upper * 2 + odd], a); }
    static __device__ __forceinline__ void folded(const Quad& q, uint32_t x0, uint32_t x1, int upper, uint32_t* a, uint32_t* c) {
        fragment(q, upper, 0, a);
        fragment(q, upper, 1, c);
        times_scales(x0, x1, upper, a, c);
    }
};

struct TileQ5_K : Scaled45 {
    static constexpr int BYTES = 2816;
    using Quad = Quad5;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) {
        load_nibbles(q.w, t, quad, lane);
        load_bits(q.b, t + 2048, quad, lane);
    }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& s, From t, int lane) {
        load_weights4(s.h0, t + 2560 + lane * 4);
        load_weights4(s.h1, t + 2688 + lane * 4);
    }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) {
        fragment5(q.w[upper * 2 + odd], q.b, upper, odd, a);
    }
    static __device__ __forceinline__ void folded(const Quad& q, uint32_t x0, uint32_t x1, int upper, uint32_t* a, uint32_t* c) {
        fragment(q, upper, 0, a);
        fragment(q, upper, 1, c);
        times_scales(x0, x1, upper, a, c);
    }
};

// Scale bytes of steps 2j, 2j+1, 2j+8, 2j+9 of rows g and g+8 (plus 128), and the two rows' d.
struct ScalesQ6_K { uint32_t s0, s1, d; };
struct Quad6 { uint32_t w[4], z[2]; };
struct TileQ6_K {
    static constexpr int BYTES = 3456;    // 96 of them unused, so that reads of 512 bytes begin at lines of the cache
    static constexpr bool BLOCK16 = true, OFFSET = true;
    using Quad = Quad6;
    using Scales = ScalesQ6_K;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) {
        load_nibbles(q.w, t, quad, lane);
        load_pairs(q.z, t + 2048, quad, lane);
    }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& r, From t, int lane) {
        load_weights4(r.s0, t + 3072 + lane * 4);
        load_weights4(r.s1, t + 3200 + lane * 4);
        load_weights4(r.d, t + 3328 + (lane >> 2) * 4);
    }
    static __device__ __forceinline__ Head head(const Scales& r, int) {
        const float d0 = low_float(r.d), d1 = high_float(r.d);
        return {d0 * SUBNORMAL, d1 * (SUBNORMAL / 16), d0 * -32.0f, d1 * -32.0f};
    }
    // Bytes as halves 1024 + byte, less 1152.
    static __device__ __forceinline__ uint32_t signed_bytes(uint32_t x, int first) {
        const half2 h = as_half2(__byte_perm(x, 0x64646464u, first ? 0x4342u : 0x4140u));
        return bits(__hsub2(h, __float2half2_rn(1152.0f)));
    }
    static __device__ __forceinline__ void offset(const Scales& r, uint32_t* a) {
        a[0] = signed_bytes(r.s0, 0);
        a[1] = signed_bytes(r.s1, 0);
        a[2] = signed_bytes(r.s0, 2);
        a[3] = signed_bytes(r.s1, 2);
    }
    static __device__ __forceinline__ uint32_t word0(const Scales& r) { return r.s0; }
    static __device__ __forceinline__ uint32_t word1(const Scales& r) { return r.s1; }
    static __device__ __forceinline__ void scale(const Head& h, uint32_t x0, uint32_t x1, int upper, int odd, float& s0, float& s1) {
        s0 = (byte_float(x0, upper * 2 + odd) - 128.0f) * h.d0;
        s1 = (byte_float(x1, upper * 2 + odd) - 128.0f) * h.d1;
    }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) {
        const uint32_t x = q.w[upper * 2 + odd], y = x >> 8, z = q.z[upper];
        uint32_t low, high;
        pairs2(z, odd, 0, low, high);
        a[0] = and_or(x, 0x000F000Fu, low & 0x00300030u);
        a[1] = and_or(x, 0x00F000F0u, high & 0x03000300u);
        pairs2(z, odd, 1, low, high);
        a[2] = and_or(y, 0x000F000Fu, low & 0x00300030u);
        a[3] = and_or(y, 0x00F000F0u, high & 0x03000300u);
    }
    // The sub-block's scale s and the zero point 32 in the weights: (q - 32) s, rounded to a half where it has more than 11 bits.
    // Scales come times 2^8 for row g and 2^4 for row g+8.
    static constexpr float FOLDED0 = 1.0f / 256, FOLDED1 = 1.0f / 16;
    static __device__ __forceinline__ void fold(const Scales& r, uint32_t& x0, uint32_t& x1) {
        x0 = r.s0;
        x1 = r.s1;
    }
    static __device__ __forceinline__ void folded(const Quad& q, uint32_t x0, uint32_t x1, int upper, uint32_t* a, uint32_t* c) {
        const half2 t0 = as_half2(signed_bytes(x0, upper * 2)), t1 = as_half2(signed_bytes(x1, upper * 2));
        const half2 s0 = __hmul2(t0, __float2half2_rn(256.0f)), s1 = __hmul2(t1, __float2half2_rn(16.0f));
        const half2 z0 = __hmul2(t0, __float2half2_rn(-1.0f / 2048)), z1 = __hmul2(t1, __float2half2_rn(-1.0f / 2048));
        fragment(q, upper, 0, a);
        fragment(q, upper, 1, c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i] = bits(__hfma2(as_half2(a[i]), __low2half2(i & 1 ? s1 : s0), __low2half2(i & 1 ? z1 : z0)));
            c[i] = bits(__hfma2(as_half2(c[i]), __high2half2(i & 1 ? s1 : s0), __high2half2(i & 1 ? z1 : z0)));
        }
    }
};

// Scale bytes (scale in the low, minimum in the high nibble) as Q6_K's, and (d, dmin) of rows g and g+8.
struct ScalesQ2_K { uint32_t s0, s1, d0, d1; };
struct Quad2 { uint32_t z[2]; };
struct TileQ2_K {
    static constexpr int BYTES = 1344;
    static constexpr bool BLOCK16 = true, OFFSET = true;
    using Quad = Quad2;
    using Scales = ScalesQ2_K;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) { load_pairs(q.z, t, quad, lane); }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& r, From t, int lane) {
        load_weights4(r.s0, t + 1024 + lane * 4);
        load_weights4(r.s1, t + 1152 + lane * 4);
        load_weights4(r.d0, t + 1280 + (lane >> 2) * 4);
        load_weights4(r.d1, t + 1312 + (lane >> 2) * 4);
    }
    static __device__ __forceinline__ Head head(const Scales& r, int) {
        return {low_float(r.d0) * (SUBNORMAL / 16), low_float(r.d1) * (SUBNORMAL / 256), high_float(r.d0) * -SUBNORMAL,
                high_float(r.d1) * -SUBNORMAL};
    }
    static __device__ __forceinline__ void offset(const Scales& r, uint32_t* a) {
        const uint32_t m0 = (r.s0 >> 4) & 0x0F0F0F0Fu, m1 = (r.s1 >> 4) & 0x0F0F0F0Fu;
        a[0] = bytes_to_halves(m0, 0);
        a[1] = bytes_to_halves(m1, 0);
        a[2] = bytes_to_halves(m0, 2);
        a[3] = bytes_to_halves(m1, 2);
    }
    static __device__ __forceinline__ uint32_t word0(const Scales& r) { return r.s0; }
    static __device__ __forceinline__ uint32_t word1(const Scales& r) { return r.s1; }
    static __device__ __forceinline__ void scale(const Head& h, uint32_t x0, uint32_t x1, int upper, int odd, float& s0, float& s1) {
        const int i = upper * 2 + odd;
        s0 = small_float((x0 >> (8 * i)) & 15) * h.d0;
        s1 = small_float((x1 >> (8 * i)) & 15) * h.d1;
    }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) {
        const uint32_t z = q.z[upper];
        uint32_t low, high;
        pairs2(z, odd, 0, low, high);
        a[0] = low & 0x00300030u;
        a[1] = high & 0x03000300u;
        pairs2(z, odd, 1, low, high);
        a[2] = low & 0x00300030u;
        a[3] = high & 0x03000300u;
    }
};

// Four scales of 6 bits of rows g and g+8: low 16 bits of each in `low`, high 8 bits of each in `high`; the two rows' d.
struct ScalesQ3_K { uint32_t low, high, d; };
struct Quad3 { uint32_t z[2], b; };
struct TileQ3_K {
    static constexpr int BYTES = 1760;
    static constexpr bool BLOCK16 = true, OFFSET = true;
    using Quad = Quad3;
    using Scales = ScalesQ3_K;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) {
        load_pairs(q.z, t, quad, lane);
        load_bits(q.b, t + 1024, quad, lane);
    }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& r, From t, int lane) {
        load_weights4(r.low, t + 1536 + lane * 4);
        load_weights2(r.high, t + 1664 + lane * 2);
        load_weights4(r.d, t + 1728 + (lane >> 2) * 4);
    }
    static __device__ __forceinline__ Head head(const Scales& r, int) {
        const float d0 = low_float(r.d), d1 = high_float(r.d);
        return {d0 * (SUBNORMAL / 16), d1 * (SUBNORMAL / 256), d0 * -4.0f, d1 * -4.0f};
    }
    static __device__ __forceinline__ uint32_t word0(const Scales& r) { return (r.low & 0xFFFFu) | (r.high & 0xFFu) << 16; }
    static __device__ __forceinline__ uint32_t word1(const Scales& r) { return r.low >> 16 | (r.high >> 8) << 16; }
    static __device__ __forceinline__ uint32_t pair(uint32_t x) {
        const uint32_t two = (x & 63) | (x >> 6 & 63) << 16 | 0x64006400u;
        return bits(__hsub2(as_half2(two), __float2half2_rn(1056.0f)));
    }
    static __device__ __forceinline__ void offset(const Scales& r, uint32_t* a) {
        const uint32_t x0 = word0(r), x1 = word1(r);
        a[0] = pair(x0);
        a[1] = pair(x1);
        a[2] = pair(x0 >> 12);
        a[3] = pair(x1 >> 12);
    }
    static __device__ __forceinline__ void scale(const Head& h, uint32_t x0, uint32_t x1, int upper, int odd, float& s0, float& s1) {
        const int at = 6 * (upper * 2 + odd);
        s0 = (small_float(x0 >> at & 63) - 32.0f) * h.d0;
        s1 = (small_float(x1 >> at & 63) - 32.0f) * h.d1;
    }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) {
        const uint32_t z = q.z[upper], u = q.b;
        uint32_t low, high, bit = pairs1<6>(u, upper, odd, 0);
        pairs2(z, odd, 0, low, high);
        a[0] = and_or(low, 0x00300030u, bit & 0x00400040u);
        a[1] = and_or(high, 0x03000300u, bit & 0x04000400u);
        bit = pairs1<6>(u, upper, odd, 1);
        pairs2(z, odd, 1, low, high);
        a[2] = and_or(low, 0x00300030u, bit & 0x00400040u);
        a[3] = and_or(high, 0x03000300u, bit & 0x04000400u);
    }
};

// One word a lane: for row g in the low, for row g+8 in the high half: scales of sub-blocks j and j+4 (6 bits each) and nibble j
// of d.
struct ScalesIQ4_XS { uint32_t s; };
struct TileIQ4_XS {
    static constexpr int BYTES = 2176;
    static constexpr bool BLOCK16 = false, OFFSET = true;
    using Quad = Quad4;
    using Scales = ScalesIQ4_XS;
    template <class From> static __device__ __forceinline__ void load_quad(Quad& q, From t, int quad, int lane) { load_nibbles(q.w, t, quad, lane); }
    template <class From> static __device__ __forceinline__ void load_scales(Scales& r, From t, int lane) { load_weights4(r.s, t + 2048 + lane * 4); }
    static __device__ __forceinline__ Head head(const Scales& r, int lane) {
        uint32_t p = (r.s >> 12 & 0x000F000Fu) << (4 * (lane & 3));
        p |= __shfl_xor_sync(0xffffffffu, p, 1);
        p |= __shfl_xor_sync(0xffffffffu, p, 2);
        const float d0 = low_float(p), d1 = high_float(p);
        return {d0 * SUBNORMAL, d1 * SUBNORMAL, d0 * -128.0f, d1 * -128.0f};
    }
    static __device__ __forceinline__ uint32_t word0(const Scales& r) { return r.s & 0xFFFFu; }
    static __device__ __forceinline__ uint32_t word1(const Scales& r) { return r.s >> 16; }
    static __device__ __forceinline__ uint32_t twice(uint32_t x) {
        return bits(__hsub2(as_half2(both_halves(x & 63) | 0x64006400u), __float2half2_rn(1056.0f)));
    }
    static __device__ __forceinline__ void offset(const Scales& r, uint32_t* a) {
        a[0] = twice(r.s);
        a[1] = twice(r.s >> 16);
        a[2] = twice(r.s >> 6);
        a[3] = twice(r.s >> 22);
    }
    static __device__ __forceinline__ void scale(const Head& h, uint32_t x0, uint32_t x1, int upper, int, float& s0, float& s1) {
        s0 = (small_float((upper ? x0 >> 6 : x0) & 63) - 32.0f) * h.d0;
        s1 = (small_float((upper ? x1 >> 6 : x1) & 63) - 32.0f) * h.d1;
    }
    static __device__ __forceinline__ void fragment(const Quad& q, int upper, int odd, uint32_t* a) { fragment_iq4(q.w[upper * 2 + odd], a); }
};

// Types whose sub-block scales go into the weights.
template <class T> constexpr bool folds_scales = false;
template <> constexpr bool folds_scales<TileQ4_K> = true;
template <> constexpr bool folds_scales<TileQ5_K> = true;
template <> constexpr bool folds_scales<TileQ6_K> = true;
// Of types whose sub-blocks have integers as scales: what the superblock's scale is multiplied by to be the unit in which these
// integers, at most 63 or 128, come near the largest half.
template <class T> constexpr float integer_scales = 0.0f;
template <> constexpr float integer_scales<TileQ2_K> = 1.0f / 1024;
template <> constexpr float integer_scales<TileQ3_K> = 1.0f / 1024;
template <> constexpr float integer_scales<TileQ4_K> = 1.0f / 1024;
template <> constexpr float integer_scales<TileQ5_K> = 1.0f / 1024;
template <> constexpr float integer_scales<TileQ6_K> = 1.0f / 256;
template <> constexpr float integer_scales<TileIQ4_XS> = 1.0f / 1024;
// Types whose offsets are a product of their own.
template <class T> constexpr bool offset_apart = T::OFFSET;
template <> constexpr bool offset_apart<TileQ6_K> = false;

}  // namespace openjet
