// Something to wait for, in shared memory: a phase ends when as many threads as it was begun with have arrived and all bytes have
// come that they told of (bulk.cuh). Phases count from 0. A thread that arrives has written and read what it did before.
#pragma once
#include "common.cuh"

namespace openjet {

struct Arrivals {
    uint64_t word;                       // on the CPU: phases that ended << 48 | threads << 40 | threads to come << 32 | bytes to come
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
#ifdef OPENJET_HOST
    return 0;
#else
    return (uint32_t)__cvta_generic_to_shared(p);
#endif
}
#ifdef OPENJET_HOST
inline void arrivals_settle(Arrivals& a) {
    if ((uint32_t)a.word == 0 && (a.word >> 32 & 255) == 0) a.word += (1ull << 48) + ((a.word >> 40 & 255) << 32);
}
#endif
// Before other threads look at it there must be a block barrier.
__device__ __forceinline__ void arrivals_begin(Arrivals& a, uint32_t threads) {
#ifdef OPENJET_HOST
    a.word = (uint64_t)threads << 40 | (uint64_t)threads << 32;
#else
    asm volatile("mbarrier.init.shared.b64 [%0],%1;" :: "r"(shared_address(&a)), "r"(threads) : "memory");
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
#endif
}
// After this its memory may be used for something else.
__device__ __forceinline__ void arrivals_end(Arrivals& a) {
#ifndef OPENJET_HOST
    asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(shared_address(&a)) : "memory");
#endif
}
__device__ __forceinline__ void arrive(Arrivals& a) {
#ifdef OPENJET_HOST
    a.word -= 1ull << 32;
    arrivals_settle(a);
#else
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state,[%0];}" :: "r"(shared_address(&a)) : "memory");
#endif
}
// Whether a phase has ended that is the current one or the one before.
__device__ __forceinline__ bool has_ended(const Arrivals& a, uint32_t phase) {
#ifdef OPENJET_HOST
    return ((uint32_t)(a.word >> 48) ^ phase) & 1;
#else
    uint32_t ended;
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
                 : "=r"(ended) : "r"(shared_address(&a)), "r"(phase & 1) : "memory");
#else
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
                 : "=r"(ended) : "r"(shared_address(&a)), "r"(phase & 1) : "memory");
#endif
    return ended;
#endif
}

}  // namespace openjet
