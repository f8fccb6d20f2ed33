// Weight tiles: 16 outputs x 256 inputs of a matrix, its GGUF bits in the order in which tensor-core lanes want them.
//
// A lane 4g+j owns rows g and g+8 and, in each of 16 k-steps of 16 inputs, columns 2j, 2j+1, 2j+8, 2j+9: eight weights, in four
// pairs: p0 (row g, columns 2j, 2j+1), p1 (row g+8, same columns), p2 (row g, columns 2j+8, 2j+9), p3 (row g+8, same).
// src/repack/ writes the planes:
// in quads of steps: quad i has steps 2i, 2i+1 (upper = 0, odd = 0, 1) and 2i+8, 2i+9 (upper = 1).
//   4 bits: a word for (step, lane), 16 bytes a lane for a quad: pair p at bits 4p and 4p+16.
//   2 bits: a word for (upper, lane), 8 bytes a lane for a quad; 1 bit: a word a lane for a quad.
//   8 bits: two words for (step, lane): bytes (p0 low, p1 low, p0 high, p1 high), then p2, p3. 16 bits: four words, p0 .. p3.
// then the scales: a lane holds those of sub-blocks j and j+4 (blocks of 32) or j', j'+1, j'+8, j'+9 with j' = 2j (blocks of 16).
//
// A pair of matrices shares its tiles: their rows 0 .. 7 are rows of the first, 8 .. 15 the same rows of the second. So the lane that
// owns row g of one owns that of the other.
//
// Quantised integers are used as they are: the integer q in the low bits of a half is the subnormal q * 2^-24, which tensor
// cores take exactly; row g+8 comes 16 times larger where that saves a shift. Products are scaled in f32 for each sub-block.
// Offsets (zero points and minima) are one more product per tile, with the sums of 16 activations. So a product differs from
// exact arithmetic by the rounding of activations to halves and by f32 sums alone.
//
// A type provides: BYTES of a tile; BLOCK16 (scales for 16, else for 32 inputs); OFFSET (has offsets); Quad and Scales, what a
// lane loads, and load_quad, load_scales; head, which forms a tile's Head; offset and fragment, the tensor cores' operands; word0
// and word1, the scales as other lanes of the group want them, and scale, which picks from them.
#pragma once
#include "../common.cuh"

namespace openjet {

// As in src/repack/mod.rs.
enum WeightType : uint32_t {
    W_F32, W_F16, W_Q4_0, W_Q4_1, W_Q5_0, W_Q5_1, W_Q8_0, W_Q2_K, W_Q3_K, W_Q4_K, W_Q5_K, W_Q6_K, W_IQ4_NL, W_IQ4_XS,
};

constexpr float SUBNORMAL = 16777216.0f;   // 2^24: from subnormal halves back to integers

// What a lane loads of a quad from planes of 4, 2 and 1 bits.
template <class From> __device__ __forceinline__ void load_nibbles(uint32_t (&w)[4], From plane, int quad, int lane) {
    load_weights16(w[0], w[1], w[2], w[3], plane + quad * 512 + lane * 16);
}
template <class From> __device__ __forceinline__ void load_pairs(uint32_t (&z)[2], From plane, int quad, int lane) {
    load_weights8(z[0], z[1], plane + quad * 256 + lane * 8);
}
template <class From> __device__ __forceinline__ void load_bits(uint32_t& b, From plane, int quad, int lane) { load_weights4(b, plane + quad * 128 + lane * 4); }

// Nibbles; rows g+8 come times 16.
__device__ __forceinline__ void fragment4(uint32_t x, uint32_t* a) {
    const uint32_t y = x >> 8;
    a[0] = x & 0x000F000Fu;
    a[1] = x & 0x00F000F0u;
    a[2] = y & 0x000F000Fu;
    a[3] = y & 0x00F000F0u;
}
// The 2-bit plane's word moved so that pairs p0, p1 (half = 0) or p2, p3 (half = 1) of an even or odd step stand at bits 4 and 8.
__device__ __forceinline__ void pairs2(uint32_t z, int odd, int half, uint32_t& low, uint32_t& high) {
    if (odd == 0) {
        low = high = half ? z >> 2 : z;
    } else {
        low = half ? z >> 10 : z >> 8;
        high = half ? z << 6 : z << 8;
    }
}
// The 1-bit plane's word moved so that p0 (p2) of a quad's step stands at bit `To` and p1 (p3) at bit To + 4.
template <int To> __device__ __forceinline__ uint32_t pairs1(uint32_t u, int upper, int odd, int half) {
    const int c = upper * 4 + odd * 2 + half;
    const int at = (c & 3) | (c >> 2) << 3;
    return at < To ? u << (To - at) : u >> (at - To);
}
// An integer 0 .. 2^23 - 1 as a float, from its bits.
__device__ __forceinline__ float small_float(uint32_t bits) { return __uint_as_float(bits | 0x4B000000u) - 8388608.0f; }
__device__ __forceinline__ float byte_float(uint32_t x, int i) {
    return __uint_as_float(__byte_perm(x, 0x4B000000u, 0x7540u | (uint32_t)i)) - 8388608.0f;
}
// Two bytes of x as subnormal halves.
__device__ __forceinline__ uint32_t bytes_to_halves(uint32_t x, int first) {
    return __byte_perm(x, 0, first ? 0x4342u : 0x4140u);
}
__device__ __forceinline__ uint32_t both_halves(uint32_t x) { return __byte_perm(x, 0, 0x1010u); }

// Scales of a tile: of row g and row g+8, and the factors of the offset product.
struct Head { float d0, d1, m0, m1; };

}  // namespace openjet
