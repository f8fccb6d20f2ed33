// Matmul inputs of a prompt's pass.
//
// Prompt rows are halves in groups of 128 rows x 256 columns, each group 64 KiB: [8 columns][row][8 halves], the groups of a column
// tile after another; behind all groups one power of two for each row, over which its halves are.
#pragma once
#include "fragment.cuh"

namespace openjet {

constexpr int PROMPT_GROUP = 128;        // rows of a group
constexpr int PROMPT_TILE_BYTES = PROMPT_GROUP * TILE_K * 2;

__device__ __forceinline__ int prompt_groups(int rows) { return (rows + PROMPT_GROUP - 1) / PROMPT_GROUP; }

// Writes a row, in shared memory, into prompt rows; `width` is a multiple of 4. All threads of the block; `scratch` is WARPS floats.
__device__ __forceinline__ void write_prompt_row(char* to, const float* x, float largest, int row, int rows, int width, float* scratch) {
    const float amax = block_max(largest, scratch);
    int exponent = (int)(__float_as_uint(amax) >> 23) - 127;
    exponent = amax == 0.0f ? 8 : max(-52, min(68, exponent));
    const float scale = __uint_as_float((uint32_t)(exponent - 8 + 127) << 23), inverse = exact_inverse(scale);
    const int column_tiles = (width + TILE_K - 1) / TILE_K;
    char* group = to + (size_t)(row / PROMPT_GROUP) * column_tiles * PROMPT_TILE_BYTES + row % PROMPT_GROUP * 16;
    for (int i = threadIdx.x; i < column_tiles * (TILE_K / 8); i += THREADS) {
        uint32_t h[4];
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const int k = i * 8 + 2 * j;
            const float4 v = k < width ? load4(x + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            h[j] = bits(__floats2half2_rn(v.x * inverse, v.y * inverse));
            h[j + 1] = bits(__floats2half2_rn(v.z * inverse, v.w * inverse));
        }
        *reinterpret_cast<uint4*>(group + (size_t)i * (PROMPT_GROUP * 16)) = make_uint4(h[0], h[1], h[2], h[3]);
    }
    float* scales = reinterpret_cast<float*>(to + (size_t)prompt_groups(rows) * column_tiles * PROMPT_TILE_BYTES);
    if (threadIdx.x == 0) scales[row] = scale;
}

}  // namespace openjet
