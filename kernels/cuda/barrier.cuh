// A barrier for all blocks of a cooperative launch: one counter that only grows within a launch.
#pragma once
#include "common.cuh"

namespace openjet {

// Two halves, between which a block may do what depends on nothing: all threads of all blocks arrive, then wait. `counter` is zero
// when the launch begins; `passed`, in shared memory, counts this block's barriers and is the first thread's. What a block wrote
// before it arrived is seen by all after they waited: the block barrier orders its threads' writes before the release.
__device__ __forceinline__ void grid_arrive(uint32_t* counter, uint32_t& passed) {
    __syncthreads();
    if (thread_now() == 0) {
        passed++;
#ifdef OPENJET_HOST
        *counter += 1;
#else
        asm volatile("red.release.gpu.global.add.u32 [%0],1;" :: "l"(counter) : "memory");
#endif
    }
}
// `target` is what the counter shows when all have arrived; only the first thread's counts.
__device__ __forceinline__ void grid_wait(const uint32_t* counter, uint32_t target) {
    if (thread_now() == 0) {
#ifdef OPENJET_HOST
        while (*counter < target) host::yield();
#else
        uint32_t seen;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(seen) : "l"(counter) : "memory");
        } while (seen < target);
#endif
    }
    __syncthreads();
}

// A barrier that an op passes itself, when it has asked for what depends on no op before. It stands GATE bytes before the op's own
// shared memory.
struct Gate {
    const uint32_t* counter;
    uint32_t target;                 // 0: none, or it was passed
};
constexpr int GATE = 128;                // room for more that is kept from op to op

// Between two calls lies a block barrier.
__device__ __forceinline__ void pass_gate(char* smem) {
    Gate& gate = *reinterpret_cast<Gate*>(smem - GATE);
    if (reread(gate.target) == 0) return;
    grid_wait(gate.counter, gate.target);
    if (threadIdx.x == 0) gate.target = 0;
}

}  // namespace openjet
