// Matmul inputs: activations as the tensor cores want them.
//
// A fragment tile holds 8 rows x 256 columns: for each pair of 16 k-steps, each lane 4g+j and each of the two steps the halves of
// row g at columns 2j, 2j+1 and 2j+8, 2j+9 of that step, so 16 bytes a lane; then, for each lane, the sums of 16 columns at steps
// 2j, 2j+1, 2j+8, 2j+9 as halves, followed by what rounding them left (weights with offsets need these sums); then 8 scales. A row's halves are its numbers over the power
// of two that brings the largest of the 256 to 256 .. 512, so nothing overflows, whatever the model does.
// A fragment buffer of `n` tiles of rows holds tile (column tile c, row tile r) at index c * n + r.
#pragma once
#include "common.cuh"

namespace openjet {

constexpr int FRAGMENT_ROWS = 8;
constexpr int FRAGMENT_SUMS = 4096;
constexpr int FRAGMENT_SCALES = FRAGMENT_SUMS + 512;
constexpr int FRAGMENT_BYTES = FRAGMENT_SCALES + 32;

__device__ __forceinline__ int row_tiles(int rows) { return (rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS; }

__device__ __forceinline__ float exact_inverse(float power_of_two) {
    return __uint_as_float((254u << 23) - __float_as_uint(power_of_two));
}

// Writes row g of a fragment tile: lane l of the warp brings columns 8l .. 8l+7.
__device__ __forceinline__ void write_fragment_row(char* tile, int g, const float* v) {
    const int lane = lane_id();
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(v[i]));
    amax = warp_max(amax);
    int exponent = (int)(__float_as_uint(amax) >> 23) - 127;
    exponent = amax == 0.0f ? 8 : max(-52, min(68, exponent));
    const float scale = __uint_as_float((uint32_t)(exponent - 8 + 127) << 23);
    const float inverse = exact_inverse(scale);
    uint32_t* words = reinterpret_cast<uint32_t*>(tile) + ((lane >> 2) * 32 + g * 4) * 4 + (lane & 3);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const half2 h = __floats2half2_rn(v[2 * j] * inverse, v[2 * j + 1] * inverse);
        words[4 * j] = bits(h);
        sum += __low2float(h) + __high2float(h);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);   // now the sum of k-step lane / 2
    const float other = __shfl_xor_sync(0xffffffffu, sum, 2);
    if ((lane & 3) == 0) {
        const int step = lane >> 1;                // even: this lane writes the pair step, step + 1
        const half2 high = __floats2half2_rn(sum, other);
        const half2 low = __floats2half2_rn(sum - __low2float(high), other - __high2float(high));
        uint32_t* sums = reinterpret_cast<uint32_t*>(tile + FRAGMENT_SUMS) + (g * 4 + ((step & 7) >> 1)) * 4 + (step >> 3);
        sums[0] = bits(high);
        sums[2] = bits(low);
    }
    if (lane == 0) reinterpret_cast<float*>(tile + FRAGMENT_SCALES)[g] = scale;
}

}  // namespace openjet
