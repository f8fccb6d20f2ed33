// Products by four warps together (sm_90a): the asynchronous tensor-core instruction, with the first operand in registers.
#pragma once
#include "common.cuh"

#if !defined(OPENJET_HOST) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define OPENJET_WGMMA
#endif

namespace openjet {

// Before a group of products: at most `Pending` groups before it are still under way, so older ones' operands may be overwritten.
template <int Pending> __device__ __forceinline__ void wgmma_wait() {
#ifdef OPENJET_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(Pending) : "memory");
#endif
}
template <int Pending> __device__ __forceinline__ void wgmma_begin() {
#ifdef OPENJET_WGMMA
    wgmma_wait<Pending>();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_end() {
#ifdef OPENJET_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

#ifdef OPENJET_WGMMA
// d += a b for 64 x 16 halves in the registers of four warps (16 x 16 a warp, as mma's) and 16 x 128 in shared memory: two runs of
// 2,048 bytes, each of 128 columns of 8 halves. d as mma's, for 16 times 8 columns.
__device__ __forceinline__ void wgmma128(float (&d)[16][4], const uint32_t* a, const char* b) {
    const uint64_t address = (uint32_t)__cvta_generic_to_shared(b);
    // Start, then from one 8 x 8 core to the next along the columns' halves and along the columns, in 16 bytes.
    const uint64_t descriptor = (address & 0x3FFFF) >> 4 | (uint64_t)(2048 >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
        "{%64,%65,%66,%67},%68,1,1,1,0;"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
          "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
          "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
          "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),
          "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
          "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
          "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor));
}
#endif

}  // namespace openjet
