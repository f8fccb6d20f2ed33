// The residual stream: adds what a matmul's splits produced, normalises, and writes the next matmul's input.
//
// op_norm                     the whole of it
// op_residual                 all but the division by the root mean square of a row, which is the same for all that the row is
//                             multiplied with: the matmul that follows does it, and nobody waits for a whole row
#pragma once
#include "barrier.cuh"
#include "fragment.cuh"
#include "prompt_rows.cuh"
#include "table.cuh"

namespace openjet {

struct NormArgs {
    float* x;                        // [row][stride], read, and written back where there are parts
    const float* parts;              // [split][row][part_stride], added in order
    const float* weight;
    float* normed;                   // [row][normed_stride], or null
    char* fragments;                 // fragment buffer or prompt rows, or null
    uint64_t rows;                   // the word of the step table's header that says how many
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
    uint32_t prompt;                 // prompt rows
    uint32_t second;                 // of two norms that run along: the first row is for a block in the middle
    float* squares;                  // op_residual: [row][column tile], the sum of x^2 over its 256
};

// A block a row. y = x / sqrt(mean(x^2) + eps) * weight. `width` is a multiple of 4. All that is read comes to shared memory at
// once where there is room, and loops over a row are not unrolled: this runs between two matmuls, whose code has taken the place of
// its own in the instruction cache.
__device__ __forceinline__ void op_norm(const NormArgs& args, char* smem, int smem_bytes, int block, int blocks) {
    const int rows = header_word(smem, args.rows), width = (int)args.width, tiles = row_tiles(rows);
    float* scratch = reinterpret_cast<float*>(smem);
    float* row_weight = scratch + WARPS;
    float* row_x = row_weight + width;
    float* row_parts = row_x + width;
    const int together = min(MAX_SPLITS, (smem_bytes / 4 - WARPS) / width - 2);
    const int middle = args.second ? blocks / 2 : 0;
    for (int row = block >= middle ? block - middle : block - middle + blocks; row < rows; row += blocks) {
        float* x = args.x + (size_t)row * args.stride;
        const float* last = nullptr;
        if (args.table) {
            const Table table = {args.table};
            const Row& entry = table.rows()[row];
            if (entry.kind == ROW_PROMPT_LAST) last = args.last_x + (size_t)table.segments()[entry.segment].slot * width;
        }
        const float* from = last ? last : args.assign ? nullptr : x;
        const int splits = last ? 0 : (int)args.splits;
        const float* part = args.parts + (size_t)row * args.part_stride;
        float squares = 0.0f;
        for (int first = 0; first == 0 || first < splits; first += together) {
            const int count = min(together, splits - first);
#pragma unroll 1
            for (int i = threadIdx.x * 4; i < width; i += THREADS * 4) {
                if (first == 0) {
                    copy16(row_weight + i, args.weight + i);
                    if (from) copy16(row_x + i, from + i);
                }
#pragma unroll
                for (int s = 0; s < MAX_SPLITS; s++) {
                    if (s < count) copy16(row_parts + s * width + i, part + (first + s) * args.split_stride + i);
                }
            }
            copy_commit();
            copy_wait<0>();
            // A thread reads what it has copied itself.
            const bool all = first + together >= splits;
#pragma unroll 1
            for (int i = threadIdx.x * 4; i < width; i += THREADS * 4) {
                float4 v = from || first > 0 ? load4(row_x + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                for (int s = 0; s < MAX_SPLITS; s++) {
                    if (s >= count) continue;
                    const float4 p = load4(row_parts + s * width + i);
                    v = make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w);
                }
                *reinterpret_cast<float4*>(row_x + i) = v;
                if (!all) continue;
                if (splits) *reinterpret_cast<float4*>(x + i) = v;
                squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            }
        }
        const float total = block_sum(squares, scratch);
        const float factor = 1.0f / sqrtf(total / (float)width + args.eps);
        float largest = 0.0f;
#pragma unroll 1
        for (int i = threadIdx.x * 4; i < width; i += THREADS * 4) {
            const float4 v = load4(row_x + i), w = load4(row_weight + i);
            const float4 y = make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w);
            *reinterpret_cast<float4*>(row_x + i) = y;
            largest = fmaxf(fmaxf(fmaxf(largest, fabsf(y.x)), fabsf(y.y)), fmaxf(fabsf(y.z), fabsf(y.w)));
            if (args.normed) *reinterpret_cast<float4*>(args.normed + (size_t)row * args.normed_stride + i) = y;
        }
        __syncthreads();
        if (args.fragments && args.prompt) {
            write_prompt_rows<1>(args.fragments, row_x, {largest}, row, rows, width, scratch);
        } else if (args.fragments) {
            const int column_tiles = (width + TILE_K - 1) / TILE_K;
#pragma unroll 1
            for (int c = warp_id(); c < column_tiles; c += WARPS) {
                float f[8] = {};
                const int k = c * TILE_K + lane_id() * 8;
#pragma unroll
                for (int i = 0; i < 8; i += 4) {
                    if (k + i >= width) continue;
                    const float4 y = load4(row_x + k + i);
                    f[i] = y.x;
                    f[i + 1] = y.y;
                    f[i + 2] = y.z;
                    f[i + 3] = y.w;
                }
                char* tile = args.fragments + ((size_t)(args.first_column_tile + c) * tiles + row / FRAGMENT_ROWS) * FRAGMENT_BYTES;
                write_fragment_row(tile, row % FRAGMENT_ROWS, f);
            }
        }
        __syncthreads();
    }
}

// A warp for 256 columns of a row: the fragments of x * weight, and the sum of x^2. `width` is a multiple of 4.
__device__ __forceinline__ void op_residual(const NormArgs& args, char* smem, int, int block, int blocks) {
    const int rows = header_word(smem, args.rows), width = (int)args.width, tiles = row_tiles(rows);
    const int column_tiles = (width + TILE_K - 1) / TILE_K;
    // The matmul whose parts are added has not touched x; where there are none, the op before may have made it.
    const bool early = args.splits > 0;
    if (!early) pass_gate(smem);
    // All warps go round together, so that they pass the gate in one place.
    const int items = rows * column_tiles;
    for (int first = 0; first == 0 || first < items; first += blocks * WARPS) {
        const int item = first + warp_id() * blocks + block;
        const bool mine = item < items;
        const int row = item / column_tiles, c = item - row * column_tiles, k = c * TILE_K + lane_id() * 8;
        float* x = args.x + (size_t)row * args.stride + k;
        const float* part = args.parts + (size_t)row * args.part_stride + k;
        const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float4 v[2], w[2], p[MAX_SPLITS][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool there = mine && k + 4 * i < width;
            v[i] = there && !args.assign ? load4(x + 4 * i) : none;
            w[i] = there ? load4(args.weight + k + 4 * i) : none;
        }
        if (first == 0 && early) pass_gate(smem);
        if (!mine) continue;
#pragma unroll
        for (int s = 0; s < MAX_SPLITS; s++) {
#pragma unroll
            for (int i = 0; i < 2; i++) p[s][i] = s < (int)args.splits && k + 4 * i < width ? load4(part + 4 * i) : none;
            part += args.split_stride;
        }
        float f[8], squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int s = 0; s < MAX_SPLITS; s++) {
                if (s < (int)args.splits) v[i] = make_float4(v[i].x + p[s][i].x, v[i].y + p[s][i].y, v[i].z + p[s][i].z, v[i].w + p[s][i].w);
            }
            if (args.splits && k + 4 * i < width) *reinterpret_cast<float4*>(x + 4 * i) = v[i];
            squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
            f[4 * i] = v[i].x * w[i].x;
            f[4 * i + 1] = v[i].y * w[i].y;
            f[4 * i + 2] = v[i].z * w[i].z;
            f[4 * i + 3] = v[i].w * w[i].w;
        }
        squares = warp_sum(squares);
        if (lane_id() == 0) args.squares[item] = squares;
        write_fragment_row(args.fragments + ((size_t)c * tiles + row / FRAGMENT_ROWS) * FRAGMENT_BYTES, row % FRAGMENT_ROWS, f);
    }
}

}  // namespace openjet
