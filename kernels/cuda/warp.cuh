// Warp-wide pieces that attention, DeltaNet and sampler share.
#pragma once
#include "common.cuh"

namespace openjet {

// Four 8x8 matrices of halves from shared memory: lane 8i+r gives the address of row r of matrix i (16 bytes), lane 4g+j gets
// columns 2j and 2j+1 of row g of every matrix.
__device__ __forceinline__ void load_matrices(uint32_t* r, const half* row) {
#ifdef OPENJET_HOST
    for (int i = 0; i < 4; i++) {
        const half* from = __shfl_sync(0xffffffffu, row, 8 * i + (lane_id() >> 2));
        memcpy(&r[i], from + 2 * (lane_id() & 3), 4);
    }
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
#endif
}

// As load_matrices, but lane 4g+j gets rows 2j and 2j+1 of column g.
__device__ __forceinline__ void load_matrices_transposed(uint32_t* r, const half* row) {
#ifdef OPENJET_HOST
    for (int i = 0; i < 4; i++) {
        const half* low = __shfl_sync(0xffffffffu, row, 8 * i + 2 * (lane_id() & 3));
        const half* high = __shfl_sync(0xffffffffu, row, 8 * i + 2 * (lane_id() & 3) + 1);
        r[i] = bits(__halves2half2(low[lane_id() >> 2], high[lane_id() >> 2]));
    }
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
#endif
}

// An 8x8 matrix of halves across a warp, columns 2j and 2j+1 of row g in lane 4g+j, turned: rows 2j and 2j+1 of column g.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t m) {
#ifdef OPENJET_HOST
    const int g = lane_id() >> 2, j = lane_id() & 3;
    const uint32_t low = __shfl_sync(0xffffffffu, m, 8 * j + (g >> 1)), high = __shfl_sync(0xffffffffu, m, 8 * j + 4 + (g >> 1));
    return __byte_perm(low, high, g & 1 ? 0x7632 : 0x5410);
#else
    uint32_t t;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(t) : "r"(m));
    return t;
#endif
}

// Sums over the `Width` neighbouring lanes that share all but the low bits of their number; the same bits in each.
template <int Width> __device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
    for (int o = 1; o < Width; o <<= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

// The largest, likewise.
template <int Width> __device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
    for (int o = 1; o < Width; o <<= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

// Normalised Walsh-Hadamard transform of 256 numbers held by a warp: lane l has elements l + 32 j, or else 8l + j. Its own inverse.
__device__ __forceinline__ void hadamard256(float (&x)[8]) {
    const int lane = lane_id();
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float other = __shfl_xor_sync(0xffffffffu, x[j], o);
            x[j] = (lane & o) ? other - x[j] : x[j] + other;
        }
    }
#pragma unroll
    for (int o = 1; o < 8; o <<= 1) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (j & o) continue;
            const float a = x[j], b = x[j | o];
            x[j] = a + b;
            x[j | o] = a - b;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] *= 0.0625f;
}

// Block-wide sums of whole numbers, the same in every thread; free of order. `scratch` is WARPS words of 8 bytes.
__device__ __forceinline__ uint64_t block_sum_u64(uint64_t v, uint64_t* scratch) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if (lane_id() == 0) scratch[warp_id()] = v;
    __syncthreads();
    uint64_t t = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) t += scratch[w];
    return t;
}

}  // namespace openjet
