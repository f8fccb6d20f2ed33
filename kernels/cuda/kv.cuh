// Cells of the key-value pool: f16, q8_0, q4_0.
//
// The pool is an array of pages; a page holds the tiles of every layer: [layer][K, V][head]. A tile is 64 tokens x 256
// numbers. Quantised tiles are 64 rows of quants, then 64 x 8 f16 scales, one for 32 numbers. What is written is always
// finite, so that a masked cell times 0 is 0.
#pragma once
#include "table.cuh"
#include "warp.cuh"

namespace openjet {

constexpr int HEAD_DIM = 256;
constexpr int KV_BLOCK = 32;

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
        return PAGE_TOKENS * (row_bytes() + (format == KV_F16 ? 0 : HEAD_DIM / KV_BLOCK * 2));
    }
    // `part` is 0 for keys, 1 for values.
    __device__ uint8_t* tile(uint32_t page, uint32_t layer, uint32_t part, uint32_t head) const {
        return base + page * page_bytes + (uint64_t)((layer * 2 + part) * kv_heads + head) * tile_bytes();
    }
};
static_assert(sizeof(KvPool) == 32);

// Below the largest half, with room for the rounding of a block's scale.
__device__ __forceinline__ float finite(float x) {
    return x != x ? 0.0f : fminf(fmaxf(x, -65000.0f), 65000.0f);
}

// One token's 256 numbers, held by a warp (lane l has elements l + 32 j, so that j counts blocks), into row `token`.
__device__ __forceinline__ void kv_store(const KvPool& pool, uint8_t* tile, uint32_t token, const float (&x)[8]) {
    const int lane = lane_id();
    if (pool.format == KV_F16) {
        half* row = reinterpret_cast<half*>(tile) + token * HEAD_DIM;
#pragma unroll
        for (int j = 0; j < 8; j++) row[lane + 32 * j] = __float2half_rn(finite(x[j]));
        return;
    }
    half* scales = reinterpret_cast<half*>(tile + PAGE_TOKENS * pool.row_bytes()) + token * (HEAD_DIM / KV_BLOCK);
    if (pool.format == KV_Q8_0) {
        uint8_t* row = tile + token * 256;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float v = finite(x[j]);
            const float d = __fdiv_rn(warp_max(fabsf(v)), 127.0f);
            // Half away from zero.
            const float t = d > 0.0f ? __fdiv_rn(v, d) : 0.0f;
            row[lane + 32 * j] = (uint8_t)(int8_t)(int)truncf(t + copysignf(0.5f, t));
            if (lane == 0) scales[j] = __float2half_rn(d);
        }
        return;
    }
    uint8_t* row = tile + token * 128;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float v = finite(x[j]);
        const float largest = warp_max(fabsf(v));
        // The first of the numbers with the largest magnitude gives the sign.
        const uint32_t which = __ballot_sync(0xffffffffu, fabsf(v) == largest);
        const float d = __fdiv_rn(__shfl_sync(0xffffffffu, v, __ffs((int)which) - 1), -8.0f);
        const uint32_t q = d == 0.0f ? 8u : min((uint32_t)(__fdiv_rn(v, d) + 8.5f), 15u);
        const uint32_t high = __shfl_down_sync(0xffffffffu, q, 16);
        if (lane < 16) row[16 * j + lane] = (uint8_t)(q | high << 4);
        if (lane == 0) scales[j] = __float2half_rn(d);
    }
}

// A tile on its way from the pool to shared memory: what one thread of the block holds of it.
struct KvFetch {
    uint4 data[4];
    uint32_t scale;
};

// Halves between the rows of a tile in shared memory: 8 more than it has numbers, so that fragment reads hit all banks.
constexpr int TILE_STRIDE = HEAD_DIM + 8;

__device__ __forceinline__ void kv_fetch(KvFetch& f, const KvPool& pool, const uint8_t* tile) {
    const int t = (int)threadIdx.x;
    const uint4* data = reinterpret_cast<const uint4*>(tile);
    if (pool.format == KV_F16) {
#pragma unroll
        for (int i = 0; i < 4; i++) f.data[i] = data[t + i * THREADS];
    } else if (pool.format == KV_Q8_0) {
        // Piece p is row p / 16, numbers 16 (p % 16) and on.
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(tile + PAGE_TOKENS * 256);
#pragma unroll
        for (int i = 0; i < 2; i++) f.data[i] = data[t + i * THREADS];
        f.scale = scales[t >> 1] | (uint32_t)scales[(t + THREADS) >> 1] << 16;
    } else {
        // Piece p is block p % 8 of row p / 8.
        f.data[0] = data[t];
        f.scale = reinterpret_cast<const uint16_t*>(tile + PAGE_TOKENS * 128)[t];
    }
}

// Two bytes of a word as halves 1024 + byte: the byte becomes the low bits of 0x6400.
__device__ __forceinline__ half2 byte_pair(uint32_t w, uint32_t selector) { return as_half2(__byte_perm(w, 0x64646464u, selector)); }

__device__ __forceinline__ void kv_spread(half* tile, const KvPool& pool, const KvFetch& f) {
    const int t = (int)threadIdx.x;
    if (pool.format == KV_F16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int piece = t + i * THREADS;
            *reinterpret_cast<uint4*>(tile + (piece >> 5) * TILE_STRIDE + (piece & 31) * 8) = f.data[i];
        }
        return;
    }
    if (pool.format == KV_Q8_0) {
        const half2 offset = __float2half2_rn(1152.0f);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int piece = t + i * THREADS;
            const half2 d = __half2half2(__ushort_as_half((uint16_t)(f.scale >> 16 * i)));
            const uint32_t w[4] = {f.data[i].x ^ 0x80808080u, f.data[i].y ^ 0x80808080u, f.data[i].z ^ 0x80808080u, f.data[i].w ^ 0x80808080u};
            uint32_t out[8];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                out[2 * k] = bits(__hmul2(__hsub2(byte_pair(w[k], 0x4140), offset), d));
                out[2 * k + 1] = bits(__hmul2(__hsub2(byte_pair(w[k], 0x4342), offset), d));
            }
            uint4* to = reinterpret_cast<uint4*>(tile + (piece >> 4) * TILE_STRIDE + (piece & 15) * 16);
            to[0] = make_uint4(out[0], out[1], out[2], out[3]);
            to[1] = make_uint4(out[4], out[5], out[6], out[7]);
        }
        return;
    }
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
    uint4* to = reinterpret_cast<uint4*>(tile + (t >> 3) * TILE_STRIDE + (t & 7) * 32);
    to[0] = make_uint4(low[0], low[1], low[2], low[3]);
    to[1] = make_uint4(low[4], low[5], low[6], low[7]);
    to[2] = make_uint4(high[0], high[1], high[2], high[3]);
    to[3] = make_uint4(high[4], high[5], high[6], high[7]);
}

}  // namespace openjet
