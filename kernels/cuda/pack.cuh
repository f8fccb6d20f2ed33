// Inputs of matmuls that are not the residual stream: rows of f32, normed by heads and gated where the model says so.
//
// op_pack, op_pack_prompt     write them as fragments or prompt rows; a matmul of few rows does it by itself (matmul_part.cuh)
#pragma once
#include "fragment.cuh"
#include "prompt_rows.cuh"
#include "table.cuh"
#include "warp.cuh"

namespace openjet {

constexpr int NORM_DIM = 128;        // columns that are normed together

// What becomes an input, as it was computed. `width` is a multiple of 4, and with `norm` of NORM_DIM.
struct InputRows {
    const float* x;                  // [row][stride]
    const float* gate;               // null, or what x is multiplied by the SiLU of: [row][gate_stride]
    const float* norm;               // null, or weights: before that, each NORM_DIM columns are divided by their root mean square
    uint32_t width;
    uint32_t stride;
    uint32_t gate_stride;
    float eps;
};
static_assert(sizeof(InputRows) == 40);

// A lane's 4 N columns of a row, from k on; 0 past its width. By whole warps, whose lanes' columns follow each other.
template <int N> __device__ __forceinline__ void input_columns(float (&y)[4 * N], const InputRows& a, int row, int k) {
    float4 x[N], gate[N], weight[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const bool there = k + 4 * i < (int)a.width;
        const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        x[i] = there ? load4(a.x + (size_t)row * a.stride + k + 4 * i) : none;
        gate[i] = there && a.gate ? load4(a.gate + (size_t)row * a.gate_stride + k + 4 * i) : none;
        weight[i] = there && a.norm ? load4(a.norm + (k + 4 * i) % NORM_DIM) : none;
    }
    if (a.norm) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) squares += fmaf(x[i].w, x[i].w, fmaf(x[i].z, x[i].z, fmaf(x[i].y, x[i].y, x[i].x * x[i].x)));
        const float inverse = 1.0f / sqrtf(fmaf(lanes_sum<NORM_DIM / 4 / N>(squares), 1.0f / NORM_DIM, a.eps));
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = make_float4(x[i].x * inverse * weight[i].x, x[i].y * inverse * weight[i].y, x[i].z * inverse * weight[i].z, x[i].w * inverse * weight[i].w);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        y[4 * i] = a.gate ? x[i].x * silu(gate[i].x) : x[i].x;
        y[4 * i + 1] = a.gate ? x[i].y * silu(gate[i].y) : x[i].y;
        y[4 * i + 2] = a.gate ? x[i].z * silu(gate[i].z) : x[i].z;
        y[4 * i + 3] = a.gate ? x[i].w * silu(gate[i].w) : x[i].w;
    }
}

struct PackArgs {
    InputRows from;
    char* to;                        // fragment buffer or prompt rows
    uint64_t rows;                   // the word of the step table's header that says how many
};

// A warp for 256 columns of a row.
__device__ __forceinline__ void op_pack(const PackArgs& args, char* smem, int, int block, int blocks) {
    const int rows = header_word(smem, args.rows), tiles = row_tiles(rows), column_tiles = ((int)args.from.width + TILE_K - 1) / TILE_K;
    for (int item = block * WARPS + warp_id(); item < rows * column_tiles; item += blocks * WARPS) {
        const int row = item / column_tiles, c = item % column_tiles;
        float v[8];
        input_columns<2>(v, args.from, row, c * TILE_K + lane_id() * 8);
        write_fragment_row(args.to + ((size_t)c * tiles + row / FRAGMENT_ROWS) * FRAGMENT_BYTES, row % FRAGMENT_ROWS, v);
    }
}

// A block N rows.
template <int N> __device__ __forceinline__ void pack_prompt(const PackArgs& args, char* smem, int rows, int block, int blocks) {
    const int width = (int)args.from.width;
    float* scratch = reinterpret_cast<float*>(smem);
    float* x = scratch + N * WARPS;
    for (int row = block * N; row < rows; row += blocks * N) {
        float largest[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            largest[n] = 0.0f;
            constexpr int TOGETHER = 4;          // asked for before the first is looked at
#pragma unroll 1
            for (int first = threadIdx.x * 4; row + n < rows && first < width; first += TOGETHER * THREADS * 4) {
                float v[TOGETHER][4];
#pragma unroll
                for (int m = 0; m < TOGETHER; m++) input_columns<1>(v[m], args.from, row + n, first + m * THREADS * 4);
#pragma unroll
                for (int m = 0; m < TOGETHER; m++) {
                    const int i = first + m * THREADS * 4;
                    if (i >= width) continue;
                    store4(x + n * width + i, v[m][0], v[m][1], v[m][2], v[m][3]);
                    largest[n] = fmaxf(fmaxf(fmaxf(largest[n], fabsf(v[m][0])), fabsf(v[m][1])), fmaxf(fabsf(v[m][2]), fabsf(v[m][3])));
                }
            }
        }
        write_prompt_rows<N>(args.to, x, largest, row, rows, width, scratch);
        __syncthreads();
    }
}
__device__ __forceinline__ void op_pack_prompt(const PackArgs& args, char* smem, int smem_bytes, int block, int blocks) {
    const int rows = header_word(smem, args.rows);
    if (rows > blocks && 2 * (WARPS + (int)args.from.width) * 4 <= smem_bytes) pack_prompt<2>(args, smem, rows, block, blocks);
    else pack_prompt<1>(args, smem, rows, block, blocks);
}

}  // namespace openjet
