// Attention of a prompt's rows: one item for each (64 rows, query head); all pages in order, gate applied.
#pragma once
#include "attention_args.cuh"

namespace openjet {

// Up to 64 queries in shared memory, and what is known of them so far.
constexpr int QUERY_TILE = 64;
constexpr int WEIGHT_STRIDE = PAGE_TOKENS + 8;
struct AttentionShared {
    half queries[QUERY_TILE * TILE_STRIDE];
    half tile[PAGE_TOKENS * TILE_STRIDE];
    half weights[QUERY_TILE * WEIGHT_STRIDE];
    float max[8][QUERY_TILE];
    float running_max[QUERY_TILE];
    float rescale[QUERY_TILE];
    // Last position that a query sees; -1 where there is no query.
    int last[QUERY_TILE];
};

// Four query tiles of 16 rows share the 16 warps, four of each.
constexpr int KT = 2;                              // tiles of 8 tokens that a warp scores
constexpr int VT = 8;                              // tiles of 8 numbers that a warp sums
struct AttentionResult {
    float acc[VT][4];
    float sum[4];
};

// Scores and weighted values of pages [begin, end) for the queries in shared memory. On return `result` is not normalised,
// `running_max` and `result.sum` belong to it.
__device__ void attention_pages(AttentionResult& result, AttentionShared& s, const KvPool& pool, const uint32_t* pages,
                                                uint32_t layer, uint32_t head, uint32_t first_position, uint32_t begin, uint32_t end) {
    const int lane = lane_id(), g = lane >> 2, j = lane & 3;
    const int m = warp_id() % 4, n = warp_id() / 4;
    const int row0 = m * 16 + g, row1 = row0 + 8;
#pragma unroll
    for (int t = 0; t < VT; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) result.acc[t][i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) result.sum[i] = 0.0f;
    if ((int)threadIdx.x < QUERY_TILE) s.running_max[threadIdx.x] = -1e30f;
    KvFetch f;
    kv_fetch(f, pool, pool.tile(pages[begin], layer, 0, head), 0);
    __syncthreads();
    for (uint32_t p = begin; p < end; p++) {
        kv_spread(s.tile, pool, f);
        kv_fetch(f, pool, pool.tile(pages[p], layer, 1, head), 1);
        __syncthreads();
        float score[KT][4];
#pragma unroll
        for (int t = 0; t < KT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) score[t][i] = 0.0f;
#pragma unroll 2
        for (int k = 0; k < HEAD_DIM / 32; k++) {
            uint32_t q0[4], q1[4];
            const half* q = s.queries + (m * 16 + (lane & 15)) * TILE_STRIDE + k * 32 + (lane >> 4) * 8;
            load_matrices(q0, q);
            load_matrices(q1, q + 16);
#pragma unroll
            for (int t = 0; t < KT; t++) {
                uint32_t b[4];
                load_matrices(b, s.tile + ((n * KT + t) * 8 + (lane & 7)) * TILE_STRIDE + k * 32 + (lane >> 3) * 8);
                mma(score[t], q0, b[0], b[1]);
                mma(score[t], q1, b[2], b[3]);
            }
        }
        float max0 = -1e30f, max1 = -1e30f;
        const int last0 = s.last[row0], last1 = s.last[row1];
#pragma unroll
        for (int t = 0; t < KT; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int position = (int)(p * PAGE_TOKENS) + (n * KT + t) * 8 + 2 * j + i;
                if (position > last0 || position < (int)first_position) score[t][i] = -INFINITY;
                if (position > last1 || position < (int)first_position) score[t][2 + i] = -INFINITY;
                max0 = fmaxf(max0, score[t][i]);
                max1 = fmaxf(max1, score[t][2 + i]);
            }
#pragma unroll
        for (int o = 1; o < 4; o <<= 1) {
            max0 = fmaxf(max0, __shfl_xor_sync(0xffffffffu, max0, o));
            max1 = fmaxf(max1, __shfl_xor_sync(0xffffffffu, max1, o));
        }
        if (j == 0) {
            s.max[n][row0] = max0;
            s.max[n][row1] = max1;
        }
        __syncthreads();
        // The new maximum of both rows, the same in every warp of the tile.
        const float old0 = s.running_max[row0], old1 = s.running_max[row1];
        float new0 = old0, new1 = old1;
#pragma unroll
        for (int i = 0; i < 8 / KT; i++) {
            new0 = fmaxf(new0, s.max[i][row0]);
            new1 = fmaxf(new1, s.max[i][row1]);
        }
#pragma unroll
        for (int t = 0; t < KT; t++) {
            half* w = s.weights + row0 * WEIGHT_STRIDE + (n * KT + t) * 8 + 2 * j;
            const uint32_t w0 = bits(__floats2half2_rn(exp2f(score[t][0] - new0), exp2f(score[t][1] - new0)));
            const uint32_t w1 = bits(__floats2half2_rn(exp2f(score[t][2] - new1), exp2f(score[t][3] - new1)));
            *reinterpret_cast<uint32_t*>(w) = w0;
            *reinterpret_cast<uint32_t*>(w + 8 * WEIGHT_STRIDE) = w1;
        }
        const float scale0 = exp2f(old0 - new0), scale1 = exp2f(old1 - new1);
        kv_spread(s.tile, pool, f);
        if (p + 1 < end) kv_fetch(f, pool, pool.tile(pages[p + 1], layer, 0, head), 0);
        __syncthreads();
        if (n == 0 && j == 0) {
            s.running_max[row0] = new0;
            s.running_max[row1] = new1;
        }
#pragma unroll
        for (int t = 0; t < VT; t++) {
            result.acc[t][0] *= scale0;
            result.acc[t][1] *= scale0;
            result.acc[t][2] *= scale1;
            result.acc[t][3] *= scale1;
        }
        result.sum[0] *= scale0;
        result.sum[2] *= scale1;
#pragma unroll 1
        for (int k = 0; k < (int)PAGE_TOKENS / 16; k++) {
            uint32_t w[4];
            load_matrices(w, s.weights + (m * 16 + (lane & 15)) * WEIGHT_STRIDE + k * 16 + (lane >> 4) * 8);
            // Products with ones add up the weights as they were rounded.
            mma(result.sum, w, 0x3c003c00u, 0x3c003c00u);
#pragma unroll
            for (int t = 0; t < VT; t += 2) {
                uint32_t b[4];
                load_matrices_transposed(b, s.tile + (k * 16 + (lane & 15)) * TILE_STRIDE + (n * VT + t) * 8 + (lane >> 4) * 8);
                mma(result.acc[t], w, b[0], b[1]);
                mma(result.acc[t + 1], w, b[2], b[3]);
            }
        }
        __syncthreads();
    }
}

// Copies one query of 256 halves into shared memory, 32 threads a row; row -1 is zeros.
__device__ __forceinline__ void load_query(AttentionShared& s, int slot, const half* from) {
    uint4 data = make_uint4(0, 0, 0, 0);
    if (from) data = reinterpret_cast<const uint4*>(from)[lane_id()];
    reinterpret_cast<uint4*>(s.queries + slot * TILE_STRIDE)[lane_id()] = data;
}

// Items are counted off segment by segment: (64 rows, query head), the rows that see most first.
__device__ __forceinline__ void op_attention_prompt(const AttentionArgs& a, char* smem, int, int block, int blocks) {
    AttentionShared& s = *reinterpret_cast<AttentionShared*>(smem);
    const uint32_t segments = a.table.header().segments, group = a.heads / a.pool.kv_heads;
    uint32_t item = block, base = 0;
    for (uint32_t segment = 0; segment < segments; segment++) {
        uint32_t first, count;
        if (!attention_rows(a, segment, first, count)) continue;
        const uint32_t tiles = (count + QUERY_TILE - 1) / QUERY_TILE;
        for (; item < base + tiles * a.heads; item += blocks) {
            const uint32_t local = item - base, head = local % a.heads;
            const uint32_t start = (tiles - 1 - local / a.heads) * QUERY_TILE;
            const uint32_t rows = min(count - start, (uint32_t)QUERY_TILE);
            for (int slot = warp_id(); slot < QUERY_TILE; slot += WARPS) {
                const bool present = slot < (int)rows;
                const uint32_t row = first + start + slot;
                load_query(s, slot, present ? a.queries + ((uint64_t)row * a.heads + head) * HEAD_DIM : nullptr);
                if (lane_id() == 0) s.last[slot] = present ? (int)rows_of(a)[row].position : -1;
            }
            const Segment& entry = a.table.segments()[segment];
            const uint32_t end = rows_of(a)[first + start + rows - 1].position / PAGE_TOKENS + 1;
            AttentionResult result = {};
            attention_pages(result, s, a.pool, a.table.at(entry.pages_offset), a.layer, head / group, a.first_position, 0, end);
            // Through shared memory (queries and tile are free now), so that a warp holds whole rows for rotation and gate.
            float* whole = reinterpret_cast<float*>(s.queries);
            const int lane = lane_id(), g = lane >> 2, j = lane & 3;
            const int m = warp_id() % 4, n = warp_id() / 4;
#pragma unroll
            for (int t = 0; t < 8; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float inverse = 1.0f / result.sum[i & 2];
                    whole[(m * 16 + g + 4 * (i & 2)) * TILE_STRIDE + (n * 8 + t) * 8 + 2 * j + (i & 1)] = result.acc[t][i] * inverse;
                }
            __syncthreads();
            for (int slot = warp_id(); slot < (int)rows; slot += WARPS) {
                const uint32_t row = first + start + slot;
                float x[8];
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = whole[slot * TILE_STRIDE + lane + 32 * i];
                if (a.pool.format == KV_Q4_0) hadamard256(x);
                const float* gate = a.q + (uint64_t)row * a.q_width + head * 512 + 256;
                float* to = a.out + (uint64_t)row * a.out_width + head * HEAD_DIM;
#pragma unroll
                for (int i = 0; i < 8; i++) to[lane + 32 * i] = x[i] * sigmoid(gate[lane + 32 * i]);
            }
            __syncthreads();
        }
        base += tiles * a.heads;
    }
}

}  // namespace openjet
