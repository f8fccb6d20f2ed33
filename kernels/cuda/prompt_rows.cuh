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

// Writes N rows from `row` on, in shared memory one behind the other, into prompt rows; fewer where there are no more. `width` is a
// multiple of 4, and so is `row` of N. All threads of the block; `scratch` is N times WARPS floats. Two rows lie in one sector of
// memory, which is best written at once.
template <int N>
__device__ __forceinline__ void write_prompt_rows(char* to, const float* x, const float (&largest)[N], int row, int rows, int width, float* scratch) {
    float scale[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float amax = block_max(largest[n], scratch + n * WARPS);
        int exponent = (int)(__float_as_uint(amax) >> 23) - 127;
        exponent = amax == 0.0f ? 8 : max(-52, min(68, exponent));
        scale[n] = __uint_as_float((uint32_t)(exponent - 8 + 127) << 23);
    }
    const int column_tiles = (width + TILE_K - 1) / TILE_K, mine = (int)threadIdx.x % N;
    float inverse = exact_inverse(scale[0]);
#pragma unroll
    for (int n = 1; n < N; n++) inverse = mine == n ? exact_inverse(scale[n]) : inverse;
    x += mine * width;
    char* group = to + (size_t)(row / PROMPT_GROUP) * column_tiles * PROMPT_TILE_BYTES + (row % PROMPT_GROUP + mine) * 16;
#pragma unroll 1
    for (int i = (int)threadIdx.x / N; row + mine < rows && i < column_tiles * (TILE_K / 8); i += THREADS / N) {
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
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (threadIdx.x == 0 && row + n < rows) scales[row + n] = scale[n];
    }
}

}  // namespace openjet
