// Cells of the key-value pool: f16, q8_0, q4_0.
//
// The pool is an array of pages; a page holds the tiles of every layer: [layer][K, V][head]. A tile is 64 tokens x 256
// numbers. Quantised tiles are 64 rows of quants, then 512 f16 scales, one for 32 numbers: of keys [token][block], of values
// [block][token]. Quants are stored with their offset, 128 or 8. The 16-byte pieces of a row stand in an order of its token's own
// (kv_turn), so that a tile copied as it is to shared memory is read as matrices of 8 tokens x 16 bytes without bank conflicts.
// What is written is always finite, so that a masked cell times 0 is 0.
#pragma once
#include "table.cuh"
#include "warp.cuh"

namespace openjet {

constexpr int HEAD_DIM = 256;
constexpr int KV_BLOCK = 32;
constexpr int KV_BLOCKS = HEAD_DIM / KV_BLOCK;

enum KvFormat : uint32_t { KV_F16 = 0, KV_Q8_0 = 1, KV_Q4_0 = 2 };

struct KvPool {
    uint8_t* base;
    uint64_t page_bytes;
    // Number of layers in a page, the draft head's included.
    uint32_t layers;
    uint32_t kv_heads;
    uint32_t format;
    uint32_t reserved;

    __device__ uint32_t row_bytes() const { return format == KV_F16 ? 512 : format == KV_Q8_0 ? 256 : 128; }
    __device__ uint32_t tile_bytes() const {
        return PAGE_TOKENS * (row_bytes() + (format == KV_F16 ? 0 : KV_BLOCKS * 2));
    }
    // `part` is 0 for keys, 1 for values.
    __device__ uint8_t* tile(uint32_t page, uint32_t layer, uint32_t part, uint32_t head) const {
        return base + page * page_bytes + (uint64_t)((layer * 2 + part) * kv_heads + head) * tile_bytes();
    }
};
static_assert(sizeof(KvPool) == 32);

// Piece p of a token's row stands at place p ^ kv_turn(token). A matrix's rows are the tokens 8a + b, 8a + b + 1 for a = 0 .. 3
// (kv_token), which all turn differently.
__device__ __forceinline__ uint32_t kv_turn(uint32_t token) { return (token & 1) | (token >> 2 & 6); }
// Row r of matrix i of the four that 32 tokens make.
__device__ __forceinline__ int kv_token(int r, int i) { return 8 * (r >> 1) + 2 * i + (r & 1); }

// Below the largest half, with room for the rounding of a block's scale.
__device__ __forceinline__ float finite(float x) {
    return x != x ? 0.0f : fminf(fmaxf(x, -65000.0f), 65000.0f);
}

// Where the scale of block `block` of a token stands among a tile's.
__device__ __forceinline__ int kv_scale(uint32_t part, int token, int block) {
    return part ? block * (int)PAGE_TOKENS + token : token * KV_BLOCKS + block;
}

// One token's 256 numbers, held by a warp (lane l has elements 8l .. 8l+7, so that four lanes have a block), into row `token` of a tile
// of keys (part 0) or values (1).
__device__ __forceinline__ void kv_store(const KvPool& pool, uint8_t* tile, uint32_t part, uint32_t token, const float (&given)[8]) {
    const int lane = lane_id(), block = lane >> 2;
    const uint32_t turn = kv_turn(token);
    float x[8], largest = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        x[j] = finite(given[j]);
        largest = fmaxf(largest, fabsf(x[j]));
    }
    if (pool.format == KV_F16) {
        uint32_t h[4];
#pragma unroll
        for (int j = 0; j < 4; j++) h[j] = bits(__floats2half2_rn(x[2 * j], x[2 * j + 1]));
        reinterpret_cast<uint4*>(tile + token * 512)[lane ^ turn] = make_uint4(h[0], h[1], h[2], h[3]);
        return;
    }
    largest = lanes_max<4>(largest);
    uint32_t q[2] = {0, 0};
    float d;
    if (pool.format == KV_Q8_0) {
        d = __fdiv_rn(largest, 127.0f);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            // Half away from zero.
            const float t = d > 0.0f ? __fdiv_rn(x[j], d) : 0.0f;
            q[j >> 2] |= (uint32_t)((int)truncf(t + copysignf(0.5f, t)) + 128) << 8 * (j & 3);
        }
        reinterpret_cast<uint2*>(tile + token * 256 + ((lane >> 1) ^ turn) * 16)[lane & 1] = make_uint2(q[0], q[1]);
    } else {
        // The first of the numbers with the largest magnitude gives the sign.
        float first = 0.0f;
#pragma unroll
        for (int j = 7; j >= 0; j--) first = fabsf(x[j]) == largest ? x[j] : first;
        const uint32_t which = __ballot_sync(0xffffffffu, fabsf(first) == largest) >> 4 * block & 15;
        d = __fdiv_rn(__shfl_sync(0xffffffffu, first, 4 * block + __ffs((int)which) - 1), -8.0f);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t n = d == 0.0f ? 8u : min((uint32_t)(__fdiv_rn(x[j], d) + 8.5f), 15u);
            q[j >> 2] |= n << 8 * (j & 3);
        }
        // The second 16 numbers go to the high halves.
        const uint32_t high[2] = {__shfl_xor_sync(0xffffffffu, q[0], 2), __shfl_xor_sync(0xffffffffu, q[1], 2)};
        uint2* to = reinterpret_cast<uint2*>(tile + token * 128 + (block ^ turn) * 16);
        if ((lane & 2) == 0) to[lane & 1] = make_uint2(q[0] | high[0] << 4, q[1] | high[1] << 4);
    }
    half* scales = reinterpret_cast<half*>(tile + PAGE_TOKENS * pool.row_bytes());
    if ((lane & 3) == 0) scales[kv_scale(part, (int)token, block)] = __float2half_rn(d);
}

// A tile on its way from the pool to shared memory: what one thread of the block holds of it.
template <uint32_t Format> struct KvFetch {
    uint4 data[Format == KV_F16 ? 4 : Format == KV_Q8_0 ? 2 : 1];
    uint32_t scale;
};

// Halves between the rows of a tile in shared memory: 8 more than it has numbers, so that fragment reads hit all banks.
constexpr int TILE_STRIDE = HEAD_DIM + 8;

template <uint32_t Format> __device__ __forceinline__ void kv_fetch(KvFetch<Format>& f, const uint8_t* tile, uint32_t part) {
    const int t = opaque((int)threadIdx.x);
    const uint4* data = reinterpret_cast<const uint4*>(tile);
    if constexpr (Format == KV_F16) {
#pragma unroll
        for (int i = 0; i < 4; i++) f.data[i] = data[t + i * THREADS];
    } else if constexpr (Format == KV_Q8_0) {
        // Place p is piece p % 16 ^ turn of row p / 16. 32 rows further the turn is the same.
        const int row = t >> 4;
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(tile + PAGE_TOKENS * 256) + kv_scale(part, row, ((t & 15) ^ kv_turn(row)) >> 1);
#pragma unroll
        for (int i = 0; i < 2; i++) f.data[i] = data[t + i * THREADS];
        f.scale = scales[0] | (uint32_t)scales[kv_scale(part, 32, 0)] << 16;
    } else {
        // Place p is block p % 8 ^ turn of row p / 8.
        f.data[0] = data[t];
        f.scale = reinterpret_cast<const uint16_t*>(tile + PAGE_TOKENS * 128)[kv_scale(part, t >> 3, (t & 7) ^ kv_turn(t >> 3))];
    }
}

// Two bytes of a word as halves 1024 + byte: the byte becomes the low bits of 0x6400.
__device__ __forceinline__ half2 byte_pair(uint32_t w, uint32_t selector) { return as_half2(__byte_perm(w, 0x64646464u, selector)); }

template <uint32_t Format> __device__ __forceinline__ void kv_spread(half* tile, const KvFetch<Format>& f) {
    const int t = opaque((int)threadIdx.x);
    if constexpr (Format == KV_F16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // 16 rows further the turn differs by 4.
            const int piece = (t & 31) ^ kv_turn(t >> 5) ^ 4 * (i & 1);
            *reinterpret_cast<uint4*>(tile + ((t >> 5) + 16 * i) * TILE_STRIDE + piece * 8) = f.data[i];
        }
    } else if constexpr (Format == KV_Q8_0) {
        const half2 offset = __float2half2_rn(1152.0f);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const half2 d = __half2half2(__ushort_as_half((uint16_t)(f.scale >> 16 * i)));
            const uint32_t w[4] = {f.data[i].x, f.data[i].y, f.data[i].z, f.data[i].w};
            uint32_t out[8];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                out[2 * k] = bits(__hmul2(__hsub2(byte_pair(w[k], 0x4140), offset), d));
                out[2 * k + 1] = bits(__hmul2(__hsub2(byte_pair(w[k], 0x4342), offset), d));
            }
            uint4* to = reinterpret_cast<uint4*>(tile + ((t >> 4) + 32 * i) * TILE_STRIDE + ((t & 15) ^ kv_turn(t >> 4)) * 16);
            to[0] = make_uint4(out[0], out[1], out[2], out[3]);
            to[1] = make_uint4(out[4], out[5], out[6], out[7]);
        }
    } else {
        const half2 offset = __float2half2_rn(1032.0f);
        const half2 d = __half2half2(__ushort_as_half((uint16_t)f.scale));
        const uint32_t w[4] = {f.data[0].x, f.data[0].y, f.data[0].z, f.data[0].w};
        uint32_t low[8], high[8];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t l = w[k] & 0x0f0f0f0fu, h = w[k] >> 4 & 0x0f0f0f0fu;
            low[2 * k] = bits(__hmul2(__hsub2(byte_pair(l, 0x4140), offset), d));
            low[2 * k + 1] = bits(__hmul2(__hsub2(byte_pair(l, 0x4342), offset), d));
            high[2 * k] = bits(__hmul2(__hsub2(byte_pair(h, 0x4140), offset), d));
            high[2 * k + 1] = bits(__hmul2(__hsub2(byte_pair(h, 0x4342), offset), d));
        }
        uint4* to = reinterpret_cast<uint4*>(tile + (t >> 3) * TILE_STRIDE + ((t & 7) ^ kv_turn(t >> 3)) * 32);
        to[0] = make_uint4(low[0], low[1], low[2], low[3]);
        to[1] = make_uint4(low[4], low[5], low[6], low[7]);
        to[2] = make_uint4(high[0], high[1], high[2], high[3]);
        to[3] = make_uint4(high[4], high[5], high[6], high[7]);
    }
}

}  // namespace openjet
