// Adds the splits of decode rows and applies the output gate.
#pragma once
#include "attention_args.cuh"
#include "fragment.cuh"

namespace openjet {

// Of four (row, query head)s at a time, four warps each: a warp takes every fourth split.
struct MergeShared {
    float sum[4][4][HEAD_DIM];
    float max[4][4], weight[4][4];
};
__device__ __forceinline__ void op_attention_merge(const AttentionArgs& a, char* smem, int, int block, int blocks) {
    MergeShared& s = *reinterpret_cast<MergeShared*>(smem);
    const int lane = lane_id(), place = warp_id() >> 2, quarter = warp_id() & 3;
    const uint32_t rows = header_word(smem, a.draft ? HEADER_SEGMENTS : 0), count = rows * a.heads;
    for (uint32_t base = block; base < count; base += 4 * blocks) {
        const uint32_t item = base + place * blocks, r = item / a.heads, head = item - r * a.heads;
        const bool finishes = item < count && quarter == 0;
        float gate[8];
        if (finishes) {
#pragma unroll
            for (int j = 0; j < 8; j++) gate[j] = (a.q + (uint64_t)r * a.q_width + head * 512 + 256)[lane + 32 * j];
        }
        uint32_t splits = 0;
        if (item < count) {
            const Row row = rows_of(a)[r];
            if (attends(row.kind)) splits = split_of(row.position / PAGE_TOKENS) + 1;
        }
        const float* partial = a.partial + (uint64_t)item * a.splits * PARTIAL;
        float acc[8], most = -1e30f, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) acc[i] = 0.0f;
#pragma unroll 1
        for (uint32_t first = quarter; first < splits; first += 16) {
            float4 x[4][2];
            float2 known[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float* part = partial + (uint64_t)(first + 4 * k) * PARTIAL;
                known[k] = make_float2(-1e30f, 0.0f);
                x[k][0] = x[k][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (first + 4 * k >= splits) continue;
                known[k] = *reinterpret_cast<const float2*>(part + HEAD_DIM);
                x[k][0] = reinterpret_cast<const float4*>(part)[lane];
                x[k][1] = reinterpret_cast<const float4*>(part)[lane + 32];
            }
            float top = most;
#pragma unroll
            for (int k = 0; k < 4; k++) top = fmaxf(top, known[k].x);
            const float rescale = exp2f(most - top);
            most = top;
            sum *= rescale;
#pragma unroll
            for (int i = 0; i < 8; i++) acc[i] *= rescale;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float weight = exp2f(known[k].x - top);
                const float from[8] = {x[k][0].x, x[k][0].y, x[k][0].z, x[k][0].w, x[k][1].x, x[k][1].y, x[k][1].z, x[k][1].w};
                sum = fmaf(weight, known[k].y, sum);
#pragma unroll
                for (int i = 0; i < 8; i++) acc[i] = fmaf(weight, from[i], acc[i]);
            }
        }
        float4* to = reinterpret_cast<float4*>(s.sum[place][quarter]);
        to[lane] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        to[lane + 32] = make_float4(acc[4], acc[5], acc[6], acc[7]);
        if (lane == 0) {
            s.max[place][quarter] = most;
            s.weight[place][quarter] = sum;
        }
        __syncthreads();
        if (finishes) {
            float top = s.max[place][0], whole = 0.0f, x[8];
#pragma unroll
            for (int k = 1; k < 4; k++) top = fmaxf(top, s.max[place][k]);
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = 0.0f;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float weight = exp2f(s.max[place][k] - top);
                whole = fmaf(weight, s.weight[place][k], whole);
#pragma unroll
                for (int j = 0; j < 8; j++) x[j] = fmaf(weight, s.sum[place][k][lane + 32 * j], x[j]);
            }
            const float inverse = splits ? 1.0f / whole : 0.0f;
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] *= inverse;
            if (a.pool.format == KV_Q4_0) hadamard256(x);
            // A head is a column tile of the matmul that follows.
            float* out = a.fragments ? s.sum[place][0] : a.out + (uint64_t)r * a.out_width + head * HEAD_DIM;
#pragma unroll
            for (int j = 0; j < 8; j++) out[lane + 32 * j] = x[j] * sigmoid(gate[j]);
            if (a.fragments) {
                __syncwarp();
                const float4 low = reinterpret_cast<const float4*>(out)[2 * lane], high = reinterpret_cast<const float4*>(out)[2 * lane + 1];
                const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                const uint32_t tile = head * row_tiles((int)rows) + r / FRAGMENT_ROWS;
                write_fragment_row(a.fragments + (uint64_t)tile * FRAGMENT_BYTES, (int)(r % FRAGMENT_ROWS), v);
            }
        }
        __syncthreads();
    }
}

}  // namespace openjet
