// Gated DeltaNet: convolution, gates and the delta rule of decode rows; what prompts share with them.
//
// op_deltanet_convolve        decode rows: convolution, SiLU, normalised queries and keys
// op_deltanet_decode          decode rows: takes in what the last step's rows left, then the delta rule and the gated norm
// op_deltanet_settle          takes in what is left without a step (before a state is saved)
//
// The state moves on by what was accepted, a step late: a step saves k, delta and decay of its rows; the next one applies
// those that were accepted, in the same operations, writes the state once and goes on from it in registers.
#pragma once
#include "slot.cuh"
#include "warp.cuh"

namespace openjet {

constexpr int STATE_DIM = 128;
constexpr int TAPS = 4;

// One layer's state of one slot, in floats.
struct DeltaLayout {
    uint32_t key_heads;
    uint32_t value_heads;
    // Most rows of a segment of a decode step.
    uint32_t rows;
    uint32_t reserved;

    __device__ uint32_t channels() const { return (2 * key_heads + value_heads) * STATE_DIM; }
    // [value head][value dimension][key dimension].
    __device__ uint64_t memory() const { return 0; }
    // Inputs of the convolution, TAPS - 1 + rows times all channels. The history begins at row `pending`.
    __device__ uint64_t inputs() const { return (uint64_t)value_heads * STATE_DIM * STATE_DIM; }
    // Keys of the last step's rows, doubled because several heads share them: [parity][row][key head][128].
    __device__ uint64_t keys() const { return inputs() + (uint64_t)(TAPS - 1 + rows) * channels(); }
    // [row][value head][128].
    __device__ uint64_t deltas() const { return keys() + 2ull * rows * key_heads * STATE_DIM; }
    // [row][value head].
    __device__ uint64_t decays() const { return deltas() + (uint64_t)rows * value_heads * STATE_DIM; }
};

struct DeltaArgs {
    Table table;
    const SlotState* slots;
    // This layer's state of slot 0; slot s lies `slot_stride` floats times s further on.
    float* state;
    uint64_t slot_stride;
    // Matrix products.
    const float* qkv;
    const float* z;
    const float* alpha;
    const float* beta;
    // Convolved rows: queries, keys, values. Rows x channels.
    float* mixed;
    // Rows x value heads x 128.
    float* out;
    // Channels x TAPS, oldest first.
    const float* conv;
    const float* dt_bias;
    const float* a;
    const float* norm;
    // Prompts: for each (chunk, value head) what op_deltanet_chunks leaves for op_deltanet_scan.
    float* chunks;
    DeltaLayout layout;
    uint32_t qkv_width;
    uint32_t z_width;
    // Of alpha and beta.
    uint32_t gate_width;
    uint32_t out_width;
    float eps;
    uint32_t reserved;
};
static_assert(sizeof(DeltaArgs) == 160);

__device__ __forceinline__ float* slot_state(const DeltaArgs& a, uint32_t slot) { return a.state + slot * a.slot_stride; }

// SiLU, and the L2 norm of query and key heads. A warp holds a head's 128 channels, 4 in a lane.
__device__ __forceinline__ void finish_head(float (&y)[4], uint32_t head, uint32_t key_heads) {
    float squares = 0.0f;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        y[e] = silu(y[e]);
        squares = fmaf(y[e], y[e], squares);
    }
    if (head >= 2 * key_heads) return;
    const float inverse = 1.0f / sqrtf(warp_sum(squares) + 1e-6f) * (head < key_heads ? 0.08838834764831845f : 1.0f);
#pragma unroll
    for (int e = 0; e < 4; e++) y[e] *= inverse;
}

__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ __forceinline__ void store4(float* p, float a, float b, float c, float d) { *reinterpret_cast<float4*>(p) = make_float4(a, b, c, d); }

// One tap of four channels' convolution.
__device__ __forceinline__ void add_tap(float (&y)[4], const float (&w)[4][TAPS], int tap, float4 x) {
    y[0] = fmaf(w[0][tap], x.x, y[0]);
    y[1] = fmaf(w[1][tap], x.y, y[1]);
    y[2] = fmaf(w[2][tap], x.z, y[2]);
    y[3] = fmaf(w[3][tap], x.w, y[3]);
}

__device__ __forceinline__ void load_taps(float (&w)[4][TAPS], const float* conv, uint32_t channel) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float4 t = load4(conv + (channel + e) * TAPS);
        w[e][0] = t.x;
        w[e][1] = t.y;
        w[e][2] = t.z;
        w[e][3] = t.w;
    }
}

// One warp for each (segment, 128 channels): rows in order.
__device__ __forceinline__ void op_deltanet_convolve(const DeltaArgs& a, char*, int, int block, int blocks) {
    const uint32_t channels = a.layout.channels(), heads = channels / STATE_DIM;
    const uint32_t segments = a.table.header().segments;
    for (uint32_t item = block * WARPS + warp_id(); item < segments * heads; item += blocks * WARPS) {
        const Segment& segment = a.table.segments()[item / heads];
        if (segment.kind == SEGMENT_PROMPT) continue;
        const uint32_t head = item % heads, channel = head * STATE_DIM + 4 * lane_id();
        float w[4][TAPS];
        load_taps(w, a.conv, channel);
        float* inputs = slot_state(a, segment.slot) + a.layout.inputs() + channel;
        const uint32_t pending = a.slots[segment.slot].pending;
        float4 x[TAPS - 1];
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) x[t] = load4(inputs + (uint64_t)(pending + t) * channels);
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) *reinterpret_cast<float4*>(inputs + (uint64_t)t * channels) = x[t];
        for (uint32_t i = 0; i < segment.rows; i++) {
            const uint32_t row = segment.first_row + i;
            const float4 newest = load4(a.qkv + (uint64_t)row * a.qkv_width + channel);
            float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            add_tap(y, w, 0, x[0]);
            add_tap(y, w, 1, x[1]);
            add_tap(y, w, 2, x[2]);
            add_tap(y, w, 3, newest);
            finish_head(y, head, a.layout.key_heads);
            store4(a.mixed + (uint64_t)row * channels + channel, y[0], y[1], y[2], y[3]);
            *reinterpret_cast<float4*>(inputs + (uint64_t)(TAPS - 1 + i) * channels) = newest;
            x[0] = x[1];
            x[1] = x[2];
            x[2] = newest;
        }
    }
}

// A block's share of one value head's state: warp w has columns (value dimensions) 8 w .. 8 w + 7; a lane has 16 key
// dimensions of two of them: 4 (lane % 8) + 32 i + e of columns 8 w + lane / 8 and 4 more.
struct HeadState {
    float s[2][16];

    __device__ static uint32_t column(int c) { return warp_id() * 8 + (lane_id() >> 3) + 4 * c; }
    __device__ static uint32_t key(int i) { return 4 * (lane_id() & 7) + 32 * i; }

    __device__ __forceinline__ void load(const float* memory) {
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 x = load4(memory + column(c) * STATE_DIM + key(i));
                s[c][4 * i] = x.x;
                s[c][4 * i + 1] = x.y;
                s[c][4 * i + 2] = x.z;
                s[c][4 * i + 3] = x.w;
            }
    }
    __device__ __forceinline__ void store(float* memory) const {
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                store4(memory + column(c) * STATE_DIM + key(i), s[c][4 * i], s[c][4 * i + 1], s[c][4 * i + 2], s[c][4 * i + 3]);
    }
    // S = decay S + k delta.
    __device__ __forceinline__ void advance(float decay, const float (&k)[16], const float (&delta)[2]) {
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int i = 0; i < 16; i++) s[c][i] = fmaf(k[i], delta[c], __fmul_rn(decay, s[c][i]));
    }
};

// This lane's 16 of a vector's 128 key dimensions.
__device__ __forceinline__ void load_key(float (&k)[16], const float* from) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 x = load4(from + HeadState::key(i));
        k[4 * i] = x.x;
        k[4 * i + 1] = x.y;
        k[4 * i + 2] = x.z;
        k[4 * i + 3] = x.w;
    }
}

// Applies the rows that the last step left.
__device__ __forceinline__ void replay(HeadState& state, const float* base, const DeltaLayout& l, uint32_t head, uint32_t pending, uint32_t parity) {
    const uint32_t key_head = head % l.key_heads;
    for (uint32_t i = 0; i < pending; i++) {
        float k[16];
        load_key(k, base + l.keys() + ((uint64_t)(parity * l.rows + i) * l.key_heads + key_head) * STATE_DIM);
        const float* from = base + l.deltas() + ((uint64_t)i * l.value_heads + head) * STATE_DIM;
        const float delta[2] = {from[HeadState::column(0)], from[HeadState::column(1)]};
        state.advance(base[l.decays() + (uint64_t)i * l.value_heads + head], k, delta);
    }
}

// Logarithm of the decay of a row's value head.
__device__ __forceinline__ float log_decay(const DeltaArgs& a, uint32_t row, uint32_t head) {
    return a.a[head] * softplus(a.alpha[(uint64_t)row * a.gate_width + head] + a.dt_bias[head]);
}

// RMS norm of a head's output, then the gate: `x` is a lane's 4 of 128 numbers.
__device__ __forceinline__ void gated_norm(const DeltaArgs& a, float4 x, uint32_t row, uint32_t head) {
    const int e = 4 * lane_id();
    const float squares = warp_sum(fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, x.x * x.x))));
    const float inverse = 1.0f / sqrtf(fmaf(squares, 1.0f / STATE_DIM, a.eps));
    const float4 w = load4(a.norm + e), z = load4(a.z + (uint64_t)row * a.z_width + head * STATE_DIM + e);
    store4(a.out + (uint64_t)row * a.out_width + head * STATE_DIM + e, x.x * inverse * w.x * silu(z.x), x.y * inverse * w.y * silu(z.y),
           x.z * inverse * w.z * silu(z.z), x.w * inverse * w.w * silu(z.w));
}

// One block for each (segment, value head). Shared memory: 512 bytes a row.
__device__ __forceinline__ void op_deltanet_decode(const DeltaArgs& a, char* smem, int, int block, int blocks) {
    float* outputs = reinterpret_cast<float*>(smem);
    const DeltaLayout& l = a.layout;
    const uint32_t channels = l.channels(), segments = a.table.header().segments;
    for (uint32_t item = block; item < segments * l.value_heads; item += blocks) {
        const Segment& segment = a.table.segments()[item / l.value_heads];
        if (segment.kind == SEGMENT_PROMPT) continue;
        const uint32_t head = item % l.value_heads, key_head = head % l.key_heads;
        float* base = slot_state(a, segment.slot);
        const SlotState slot = a.slots[segment.slot];
        HeadState state;
        state.load(base + l.memory() + (uint64_t)head * STATE_DIM * STATE_DIM);
        replay(state, base, l, head, slot.pending, slot.parity);
        if (slot.pending) state.store(base + l.memory() + (uint64_t)head * STATE_DIM * STATE_DIM);
        // What the last step left has been read by all before it is written over.
        __syncthreads();
        for (uint32_t i = 0; i < segment.rows; i++) {
            const uint32_t row = segment.first_row + i;
            const float* mixed = a.mixed + (uint64_t)row * channels;
            const float decay = expf(log_decay(a, row, head));
            const float strength = sigmoid(a.beta[(uint64_t)row * a.gate_width + head]);
            float k[16], q[16];
            load_key(q, mixed + key_head * STATE_DIM);
            load_key(k, mixed + (l.key_heads + key_head) * STATE_DIM);
            const float* v = mixed + (2 * l.key_heads + head) * STATE_DIM;
            float kq = 0.0f, sk[2] = {0.0f, 0.0f}, sq[2] = {0.0f, 0.0f};
#pragma unroll
            for (int n = 0; n < 16; n++) {
                kq = fmaf(k[n], q[n], kq);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    sk[c] = fmaf(state.s[c][n], k[n], sk[c]);
                    sq[c] = fmaf(state.s[c][n], q[n], sq[c]);
                }
            }
            kq = lanes_sum<8>(kq);
            float delta[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                sk[c] = lanes_sum<8>(sk[c]);
                sq[c] = lanes_sum<8>(sq[c]);
                // Of the decayed state; the output sees the updated one: (decay S + k delta) q.
                delta[c] = strength * fmaf(-decay, sk[c], v[HeadState::column(c)]);
                if ((lane_id() & 7) == 0) {
                    outputs[i * STATE_DIM + HeadState::column(c)] = fmaf(kq, delta[c], __fmul_rn(decay, sq[c]));
                    base[l.deltas() + ((uint64_t)i * l.value_heads + head) * STATE_DIM + HeadState::column(c)] = delta[c];
                }
            }
            state.advance(decay, k, delta);
            if (threadIdx.x == 0) base[l.decays() + (uint64_t)i * l.value_heads + head] = decay;
            if (head < l.key_heads && threadIdx.x < STATE_DIM)
                base[l.keys() + ((uint64_t)((slot.parity ^ 1) * l.rows + i) * l.key_heads + key_head) * STATE_DIM + threadIdx.x] =
                    mixed[(l.key_heads + key_head) * STATE_DIM + threadIdx.x];
        }
        __syncthreads();
        for (uint32_t i = warp_id(); i < segment.rows; i += WARPS)
            gated_norm(a, load4(outputs + i * STATE_DIM + 4 * lane_id()), segment.first_row + i, head);
        __syncthreads();
    }
}

// One slot's state of all layers, to be brought up to what was accepted.
struct SettleArgs {
    float* state;
    uint64_t layer_stride;
    SlotState* slot;
    uint32_t layers;
    uint32_t reserved;
    DeltaLayout layout;
};
static_assert(sizeof(SettleArgs) == 48);

// One block for each (layer, value head), then one warp for each (layer, 128 channels). Afterwards nothing is pending:
// the caller clears `pending` when all blocks are done.
__device__ __forceinline__ void op_deltanet_settle(const SettleArgs& a, char*, int, int block, int blocks) {
    const DeltaLayout& l = a.layout;
    const SlotState slot = *a.slot;
    if (slot.pending == 0) return;
    for (uint32_t item = block; item < a.layers * l.value_heads; item += blocks) {
        float* base = a.state + item / l.value_heads * a.layer_stride;
        const uint32_t head = item % l.value_heads;
        float* memory = base + l.memory() + (uint64_t)head * STATE_DIM * STATE_DIM;
        HeadState state;
        state.load(memory);
        replay(state, base, l, head, slot.pending, slot.parity);
        state.store(memory);
    }
    const uint32_t channels = l.channels(), heads = channels / STATE_DIM;
    for (uint32_t item = block * WARPS + warp_id(); item < a.layers * heads; item += blocks * WARPS) {
        float* inputs = a.state + item / heads * a.layer_stride + l.inputs() + item % heads * STATE_DIM + 4 * lane_id();
        float4 x[TAPS - 1];
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) x[t] = load4(inputs + (uint64_t)(slot.pending + t) * channels);
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) *reinterpret_cast<float4*>(inputs + (uint64_t)t * channels) = x[t];
    }
}

}  // namespace openjet
