// Gated DeltaNet: convolution, gates and the delta rule of decode rows; what prompts share with them.
//
// op_deltanet_decode          decode rows: convolution, what the last step's rows left, the delta rule (deltanet_decode.cuh)
// op_deltanet_keep            decode rows: keeps the convolution's inputs for the next step
// op_deltanet_settle          takes in what is left without a step (before a state is saved)
//
// The state moves on by what was accepted, a step late: a step saves k, delta and decay of its rows; the next one applies
// those that were accepted, in the same operations, writes the state once and goes on from it in registers. The gated norm is where
// the outputs become the next matmul's input (pack.cuh).
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
    const float* alpha;
    const float* beta;
    // Prompts: convolved rows: queries, keys, values. Rows x channels.
    float* mixed;
    // Rows x value heads x 128, before the norm.
    float* out;
    // Channels x TAPS, oldest first.
    const float* conv;
    const float* dt_bias;
    const float* a;
    // Prompts: for each (chunk, value head) what op_deltanet_chunks leaves for op_deltanet_scan.
    float* chunks;
    DeltaLayout layout;
    uint32_t qkv_width;
    // Of alpha and beta.
    uint32_t gate_width;
    uint32_t out_width;
    uint32_t reserved;
};
static_assert(sizeof(DeltaArgs) == 136);

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

// What is needed first of a segment of a decode step, in one load.
struct DeltaSegment {
    uint32_t slot, first_row, rows, kind;

    __device__ __forceinline__ DeltaSegment(const Table& table, uint32_t i) {
        const uint4 head = *reinterpret_cast<const uint4*>(&table.segments()[i]);
        slot = head.x;
        first_row = head.y;
        rows = head.z;
        kind = head.w;
    }
};

// A row's input of four channels' convolution, where rows before the segment's first are counted back from 0.
__device__ __forceinline__ float4 convolution_input(const DeltaArgs& a, uint32_t first_row, const float* before, uint32_t channel, int i) {
    if (i >= 0) return load4(a.qkv + (uint64_t)(first_row + i) * a.qkv_width + channel);
    return load4(before + (uint64_t)(TAPS - 1 + i) * a.layout.channels());
}

// One warp for each (segment, 128 channels): keeps the inputs of the rows, and of those before them that the next step may need.
// After op_deltanet_decode, which reads what is written over here; by the last blocks, since the first ones have other work then.
__device__ __forceinline__ void op_deltanet_keep(const DeltaArgs& a, char* smem, int, int block, int blocks) {
    const uint32_t channels = a.layout.channels(), heads = channels / STATE_DIM;
    const uint32_t segments = header_word(smem, HEADER_SEGMENTS);
    for (uint32_t item = (blocks - 1 - block) * WARPS + warp_id(); item < segments * heads; item += blocks * WARPS) {
        const DeltaSegment segment(a.table, item / heads);
        if (segment.kind == SEGMENT_PROMPT) continue;
        const uint32_t channel = item % heads * STATE_DIM + 4 * lane_id();
        float* inputs = slot_state(a, segment.slot) + a.layout.inputs() + channel;
        const float* before = inputs + (uint64_t)a.slots[segment.slot].pending * channels;
        float4 x[TAPS - 1];
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) x[t] = convolution_input(a, segment.first_row, before, channel, t - (TAPS - 1));
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) *reinterpret_cast<float4*>(inputs + (uint64_t)t * channels) = x[t];
        for (uint32_t i = 0; i < segment.rows; i++)
            *reinterpret_cast<float4*>(inputs + (uint64_t)(TAPS - 1 + i) * channels) = convolution_input(a, segment.first_row, before, channel, (int)i);
    }
}

// The first of the four key dimensions that a lane has of each quarter of them.
__device__ __forceinline__ uint32_t state_key(int quarter) { return 4 * (lane_id() & 7) + 32 * quarter; }

// Columns (value dimensions) of one value head's state, 64 N of the 128 that a block holds: warp w has 4 N w and those after it; a lane
// has 16 key dimensions of N of them: 4 (lane % 8) + 32 i + e of columns 4 N w + lane / 8 + 4 c. What becomes of a column is the same
// for each N.
template <int N> struct HeadState {
    float s[N][16];

    __device__ static uint32_t column(int c) { return warp_id() * 4 * N + (lane_id() >> 3) + 4 * c; }
    __device__ __forceinline__ void load(const float* memory) {
#pragma unroll
        for (int c = 0; c < N; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 x = load4(memory + column(c) * STATE_DIM + state_key(i));
                s[c][4 * i] = x.x;
                s[c][4 * i + 1] = x.y;
                s[c][4 * i + 2] = x.z;
                s[c][4 * i + 3] = x.w;
            }
    }
    // The same through shared memory, with time between the two: a thread takes what it fetched itself.
    __device__ static void fetch(char* shared, const float* memory) {
#pragma unroll
        for (int c = 0; c < N; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) copy16(shared + ((4 * c + i) * THREADS + threadIdx.x) * 16, memory + column(c) * STATE_DIM + state_key(i));
    }
    __device__ __forceinline__ void take(const char* shared) {
#pragma unroll
        for (int c = 0; c < N; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 x = *reinterpret_cast<const float4*>(shared + ((4 * c + i) * THREADS + threadIdx.x) * 16);
                s[c][4 * i] = x.x;
                s[c][4 * i + 1] = x.y;
                s[c][4 * i + 2] = x.z;
                s[c][4 * i + 3] = x.w;
            }
    }
    __device__ __forceinline__ void store(float* memory) const {
#pragma unroll
        for (int c = 0; c < N; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                store4(memory + column(c) * STATE_DIM + state_key(i), s[c][4 * i], s[c][4 * i + 1], s[c][4 * i + 2], s[c][4 * i + 3]);
    }
    // S = decay S + k delta.
    __device__ __forceinline__ void advance(float decay, const float (&k)[16], const float (&delta)[N]) {
#pragma unroll
        for (int c = 0; c < N; c++)
#pragma unroll
            for (int i = 0; i < 16; i++) s[c][i] = fmaf(k[i], delta[c], __fmul_rn(decay, s[c][i]));
    }
};

// This lane's 16 of a vector's 128 key dimensions.
__device__ __forceinline__ void load_key(float (&k)[16], const float* from) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 x = load4(from + state_key(i));
        k[4 * i] = x.x;
        k[4 * i + 1] = x.y;
        k[4 * i + 2] = x.z;
        k[4 * i + 3] = x.w;
    }
}

// Applies the rows that the last step left.
__device__ __forceinline__ void replay(HeadState<2>& state, const float* base, const DeltaLayout& l, uint32_t head, uint32_t pending, uint32_t parity) {
    const uint32_t key_head = head % l.key_heads;
    for (uint32_t i = 0; i < pending; i++) {
        float k[16];
        load_key(k, base + l.keys() + ((uint64_t)(parity * l.rows + i) * l.key_heads + key_head) * STATE_DIM);
        const float* from = base + l.deltas() + ((uint64_t)i * l.value_heads + head) * STATE_DIM;
        const float delta[2] = {from[HeadState<2>::column(0)], from[HeadState<2>::column(1)]};
        state.advance(base[l.decays() + (uint64_t)i * l.value_heads + head], k, delta);
    }
}

// Logarithm of the decay of a row's value head.
__device__ __forceinline__ float log_decay(const DeltaArgs& a, uint32_t row, uint32_t head) {
    return a.a[head] * softplus(a.alpha[(uint64_t)row * a.gate_width + head] + a.dt_bias[head]);
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
        HeadState<2> state;
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
