// Copies of whole tiles that one thread starts and any thread can wait for (from sm_90).
//
// The chip is told of the tiles by a map, a CUtensorMap that src/device/cuda.rs makes. Copies without one would do as well, but
// compute-sanitizer does not see that they end before their place is used again.
#pragma once
#include "arrivals.cuh"

namespace openjet {

#if defined(OPENJET_HOST) || defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define OPENJET_BULK
#endif

// Arrives, and tells of bytes that will come.
__device__ __forceinline__ void arrive_expecting(Arrivals& a, uint32_t bytes) {
#ifdef OPENJET_HOST
    a.word += bytes;
    a.word -= 1ull << 32;
#elif defined(OPENJET_BULK)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" :: "r"(shared_address(&a)), "r"(bytes) : "memory");
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
