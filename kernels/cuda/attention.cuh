// Gated full attention over the paged pool, for decode rows and prompt chunks alike.
//
// op_attention_prepare   norms and rotates queries and keys, stores the cells
// op_attention_decode    runs of pages for up to 32 queries of a key-value head; partial results (attention_decode.cuh)
// op_attention_merge     adds the runs and applies the output gate (attention_merge.cuh)
// op_attention_prompt    all pages in order for 64 rows of a query head, gate applied (attention_prompt.cuh)
//
// Runs end at fixed absolute positions and pages are taken in order, so a row's result depends on its conversation alone.
#pragma once
#include "attention_decode.cuh"
#include "attention_merge.cuh"
#include "attention_prompt.cuh"

namespace openjet {

constexpr float QUERY_SCALE = 0.0625f * 1.44269504088896340736f;

__device__ __forceinline__ void turns_to_cos_sin(double turns, float scale, float& c, float& s) {
    const float fraction = (float)(turns - rint(turns));
#ifdef OPENJET_HOST
    s = (float)sin(6.283185307179586 * fraction);
    c = (float)cos(6.283185307179586 * fraction);
#else
    sincospif(2.0f * fraction, &s, &c);
#endif
    c *= scale;
    s *= scale;
}

// RMS norm of 256 numbers held by a warp, each with its weight.
__device__ __forceinline__ void head_norm(float (&x)[8], const float (&weight)[8], float eps) {
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) squares = fmaf(x[j], x[j], squares);
    const float inverse = 1.0f / sqrtf(fmaf(warp_sum(squares), 1.0f / HEAD_DIM, eps));
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = x[j] * inverse * weight[j];
}

// Rotates the pairs (i, i + n) at a position, where lane l has numbers 8l .. 8l+7. For 32 pairs at a time, a lane works out the angle of
// one, of which `first` is that of the first 32.
__device__ __forceinline__ void head_rotate(float (&x)[8], const double* turns, double first, int n, float scale, uint32_t position) {
    const int lane = lane_id(), number = 8 * lane;
#pragma unroll 1
    for (int i = 0; i < n; i += 32) {
        float c, s;
        turns_to_cos_sin(position * (i ? turns[lane + i] : first), scale, c, s);
        const bool mine = number < 2 * n && ((number & (n - 1)) & ~31) == i;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float other = __shfl_xor_sync(0xffffffffu, x[j], n >> 3);
            const float cj = __shfl_sync(0xffffffffu, c, (number + j) & 31), sj = __shfl_sync(0xffffffffu, s, (number + j) & 31);
            const float low = fmaf(x[j], cj, -__fmul_rn(other, sj)), high = fmaf(other, sj, __fmul_rn(x[j], cj));
            x[j] = !mine ? x[j] : number & n ? high : low;
        }
    }
}

// Numbers 8l .. 8l+7 of 256.
__device__ __forceinline__ void load8(float (&x)[8], const float* from) {
    const float4 a = reinterpret_cast<const float4*>(from)[2 * lane_id()], b = reinterpret_cast<const float4*>(from)[2 * lane_id() + 1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

// One warp for each (row, query head or key-value head).
__device__ __forceinline__ void op_attention_prepare(const AttentionArgs& a, char* smem, int, int block, int blocks) {
    // The same in all lanes, as the compiler must know.
    const int warp = __shfl_sync(0xffffffffu, warp_id(), 0), pairs = (int)a.rope_pairs;
    const uint32_t kv_heads = a.pool.kv_heads, queries = a.cells_only ? 0 : a.heads, tasks = queries + 2 * kv_heads;
    const uint32_t count = header_word(smem, a.draft ? HEADER_SEGMENTS : 0);
    // All warps go round together, so that they pass the gate in one place.
    const uint32_t items = count * tasks;
#pragma unroll 1
    for (uint32_t first = 0; first == 0 || first < items; first += blocks * WARPS) {
        const bool mine = first + block * WARPS + warp < items;
        const uint32_t item = mine ? first + block * WARPS + warp : 0;
        const uint32_t r = item / tasks, task = item - r * tasks;
        const bool query = task < queries, value = task >= queries + kv_heads;
        const uint32_t head = query ? task : task - queries - (value ? kv_heads : 0);
        const float* from = query ? a.q + (uint64_t)r * a.q_width + head * 512 : (value ? a.v : a.k) + (uint64_t)r * a.kv_width + head * HEAD_DIM;
        // Everything is asked for before anything is waited for, and before the gate what no matmul made.
        const Row row = rows_of(a)[r];
        float x[8], weight[8];
        load8(weight, query ? a.q_norm : a.k_norm);
        const double turns = a.rope_turns[lane_id()];
        if (first == 0) pass_gate(smem);
        if (!mine) continue;
        load8(x, from);
        if (row.kind == ROW_IDLE || row.kind == ROW_PROMPT_LAST || row.position < a.first_position) continue;
        const uint32_t page = query ? 0 : a.table.page(a.table.segments()[row.segment], row.position);
        if (!value) {
            head_norm(x, weight, a.eps);
            head_rotate(x, a.rope_turns, turns, pairs, a.rope_scale, row.position);
        }
        if (a.pool.format == KV_Q4_0) hadamard256(x);
        if (query) {
            uint32_t h[4];
#pragma unroll
            for (int j = 0; j < 4; j++) h[j] = bits(__floats2half2_rn(x[2 * j] * QUERY_SCALE, x[2 * j + 1] * QUERY_SCALE));
            reinterpret_cast<uint4*>(a.queries + ((uint64_t)r * a.heads + head) * HEAD_DIM)[lane_id()] = make_uint4(h[0], h[1], h[2], h[3]);
        } else {
            kv_store(a.pool, a.pool.tile(page, a.layer, value, head), value, row.position % PAGE_TOKENS, x);
        }
    }
}

}  // namespace openjet
