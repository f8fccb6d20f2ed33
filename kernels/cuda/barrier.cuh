// A barrier for all blocks of a cooperative launch: one counter that only grows within a launch.
#pragma once
#include "common.cuh"

namespace openjet {

// `counter` is zero when the launch begins. `passed` counts this block's barriers; the same in every thread.
__device__ __forceinline__ void grid_barrier(uint32_t* counter, uint32_t& passed) {
    passed++;
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint32_t target = passed * gridDim.x;
#ifdef OPENJET_HOST
        *counter += 1;
        while (*counter < target) host::yield();
#else
        uint32_t seen;
        __threadfence();
        asm volatile("red.release.gpu.global.add.u32 [%0],1;" :: "l"(counter) : "memory");
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(seen) : "l"(counter) : "memory");
        } while (seen < target);
        __threadfence();
#endif
    }
    __syncthreads();
}

}  // namespace openjet
