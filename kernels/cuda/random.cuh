// Philox4x32-10, as engine/src/sampling/philox.rs describes it.
#pragma once
#include "common.cuh"

namespace openjet {

// A number in (0, 1) for a token at a position; 1 itself, by rounding, once in 2^25 times.
__device__ __forceinline__ float uniform(uint64_t seed, uint32_t position, uint32_t token) {
    uint32_t a = position, b = token, c = 0, d = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        const uint32_t high_a = __umulhi(a, 0xD2511F53u), low_a = a * 0xD2511F53u;
        const uint32_t high_c = __umulhi(c, 0xCD9E8D57u), low_c = c * 0xCD9E8D57u;
        a = high_c ^ b ^ k0;
        b = low_c;
        c = high_a ^ d ^ k1;
        d = low_a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return __fmaf_rn((float)a, 1.0f / 4294967296.0f, 1.0f / 8589934592.0f);
}

}  // namespace openjet
