// Cells in shared memory, as they stand in the pool, times queries and times weights: what one warp does of a step of decoding.
#pragma once
#include "kv.cuh"

namespace openjet {

// Cells that are copied at once: a tile, or half a tile of f16. src/args.rs has their size, too.
template <uint32_t Format> struct Cells {
    static constexpr int ROW_BYTES = Format == KV_F16 ? 512 : Format == KV_Q8_0 ? 256 : 128;
    static constexpr int UNIT_TOKENS = Format == KV_F16 ? 32 : 64;
    static constexpr int TILE_UNITS = PAGE_TOKENS / UNIT_TOKENS;
    static constexpr int SCALES = UNIT_TOKENS * ROW_BYTES;
    static constexpr int UNIT_BYTES = SCALES + (Format == KV_F16 ? 0 : UNIT_TOKENS * KV_BLOCKS * 2);
};

// Halves 1024 + byte less 1024 + offset; of q4_0, bytes 0 and 2 of a word, low or high half of each.
__device__ __forceinline__ uint32_t q8_pair(uint32_t w, uint32_t selector) {
    return bits(__hsub2(byte_pair(w, selector), __float2half2_rn(1152.0f)));
}
__device__ __forceinline__ uint32_t q4_low(uint32_t w) {
    return bits(__hsub2(as_half2(and_or(w, 0x000f000fu, 0x64006400u)), __float2half2_rn(1032.0f)));
}
__device__ __forceinline__ uint32_t q4_high(uint32_t w) {
    return bits(__hfma2(as_half2(and_or(w, 0x00f000f0u, 0x64006400u)), __float2half2_rn(0.0625f), __float2half2_rn(-72.0f)));
}
__device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) { return bits(__hmul2(as_half2(a), as_half2(b))); }

// Adds to the scores (tokens x queries) of a warp's 16 tokens. `row` is this lane's row of the matrices that it loads, `turn` its
// first piece; `scale_a` and `scale_b` are the scales of the tokens that it gets scores of.
template <uint32_t Format, int NT>
__device__ __forceinline__ void score_tokens(float (&score)[NT][4], const uint4* queries, const char* row, int turn, const uint32_t* scale_a,
                                             const uint32_t* scale_b) {
    [[maybe_unused]] constexpr int UNROLL = NT < 4 ? 2 : 1;         // else registers run out
#pragma unroll UNROLL
    for (int k = 0; k < KV_BLOCKS / 2; k++) {
        uint32_t w[4][4];
#pragma unroll
        for (int i = 0; i < (Format == KV_F16 ? 4 : Format == KV_Q8_0 ? 2 : 1); i++) {
            const int piece = (Format == KV_F16 ? 8 * k : Format == KV_Q8_0 ? 4 * k : 2 * k) + 2 * i;
            load_matrices(w[i], reinterpret_cast<const half*>(row + ((turn ^ piece) << 4)));
        }
        uint32_t scales_a = 0, scales_b = 0;
        if (Format != KV_F16) {
            scales_a = scale_a[k];
            scales_b = scale_b[k];
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t a[2][4];
            if (Format == KV_F16) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    a[0][i] = w[2 * h][i];
                    a[1][i] = w[2 * h + 1][i];
                }
            } else if (Format == KV_Q8_0) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
#pragma unroll
                    for (int t = 0; t < 2; t++) {
                        a[i][t] = q8_pair(w[h][2 * i + t], 0x4140);
                        a[i][2 + t] = q8_pair(w[h][2 * i + t], 0x4342);
                    }
                }
            } else {
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    const uint32_t even = w[0][2 * h + t], odd = even >> 8;
                    a[0][t] = q4_low(even);
                    a[0][2 + t] = q4_low(odd);
                    a[1][t] = q4_high(even);
                    a[1][2 + t] = q4_high(odd);
                }
            }
            const float da = h ? high_float(scales_a) : low_float(scales_a), db = h ? high_float(scales_b) : low_float(scales_b);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint4 q = queries[(n * KV_BLOCKS + 2 * k + h) * 32];
                if (Format == KV_F16) {
                    mma(score[n], a[0], q.x, q.y);
                    mma(score[n], a[1], q.z, q.w);
                } else {
                    float t[4];
                    mma_first(t, a[0], q.x, q.y);
                    mma(t, a[1], q.z, q.w);
                    score[n][0] = fmaf(t[0], da, score[n][0]);
                    score[n][1] = fmaf(t[1], da, score[n][1]);
                    score[n][2] = fmaf(t[2], db, score[n][2]);
                    score[n][3] = fmaf(t[3], db, score[n][3]);
                }
            }
        }
    }
}

// Adds 32 tokens' values of a warp's 16 numbers (numbers x queries). `row` is this lane's place in the matrices that it loads, `scale`
// the scales of the 8 tokens that it gets.
template <uint32_t Format, int NT>
__device__ __forceinline__ void add_values(float (&acc)[NT][4], const uint4* weights, const char* row, const char* scale, int high) {
    uint32_t a[2][4];
    if (Format == KV_F16) {
        load_matrices_transposed(a[0], reinterpret_cast<const half*>(row));
        load_matrices_transposed(a[1], reinterpret_cast<const half*>(row + 4 * Cells<Format>::ROW_BYTES));
    } else {
        uint32_t w[4];
        load_matrices_transposed(w, reinterpret_cast<const half*>(row));
        const uint4 s4 = *reinterpret_cast<const uint4*>(scale);
        const uint32_t s[4] = {s4.x, s4.y, s4.z, s4.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t even, odd;
            if (Format == KV_Q8_0) {
                even = q8_pair(w[i], 0x4240);
                odd = q8_pair(w[i], 0x4341);
            } else {
                const uint32_t half_byte = w[i] >> high;
                even = q4_low(half_byte);
                odd = q4_low(half_byte >> 8);
            }
            a[i >> 1][2 * (i & 1)] = times(even, s[i]);
            a[i >> 1][2 * (i & 1) + 1] = times(odd, s[i]);
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint4 p = weights[n * 32];
        mma(acc[n], a[0], p.x, p.y);
        mma(acc[n], a[1], p.z, p.w);
    }
}

}  // namespace openjet
