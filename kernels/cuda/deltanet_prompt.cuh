// Gated DeltaNet over prompt chunks, 64 tokens at a time, in launches of their own.
//
// op_deltanet_convolve_prompt  convolution, SiLU, normalised queries and keys, all rows in parallel
// op_deltanet_chunks           what a chunk alone decides, all chunks in parallel
// op_deltanet_scan             chunk after chunk over the state
// op_deltanet_finish           the convolution's history
//
// With c_i the running sum of log decays in a chunk, A_ij = beta_i (k_i k_j) e^(c_i - c_j) for j < i:
// (I + A) U = diag(beta) V, (I + A) W = diag(beta e^c) K; D = U - W S, O_i = e^(c_i) q_i S + sum_(j <= i) P_ij D_j with
// P_ij = (q_i k_j) e^(c_i - c_j), S' = e^(c_last) S + sum_j e^(c_last - c_j) k_j D_j. Every exponent is at most 0. Chunks
// end at absolute multiples of 64, so how a prompt is cut into launches at such multiples changes no bit.
#pragma once
#include "deltanet.cuh"

namespace openjet {

constexpr int CHUNK = 64;
constexpr int CHUNK_STRIDE = STATE_DIM + 4;
constexpr int SQUARE_STRIDE = CHUNK + 4;
// Of one (chunk, value head) in DeltaArgs::chunks, in floats: U, W, P, c.
constexpr int CHUNK_W = CHUNK * STATE_DIM;
constexpr int CHUNK_P = 2 * CHUNK * STATE_DIM;
constexpr int CHUNK_C = CHUNK_P + CHUNK * CHUNK;
constexpr int CHUNK_FLOATS = CHUNK_C + CHUNK;

// A prompt segment's chunks: the first one may be short at its front, the last one at its end.
struct Chunks {
    uint32_t count;
    uint32_t position;
    uint32_t first_row;
    uint32_t rows;

    __device__ explicit Chunks(const Segment& s) : count(0), position(s.position), first_row(s.first_row), rows(s.rows) {
        if (s.kind == SEGMENT_PROMPT) count = (position % CHUNK + rows + CHUNK - 1) / CHUNK;
    }
    __device__ uint32_t begin(uint32_t chunk) const { return chunk == 0 ? 0 : chunk * CHUNK - position % CHUNK; }
    __device__ uint32_t end(uint32_t chunk) const { return min((chunk + 1) * CHUNK - position % CHUNK, rows); }
};

// One warp for each (CONVOLVE_ROWS rows, 128 channels): a row's inputs are those of the row before but one.
constexpr uint32_t CONVOLVE_ROWS = 4;
__device__ __forceinline__ void op_deltanet_convolve_prompt(const DeltaArgs& a, char*, int, int block, int blocks) {
    const uint32_t channels = a.layout.channels(), heads = channels / STATE_DIM;
    const uint32_t rows = a.table.header().rows, groups = (rows + CONVOLVE_ROWS - 1) / CONVOLVE_ROWS;
    for (uint32_t item = block * WARPS + warp_id(); item < groups * heads; item += blocks * WARPS) {
        const uint32_t head = item % heads, channel = head * STATE_DIM + 4 * lane_id();
        float w[4][TAPS];
        load_taps(w, a.conv, channel);
        uint32_t row = item / heads * CONVOLVE_ROWS;
        const uint32_t end = min(row + CONVOLVE_ROWS, rows);
        while (row < end) {
            // The rows of one segment.
            const Segment& segment = a.table.segments()[a.table.rows()[row].segment];
            const uint32_t first = segment.first_row, stop = min(end, first + segment.rows);
            if (segment.kind != SEGMENT_PROMPT) {
                row = stop;
                continue;
            }
            const float* history = slot_state(a, segment.slot) + a.layout.inputs() + channel + (uint64_t)(a.slots[segment.slot].pending + TAPS - 1) * channels;
            auto input = [&](int i) {
                return load4(i >= 0 ? a.qkv + (uint64_t)(first + i) * a.qkv_width + channel : history + (int64_t)i * (int)channels);
            };
            float4 x[TAPS - 1 + CONVOLVE_ROWS];
#pragma unroll
            for (int i = 0; i < (int)(TAPS - 1 + CONVOLVE_ROWS); i++) {
                const int from = (int)(row - first) + i - (TAPS - 1);
                x[i] = from < (int)(stop - first) ? input(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
#pragma unroll
            for (int i = 0; i < (int)CONVOLVE_ROWS; i++) {
                if (row + i >= stop) continue;
                float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int t = 0; t < TAPS; t++) add_tap(y, w, t, x[i + t]);
                finish_head(y, head, a.layout.key_heads);
                store4(a.mixed + (uint64_t)(row + i) * channels + channel, y[0], y[1], y[2], y[3]);
            }
            row = stop;
        }
    }
}

// `len` rows of 128 floats, zeros up to 64, on their way to shared memory: a thread's part of them.
struct ChunkRows {
    float4 x[CHUNK / WARPS];

    __device__ __forceinline__ void load(const float* from, uint64_t stride, uint32_t len) {
#pragma unroll
        for (int n = 0; n < CHUNK / WARPS; n++) {
            const uint32_t i = warp_id() + n * WARPS;
            x[n] = i < len ? load4(from + i * stride + 4 * lane_id()) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (int n = 0; n < CHUNK / WARPS; n++)
            *reinterpret_cast<float4*>(to + (warp_id() + n * WARPS) * CHUNK_STRIDE + 4 * lane_id()) = x[n];
    }
};

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

struct alignas(16) ChunkShared {
    float keys[CHUNK * CHUNK_STRIDE];
    // Queries, then values.
    float rows[CHUNK * CHUNK_STRIDE];
    float a[CHUNK * SQUARE_STRIDE];
    float c[CHUNK];
    float beta[CHUNK];
    float scale[CHUNK];                  // beta e^c
};

// Running sums in place, by one thread: in the order of the rows.
__device__ __forceinline__ void sum_up(float* c) {
    float sum = 0.0f;
#pragma unroll 4
    for (int i = 0; i < CHUNK; i += 4) {
        float4 x = load4(c + i);
        x.x += sum;
        x.y += x.x;
        x.z += x.y;
        x.w += x.z;
        sum = x.w;
        *reinterpret_cast<float4*>(c + i) = x;
    }
}

// One block for each (chunk, value head).
__device__ __forceinline__ void op_deltanet_chunks(const DeltaArgs& a, char* smem, int, int block, int blocks) {
    ChunkShared& s = *reinterpret_cast<ChunkShared*>(smem);
    const DeltaLayout& l = a.layout;
    const uint32_t segments = a.table.header().segments, channels = l.channels();
    const int t = (int)threadIdx.x;
    uint32_t item = block, base = 0;
    for (uint32_t n = 0; n < segments; n++) {
        const Chunks chunks(a.table.segments()[n]);
        for (; item < base + chunks.count * l.value_heads; item += blocks) {
            const uint32_t chunk = (item - base) / l.value_heads, head = (item - base) % l.value_heads;
            const uint32_t first = chunks.first_row + chunks.begin(chunk), len = chunks.end(chunk) - chunks.begin(chunk);
            const float* mixed = a.mixed + (uint64_t)first * channels;
            const uint32_t key_head = head % l.key_heads;
            float* out = a.chunks + (uint64_t)item * CHUNK_FLOATS;
            ChunkRows queries, keys, values;
            queries.load(mixed + key_head * STATE_DIM, channels, len);
            keys.load(mixed + (l.key_heads + key_head) * STATE_DIM, channels, len);
            queries.store(s.rows);
            keys.store(s.keys);
            values.load(mixed + (2 * l.key_heads + head) * STATE_DIM, channels, len);
            if (t < CHUNK) {
                s.c[t] = t < (int)len ? log_decay(a, first + t, head) : 0.0f;
                s.beta[t] = t < (int)len ? sigmoid(a.beta[(uint64_t)(first + t) * a.gate_width + head]) : 0.0f;
            }
            __syncthreads();
            if (t == 0) sum_up(s.c);
            // Rows 2 (t / 16) and 1 more, columns t % 16 + 16 j.
            float kk[2][4] = {}, qk[2][4] = {};
            const int i0 = t / 16 * 2, j0 = t % 16;
#pragma unroll 2
            for (int e = 0; e < STATE_DIM; e += 4) {
                float4 kj[4];
#pragma unroll
                for (int j = 0; j < 4; j++) kj[j] = load4(s.keys + (j0 + 16 * j) * CHUNK_STRIDE + e);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float4 ki = load4(s.keys + (i0 + i) * CHUNK_STRIDE + e), qi = load4(s.rows + (i0 + i) * CHUNK_STRIDE + e);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        kk[i][j] = dot4(ki, kj[j], kk[i][j]);
                        qk[i][j] = dot4(qi, kj[j], qk[i][j]);
                    }
                }
            }
            __syncthreads();
            values.store(s.rows);
            if (t < CHUNK) s.scale[t] = s.beta[t] * expf(s.c[t]);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int row = i0 + i, column = j0 + 16 * j;
                    const float decay = column <= row ? expf(s.c[row] - s.c[column]) : 0.0f;
                    s.a[row * SQUARE_STRIDE + column] = column < row ? s.beta[row] * kk[i][j] * decay : 0.0f;
                    out[CHUNK_P + row * CHUNK + column] = qk[i][j] * decay;
                }
            if (t < CHUNK) out[CHUNK_C + t] = s.c[t];
            __syncthreads();
            // Forward substitution: thread t has a column of U (t < 128) or of W. All of its right side comes first, so that nothing
            // is waited for between the rows.
            if (t < 2 * STATE_DIM) {
                const bool is_w = t >= STATE_DIM;
                const int e = t % STATE_DIM;
                const float* const right = is_w ? s.keys : s.rows;
                const float* const factor = is_w ? s.scale : s.beta;
                float* const to = out + (is_w ? CHUNK_W : 0) + e;
                float x[CHUNK];
#pragma unroll
                for (int i = 0; i < CHUNK; i++) x[i] = factor[i] * right[i * CHUNK_STRIDE + e];
#pragma unroll
                for (int i = 0; i < CHUNK; i++) {
#pragma unroll
                    for (int j = 0; j < i; j += 4) {
                        const float4 a4 = load4(s.a + i * SQUARE_STRIDE + j);
                        x[i] = fmaf(-a4.x, x[j], x[i]);
                        if (j + 1 < i) x[i] = fmaf(-a4.y, x[j + 1], x[i]);
                        if (j + 2 < i) x[i] = fmaf(-a4.z, x[j + 2], x[i]);
                        if (j + 3 < i) x[i] = fmaf(-a4.w, x[j + 3], x[i]);
                    }
                    to[i * STATE_DIM] = x[i];
                }
            }
            __syncthreads();
        }
        base += chunks.count * l.value_heads;
    }
}

// Value dimensions that one block of the scan has.
constexpr int SCAN_COLUMNS = 64;
struct alignas(16) ScanShared {
    // [column][key dimension].
    float state[SCAN_COLUMNS * CHUNK_STRIDE];
    // W, queries, P, then keys of the chunk.
    float tile[CHUNK * CHUNK_STRIDE];
    // D: [row][column].
    float d[CHUNK * SQUARE_STRIDE];
    float c[CHUNK];
};
// The same where there is room for all of a chunk at once.
struct alignas(16) WideScanShared {
    float state[SCAN_COLUMNS * CHUNK_STRIDE];
    float w[CHUNK * CHUNK_STRIDE];
    float queries[CHUNK * CHUNK_STRIDE];
    float keys[CHUNK * CHUNK_STRIDE];
    float p[CHUNK * SQUARE_STRIDE];
    float d[CHUNK * SQUARE_STRIDE];
    // D times e^(c_last - c_row).
    float decayed[CHUNK * SQUARE_STRIDE];
    float c[2][CHUNK];
};

// A chunk as the scan goes through it.
struct ScanChunk {
    const float* from;               // what op_deltanet_chunks left
    const float* mixed;              // of the first row
    uint32_t first, len;

    __device__ __forceinline__ ScanChunk(const DeltaArgs& a, const Chunks& chunks, uint32_t chunk, uint32_t chunk_base, uint32_t head)
        : from(a.chunks + (uint64_t)(chunk_base + chunk * a.layout.value_heads + head) * CHUNK_FLOATS), first(chunks.first_row + chunks.begin(chunk)),
          len(chunks.end(chunk) - chunks.begin(chunk)) {
        mixed = a.mixed + (uint64_t)first * a.layout.channels();
    }
};

// A thread has rows i0, i0 + 1 and columns j0 + 16 j of products of 64 x 64.
struct ScanPlace {
    int i0, j0;
    __device__ __forceinline__ ScanPlace() : i0((int)threadIdx.x / 16 * 2), j0((int)threadIdx.x % 16) {}
};

// x_n,ij += sum_e tile_n,ie state_je, of N tiles.
template <int N> __device__ __forceinline__ void tiles_times_state(float (&x)[N][2][4], const float* const (&tile)[N], const float* state, ScanPlace at) {
#pragma unroll 2
    for (int e = 0; e < STATE_DIM; e += 4) {
        float4 sj[4];
#pragma unroll
        for (int j = 0; j < 4; j++) sj[j] = load4(state + (at.j0 + 16 * j) * CHUNK_STRIDE + e);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float4 ti = load4(tile[n] + (at.i0 + i) * CHUNK_STRIDE + e);
#pragma unroll
                for (int j = 0; j < 4; j++) x[n][i][j] = dot4(ti, sj[j], x[n][i][j]);
            }
    }
}

// o_ij += sum_m P_im D_mj; P is 0 above its diagonal.
__device__ __forceinline__ void add_chunk(float (&o)[2][4], const float* p, const float* d, ScanPlace at) {
#pragma unroll 4
    for (int m = 0; m < CHUNK; m += 4) {
        const float4 p0 = load4(p + at.i0 * SQUARE_STRIDE + m), p1 = load4(p + (at.i0 + 1) * SQUARE_STRIDE + m);
#pragma unroll
        for (int n = 0; n < 4; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float dj = d[(m + n) * SQUARE_STRIDE + at.j0 + 16 * j];
                o[0][j] = fmaf(n == 0 ? p0.x : n == 1 ? p0.y : n == 2 ? p0.z : p0.w, dj, o[0][j]);
                o[1][j] = fmaf(n == 0 ? p1.x : n == 1 ? p1.y : n == 2 ? p1.z : p1.w, dj, o[1][j]);
            }
        }
    }
}
__device__ __forceinline__ void write_chunk(const float (&o)[2][4], const DeltaArgs& a, const ScanChunk& chunk, uint32_t column0, ScanPlace at) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (at.i0 + i < (int)chunk.len) a.out[(uint64_t)(chunk.first + at.i0 + i) * a.out_width + column0 + at.j0 + 16 * j] = o[i][j];
}

// S = decay S + sum_m k_m d_m. A thread has columns 4 warp .. 4 warp + 3, keys 4 lane .. 4 lane + 3.
__device__ __forceinline__ void advance_state(float* state, const float* keys, const float* d, float decay, uint32_t len) {
    float sum[4][4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float4 old = load4(state + (4 * warp_id() + c) * CHUNK_STRIDE + 4 * lane_id());
        sum[c][0] = decay * old.x;
        sum[c][1] = decay * old.y;
        sum[c][2] = decay * old.z;
        sum[c][3] = decay * old.w;
    }
#pragma unroll 4
    for (uint32_t m = 0; m < len; m++) {
        const float4 k = load4(keys + m * CHUNK_STRIDE + 4 * lane_id()), d4 = load4(d + m * SQUARE_STRIDE + 4 * warp_id());
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float dc = c == 0 ? d4.x : c == 1 ? d4.y : c == 2 ? d4.z : d4.w;
            sum[c][0] = fmaf(k.x, dc, sum[c][0]);
            sum[c][1] = fmaf(k.y, dc, sum[c][1]);
            sum[c][2] = fmaf(k.z, dc, sum[c][2]);
            sum[c][3] = fmaf(k.w, dc, sum[c][3]);
        }
    }
#pragma unroll
    for (int c = 0; c < 4; c++) store4(state + (4 * warp_id() + c) * CHUNK_STRIDE + 4 * lane_id(), sum[c][0], sum[c][1], sum[c][2], sum[c][3]);
}

// A thread's part of a chunk's 64 x 64 numbers on their way to shared memory.
struct ChunkSquare {
    static constexpr int PARTS = CHUNK * CHUNK / 4 / THREADS;
    float4 x[PARTS];

    __device__ __forceinline__ void load(const float* from) {
#pragma unroll
        for (int n = 0; n < PARTS; n++) x[n] = load4(from + 4 * (threadIdx.x + n * THREADS));
    }
    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (int n = 0; n < PARTS; n++) {
            const int i = 4 * ((int)threadIdx.x + n * THREADS);
            *reinterpret_cast<float4*>(to + i / CHUNK * SQUARE_STRIDE + i % CHUNK) = x[n];
        }
    }
};
// A thread's part of a chunk's U.
__device__ __forceinline__ void load_u(float (&u)[2][4], const ScanChunk& chunk, uint32_t column0, ScanPlace at) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) u[i][j] = chunk.from[(at.i0 + i) * STATE_DIM + column0 + at.j0 + 16 * j];
}

// The chunks of one (segment, value head, half of its value dimensions) over the state in shared memory. `queries` and `keys` are the first
// channels of the key head's. What a phase needs is asked for while the one before is computed.
__device__ __forceinline__ void scan_chunks(const DeltaArgs& a, ScanShared& s, const Chunks& chunks, uint32_t chunk_base, uint32_t head, uint32_t column0,
                                            uint32_t queries, uint32_t keys) {
    const uint32_t channels = a.layout.channels();
    const ScanPlace at;
    const int t = (int)threadIdx.x;
    ChunkRows ahead;
    ahead.load(ScanChunk(a, chunks, 0, chunk_base, head).from + CHUNK_W, STATE_DIM, CHUNK);
    for (uint32_t n = 0; n < chunks.count; n++) {
        const ScanChunk chunk(a, chunks, n, chunk_base, head);
        ahead.store(s.tile);
        if (t < CHUNK) s.c[t] = chunk.from[CHUNK_C + t];
        float u[2][4];
        load_u(u, chunk, column0, at);
        ahead.load(chunk.mixed + queries, channels, chunk.len);
        __syncthreads();
        float x[1][2][4] = {};
        tiles_times_state<1>(x, {s.tile}, s.state, at);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) s.d[(at.i0 + i) * SQUARE_STRIDE + at.j0 + 16 * j] = u[i][j] - x[0][i][j];
        __syncthreads();
        ahead.store(s.tile);
        ChunkSquare p;
        p.load(chunk.from + CHUNK_P);
        __syncthreads();
        float o[1][2][4] = {};
        tiles_times_state<1>(o, {s.tile}, s.state, at);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) o[0][i][j] *= expf(s.c[at.i0 + i]);
        __syncthreads();
        p.store(s.tile);
        ahead.load(chunk.mixed + keys, channels, chunk.len);
        __syncthreads();
        add_chunk(o[0], s.tile, s.d, at);
        write_chunk(o[0], a, chunk, head * STATE_DIM + column0, at);
        __syncthreads();
        ahead.store(s.tile);
        if (n + 1 < chunks.count) ahead.load(ScanChunk(a, chunks, n + 1, chunk_base, head).from + CHUNK_W, STATE_DIM, CHUNK);
        const float last = s.c[chunk.len - 1];
        for (int i = t; i < CHUNK * SCAN_COLUMNS; i += THREADS)
            s.d[i / SCAN_COLUMNS * SQUARE_STRIDE + i % SCAN_COLUMNS] *= expf(last - s.c[min((uint32_t)(i / SCAN_COLUMNS), chunk.len - 1)]);
        __syncthreads();
        advance_state(s.state, s.tile, s.d, expf(last), chunk.len);
        __syncthreads();
    }
}
// The same operations in the same order, with two barriers a chunk.
__device__ __forceinline__ void scan_chunks(const DeltaArgs& a, WideScanShared& s, const Chunks& chunks, uint32_t chunk_base, uint32_t head,
                                            uint32_t column0, uint32_t queries, uint32_t keys) {
    const uint32_t channels = a.layout.channels();
    const ScanPlace at;
    const int t = (int)threadIdx.x;
    ChunkRows ahead_w, ahead_queries, ahead_keys;
    ChunkSquare p;
    float u[2][4], c = 0.0f;
    auto ask_first = [&](const ScanChunk& next) {
        ahead_w.load(next.from + CHUNK_W, STATE_DIM, CHUNK);
        ahead_queries.load(next.mixed + queries, channels, next.len);
        if (t < CHUNK) c = next.from[CHUNK_C + t];
    };
    auto store_first = [&](uint32_t n) {
        ahead_w.store(s.w);
        ahead_queries.store(s.queries);
        if (t < CHUNK) s.c[n & 1][t] = c;
    };
    auto ask_second = [&](const ScanChunk& next) {
        ahead_keys.load(next.mixed + keys, channels, next.len);
        p.load(next.from + CHUNK_P);
        load_u(u, next, column0, at);
    };
    {
        const ScanChunk first(a, chunks, 0, chunk_base, head);
        ask_first(first);
        ask_second(first);
        store_first(0);
    }
    for (uint32_t n = 0; n < chunks.count; n++) {
        const ScanChunk chunk(a, chunks, n, chunk_base, head);
        const float* const cs = s.c[n & 1];
        __syncthreads();
        ahead_keys.store(s.keys);
        p.store(s.p);
        if (n + 1 < chunks.count) ask_first(ScanChunk(a, chunks, n + 1, chunk_base, head));
        float x[2][2][4] = {};
        tiles_times_state<2>(x, {s.w, s.queries}, s.state, at);
        const float last = cs[chunk.len - 1];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = at.i0 + i;
            const float decay = expf(last - cs[min((uint32_t)row, chunk.len - 1)]), grown = expf(cs[row]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float d = u[i][j] - x[0][i][j];
                s.d[row * SQUARE_STRIDE + at.j0 + 16 * j] = d;
                s.decayed[row * SQUARE_STRIDE + at.j0 + 16 * j] = d * decay;
                x[1][i][j] *= grown;
            }
        }
        __syncthreads();
        if (n + 1 < chunks.count) {
            store_first(n + 1);
            ask_second(ScanChunk(a, chunks, n + 1, chunk_base, head));
        }
        add_chunk(x[1], s.p, s.d, at);
        write_chunk(x[1], a, chunk, head * STATE_DIM + column0, at);
        advance_state(s.state, s.keys, s.decayed, expf(last), chunk.len);
    }
    __syncthreads();
}

// One block for each (segment, value head, half of its value dimensions); chunks in order. Leaves the outputs before their
// norm in `out`.
template <class Shared> __device__ __noinline__ void deltanet_scan(const DeltaArgs& a, char* smem, int block, int blocks) {
    constexpr int HALVES = STATE_DIM / SCAN_COLUMNS;
    Shared& s = *reinterpret_cast<Shared*>(smem);
    const DeltaLayout& l = a.layout;
    const uint32_t segments = a.table.header().segments;
    const int t = (int)threadIdx.x;
    uint32_t item = block, base = 0, chunk_base = 0;
    for (uint32_t n = 0; n < segments; n++) {
        const Segment& segment = a.table.segments()[n];
        const Chunks chunks(segment);
        if (chunks.count == 0) continue;
        for (; item < base + l.value_heads * HALVES; item += blocks) {
            const uint32_t head = (item - base) / HALVES, column0 = (item - base) % HALVES * SCAN_COLUMNS;
            const uint32_t key_head = head % l.key_heads;
            float* slot = slot_state(a, segment.slot);
            float* memory = slot + l.memory() + ((uint64_t)head * STATE_DIM + column0) * STATE_DIM;
            const SlotState pending = a.slots[segment.slot];
            for (int i = t; i < SCAN_COLUMNS * STATE_DIM; i += THREADS) {
                const int column = i / STATE_DIM, key = i % STATE_DIM;
                float x = memory[i];
                for (uint32_t r = 0; r < pending.pending; r++) {
                    const float k = slot[l.keys() + ((uint64_t)(pending.parity * l.rows + r) * l.key_heads + key_head) * STATE_DIM + key];
                    const float delta = slot[l.deltas() + ((uint64_t)r * l.value_heads + head) * STATE_DIM + column0 + column];
                    x = fmaf(k, delta, __fmul_rn(slot[l.decays() + (uint64_t)r * l.value_heads + head], x));
                }
                s.state[column * CHUNK_STRIDE + key] = x;
            }
            scan_chunks(a, s, chunks, chunk_base, head, column0, key_head * STATE_DIM, (l.key_heads + key_head) * STATE_DIM);
            for (int i = t; i < SCAN_COLUMNS * STATE_DIM; i += THREADS) memory[i] = s.state[i / STATE_DIM * CHUNK_STRIDE + i % STATE_DIM];
            __syncthreads();
        }
        base += l.value_heads * HALVES;
        chunk_base += chunks.count * l.value_heads;
    }
}
__device__ __forceinline__ void op_deltanet_scan(const DeltaArgs& a, char* smem, int smem_bytes, int block, int blocks) {
    if (smem_bytes >= (int)sizeof(WideScanShared)) deltanet_scan<WideScanShared>(a, smem, block, blocks);
    else deltanet_scan<ScanShared>(a, smem, block, blocks);
}

// One warp for each (segment, 128 channels). Afterwards nothing of the segments' slots
// is pending in this layer: the history begins at row 0. `pending` is cleared after the last layer.
__device__ __forceinline__ void op_deltanet_finish(const DeltaArgs& a, char*, int, int block, int blocks) {
    const DeltaLayout& l = a.layout;
    const uint32_t segments = a.table.header().segments;
    const uint32_t channels = l.channels(), heads = channels / STATE_DIM;
    for (uint32_t item = block * WARPS + warp_id(); item < segments * heads; item += blocks * WARPS) {
        const Segment& segment = a.table.segments()[item / heads];
        if (segment.kind != SEGMENT_PROMPT) continue;
        const uint32_t channel = item % heads * STATE_DIM + 4 * lane_id();
        float* inputs = slot_state(a, segment.slot) + l.inputs() + channel;
        const uint32_t pending = a.slots[segment.slot].pending;
        float4 x[TAPS - 1];
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) {
            const int from = (int)segment.rows + t - (TAPS - 1);
            x[t] = from >= 0 ? load4(a.qkv + (uint64_t)(segment.first_row + from) * a.qkv_width + channel)
                             : load4(inputs + (uint64_t)(pending + TAPS - 1 + from) * channels);
        }
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) *reinterpret_cast<float4*>(inputs + (uint64_t)t * channels) = x[t];
    }
}

}  // namespace openjet
