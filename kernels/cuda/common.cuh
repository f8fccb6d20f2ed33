// What every op shares: block shape, loads, tensor-core products, warp and block reductions.
//
// The same source is compiled by nvcc for the GPU and by a C++ compiler for the CPU (OPENJET_HOST, see host/shim.h), where
// tests run it one fibre a thread. So ops use what is declared here and in the shim, take all shared memory from their
// `smem` argument (no static __shared__), and keep inline assembly in this file.
//
// Rules that keep a row's bits independent of its company: every sum has a fixed order that depends on the matrix shape
// alone; no floating-point atomics; nothing depends on gridDim but the assignment of whole items to blocks.
#pragma once
#ifdef OPENJET_HOST
#include "host/shim.h"
#else
#include <cuda_fp16.h>
#include <cstdint>
#endif
#include <type_traits>

namespace openjet {

constexpr int THREADS = 512;           // of a block, always
constexpr int WARPS = THREADS / 32;
constexpr int TILE_K = 256;            // inputs that one weight tile spans
constexpr int TILE_N = 16;             // outputs that one weight tile spans
constexpr int MAX_SPLITS = 5;          // runs that a matrix's inputs are cut into

__device__ __forceinline__ int lane_id() { return threadIdx.x & 31; }
__device__ __forceinline__ int warp_id() { return threadIdx.x >> 5; }

__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ __forceinline__ void store4(float* p, float a, float b, float c, float d) { *reinterpret_cast<float4*>(p) = make_float4(a, b, c, d); }
__device__ __forceinline__ uint32_t bits(half2 h) { uint32_t u; memcpy(&u, &h, 4); return u; }
__device__ __forceinline__ half2 as_half2(uint32_t u) { half2 h; memcpy(&h, &u, 4); return h; }
__device__ __forceinline__ float low_float(uint32_t u) { return __low2float(as_half2(u)); }
__device__ __forceinline__ float high_float(uint32_t u) { return __high2float(as_half2(u)); }

// Weights: read once a step, so they must not push anything else out of L1. Never for memory that this kernel writes.
__device__ __forceinline__ void load_weights16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, const char* t) {
#ifdef OPENJET_HOST
    memcpy(&a, t, 4), memcpy(&b, t + 4, 4), memcpy(&c, t + 8, 4), memcpy(&d, t + 12, 4);
#else
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(t));
#endif
}
__device__ __forceinline__ void load_weights8(uint32_t& a, uint32_t& b, const char* t) {
#ifdef OPENJET_HOST
    memcpy(&a, t, 4), memcpy(&b, t + 4, 4);
#else
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1},[%2];" : "=r"(a), "=r"(b) : "l"(t));
#endif
}
__device__ __forceinline__ void load_weights4(uint32_t& a, const char* t) {
#ifdef OPENJET_HOST
    memcpy(&a, t, 4);
#else
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0,[%1];" : "=r"(a) : "l"(t));
#endif
}
// Two bytes, into the low half; the high one is zero.
__device__ __forceinline__ void load_weights2(uint32_t& a, const char* t) {
#ifdef OPENJET_HOST
    a = 0, memcpy(&a, t, 2);
#else
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0,[%1];" : "=r"(a) : "l"(t));
#endif
}
// The same where there may be no tile: then nothing is loaded, and what stood there stays. That takes no branch, so the products of
// a tile stay one block of instructions, which the compiler can order.
struct Place {
    const char* p;
    bool there;
    __device__ __forceinline__ Place operator+(int bytes) const { return {p + bytes, there}; }
};
__device__ __forceinline__ void load_weights16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, Place t) {
#ifdef OPENJET_HOST
    if (t.there) load_weights16(a, b, c, d, t.p);
#else
    asm volatile("{.reg .pred p; setp.ne.u32 p,%5,0; @p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3},[%4];}"
                 : "+r"(a), "+r"(b), "+r"(c), "+r"(d) : "l"(t.p), "r"((uint32_t)t.there));
#endif
}
__device__ __forceinline__ void load_weights8(uint32_t& a, uint32_t& b, Place t) {
#ifdef OPENJET_HOST
    if (t.there) load_weights8(a, b, t.p);
#else
    asm volatile("{.reg .pred p; setp.ne.u32 p,%3,0; @p ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1},[%2];}"
                 : "+r"(a), "+r"(b) : "l"(t.p), "r"((uint32_t)t.there));
#endif
}
__device__ __forceinline__ void load_weights4(uint32_t& a, Place t) {
#ifdef OPENJET_HOST
    if (t.there) load_weights4(a, t.p);
#else
    asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; @p ld.global.nc.L1::no_allocate.u32 %0,[%1];}" : "+r"(a) : "l"(t.p), "r"((uint32_t)t.there));
#endif
}
__device__ __forceinline__ void load_weights2(uint32_t& a, Place t) {
#ifdef OPENJET_HOST
    if (t.there) load_weights2(a, t.p);
#else
    asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; @p ld.global.nc.L1::no_allocate.u16 %0,[%1];}" : "+r"(a) : "l"(t.p), "r"((uint32_t)t.there));
#endif
}
// (a & m) | o in one instruction.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t m, uint32_t o) {
#ifdef OPENJET_HOST
    return (a & m) | o;
#else
    uint32_t r;
    asm("lop3.b32 %0,%1,%2,%3,0xEA;" : "=r"(r) : "r"(a), "r"(m), "r"(o));
    return r;
#endif
}

// d += a b for a 16x16 (row) and a 16x8 (column) fragment of halves, sums in f32. Lane 4g+j holds of a: rows g and g+8,
// columns 2j, 2j+1 (a0, a1) and 2j+8, 2j+9 (a2, a3); of b: column g, rows 2j, 2j+1 (b0) and 2j+8, 2j+9 (b1); of d: row g,
// columns 2j, 2j+1 (d0, d1) and row g+8 (d2, d3).
__device__ __forceinline__ void mma(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
#ifdef OPENJET_HOST
    host::mma16816(d, a, b0, b1);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
// As mma, from zero.
__device__ __forceinline__ void mma_first(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
#ifdef OPENJET_HOST
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    host::mma16816(d, a, b0, b1);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
#endif
}

// Copies 16 bytes from global to shared memory behind the registers' back; visible after copy_wait<0>() and a block barrier.
__device__ __forceinline__ void copy16(void* shared, const void* global) {
#ifdef OPENJET_HOST
    memcpy(shared, global, 16);
#else
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" :: "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
#endif
}
__device__ __forceinline__ void copy4(void* shared, const void* global) {
#ifdef OPENJET_HOST
    memcpy(shared, global, 4);
#else
    asm volatile("cp.async.ca.shared.global [%0],[%1],4;" :: "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
#endif
}
__device__ __forceinline__ void copy_commit() {
#ifndef OPENJET_HOST
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most `Pending` committed groups of this thread are still in flight.
template <int Pending> __device__ __forceinline__ void copy_wait() {
#ifndef OPENJET_HOST
    asm volatile("cp.async.wait_group %0;" :: "n"(Pending) : "memory");
#endif
}

// In a loop that waits for other threads.
__device__ __forceinline__ void host_yield() {
#ifdef OPENJET_HOST
    host::yield();
#endif
}

// A word of shared memory as it is now, whatever the compiler knows of it.
template <class Word> __device__ __forceinline__ Word reread(const Word& word) { return *const_cast<const volatile Word*>(&word); }

// Thread, block, blocks of the launch, and an argument of the kernel, asked for each time. What the compiler knows to stay the same
// over the loop of ops it keeps, with all that follows from it, on the stack, and after a barrier that is a read from L2 in front of
// all else.
#ifdef OPENJET_HOST
inline int thread_now() { return (int)threadIdx.x; }
inline int block_now() { return (int)blockIdx.x; }
inline int blocks_now() { return (int)gridDim.x; }
template <class Word> Word argument_now(Word x) { return x; }
#else
__device__ __forceinline__ int thread_now() {
    int n;
    asm volatile("mov.u32 %0,%%tid.x;" : "=r"(n));
    return n;
}
__device__ __forceinline__ int block_now() {
    int n;
    asm volatile("mov.u32 %0,%%ctaid.x;" : "=r"(n));
    return n;
}
__device__ __forceinline__ int blocks_now() {
    int n;
    asm volatile("mov.u32 %0,%%nctaid.x;" : "=r"(n));
    return n;
}
__device__ __forceinline__ int argument_now(int x) {
    asm volatile("" : "+r"(x));
    return x;
}
__device__ __forceinline__ uint32_t argument_now(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}
template <class T> __device__ __forceinline__ T* argument_now(T* x) {
    asm volatile("" : "+l"(x));
    return x;
}
#endif

// Keeps the compiler from knowing the range of x: address arithmetic with it then folds into the loads' offsets.
__device__ __forceinline__ int opaque(int x) {
#ifndef OPENJET_HOST
    asm("" : "+r"(x));
#endif
    return x;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}
// Sum over the block in a fixed order, the same in every thread. `scratch` is WARPS floats of shared memory, free again at the
// next block barrier.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
    v = warp_sum(v);
    if (lane_id() == 0) scratch[warp_id()] = v;
    __syncthreads();
    float t = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) t += scratch[w];
    return t;
}

// The block's largest, likewise.
__device__ __forceinline__ float block_max(float v, float* scratch) {
    v = warp_max(v);
    if (lane_id() == 0) scratch[warp_id()] = v;
    __syncthreads();
    float t = scratch[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) t = fmaxf(t, scratch[w]);
    return t;
}

// To within some units of the last place, in a few instructions: what comes of them is rounded to halves.
#ifdef OPENJET_HOST
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float inverse_root(float x) { return 1.0f / sqrtf(x); }
#else
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
__device__ __forceinline__ float inverse_root(float x) { return rsqrtf(x); }
#endif
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

}  // namespace openjet
