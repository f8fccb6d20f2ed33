// A barrier for all blocks of a cooperative launch: one counter that only grows within a launch, and is zero between launches.
#pragma once
#include "common.cuh"

namespace openjet {

// Two halves, between which a block may do what depends on nothing: all threads of all blocks arrive, then wait. `passed`, in shared memory, counts this block's barriers and is the first thread's. What a block wrote
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
// Barriers that blocks have arrived at, together.
__device__ __forceinline__ uint32_t barrier_count(const uint32_t* counter) {
#ifdef OPENJET_HOST
    return *counter;
#else
    uint32_t seen;
    asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(seen) : "l"(counter) : "memory");
    return seen;
#endif
}
// `target` is what the counter shows when all have arrived; only the first thread's counts.
__device__ __forceinline__ void grid_wait(const uint32_t* counter, uint32_t target) {
    if (thread_now() == 0) {
        while (barrier_count(counter) < target) host_yield();
    }
    __syncthreads();
}

// When a block is done. The last one of all leaves the counter as the next launch wants it: nobody looks at it any more.
__device__ __forceinline__ void grid_leave(uint32_t* counter, uint32_t passed) {
    if (thread_now() != 0) return;
    const uint32_t all = (passed + 1) * blocks_now();
#ifdef OPENJET_HOST
    if (++*counter == all) *counter = 0;
#else
    if (atomicAdd(counter, 1) + 1 == all) *counter = 0;
#endif
}

// The barrier that an op passes itself. It stands GATE bytes before the op's own shared memory.
struct Gate {
    const uint32_t* counter;
    uint32_t target;                 // 0: none, or it was passed
    uint32_t open;                   // what peek_gate saw
};
constexpr int GATE = 128;                // room for more that is kept from op to op

// Whether the gate is open, and then it is passed: what depends on other blocks is best asked for first. For the block that arrived
// last it is, and for it alone all others wait.
__device__ __forceinline__ bool peek_gate(char* smem) {
    Gate& gate = *reinterpret_cast<Gate*>(smem - GATE);
    if (reread(gate.target) == 0) return true;
    if (thread_now() == 0) gate.open = barrier_count(gate.counter) >= gate.target;
    __syncthreads();
    const bool open = reread(gate.open);
    if (open && thread_now() == 0) gate.target = 0;
    return open;
}
// Waits until it is open, by all threads, in one place. Before this and peek_gate lies a block barrier.
__device__ __forceinline__ void pass_gate(char* smem) {
    Gate& gate = *reinterpret_cast<Gate*>(smem - GATE);
    if (reread(gate.target) == 0) return;
    grid_wait(gate.counter, gate.target);
    if (threadIdx.x == 0) gate.target = 0;
}

}  // namespace openjet
