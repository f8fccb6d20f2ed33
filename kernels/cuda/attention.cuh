// Gated full attention over the paged pool, for decode rows and prompt chunks alike.
//
// op_attention_prepare   norms and rotates queries and keys, stores the cells
// attention_pages     scores and weighted values of a range of pages for up to 64 queries: the tensor-core core
// op_attention_decode    one item for each (segment, key-value head, split of its pages); partial results
// op_attention_merge     adds the splits in order and applies the output gate
// op_attention_prompt    one item for each (64 rows, query head); all pages in order, gate applied
//
// Splits end at fixed absolute positions and pages are taken in order, so a row's result depends on its conversation alone.
#pragma once
#include "kv.cuh"

namespace openjet {

struct AttentionArgs {
    Table table;
    // The draft head's rows, where `draft` says that they are this pass's.
    const Row* draft_rows;
    // Matrix products: queries and gates interleaved by head (row width q_width, head h at 512 h), keys and values.
    const float* q;
    const float* k;
    const float* v;
    // Prepared queries, rows x heads x 256, scaled by log2(e) / 16.
    half* queries;
    // Partial results: for each (row, head), MAX_SPLITS x (256 numbers, max, sum) in f32. Decode only.
    float* partial;
    // Gated output, rows x out_width, head h at 256 h.
    float* out;
    const float* q_norm;
    const float* k_norm;
    // Of every rotary pair: turns (angle / 2 pi) per position, rope_pairs numbers, a multiple of 32.
    const double* rope_turns;
    KvPool pool;
    uint32_t layer;
    uint32_t heads;
    uint32_t rope_pairs;
    uint32_t q_width;
    uint32_t kv_width;
    uint32_t out_width;
    // First position that has a cell: 1 for the draft head, else 0.
    uint32_t first_position;
    // Splits that `partial` has room for.
    uint32_t splits;
    // 1 where segment s has the one row s (draft head), 0 where the segments say which rows are theirs.
    uint32_t draft;
    // Only the cells are wanted (1), not the queries.
    uint32_t cells_only;
    float rope_scale;
    float eps;
};
static_assert(sizeof(AttentionArgs) == 168);

// The rows of this pass.
__device__ __forceinline__ const Row* rows_of(const AttentionArgs& a) { return a.draft ? a.draft_rows : a.table.rows(); }
__device__ __forceinline__ uint32_t row_count(const AttentionArgs& a) { return a.draft ? a.table.header().segments : a.table.header().rows; }

constexpr float QUERY_SCALE = 0.0625f * 1.44269504088896340736f;

__device__ __forceinline__ void turns_to_cos_sin(double turns, float scale, float& c, float& s) {
    const float fraction = (float)(turns - rint(turns));
#ifdef OPENJET_HOST
    s = (float)sin(6.283185307179586 * fraction);
    c = (float)cos(6.283185307179586 * fraction);
#else
    sincospif(2.0f * fraction, &s, &c);
#endif
    c *= scale;
    s *= scale;
}

// RMS norm of 256 numbers held by a warp, each with its weight.
__device__ __forceinline__ void head_norm(float (&x)[8], const float (&weight)[8], float eps) {
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) squares = fmaf(x[j], x[j], squares);
    const float inverse = 1.0f / sqrtf(fmaf(warp_sum(squares), 1.0f / HEAD_DIM, eps));
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = x[j] * inverse * weight[j];
}

// Rotates the pairs (i, i + n) at a position; `steps` is n / 32.
__device__ __forceinline__ void head_rotate(float (&x)[8], const double (&turns)[4], int steps, float scale, uint32_t position) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= steps) break;
        float c, s;
        turns_to_cos_sin(position * turns[j], scale, c, s);
        // Constant indices keep x in registers.
#pragma unroll
        for (int n = 1; n <= 4; n <<= 1) {
            if (n != steps || j >= n) continue;
            const float low = x[j], high = x[j + n];
            x[j] = fmaf(low, c, -__fmul_rn(high, s));
            x[j + n] = fmaf(low, s, __fmul_rn(high, c));
        }
    }
}

// One warp for each (row, query head or key-value head).
__device__ __forceinline__ void op_attention_prepare(const AttentionArgs& a, char* smem, int, int block, int blocks) {
    const int lane = lane_id(), steps = (int)a.rope_pairs / 32;
    const uint32_t kv_heads = a.pool.kv_heads, queries = a.cells_only ? 0 : a.heads, tasks = queries + 2 * kv_heads;
    const uint32_t count = header_word(smem, a.draft ? HEADER_SEGMENTS : 0);
    for (uint32_t item = block * WARPS + warp_id(); item < count * tasks; item += blocks * WARPS) {
        const uint32_t r = item / tasks, task = item % tasks;
        const bool query = task < queries, value = task >= queries + kv_heads;
        const uint32_t head = query ? task : task - queries - (value ? kv_heads : 0);
        const float* from = query ? a.q + (uint64_t)r * a.q_width + head * 512 : (value ? a.v : a.k) + (uint64_t)r * a.kv_width + head * HEAD_DIM;
        // Everything is asked for before anything is waited for.
        const Row row = rows_of(a)[r];
        const float* weights = query ? a.q_norm : a.k_norm;
        float x[8], weight[8];
        double turns[4];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = from[lane + 32 * j];
#pragma unroll
        for (int j = 0; j < 8; j++) weight[j] = weights[lane + 32 * j];
#pragma unroll
        for (int j = 0; j < 4; j++) turns[j] = j < steps ? a.rope_turns[lane + 32 * j] : 0.0;
        if (row.kind == ROW_IDLE || row.kind == ROW_PROMPT_LAST || row.position < a.first_position) continue;
        const uint32_t page = query ? 0 : a.table.page(a.table.segments()[row.segment], row.position);
        if (!value) {
            head_norm(x, weight, a.eps);
            head_rotate(x, turns, steps, a.rope_scale, row.position);
        }
        if (a.pool.format == KV_Q4_0) hadamard256(x);
        if (query) {
            half* to = a.queries + ((uint64_t)r * a.heads + head) * HEAD_DIM;
#pragma unroll
            for (int j = 0; j < 8; j++) to[lane + 32 * j] = __float2half_rn(x[j] * QUERY_SCALE);
        } else {
            kv_store(a.pool, a.pool.tile(page, a.layer, value, head), row.position % PAGE_TOKENS, x);
        }
    }
}

// Where split s begins, in pages: 32 splits of 2 pages, 56 of 8, then 32 pages each (up to 4,096, 32,768 and more tokens).
__device__ __forceinline__ uint32_t split_begin(uint32_t s) {
    if (s <= 32) return 2 * s;
    if (s <= 88) return 64 + 8 * (s - 32);
    return 512 + 32 * (s - 88);
}
// The split that page `page` is in.
__device__ __forceinline__ uint32_t split_of(uint32_t page) {
    if (page < 64) return page / 2;
    if (page < 512) return 32 + (page - 64) / 8;
    return 88 + (page - 512) / 32;
}

// Up to 64 queries in shared memory, and what is known of them so far.
constexpr int QUERY_TILE = 64;
// Of these, the decode path uses half: with all of them the kernel runs out of registers.
constexpr uint32_t DECODE_TILE = 32;
constexpr int WEIGHT_STRIDE = PAGE_TOKENS + 8;
struct AttentionShared {
    half queries[QUERY_TILE * TILE_STRIDE];
    half tile[PAGE_TOKENS * TILE_STRIDE];
    half weights[QUERY_TILE * WEIGHT_STRIDE];
    float max[8][QUERY_TILE];
    float running_max[QUERY_TILE];
    float rescale[QUERY_TILE];
    // Last position that a query sees; -1 where there is no query.
    int last[QUERY_TILE];
};

// Result of one warp: MT query tiles of 16 rows share the 16 warps, so that a warp has 16 / MT of 32 tiles of 8 numbers.
template <int MT> struct AttentionResult {
    float acc[2 * MT][4];
    float sum[4];
};

// Scores and weighted values of pages [begin, end) for the queries in shared memory. On return `result` is not normalised,
// `running_max` and `result.sum` belong to it. The bits of a query's result are the same for every MT.
template <int MT>
__device__ void attention_pages(AttentionResult<MT>& result, AttentionShared& s, const KvPool& pool, const uint32_t* pages,
                                uint32_t layer, uint32_t head, uint32_t first_position, uint32_t begin, uint32_t end) {
    constexpr int GROUP = 16 / MT;                 // warps of a query tile
    constexpr int KT = GROUP >= 8 ? 1 : 8 / GROUP; // tiles of 8 tokens that a warp scores
    constexpr int VT = 2 * MT;                     // tiles of 8 numbers that a warp sums
    const int lane = lane_id(), g = lane >> 2, j = lane & 3;
    const int m = warp_id() % MT, n = warp_id() / MT;
    const bool scores = n * KT < 8;
    const int row0 = m * 16 + g, row1 = row0 + 8;
#pragma unroll
    for (int t = 0; t < VT; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) result.acc[t][i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) result.sum[i] = 0.0f;
    if ((int)threadIdx.x < QUERY_TILE) s.running_max[threadIdx.x] = -1e30f;
    KvFetch f;
    kv_fetch(f, pool, pool.tile(pages[begin], layer, 0, head));
    __syncthreads();
    for (uint32_t p = begin; p < end; p++) {
        kv_spread(s.tile, pool, f);
        kv_fetch(f, pool, pool.tile(pages[p], layer, 1, head));
        __syncthreads();
        float score[KT][4];
        if (scores) {
#pragma unroll
            for (int t = 0; t < KT; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) score[t][i] = 0.0f;
#pragma unroll 2
            for (int k = 0; k < HEAD_DIM / 32; k++) {
                uint32_t q0[4], q1[4];
                const half* q = s.queries + (m * 16 + (lane & 15)) * TILE_STRIDE + k * 32 + (lane >> 4) * 8;
                load_matrices(q0, q);
                load_matrices(q1, q + 16);
#pragma unroll
                for (int t = 0; t < KT; t++) {
                    uint32_t b[4];
                    load_matrices(b, s.tile + ((n * KT + t) * 8 + (lane & 7)) * TILE_STRIDE + k * 32 + (lane >> 3) * 8);
                    mma(score[t], q0, b[0], b[1]);
                    mma(score[t], q1, b[2], b[3]);
                }
            }
            float max0 = -1e30f, max1 = -1e30f;
            const int last0 = s.last[row0], last1 = s.last[row1];
#pragma unroll
            for (int t = 0; t < KT; t++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int position = (int)(p * PAGE_TOKENS) + (n * KT + t) * 8 + 2 * j + i;
                    if (position > last0 || position < (int)first_position) score[t][i] = -INFINITY;
                    if (position > last1 || position < (int)first_position) score[t][2 + i] = -INFINITY;
                    max0 = fmaxf(max0, score[t][i]);
                    max1 = fmaxf(max1, score[t][2 + i]);
                }
#pragma unroll
            for (int o = 1; o < 4; o <<= 1) {
                max0 = fmaxf(max0, __shfl_xor_sync(0xffffffffu, max0, o));
                max1 = fmaxf(max1, __shfl_xor_sync(0xffffffffu, max1, o));
            }
            if (j == 0) {
                s.max[n][row0] = max0;
                s.max[n][row1] = max1;
            }
        }
        __syncthreads();
        // The new maximum of both rows, the same in every warp of the tile.
        const float old0 = s.running_max[row0], old1 = s.running_max[row1];
        float new0 = old0, new1 = old1;
#pragma unroll
        for (int i = 0; i < 8 / KT; i++) {
            new0 = fmaxf(new0, s.max[i][row0]);
            new1 = fmaxf(new1, s.max[i][row1]);
        }
        if (scores) {
#pragma unroll
            for (int t = 0; t < KT; t++) {
                half* w = s.weights + row0 * WEIGHT_STRIDE + (n * KT + t) * 8 + 2 * j;
                const uint32_t w0 = bits(__floats2half2_rn(exp2f(score[t][0] - new0), exp2f(score[t][1] - new0)));
                const uint32_t w1 = bits(__floats2half2_rn(exp2f(score[t][2] - new1), exp2f(score[t][3] - new1)));
                *reinterpret_cast<uint32_t*>(w) = w0;
                *reinterpret_cast<uint32_t*>(w + 8 * WEIGHT_STRIDE) = w1;
            }
        }
        const float scale0 = exp2f(old0 - new0), scale1 = exp2f(old1 - new1);
        kv_spread(s.tile, pool, f);
        if (p + 1 < end) kv_fetch(f, pool, pool.tile(pages[p + 1], layer, 0, head));
        __syncthreads();
        if (n == 0 && j == 0) {
            s.running_max[row0] = new0;
            s.running_max[row1] = new1;
        }
#pragma unroll
        for (int t = 0; t < VT; t++) {
            result.acc[t][0] *= scale0;
            result.acc[t][1] *= scale0;
            result.acc[t][2] *= scale1;
            result.acc[t][3] *= scale1;
        }
        result.sum[0] *= scale0;
        result.sum[2] *= scale1;
#pragma unroll 1
        for (int k = 0; k < (int)PAGE_TOKENS / 16; k++) {
            uint32_t w[4];
            load_matrices(w, s.weights + (m * 16 + (lane & 15)) * WEIGHT_STRIDE + k * 16 + (lane >> 4) * 8);
            // Products with ones add up the weights as they were rounded.
            mma(result.sum, w, 0x3c003c00u, 0x3c003c00u);
#pragma unroll
            for (int t = 0; t < VT; t += 2) {
                uint32_t b[4];
                load_matrices_transposed(b, s.tile + (k * 16 + (lane & 15)) * TILE_STRIDE + (n * VT + t) * 8 + (lane >> 4) * 8);
                mma(result.acc[t], w, b[0], b[1]);
                mma(result.acc[t + 1], w, b[2], b[3]);
            }
        }
        __syncthreads();
    }
}

// Copies one query of 256 halves into shared memory, 32 threads a row; row -1 is zeros.
__device__ __forceinline__ void load_query(AttentionShared& s, int slot, const half* from) {
    uint4 data = make_uint4(0, 0, 0, 0);
    if (from) data = reinterpret_cast<const uint4*>(from)[lane_id()];
    reinterpret_cast<uint4*>(s.queries + slot * TILE_STRIDE)[lane_id()] = data;
}

// The rows of a segment in this pass.
__device__ __forceinline__ bool attention_rows(const AttentionArgs& a, uint32_t segment, uint32_t& first, uint32_t& count) {
    const Segment& entry = a.table.segments()[segment];
    first = a.draft ? segment : entry.first_row;
    count = a.draft ? 1 : entry.rows;
    const uint32_t kind = rows_of(a)[first].kind;
    return kind == ROW_DECODE || kind == ROW_PROMPT || kind == ROW_DRAFT;
}

template <int MT>
__device__ __noinline__ void attention_split(const AttentionArgs& a, AttentionShared& s, uint32_t segment, uint32_t first, uint32_t group,
                                uint32_t head, uint32_t split, uint32_t query, uint32_t queries) {
    const Segment& entry = a.table.segments()[segment];
    const uint32_t last_page = rows_of(a)[first + (query + queries - 1) / group].position / PAGE_TOKENS;
    const uint32_t begin = split_begin(split), end = min(split_begin(split + 1), last_page + 1);
    for (int slot = warp_id(); slot < MT * 16; slot += WARPS) {
        const uint32_t i = query + slot;
        const bool present = slot < (int)queries;
        const uint32_t row = present ? first + i / group : 0;
        load_query(s, slot, present ? a.queries + ((uint64_t)row * a.heads + head * group + i % group) * HEAD_DIM : nullptr);
        if (lane_id() == 0) s.last[slot] = present ? (int)rows_of(a)[row].position : -1;
    }
    AttentionResult<MT> result = {};
    attention_pages<MT>(result, s, a.pool, a.table.at(entry.pages_offset), a.layer, head, a.first_position, begin, end);
    const int lane = lane_id(), g = lane >> 2, j = lane & 3;
    const int m = warp_id() % MT, n = warp_id() / MT;
#pragma unroll
    for (int half_tile = 0; half_tile < 2; half_tile++) {
        const int slot = m * 16 + g + 8 * half_tile;
        if (slot >= (int)queries) continue;
        const uint32_t i = query + slot, row = first + i / group;
        float* to = a.partial + (((uint64_t)row * a.heads + head * group + i % group) * a.splits + split) * (HEAD_DIM + 2);
#pragma unroll
        for (int t = 0; t < 2 * MT; t++) {
            const int column = (n * 2 * MT + t) * 8 + 2 * j;
            to[column] = result.acc[t][2 * half_tile];
            to[column + 1] = result.acc[t][2 * half_tile + 1];
        }
        if (n == 0 && j == 0) {
            to[HEAD_DIM] = s.running_max[slot];
            to[HEAD_DIM + 1] = result.sum[2 * half_tile];
        }
    }
    __syncthreads();
}

// Items are counted off segment by segment: (query tile, split, key-value head).
__device__ __forceinline__ void op_attention_decode(const AttentionArgs& a, char* smem, int, int block, int blocks) {
    AttentionShared& s = *reinterpret_cast<AttentionShared*>(smem);
    // A thread a segment: one after another would wait for memory as often.
    struct Share {
        uint32_t first, count, splits, items;
    };
    Share* shares = reinterpret_cast<Share*>(smem + sizeof(AttentionShared));
    const uint32_t segments = header_word(smem, HEADER_SEGMENTS), kv_heads = a.pool.kv_heads, group = a.heads / kv_heads;
    for (uint32_t segment = threadIdx.x; segment < segments; segment += THREADS) {
        Share share = {0, 0, 0, 0};
        if (attention_rows(a, segment, share.first, share.count)) {
            share.splits = split_of(rows_of(a)[share.first + share.count - 1].position / PAGE_TOKENS) + 1;
            share.items = (share.count * group + DECODE_TILE - 1) / DECODE_TILE * share.splits * kv_heads;
        }
        shares[segment] = share;
    }
    __syncthreads();
    uint32_t item = block, base = 0;
    for (uint32_t segment = 0; segment < segments; segment++) {
        const auto [first, count, splits, items] = shares[segment];
        for (; item < base + items; item += blocks) {
            const uint32_t local = item - base;
            const uint32_t head = local % kv_heads, split = local / kv_heads % splits, query = local / kv_heads / splits * DECODE_TILE;
            const uint32_t queries = min(count * group - query, DECODE_TILE);
            // Rows before the split don't reach it; a tile of such rows alone has nothing to do.
            if (split_of(rows_of(a)[first + (query + queries - 1) / group].position / PAGE_TOKENS) < split) continue;
            if (queries <= 16) attention_split<1>(a, s, segment, first, group, head, split, query, queries);
            else attention_split<2>(a, s, segment, first, group, head, split, query, queries);
        }
        base += items;
    }
}

// One warp for each (row, query head).
__device__ __forceinline__ void op_attention_merge(const AttentionArgs& a, char*, int, int block, int blocks) {
    const int lane = lane_id();
    for (uint32_t item = block * WARPS + warp_id(); item < row_count(a) * a.heads; item += blocks * WARPS) {
        const uint32_t r = item / a.heads, head = item % a.heads;
        const Row row = rows_of(a)[r];
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = 0.0f;
        if (row.kind == ROW_DECODE || row.kind == ROW_DRAFT) {
            const uint32_t splits = split_of(row.position / PAGE_TOKENS) + 1;
            const float* partial = a.partial + ((uint64_t)r * a.heads + head) * a.splits * (HEAD_DIM + 2);
            float max = -1e30f, sum = 0.0f;
            for (uint32_t i = 0; i < splits; i++) max = fmaxf(max, partial[i * (HEAD_DIM + 2) + HEAD_DIM]);
            for (uint32_t i = 0; i < splits; i++) {
                const float* part = partial + i * (HEAD_DIM + 2);
                const float weight = exp2f(part[HEAD_DIM] - max);
                sum = fmaf(weight, part[HEAD_DIM + 1], sum);
#pragma unroll
                for (int j = 0; j < 8; j++) x[j] = fmaf(weight, part[lane + 32 * j], x[j]);
            }
            const float inverse = 1.0f / sum;
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] *= inverse;
            if (a.pool.format == KV_Q4_0) hadamard256(x);
        }
        const float* gate = a.q + (uint64_t)r * a.q_width + head * 512 + 256;
        float* to = a.out + (uint64_t)r * a.out_width + head * HEAD_DIM;
#pragma unroll
        for (int j = 0; j < 8; j++) to[lane + 32 * j] = x[j] * sigmoid(gate[lane + 32 * j]);
    }
}

// Items are counted off segment by segment: (64 rows, query head), the rows that see most first.
__device__ __forceinline__ void op_attention_prompt(const AttentionArgs& a, char* smem, int, int block, int blocks) {
    AttentionShared& s = *reinterpret_cast<AttentionShared*>(smem);
    const uint32_t segments = a.table.header().segments, group = a.heads / a.pool.kv_heads;
    uint32_t item = block, base = 0;
    for (uint32_t segment = 0; segment < segments; segment++) {
        uint32_t first, count;
        if (!attention_rows(a, segment, first, count)) continue;
        const uint32_t tiles = (count + QUERY_TILE - 1) / QUERY_TILE;
        for (; item < base + tiles * a.heads; item += blocks) {
            const uint32_t local = item - base, head = local % a.heads;
            const uint32_t start = (tiles - 1 - local / a.heads) * QUERY_TILE;
            const uint32_t rows = min(count - start, (uint32_t)QUERY_TILE);
            for (int slot = warp_id(); slot < QUERY_TILE; slot += WARPS) {
                const bool present = slot < (int)rows;
                const uint32_t row = first + start + slot;
                load_query(s, slot, present ? a.queries + ((uint64_t)row * a.heads + head) * HEAD_DIM : nullptr);
                if (lane_id() == 0) s.last[slot] = present ? (int)rows_of(a)[row].position : -1;
            }
            const Segment& entry = a.table.segments()[segment];
            const uint32_t end = rows_of(a)[first + start + rows - 1].position / PAGE_TOKENS + 1;
            AttentionResult<4> result = {};
            attention_pages<4>(result, s, a.pool, a.table.at(entry.pages_offset), a.layer, head / group, a.first_position, 0, end);
            // Through shared memory (queries and tile are free now), so that a warp holds whole rows for rotation and gate.
            float* whole = reinterpret_cast<float*>(s.queries);
            const int lane = lane_id(), g = lane >> 2, j = lane & 3;
            const int m = warp_id() % 4, n = warp_id() / 4;
#pragma unroll
            for (int t = 0; t < 8; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float inverse = 1.0f / result.sum[i & 2];
                    whole[(m * 16 + g + 4 * (i & 2)) * TILE_STRIDE + (n * 8 + t) * 8 + 2 * j + (i & 1)] = result.acc[t][i] * inverse;
                }
            __syncthreads();
            for (int slot = warp_id(); slot < (int)rows; slot += WARPS) {
                const uint32_t row = first + start + slot;
                float x[8];
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = whole[slot * TILE_STRIDE + lane + 32 * i];
                if (a.pool.format == KV_Q4_0) hadamard256(x);
                const float* gate = a.q + (uint64_t)row * a.q_width + head * 512 + 256;
                float* to = a.out + (uint64_t)row * a.out_width + head * HEAD_DIM;
#pragma unroll
                for (int i = 0; i < 8; i++) to[lane + 32 * i] = x[i] * sigmoid(gate[lane + 32 * i]);
            }
            __syncthreads();
        }
        base += tiles * a.heads;
    }
}

}  // namespace openjet
