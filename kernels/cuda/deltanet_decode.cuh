// Gated DeltaNet: the step of decode rows.
#pragma once
#include "barrier.cuh"
#include "deltanet.cuh"

namespace openjet {

// A (segment, value head), or half of one, and where what it needs is found: two words, since the next item's are held while one is
// worked on.
struct DeltaItem {
    uint32_t place;                  // there, slot (7 bits), first row (8), rows (6), head (10)
    uint32_t left;                   // parity, half, pending rows

    DeltaItem() = default;
    // `halves` of a head are items.
    __device__ __forceinline__ DeltaItem(const DeltaArgs& a, uint32_t item, uint32_t items, uint32_t halves) {
        place = left = 0;
        if (item >= items) return;
        const uint32_t half = item % halves;
        item /= halves;
        const DeltaSegment segment(a.table, item / a.layout.value_heads);
        const uint32_t rows = segment.kind == SEGMENT_PROMPT ? 0 : segment.rows;
        place = 1 | segment.slot << 1 | segment.first_row << 8 | rows << 16 | item % a.layout.value_heads << 22;
        const uint4 state = *reinterpret_cast<const uint4*>(&a.slots[segment.slot]);
        left = state.y | half << 1 | state.x << 2;
    }
    __device__ __forceinline__ bool there() const { return place & 1; }
    __device__ __forceinline__ uint32_t slot() const { return place >> 1 & 127; }
    __device__ __forceinline__ uint32_t first_row() const { return place >> 8 & 255; }
    __device__ __forceinline__ uint32_t rows() const { return place >> 16 & 63; }
    __device__ __forceinline__ uint32_t head() const { return place >> 22; }
    __device__ __forceinline__ uint32_t parity() const { return left & 1; }
    __device__ __forceinline__ uint32_t half() const { return left >> 1 & 1; }
    __device__ __forceinline__ uint32_t pending() const { return left >> 2; }
};
constexpr uint32_t MAX_VALUE_HEADS = 1023;                       // as in src/memory.rs

// A block's first items, which are the same in each layer of a launch: found once, since finding one takes two reads from L2, one
// after the other. They stand behind the gate.
struct DeltaItems {
    static constexpr uint32_t KEPT = 8;
    uint32_t known;
    DeltaItem item[KEPT];

    __device__ static __forceinline__ DeltaItems& of(char* smem) { return *reinterpret_cast<DeltaItems*>(smem - GATE + sizeof(Gate)); }
    // When the kernel begins, before a block barrier.
    __device__ static __forceinline__ void begin(char* smem) {
        if (threadIdx.x == 0) of(smem).known = 0;
    }
    __device__ __forceinline__ void find(const DeltaArgs& a, uint32_t block, uint32_t blocks, uint32_t items, uint32_t halves) {
        if (reread(known)) return;
        if (threadIdx.x < KEPT) item[threadIdx.x] = DeltaItem(a, block + threadIdx.x * blocks, items, halves);
        __syncthreads();
        if (threadIdx.x == 0) known = 1;
    }
    // The block's n-th.
    __device__ __forceinline__ DeltaItem get(const DeltaArgs& a, uint32_t n, uint32_t block, uint32_t blocks, uint32_t items, uint32_t halves) const {
        return n < KEPT ? item[n] : DeltaItem(a, block + n * blocks, items, halves);
    }
};
static_assert(sizeof(Gate) + sizeof(DeltaItems) + sizeof(TableHeader) <= GATE);

// What a block has of an item in shared memory besides the state. All of it is copied at once, so that memory is waited for once
// and not in every row, and while the item before is worked on where there is room for two.
struct DeltaRows {
    float* mixed;                    // [query, key, value][TAPS - 1 + row][128]: the convolution's inputs; its outputs from the front
    float* left;                     // of the last step's rows: [row][key, delta][128]
    float* taps;                     // [query, key, value][128][TAPS]
    float* scalars;                  // [alpha, beta, decay of the last step][row], then A and the bias of dt

    // `rows` is the most that there can be.
    __device__ __forceinline__ DeltaRows(char* smem, uint32_t rows) {
        mixed = reinterpret_cast<float*>(smem);
        left = mixed + 3 * (TAPS - 1 + rows) * STATE_DIM;
        taps = left + 2 * rows * STATE_DIM;
        scalars = taps + 3 * STATE_DIM * TAPS;
    }
    __device__ static int bytes(uint32_t rows) { return (int)((5 * rows + 3 * (TAPS - 1) + 3 * TAPS) * STATE_DIM + (3 * rows + 2 + 3) / 4 * 4) * 4; }

    __device__ __forceinline__ float* row(uint32_t part, uint32_t i, uint32_t rows) const { return mixed + (part * (TAPS - 1 + rows) + i) * STATE_DIM; }

    // What the step before has left and what is the model's, which no op of this step has changed. A warp a task: 512 bytes.
    __device__ __forceinline__ void fetch_kept(const DeltaArgs& a, const DeltaItem& item, const float* base) const {
        const DeltaLayout& l = a.layout;
        const uint32_t key_head = item.head() % l.key_heads, lane = lane_id(), e = 4 * lane;
        constexpr uint32_t inputs = 3 * (TAPS - 1);
        const uint32_t kept = inputs + 2 * item.pending(), all = kept + 3 * TAPS;
#pragma unroll 1
        for (uint32_t task = warp_id(); task <= all; task += WARPS) {
            if (task < inputs) {
                const uint32_t i = task / 3, part = task - 3 * i;
                copy16(row(part, i, item.rows()) + e, base + l.inputs() + (uint64_t)(item.pending() + i) * l.channels() + channel_of(l, part, item.head()) + e);
            } else if (task < kept) {
                const uint32_t i = (task - inputs) / 2;
                const float* from = (task - inputs) % 2 ? base + l.deltas() + ((uint64_t)i * l.value_heads + item.head()) * STATE_DIM
                                                        : base + l.keys() + ((uint64_t)(item.parity() * l.rows + i) * l.key_heads + key_head) * STATE_DIM;
                copy16(left + (task - inputs) * STATE_DIM + e, from + e);
            } else if (task < all) {
                const uint32_t part = (task - kept) / TAPS, quarter = (task - kept) % TAPS * STATE_DIM;
                copy16(taps + part * STATE_DIM * TAPS + quarter + e, a.conv + channel_of(l, part, item.head()) * TAPS + quarter + e);
            } else {
#pragma unroll 1
                for (uint32_t i = lane; i < item.pending(); i += 32) copy4(scalars + 2 * l.rows + i, base + l.decays() + (uint64_t)i * l.value_heads + item.head());
                if (lane == 0) copy4(scalars + 3 * l.rows, a.a + item.head());
                if (lane == 1) copy4(scalars + 3 * l.rows + 1, a.dt_bias + item.head());
            }
        }
    }
    // What the op before has made.
    __device__ __forceinline__ void fetch_new(const DeltaArgs& a, const DeltaItem& item) const {
        const DeltaLayout& l = a.layout;
        const uint32_t lane = lane_id(), e = 4 * lane;
#pragma unroll 1
        for (uint32_t task = warp_id(); task <= 3 * item.rows(); task += WARPS) {
            if (task < 3 * item.rows()) {
                const uint32_t i = task / 3, part = task - 3 * i;
                copy16(row(part, TAPS - 1 + i, item.rows()) + e, a.qkv + (uint64_t)(item.first_row() + i) * a.qkv_width + channel_of(l, part, item.head()) + e);
                continue;
            }
#pragma unroll 1
            for (uint32_t i = lane; i < item.rows(); i += 32) {
                const uint64_t at = (uint64_t)(item.first_row() + i) * a.gate_width + item.head();
                copy4(scalars + i, a.alpha + at);
                copy4(scalars + l.rows + i, a.beta + at);
            }
        }
    }
    __device__ static uint32_t channel_of(const DeltaLayout& l, uint32_t part, uint32_t head) {
        return (part == 0 ? head % l.key_heads : part == 1 ? l.key_heads + head % l.key_heads : 2 * l.key_heads + head) * STATE_DIM;
    }
    // Convolves in place: an output takes the place of its oldest input, which no later row reads.
    __device__ __forceinline__ void convolve(const DeltaLayout& l, uint32_t rows) const {
        const uint32_t e = 4 * lane_id();
#pragma unroll 1
        for (uint32_t first = 0; first < 3 * rows; first += WARPS) {
            const uint32_t task = first + warp_id(), i = task / 3, part = task - 3 * i;
            float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (task < 3 * rows) {
                float w[4][TAPS];
                load_taps(w, taps + part * STATE_DIM * TAPS, e);
#pragma unroll
                for (int t = 0; t < TAPS; t++) add_tap(y, w, t, load4(row(part, i + t, rows) + e));
                finish_head(y, part * l.key_heads, l.key_heads);
            }
            __syncthreads();
            if (task < 3 * rows) store4(row(part, i, rows) + e, y[0], y[1], y[2], y[3]);
        }
    }
};

// Bytes of a value head's state.
constexpr int HEAD_BYTES = STATE_DIM * STATE_DIM * 4;

// One block for each (segment, value head), or half of one where N is 1. Shared memory: what DeltaRows takes, and 8 bytes a row that a segment can have; with as
// much again and HEAD_BYTES, an item comes while the one before it is worked on, and the first one begins to
// before the gate is passed.
template <int N> __device__ __forceinline__ void deltanet_decode(const DeltaArgs& a, char* smem, int smem_bytes, int block, int blocks) {
    constexpr uint32_t HALVES = 2 / N;
    using State = HeadState<N>;
    const DeltaLayout& l = a.layout;
    float* gates = reinterpret_cast<float*>(smem);               // [row][decay, strength]
    char* places = smem + (l.rows * 2 * 4 + 15) / 16 * 16;
    const int place = DeltaRows::bytes(l.rows);
    const bool ahead = smem_bytes >= places - smem + 2 * place + HEAD_BYTES;
    char* fetched = places + 2 * place;
    const uint32_t heads = l.value_heads, items = header_word(smem, HEADER_SEGMENTS) * heads * HALVES;
    auto own = [&](const DeltaItem& item) {
        return slot_state(a, item.slot()) + l.memory() + (uint64_t)(2 * item.head() + item.half()) * (STATE_DIM * STATE_DIM / 2);
    };
    // `item` is here or on its way, `next` is asked for: where there is room for both, before `item` is worked on, else in a round of
    // its own.
    DeltaItems& kept = DeltaItems::of(smem);
    kept.find(a, block, blocks, items, HALVES);
    DeltaItem item = {}, next = kept.get(a, 0, block, blocks, items, HALVES);
    uint32_t turn = 0, n = 0;
    bool passed = peek_gate(smem);
#pragma unroll 1
    while (item.there() || next.there()) {
        const DeltaRows shared(places + turn * place, l.rows);
        State state = {};
        if (item.there()) {
            if (!ahead) state.load(own(item));
            copy_wait<0>();
            if (ahead) state.take(fetched);
            __syncthreads();
        }
        const DeltaItem now = item;
        item.place = 0;
        if (ahead || !now.there()) {
            if (ahead) turn ^= 1;
            const DeltaRows to(places + turn * place, l.rows);
            const bool comes = next.there() && next.rows();
            if (comes) to.fetch_kept(a, next, slot_state(a, next.slot()));
            if (comes && ahead) State::fetch(fetched, own(next));
            if (!passed) pass_gate(smem);
            passed = true;
            if (comes) to.fetch_new(a, next);
            copy_commit();
            item = next;
            n++;
            next = kept.get(a, n, block, blocks, items, HALVES);
        }
        if (!now.there() || now.rows() == 0) continue;
        const uint32_t rows = now.rows(), head = now.head(), pending = now.pending(), column0 = now.half() * (STATE_DIM / 2);
        float* base = slot_state(a, now.slot());
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < rows; i += THREADS) {
            gates[2 * i] = expf(shared.scalars[3 * l.rows] * softplus(shared.scalars[i] + shared.scalars[3 * l.rows + 1]));
            gates[2 * i + 1] = sigmoid(shared.scalars[l.rows + i]);
        }
        shared.convolve(l, rows);
        __syncthreads();
#pragma unroll 1
        for (uint32_t i = 0; i < pending; i++) {
            float k[16];
            load_key(k, shared.left + 2 * i * STATE_DIM);
            const float* from = shared.left + (2 * i + 1) * STATE_DIM + column0;
            float delta[N];
#pragma unroll
            for (int c = 0; c < N; c++) delta[c] = from[State::column(c)];
            state.advance(shared.scalars[2 * l.rows + i], k, delta);
        }
        if (pending) state.store(own(now));
        float* deltas = base + l.deltas() + (uint64_t)head * STATE_DIM + column0;
        float* outputs = a.out + (uint64_t)now.first_row() * a.out_width + head * STATE_DIM + column0;
#pragma unroll 1
        for (uint32_t i = 0; i < rows; i++) {
            const float decay = gates[2 * i], strength = gates[2 * i + 1];
            const float *query = shared.row(0, i, rows), *key = shared.row(1, i, rows), *value = shared.row(2, i, rows) + column0;
            float k[16], q[16];
            load_key(q, query);
            load_key(k, key);
            float kq = 0.0f, sk[N] = {}, sq[N] = {};
#pragma unroll
            for (int n = 0; n < 16; n++) {
                kq = fmaf(k[n], q[n], kq);
#pragma unroll
                for (int c = 0; c < N; c++) {
                    sk[c] = fmaf(state.s[c][n], k[n], sk[c]);
                    sq[c] = fmaf(state.s[c][n], q[n], sq[c]);
                }
            }
            kq = lanes_sum<8>(kq);
            float delta[N];
#pragma unroll
            for (int c = 0; c < N; c++) {
                sk[c] = lanes_sum<8>(sk[c]);
                sq[c] = lanes_sum<8>(sq[c]);
                // Of the decayed state; the output sees the updated one: (decay S + k delta) q.
                delta[c] = strength * fmaf(-decay, sk[c], value[State::column(c)]);
                if ((lane_id() & 7) == 0) {
                    outputs[(uint64_t)i * a.out_width + State::column(c)] = fmaf(kq, delta[c], __fmul_rn(decay, sq[c]));
                    deltas[(uint64_t)i * heads * STATE_DIM + State::column(c)] = delta[c];
                }
            }
            if (i + 1 < rows) state.advance(decay, k, delta);
        }
#pragma unroll 1
        for (uint32_t i = warp_id(); i < rows && now.half() == 0; i += WARPS) {
            const int e = 4 * lane_id();
            if (head < l.key_heads)
                *reinterpret_cast<float4*>(base + l.keys() + ((uint64_t)((now.parity() ^ 1) * l.rows + i) * l.key_heads + head) * STATE_DIM + e) =
                    load4(shared.row(1, i, rows) + e);
            if (e == 0) base[l.decays() + (uint64_t)i * heads + head] = gates[2 * i];
        }
        __syncthreads();
    }
    if (!passed) pass_gate(smem);
    copy_wait<0>();
}

// By halves where there are blocks for all of them: half a head takes more than half of one's time.
__device__ __forceinline__ void op_deltanet_decode(const DeltaArgs& a, char* smem, int smem_bytes, int block, int blocks) {
    const int heads = header_word(smem, HEADER_SEGMENTS) * (int)a.layout.value_heads;
    if (2 * heads <= blocks) deltanet_decode<1>(a, smem, smem_bytes, block, blocks);
    else deltanet_decode<2>(a, smem, smem_bytes, block, blocks);
}

}  // namespace openjet
