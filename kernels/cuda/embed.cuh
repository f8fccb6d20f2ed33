// Embedding lookup: a row of a matrix that lies in tiles, as f32.
#pragma once
#include "fragment.cuh"
#include "table.cuh"
#include "tiles/dispatch.cuh"

namespace openjet {

struct EmbedArgs {
    const char* weights;
    const uint32_t* tokens;          // the first row's token
    uint64_t rows;                   // the word of the step table\'s header that says how many
    float* x;                        // [row][stride]
    uint32_t type;                   // WeightType
    uint32_t width;
    uint32_t stride;
    uint32_t token_stride;           // words from one row's token to the next
};

// Decodes row r of one tile into out[256].
template <class T> __device__ __noinline__ void decode_tile_row(const char* tile, int r, float* out, int lane) {
    typename T::Scales scales;
    T::load_scales(scales, tile, lane);
    const Head head = T::head(scales, lane);
    const int upper_row = r >> 3, j = lane & 3;
    const bool mine = (lane >> 2) == (r & 7);
    uint32_t o[4] = {0, 0, 0, 0};
    if (T::OFFSET) T::offset(scales, o);
    const float m = upper_row ? head.m1 : head.m0;
    const uint32_t w0 = T::word0(scales), w1 = T::word1(scales);
#pragma unroll 1
    for (int quad = 0; quad < 4; quad++) {
        typename T::Quad q;
        T::load_quad(q, tile, quad, lane);
        const uint32_t x0 = __shfl_sync(0xffffffffu, w0, (lane & ~3) | quad);
        const uint32_t x1 = __shfl_sync(0xffffffffu, w1, (lane & ~3) | quad);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int upper = i >> 1, odd = i & 1;
            float s0, s1;
            T::scale(head, x0, x1, upper, odd, s0, s1);
            float offset = 0.0f;
            if (T::OFFSET) {
                const uint32_t lower = __shfl_sync(0xffffffffu, upper ? o[2] : o[0], (lane & ~3) | quad);
                const uint32_t higher = __shfl_sync(0xffffffffu, upper ? o[3] : o[1], (lane & ~3) | quad);
                const uint32_t pair = upper_row ? higher : lower;
                offset = (odd ? high_float(pair) : low_float(pair)) * m;
            }
            uint32_t a[4];
            T::fragment(q, upper, odd, a);
            const float s = upper_row ? s1 : s0;
            uint32_t first = upper_row ? a[1] : a[0], second = upper_row ? a[3] : a[2];
            float v[4] = {low_float(first), high_float(first), low_float(second), high_float(second)};
            if constexpr (planes<T> == 2) {
                T::plane(q, 1, upper, odd, a);
                first = upper_row ? a[1] : a[0];
                second = upper_row ? a[3] : a[2];
                v[0] += low_float(first);
                v[1] += high_float(first);
                v[2] += low_float(second);
                v[3] += high_float(second);
            }
            if (mine) {
                float* p = out + (2 * quad + 8 * upper + odd) * 16 + 2 * j;
                p[0] = v[0] * s + offset;
                p[1] = v[1] * s + offset;
                p[8] = v[2] * s + offset;
                p[9] = v[3] * s + offset;
            }
        }
    }
}

__device__ __forceinline__ void op_embed(const EmbedArgs& args, char* smem, int, int block, int blocks) {
    const int rows = header_word(smem, args.rows), column_tiles = ((int)args.width + TILE_K - 1) / TILE_K;
    float* staging = reinterpret_cast<float*>(smem) + warp_id() * TILE_K;
    const int lane = lane_id(), bytes = tile_bytes(args.type);
    for (int item = block * WARPS + warp_id(); item < rows * column_tiles; item += blocks * WARPS) {
        const int row = item / column_tiles, column = item % column_tiles;
        const uint32_t token = args.tokens[(size_t)row * args.token_stride];
        const char* tile = args.weights + ((size_t)(token / TILE_N) * column_tiles + column) * bytes;
        const int r = (int)(token % TILE_N);
        switch (args.type) {
            case W_F32: decode_tile_row<TileF32>(tile, r, staging, lane); break;
            case W_F16: decode_tile_row<TileF16>(tile, r, staging, lane); break;
            case W_Q4_0: decode_tile_row<TileQ4_0>(tile, r, staging, lane); break;
            case W_Q4_1: decode_tile_row<TileQ4_1>(tile, r, staging, lane); break;
            case W_Q5_0: decode_tile_row<TileQ5_0>(tile, r, staging, lane); break;
            case W_Q5_1: decode_tile_row<TileQ5_1>(tile, r, staging, lane); break;
            case W_Q8_0: decode_tile_row<TileQ8_0>(tile, r, staging, lane); break;
            case W_Q2_K: decode_tile_row<TileQ2_K>(tile, r, staging, lane); break;
            case W_Q3_K: decode_tile_row<TileQ3_K>(tile, r, staging, lane); break;
            case W_Q4_K: decode_tile_row<TileQ4_K>(tile, r, staging, lane); break;
            case W_Q5_K: decode_tile_row<TileQ5_K>(tile, r, staging, lane); break;
            case W_Q6_K: decode_tile_row<TileQ6_K>(tile, r, staging, lane); break;
            case W_IQ4_NL: decode_tile_row<TileIQ4_NL>(tile, r, staging, lane); break;
            default: decode_tile_row<TileIQ4_XS>(tile, r, staging, lane);
        }
        __syncwarp();
        const int end = min(TILE_K, (int)args.width - column * TILE_K);
        for (int i = lane; i < end; i += 32) args.x[(size_t)row * args.stride + column * TILE_K + i] = staging[i];
        __syncwarp();
    }
}

}  // namespace openjet
