// Copies of whole tiles that one thread starts and any thread can wait for (from sm_90).
//
// The chip is told of the tiles by a map, a CUtensorMap that src/device/cuda.rs makes. Copies without one would do as well, but
// compute-sanitizer does not see that they end before their place is used again.
#pragma once
#include "common.cuh"

namespace openjet {

#if defined(OPENJET_HOST) || defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define OPENJET_BULK
#endif

// Something to wait for, in shared memory: a phase ends when as many threads as it was begun with have arrived and all bytes have
// come that they told of. Phases count from 0. A thread that arrives has written and read what it did before.
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
#elif defined(OPENJET_BULK)
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" :: "r"(shared_address(&a)), "r"(threads) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// After this its memory may be used for something else.
__device__ __forceinline__ void arrivals_end(Arrivals& a) {
#if defined(OPENJET_BULK) && !defined(OPENJET_HOST)
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(shared_address(&a)) : "memory");
#endif
}
__device__ __forceinline__ void arrive(Arrivals& a) {
#ifdef OPENJET_HOST
    a.word -= 1ull << 32;
    arrivals_settle(a);
#elif defined(OPENJET_BULK)
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" :: "r"(shared_address(&a)) : "memory");
#endif
}
// Arrives, and tells of bytes that will come.
__device__ __forceinline__ void arrive_expecting(Arrivals& a, uint32_t bytes) {
#ifdef OPENJET_HOST
    a.word += bytes;
    a.word -= 1ull << 32;
#elif defined(OPENJET_BULK)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" :: "r"(shared_address(&a)), "r"(bytes) : "memory");
#endif
}
// Whether a phase has ended that is the current one or the one before.
__device__ __forceinline__ bool has_ended(const Arrivals& a, uint32_t phase) {
#ifdef OPENJET_HOST
    return (uint32_t)(a.word >> 48) > phase;
#elif defined(OPENJET_BULK)
    uint32_t ended;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
                 : "=r"(ended) : "r"(shared_address(&a)), "r"(phase & 1) : "memory");
    return ended;
#else
    return true;
#endif
}
// Before the first copy of an op, by the thread that copies: it then finds the tiles as they stood when the thread passed the grid's
// barrier, and the map as the host wrote it.
__device__ __forceinline__ void fence_tiles(const void* map) {
#if defined(OPENJET_BULK) && !defined(OPENJET_HOST)
    asm volatile("fence.proxy.async.global;" ::: "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0],128;" :: "l"(map) : "memory");
#endif
}
// Tile `tile` of those that stand at `tiles` one after another, `bytes` each, which `map` tells of. `shared` is a multiple of 128.
__device__ __forceinline__ void copy_tile(void* shared, const char* tiles, const void* map, int tile, uint32_t bytes, Arrivals& a) {
#ifdef OPENJET_HOST
    memcpy(shared, tiles + (size_t)tile * bytes, bytes);
    a.word -= bytes;
    arrivals_settle(a);
#elif defined(OPENJET_BULK)
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0],[%1,{%2,%2,%3}],[%4];"
                 :: "r"(shared_address(shared)), "l"(map), "r"(0), "r"(tile), "r"(shared_address(&a)) : "memory");
#endif
}
// Before a block barrier: what this thread read or wrote in shared memory may then be overwritten by such copies.
__device__ __forceinline__ void fence_before_bulk() {
#if defined(OPENJET_BULK) && !defined(OPENJET_HOST)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace openjet
