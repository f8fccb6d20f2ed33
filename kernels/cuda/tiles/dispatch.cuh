// From a weight type's number to its tile.
#pragma once
#include "floats.cuh"
#include "kquants.cuh"

namespace openjet {

__device__ __forceinline__ int tile_bytes(uint32_t type) {
    switch (type) {
        case W_F32: return TileF32::BYTES;
        case W_F16: return TileF16::BYTES;
        case W_Q4_0: return TileQ4_0::BYTES;
        case W_Q4_1: return TileQ4_1::BYTES;
        case W_Q5_0: return TileQ5_0::BYTES;
        case W_Q5_1: return TileQ5_1::BYTES;
        case W_Q8_0: return TileQ8_0::BYTES;
        case W_Q2_K: return TileQ2_K::BYTES;
        case W_Q3_K: return TileQ3_K::BYTES;
        case W_Q4_K: return TileQ4_K::BYTES;
        case W_Q5_K: return TileQ5_K::BYTES;
        case W_Q6_K: return TileQ6_K::BYTES;
        case W_IQ4_NL: return TileIQ4_NL::BYTES;
        default: return TileIQ4_XS::BYTES;
    }
}

}  // namespace openjet
