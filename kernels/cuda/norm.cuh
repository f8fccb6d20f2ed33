// The residual stream: adds what a matmul's splits produced, normalises, and writes the next matmul's input.
#pragma once
#include "fragment.cuh"
#include "table.cuh"

namespace openjet {

struct NormArgs {
    float* x;                        // [row][stride], read, and written back where there are parts
    const float* parts;              // [split][row][part_stride], added in order
    const float* weight;
    float* normed;                   // [row][normed_stride], or null
    char* fragments;                 // fragment buffer, or null
    const uint32_t* rows;
    const uint32_t* table;           // where rows may be the last ones of prompts, else null; ...
    const float* last_x;             // ... their x is that of their slot: [slot][width]
    uint64_t split_stride;
    uint32_t splits;                 // 0 where there is nothing to add
    uint32_t width;
    uint32_t stride;
    uint32_t part_stride;
    uint32_t normed_stride;
    uint32_t first_column_tile;      // where in the fragment buffer the row begins
    uint32_t assign;                 // x is the parts' sum; what it held before does not count
    float eps;
};

// A block a row. y = x / sqrt(mean(x^2) + eps) * weight.
__device__ __forceinline__ void op_norm(const NormArgs& args, char* smem, int, int block, int blocks) {
    const int rows = (int)*args.rows, width = (int)args.width, tiles = row_tiles(rows);
    float* scratch = reinterpret_cast<float*>(smem);
    float* row_x = scratch + WARPS;
    for (int row = block; row < tiles * FRAGMENT_ROWS; row += blocks) {
        const bool real = row < rows;
        if (!real && args.fragments == nullptr) break;
        float* x = args.x + (size_t)row * args.stride;
        float squares = 0.0f;
        const float* last = nullptr;
        if (real && args.table) {
            const Table table = {args.table};
            const Row& entry = table.rows()[row];
            if (entry.kind == ROW_PROMPT_LAST) last = args.last_x + (size_t)table.segments()[entry.segment].slot * width;
        }
        if (last) {
            for (int i = threadIdx.x; i < width; i += THREADS) {
                row_x[i] = last[i];
                squares += last[i] * last[i];
            }
        } else if (real) {
            for (int i = threadIdx.x; i < width; i += THREADS) {
                float v = args.assign ? 0.0f : x[i];
                const float* part = args.parts + (size_t)row * args.part_stride + i;
                for (uint32_t s = 0; s < args.splits; s++) v += part[s * args.split_stride];
                if (args.splits) x[i] = v;
                row_x[i] = v;
                squares += v * v;
            }
        }
        const float total = block_sum(squares, scratch);
        const float factor = 1.0f / sqrtf(total / (float)width + args.eps);
        if (args.normed && real) {
            for (int i = threadIdx.x; i < width; i += THREADS) args.normed[(size_t)row * args.normed_stride + i] = row_x[i] * factor * args.weight[i];
        }
        if (args.fragments) {
            const int column_tiles = (width + TILE_K - 1) / TILE_K;
            for (int c = warp_id(); c < column_tiles; c += WARPS) {
                float v[8];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int k = c * TILE_K + lane_id() * 8 + i;
                    v[i] = real && k < width ? row_x[k] * factor * args.weight[k] : 0.0f;
                }
                char* tile = args.fragments + ((size_t)(args.first_column_tile + c) * tiles + row / FRAGMENT_ROWS) * FRAGMENT_BYTES;
                write_fragment_row(tile, row % FRAGMENT_ROWS, v);
            }
        }
        __syncthreads();
    }
}

struct PackArgs {
    const float* a;                  // [row][stride]
    const float* b;                  // likewise; where not null, the input is silu(a) * b
    char* fragments;
    const uint32_t* rows;
    uint32_t width;
    uint32_t stride;
};

// Rows of f32 to a matmul's input; a warp for 256 columns of a row.
__device__ __forceinline__ void op_pack(const PackArgs& args, char*, int, int block, int blocks) {
    const int rows = (int)*args.rows, width = (int)args.width, tiles = row_tiles(rows);
    const int column_tiles = (width + TILE_K - 1) / TILE_K, padded = tiles * FRAGMENT_ROWS;
    for (int item = block * WARPS + warp_id(); item < padded * column_tiles; item += blocks * WARPS) {
        const int row = item / column_tiles, c = item % column_tiles;
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int k = c * TILE_K + lane_id() * 8 + i;
            v[i] = 0.0f;
            if (row < rows && k < width) {
                const size_t at = (size_t)row * args.stride + k;
                v[i] = args.b ? silu(args.a[at]) * args.b[at] : args.a[at];
            }
        }
        write_fragment_row(args.fragments + ((size_t)c * tiles + row / FRAGMENT_ROWS) * FRAGMENT_BYTES, row % FRAGMENT_ROWS, v);
    }
}

}  // namespace openjet
