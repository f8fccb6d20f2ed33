// Attention of a prompt's rows: one item for each (64 rows, one or two query heads of a key-value head); all pages in order, gate applied.
#pragma once
#include "attention_args.cuh"

namespace openjet {

// Up to 64 queries of each of `Heads` query heads in shared memory, and what is known of them so far.
constexpr int QUERY_TILE = 64;
constexpr int WEIGHT_STRIDE = PAGE_TOKENS + 8;
template <int Heads> struct AttentionShared {
    half queries[Heads * QUERY_TILE * TILE_STRIDE];
    half tile[PAGE_TOKENS * TILE_STRIDE];
    half weights[Heads * QUERY_TILE * WEIGHT_STRIDE];
    float max[4][Heads * QUERY_TILE];
    float running_max[Heads * QUERY_TILE];
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
template <uint32_t Format, int Heads>
__device__ __forceinline__ void attention_pages(AttentionResult (&result)[Heads], AttentionShared<Heads>& s, const KvPool& pool, const uint32_t* pages,
                                                uint32_t layer, uint32_t head, uint32_t first_position, uint32_t begin, uint32_t end) {
    const int lane = lane_id(), g = lane >> 2, j = lane & 3;
    const int m = warp_id() % 4, n = warp_id() / 4;
    const int row0 = m * 16 + g, row1 = row0 + 8;
    if ((int)threadIdx.x < Heads * QUERY_TILE) s.running_max[threadIdx.x] = -1e30f;
    KvFetch<Format> f;
    kv_fetch(f, pool.tile(pages[begin], layer, 0, head), 0);
    __syncthreads();
#pragma unroll 1
    for (uint32_t p = begin; p < end; p++) {
        kv_spread(s.tile, f);
        kv_fetch(f, pool.tile(pages[p], layer, 1, head), 1);
        __syncthreads();
        float score[Heads][KT][4];
#pragma unroll
        for (int h = 0; h < Heads; h++)
#pragma unroll
            for (int t = 0; t < KT; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) score[h][t][i] = 0.0f;
#pragma unroll 2
        for (int k = 0; k < HEAD_DIM / 32; k++) {
            uint32_t b[KT][4];
#pragma unroll
            for (int t = 0; t < KT; t++) load_matrices(b[t], s.tile + ((n * KT + t) * 8 + (lane & 7)) * TILE_STRIDE + k * 32 + (lane >> 3) * 8);
#pragma unroll
            for (int h = 0; h < Heads; h++) {
                uint32_t q0[4], q1[4];
                const half* q = s.queries + (h * QUERY_TILE + m * 16 + (lane & 15)) * TILE_STRIDE + k * 32 + (lane >> 4) * 8;
                load_matrices(q0, q);
                load_matrices(q1, q + 16);
#pragma unroll
                for (int t = 0; t < KT; t++) {
                    mma(score[h][t], q0, b[t][0], b[t][1]);
                    mma(score[h][t], q1, b[t][2], b[t][3]);
                }
            }
        }
        const int last0 = s.last[row0], last1 = s.last[row1];
#pragma unroll
        for (int h = 0; h < Heads; h++) {
            float max0 = -1e30f, max1 = -1e30f;
#pragma unroll
            for (int t = 0; t < KT; t++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int position = (int)(p * PAGE_TOKENS) + (n * KT + t) * 8 + 2 * j + i;
                    if (position > last0 || position < (int)first_position) score[h][t][i] = -INFINITY;
                    if (position > last1 || position < (int)first_position) score[h][t][2 + i] = -INFINITY;
                    max0 = fmaxf(max0, score[h][t][i]);
                    max1 = fmaxf(max1, score[h][t][2 + i]);
                }
            max0 = lanes_max<4>(max0);
            max1 = lanes_max<4>(max1);
            if (j == 0) {
                s.max[n][h * QUERY_TILE + row0] = max0;
                s.max[n][h * QUERY_TILE + row1] = max1;
            }
        }
        __syncthreads();
        float new0[Heads], new1[Heads];
#pragma unroll
        for (int h = 0; h < Heads; h++) {
            // The new maximum of both rows, the same in every warp of the tile.
            const int q0 = h * QUERY_TILE + row0, q1 = h * QUERY_TILE + row1;
            const float old0 = s.running_max[q0], old1 = s.running_max[q1];
            new0[h] = old0;
            new1[h] = old1;
#pragma unroll
            for (int i = 0; i < 8 / KT; i++) {
                new0[h] = fmaxf(new0[h], s.max[i][q0]);
                new1[h] = fmaxf(new1[h], s.max[i][q1]);
            }
#pragma unroll
            for (int t = 0; t < KT; t++) {
                half* w = s.weights + q0 * WEIGHT_STRIDE + (n * KT + t) * 8 + 2 * j;
                const float(&x)[4] = score[h][t];
                *reinterpret_cast<uint32_t*>(w) = bits(__floats2half2_rn(exp2f(x[0] - new0[h]), exp2f(x[1] - new0[h])));
                *reinterpret_cast<uint32_t*>(w + 8 * WEIGHT_STRIDE) = bits(__floats2half2_rn(exp2f(x[2] - new1[h]), exp2f(x[3] - new1[h])));
            }
            const float scale0 = exp2f(old0 - new0[h]), scale1 = exp2f(old1 - new1[h]);
#pragma unroll
            for (int t = 0; t < VT; t++) {
                result[h].acc[t][0] *= scale0;
                result[h].acc[t][1] *= scale0;
                result[h].acc[t][2] *= scale1;
                result[h].acc[t][3] *= scale1;
            }
            result[h].sum[0] *= scale0;
            result[h].sum[2] *= scale1;
        }
        kv_spread(s.tile, f);
        if (p + 1 < end) kv_fetch(f, pool.tile(pages[p + 1], layer, 0, head), 0);
        __syncthreads();
        if (n == 0 && j == 0) {
#pragma unroll
            for (int h = 0; h < Heads; h++) {
                s.running_max[h * QUERY_TILE + row0] = new0[h];
                s.running_max[h * QUERY_TILE + row1] = new1[h];
            }
        }
#pragma unroll 1
        for (int k = 0; k < (int)PAGE_TOKENS / 16; k++) {
            uint32_t w[Heads][4];
#pragma unroll
            for (int h = 0; h < Heads; h++) {
                load_matrices(w[h], s.weights + (h * QUERY_TILE + m * 16 + (lane & 15)) * WEIGHT_STRIDE + k * 16 + (lane >> 4) * 8);
                // Products with ones add up the weights as they were rounded.
                mma(result[h].sum, w[h], 0x3c003c00u, 0x3c003c00u);
            }
#pragma unroll
            for (int t = 0; t < VT; t += 2) {
                uint32_t b[4];
                load_matrices_transposed(b, s.tile + (k * 16 + (lane & 15)) * TILE_STRIDE + (n * VT + t) * 8 + (lane >> 4) * 8);
#pragma unroll
                for (int h = 0; h < Heads; h++) {
                    mma(result[h].acc[t], w[h], b[0], b[1]);
                    mma(result[h].acc[t + 1], w[h], b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }
}

// Copies one query of 256 halves into shared memory, 32 threads a row; row -1 is zeros.
__device__ __forceinline__ void load_query(half* to, const half* from) {
    uint4 data = make_uint4(0, 0, 0, 0);
    if (from) data = reinterpret_cast<const uint4*>(from)[lane_id()];
    reinterpret_cast<uint4*>(to)[lane_id()] = data;
}

// Items are counted off segment by segment: (64 rows, `Heads` query heads), the rows that see most first.
template <uint32_t Format, int Heads> __device__ __noinline__ void attend_prompts(const AttentionArgs& a, char* smem, int block, int blocks) {
    AttentionShared<Heads>& s = *reinterpret_cast<AttentionShared<Heads>*>(smem);
    const uint32_t segments = a.table.header().segments, group = a.heads / a.pool.kv_heads, head_groups = a.heads / Heads;
    uint32_t item = block, base = 0;
    for (uint32_t segment = 0; segment < segments; segment++) {
        uint32_t first, count;
        if (!attention_rows(a, segment, first, count)) continue;
        const uint32_t tiles = (count + QUERY_TILE - 1) / QUERY_TILE;
        for (; item < base + tiles * head_groups; item += blocks) {
            const uint32_t local = item - base, head0 = local % head_groups * Heads;
            const uint32_t start = (tiles - 1 - local / head_groups) * QUERY_TILE;
            const uint32_t rows = min(count - start, (uint32_t)QUERY_TILE);
            for (int slot = warp_id(); slot < QUERY_TILE; slot += WARPS) {
                const bool present = slot < (int)rows;
                const uint32_t row = first + start + slot;
#pragma unroll
                for (int h = 0; h < Heads; h++)
                    load_query(s.queries + (h * QUERY_TILE + slot) * TILE_STRIDE, present ? a.queries + ((uint64_t)row * a.heads + head0 + h) * HEAD_DIM : nullptr);
                if (lane_id() == 0) s.last[slot] = present ? (int)rows_of(a)[row].position : -1;
            }
            const Segment& entry = a.table.segments()[segment];
            const uint32_t end = rows_of(a)[first + start + rows - 1].position / PAGE_TOKENS + 1;
            AttentionResult result[Heads] = {};
            attention_pages<Format>(result, s, a.pool, a.table.at(entry.pages_offset), a.layer, head0 / group, a.first_position, 0, end);
            // Through shared memory (queries and tile are free now), so that a warp holds whole rows for rotation and gate.
            float* whole = reinterpret_cast<float*>(s.queries);
            const int lane = lane_id(), g = lane >> 2, j = lane & 3;
            const int m = warp_id() % 4, n = warp_id() / 4;
#pragma unroll
            for (int h = 0; h < Heads; h++) {
                const uint32_t head = head0 + h;
#pragma unroll
                for (int t = 0; t < VT; t++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float inverse = 1.0f / result[h].sum[i & 2];
                        whole[(m * 16 + g + 4 * (i & 2)) * TILE_STRIDE + (n * 8 + t) * 8 + 2 * j + (i & 1)] = result[h].acc[t][i] * inverse;
                    }
                __syncthreads();
#pragma unroll 1
                for (int slot = warp_id(); slot < (int)rows; slot += WARPS) {
                    const uint32_t row = first + start + slot;
                    float x[8];
#pragma unroll
                    for (int i = 0; i < 8; i++) x[i] = whole[slot * TILE_STRIDE + lane + 32 * i];
                    if (Format == KV_Q4_0) hadamard256(x);
                    const float* gate = a.q + (uint64_t)row * a.q_width + head * 512 + 256;
                    float* to = a.out + (uint64_t)row * a.out_width + head * HEAD_DIM;
#pragma unroll
                    for (int i = 0; i < 8; i++) to[lane + 32 * i] = x[i] * sigmoid(gate[lane + 32 * i]);
                }
                __syncthreads();
            }
        }
        base += tiles * head_groups;
    }
}

// Two heads at a time where there is room for their queries and work for all blocks: cells come to shared memory half as often.
template <uint32_t Format> __device__ __forceinline__ void attend_prompts(const AttentionArgs& a, char* smem, int smem_bytes, int block, int blocks) {
    const bool pairs = a.heads / a.pool.kv_heads % 2 == 0 && smem_bytes >= (int)sizeof(AttentionShared<2>);
    if (pairs && row_count(a) * a.heads > (uint32_t)(QUERY_TILE * blocks)) attend_prompts<Format, 2>(a, smem, block, blocks);
    else attend_prompts<Format, 1>(a, smem, block, blocks);
}
__device__ __forceinline__ void op_attention_prompt(const AttentionArgs& a, char* smem, int smem_bytes, int block, int blocks) {
    if (a.pool.format == KV_F16) attend_prompts<KV_F16>(a, smem, smem_bytes, block, blocks);
    else if (a.pool.format == KV_Q8_0) attend_prompts<KV_Q8_0>(a, smem, smem_bytes, block, blocks);
    else attend_prompts<KV_Q4_0>(a, smem, smem_bytes, block, blocks);
}

}  // namespace openjet
