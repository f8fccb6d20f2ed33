// CUDA's words for a C++ compiler: lets the ops run on the CPU, in tests, without a GPU or a CUDA installation.
//
// Every thread of a block is a fibre (fibre.cpp) on one OS thread; a warp's collective operations and block barriers switch
// fibres. Slow and exact: it finds wrong indices, missing barriers and wrong formulas, not timing.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__
#define __align__(n) alignas(n)

struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct int2 { int32_t x, y; };
struct alignas(16) int4 { int32_t x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace host {
struct Thread { dim3 thread_idx, block_idx; };
extern thread_local Thread* self;
extern thread_local dim3 block_dim, grid_dim;
void block_barrier();
int block_barrier_or(int v);
void warp_barrier(uint32_t mask);
void yield();
// This warp's exchange area: 32 lanes x 8 words, two of them in turn.
uint32_t* warp_slots();
void mma16816(float* d, const uint32_t* a, uint32_t b0, uint32_t b1);
int lane();
}  // namespace host
#define threadIdx (::host::self->thread_idx)
#define blockIdx (::host::self->block_idx)
#define blockDim (::host::block_dim)
#define gridDim (::host::grid_dim)

static inline void __syncthreads() { host::block_barrier(); }
static inline int __syncthreads_or(int v) { return host::block_barrier_or(v); }
static inline void __syncwarp(uint32_t mask = 0xffffffffu) { host::warp_barrier(mask); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __nanosleep(unsigned) { host::yield(); }

template <class T> static inline T shim_exchange(uint32_t mask, T v, int source) {
    static_assert(sizeof(T) <= 8);
    uint32_t* s = host::warp_slots();
    memcpy(s + host::lane() * 8, &v, sizeof(T));
    host::warp_barrier(mask);
    T r;
    memcpy(&r, s + (source & 31) * 8, sizeof(T));
    return r;
}
template <class T> static inline T __shfl_sync(uint32_t mask, T v, int lane, int width = 32) {
    int me = host::lane();
    return shim_exchange(mask, v, (me & ~(width - 1)) | (lane & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T v, int x, int = 32) { return shim_exchange(mask, v, host::lane() ^ x); }
template <class T> static inline T __shfl_down_sync(uint32_t mask, T v, unsigned d, int width = 32) {
    int me = host::lane(), to = me + (int)d;
    return shim_exchange(mask, v, (to / width == me / width) ? to : me);
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T v, unsigned d, int width = 32) {
    int me = host::lane(), to = me - (int)d;
    return shim_exchange(mask, v, (to >= 0 && to / width == me / width) ? to : me);
}
static inline uint32_t __ballot_sync(uint32_t mask, int p) {
    uint32_t* s = host::warp_slots();
    s[host::lane() * 8] = p ? 1u : 0u;
    host::warp_barrier(mask);
    uint32_t r = 0;
    for (int l = 0; l < 32; l++) if ((mask >> l & 1) && s[l * 8]) r |= 1u << l;
    return r;
}
static inline int __any_sync(uint32_t mask, int p) { return __ballot_sync(mask, p) != 0; }
static inline int __all_sync(uint32_t mask, int p) { return __ballot_sync(mask, p) == mask; }
static inline uint32_t __activemask() { return 0xffffffffu; }
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a * b) >> 32); }
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t s) {
    uint64_t v = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) r |= (uint32_t)((v >> (8 * (s >> (4 * i) & 7))) & 255) << (8 * i);
    return r;
}

template <class T, class U> static inline T atomicAdd(T* p, U v) { T o = *p; *p = (T)(o + v); return o; }
template <class T, class U> static inline T atomicMax(T* p, U v) { T o = *p; if ((T)v > o) *p = (T)v; return o; }
template <class T, class U> static inline T atomicMin(T* p, U v) { T o = *p; if ((T)v < o) *p = (T)v; return o; }
template <class T, class U> static inline T atomicOr(T* p, U v) { T o = *p; *p = o | (T)v; return o; }
template <class T, class U> static inline T atomicExch(T* p, U v) { T o = *p; *p = (T)v; return o; }
template <class T, class U, class W> static inline T atomicCAS(T* p, U c, W v) { T o = *p; if (o == (T)c) *p = (T)v; return o; }

struct __half { uint16_t x; };
struct __half2 { __half x, y; };
typedef __half half;
typedef __half2 half2;
static inline float __half2float(half h) { return _cvtsh_ss(h.x); }
static inline half __float2half_rn(float f) { return {(uint16_t)_cvtss_sh(f, 0)}; }
static inline half __float2half(float f) { return __float2half_rn(f); }
static inline half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
static inline half2 __float2half2_rn(float a) { return {__float2half_rn(a), __float2half_rn(a)}; }
static inline half2 __halves2half2(half a, half b) { return {a, b}; }
static inline half2 __low2half2(half2 h) { return {h.x, h.x}; }
static inline half2 __high2half2(half2 h) { return {h.y, h.y}; }
static inline half2 __half2half2(half a) { return {a, a}; }
static inline half __low2half(half2 h) { return h.x; }
static inline half __high2half(half2 h) { return h.y; }
static inline float __low2float(half2 h) { return __half2float(h.x); }
static inline float __high2float(half2 h) { return __half2float(h.y); }
static inline float2 __half22float2(half2 h) { return {__low2float(h), __high2float(h)}; }
static inline uint16_t __half_as_ushort(half h) { return h.x; }
static inline half __ushort_as_half(uint16_t u) { return {u}; }
static inline half2 shim_map(half2 a, half2 b, float (*f)(float, float)) {
    return __floats2half2_rn(f(__low2float(a), __low2float(b)), f(__high2float(a), __high2float(b)));
}
static inline half2 __hadd2(half2 a, half2 b) { return shim_map(a, b, [](float x, float y) { return x + y; }); }
static inline half2 __hsub2(half2 a, half2 b) { return shim_map(a, b, [](float x, float y) { return x - y; }); }
static inline half2 __hmul2(half2 a, half2 b) { return shim_map(a, b, [](float x, float y) { return x * y; }); }
static inline half2 __hfma2(half2 a, half2 b, half2 c) {
    return __floats2half2_rn(std::fma(__low2float(a), __low2float(b), __low2float(c)), std::fma(__high2float(a), __high2float(b), __high2float(c)));
}

static inline uint32_t __float_as_uint(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline int __float_as_int(float f) { int u; memcpy(&u, &f, 4); return u; }
static inline float __uint_as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline float __int_as_float(int u) { float f; memcpy(&f, &u, 4); return f; }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline float shim_exp(float x) { return std::exp(x); }
static inline float shim_log(float x) { return std::log(x); }
#define __expf shim_exp
#define __logf shim_log
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static inline int __float2int_rn(float x) { return (int)std::nearbyint(x); }
static inline int __float2int_rd(float x) { return (int)std::floor(x); }
static inline uint32_t __float2uint_rn(float x) { return (uint32_t)std::nearbyint(x); }
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline void __stcg(T* p, T v) { *p = v; }
template <class T> static inline void __stcs(T* p, T v) { *p = v; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }
static inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
