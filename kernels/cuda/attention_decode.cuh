// Attention of decode rows.
//
// A context is cut into splits at fixed pages; a split is taken in steps of up to 256 tokens, in order. The steps of all segments,
// query tiles and key-value heads stand in one row, of which each block gets an equal run of whole splits. Cells come to a ring in
// shared memory as they stand in the pool, in units of about 16 KB, keys and values of a step in turn, as far ahead as there is room.
// In a step, a warp scores 16 tokens for all queries (tokens x queries, so that 6 queries don't take 16 rows of the tensor cores),
// the warps agree on the new maxima, and then each sums 16 of the 256 numbers over all tokens of the step.
#pragma once
#include "attention_steps.cuh"

namespace openjet {

// Waits until at most `pending` of this thread's groups of copies are in flight.
__device__ __forceinline__ void copy_wait_most(int pending) {
    if (pending >= 6) copy_wait<6>();
    else if (pending >= 4) copy_wait<4>();
    else if (pending >= 2) copy_wait<2>();
    else if (pending == 1) copy_wait<1>();
    else copy_wait<0>();
}

// All steps of a run, for up to 8 NT queries each. The bits of a query's result are the same for every NT.
template <uint32_t Format, int NT>
__device__ __noinline__ void attention_run(const AttentionArgs& a, char* smem, int smem_bytes) {
    using C = Cells<Format>;
    DecodeShared& s = *reinterpret_cast<DecodeShared*>(smem);
    const DecodeRun& run = s.run;
    char* const queries = smem + DECODE_SHARED;
    char* const weights = queries + NT * TILE8_BYTES;
    char* const ring = weights + NT * TILE8_BYTES;
    const int slots = min(RING_UNITS, (smem_bytes - DECODE_SHARED - 2 * NT * TILE8_BYTES) / C::UNIT_BYTES);
    const int lane = opaque(lane_id()), warp = warp_id(), g = lane >> 2, j = lane & 3, r = lane & 7, m = lane >> 3;
    // Keys: this warp's 16 tokens are two of the four matrices of 32 tokens.
    constexpr int TILES = C::UNIT_TOKENS / 16;
    const int unit = warp / TILES, tile = warp % TILES, tile_token = 32 * (tile >> 1);
    const int key_row = (tile_token + kv_token(r, 2 * (tile & 1) + (m & 1))) * C::ROW_BYTES, key_turn = (m >> 1) ^ r;
    const int token = tile_token + kv_token(g, 2 * (tile & 1));          // and the one 2 after it
    // Values: 16 numbers are one piece, two of f16, half of one of q4_0.
    const int value_piece = Format == KV_F16 ? 2 * warp + (m & 1) : Format == KV_Q8_0 ? warp : warp >> 1;
    const int value_row = kv_token(r, Format == KV_F16 ? m >> 1 : m) * C::ROW_BYTES + ((value_piece ^ r) << 4);
    const int value_scale = C::SCALES + ((warp >> 1) * C::UNIT_TOKENS + 8 * j) * 2;
    const char* const pool = reinterpret_cast<const char*>(a.pool.base);
    const int part = (int)a.pool.kv_heads * C::TILE_UNITS;

    if (lane == 0) fence_tiles(a.cells_map);
    float acc[NT][4] = {}, top[NT][2] = {}, sum[NT][2] = {};
    uint32_t issued = 0, listed = 0;     // units whose copies have begun; those of the lists before
    int slot_issued = 0, slot = 0, side = 0;
    uint32_t phase = 0;
    // Begins the copies of units up to `limit`, one a warp where one thread can do it.
    auto issue = [&](uint32_t limit, uint32_t first) {
#ifdef OPENJET_BULK
        for (uint32_t i = issued + warp; i < limit; i += WARPS) {
            int at = slot_issued + (int)(i - issued);
            if (at >= slots) at -= slots;
            const uint32_t n = (i - first) >> (run.log + 1), u = i & (run.units - 1);
            const int from = s.keys[n][u];
            if (lane == 0) {
                if (from < 0) {
                    arrive(s.come[at]);
                } else {
                    arrive_expecting(s.come[at], C::UNIT_BYTES);
                    copy_tile(ring + at * C::UNIT_BYTES, pool, a.cells_map, i & run.units ? from + part : from, C::UNIT_BYTES, s.come[at]);
                }
            }
        }
#else
        for (uint32_t i = issued; i < limit; i++) {
            int at = slot_issued + (int)(i - issued);
            if (at >= slots) at -= slots;
            const uint32_t n = (i - first) >> (run.log + 1), u = i & (run.units - 1);
            const int unit_at = s.keys[n][u];
            const char* from = pool + (int64_t)(i & run.units ? unit_at + part : unit_at) * C::UNIT_BYTES;
            for (int k = (int)threadIdx.x * 16; unit_at >= 0 && k < C::UNIT_BYTES; k += THREADS * 16) copy16(ring + at * C::UNIT_BYTES + k, from + k);
            copy_commit();
        }
#endif
        slot_issued += (int)(limit - issued);
        if (slot_issued >= slots) slot_issued -= slots;
        issued = limit;
    };
    // The place of the step's unit u, when its cells are there.
    auto cells_of = [&](uint32_t u) -> const char* {
        int at = slot + (int)u;
        const uint32_t turn = at >= slots;
        if (turn) at -= slots;
#ifdef OPENJET_BULK
        while (!has_ended(s.come[at], phase + turn)) host_yield();
#endif
        return ring + at * C::UNIT_BYTES;
    };

#pragma unroll 1
    for (uint32_t from = run.begin; from < run.end; from += LISTED) {
        const uint32_t count = min(LISTED, run.end - from), all = listed + count * 2 * run.units;
        list_steps<Format>(a, s, run, from);
        __syncthreads();
        if (from == run.begin) pass_gate(smem);      // cells and queries are those of the op before
        issue(min(all, listed + (uint32_t)slots), listed);
        if (s.step[0].loads) {
            side ^= 1;
            load_queries<Format, NT>(a, s, queries, s.step[0], run.group, side);
        }
        __syncthreads();
#pragma unroll 1
        for (uint32_t n = 0; n < count; n++) {
            const DecodeStep& step = s.step[n];
            const uint32_t base = listed + n * 2 * run.units;
            const bool scores = unit < step.units;
            if (step.begins) {
#pragma unroll
                for (int t = 0; t < NT; t++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) acc[t][i] = 0.0f;
                    top[t][0] = top[t][1] = -1e30f;
                    sum[t][0] = sum[t][1] = 0.0f;
                }
            }
#ifndef OPENJET_BULK
            copy_wait_most((int)(issued - (base + run.units)));
            __syncthreads();
#endif
            float score[NT][4];
#pragma unroll
            for (int t = 0; t < NT; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) score[t][i] = scores ? 0.0f : -INFINITY;
            if (scores) {
                const char* cells = cells_of(unit);
                const uint32_t* scale = reinterpret_cast<const uint32_t*>(cells + C::SCALES) + token * (KV_BLOCKS / 2);
                score_tokens<Format, NT>(score, reinterpret_cast<const uint4*>(queries) + lane, cells + key_row, key_turn, scale, scale + KV_BLOCKS);
                const uint32_t begin = step.position + (uint32_t)(unit * C::UNIT_TOKENS + tile_token);
                if (begin + 31 > step.lowest || begin < a.first_position) {
                    const int at = (int)(begin - tile_token) + token;
                    const int lowest = (int)a.first_position;
#pragma unroll
                    for (int t = 0; t < NT; t++) {
                        const int2 last = *reinterpret_cast<const int2*>(&s.last[side][8 * t + 2 * j]);
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const int position = at + (i & 2);
                            score[t][i] = (position > (i & 1 ? last.y : last.x)) | (position < lowest) ? -INFINITY : score[t][i];
                        }
                    }
                }
            }
#pragma unroll
            for (int t = 0; t < NT; t++) {
                float2 most = make_float2(fmaxf(score[t][0], score[t][2]), fmaxf(score[t][1], score[t][3]));
#pragma unroll
                for (int o = 4; o < 32; o <<= 1) {
                    most.x = fmaxf(most.x, __shfl_xor_sync(0xffffffffu, most.x, o));
                    most.y = fmaxf(most.y, __shfl_xor_sync(0xffffffffu, most.y, o));
                }
                if (g == 0) *reinterpret_cast<float2*>(&s.warp_max[warp][8 * t + 2 * j]) = most;
            }
            fence_before_bulk();
            __syncthreads();             // the step's keys and the values before have been read
            issue(min(all, base + run.units + (uint32_t)slots), listed);
            const DecodeStep& next = s.step[n + 1];
            const bool loads = n + 1 < count && next.loads;
            if (loads) load_queries<Format, NT>(a, s, queries, next, run.group, side ^ 1);
            float rescale[NT][2];
#pragma unroll
            for (int t = 0; t < NT; t++) {
                const float2 x = *reinterpret_cast<const float2*>(&s.warp_max[g][8 * t + 2 * j]);
                const float2 y = *reinterpret_cast<const float2*>(&s.warp_max[g + 8][8 * t + 2 * j]);
                float most[2] = {fmaxf(x.x, y.x), fmaxf(x.y, y.y)};
#pragma unroll
                for (int i = 0; i < 2; i++) {
#pragma unroll
                    for (int o = 4; o < 32; o <<= 1) most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], o));
                    most[i] = fmaxf(most[i], top[t][i]);
                    rescale[t][i] = exp2f(top[t][i] - most[i]);
                    top[t][i] = most[i];
                    sum[t][i] *= rescale[t][i];
                }
                if (scores) {
                    const uint32_t low = bits(__floats2half2_rn(exp2f(score[t][0] - most[0]), exp2f(score[t][1] - most[1])));
                    const uint32_t high = bits(__floats2half2_rn(exp2f(score[t][2] - most[0]), exp2f(score[t][3] - most[1])));
                    // The weights as they were rounded.
                    sum[t][0] += low_float(low) + low_float(high);
                    sum[t][1] += high_float(low) + high_float(high);
                    const uint2 turned = make_uint2(transpose_matrix(low), transpose_matrix(high));
                    *reinterpret_cast<uint2*>(weights + (((warp >> 1) * NT + t) * 32 + lane) * 16 + (warp & 1) * 8) = turned;
                }
                if (step.ends) {
                    float whole[2] = {sum[t][0], sum[t][1]};
#pragma unroll
                    for (int o = 4; o < 32; o <<= 1) {
                        whole[0] += __shfl_xor_sync(0xffffffffu, whole[0], o);
                        whole[1] += __shfl_xor_sync(0xffffffffu, whole[1], o);
                    }
                    if (g == 0) {
                        *reinterpret_cast<float2*>(&s.warp_sum[warp][8 * t + 2 * j]) = make_float2(whole[0], whole[1]);
                        if (warp == 0) *reinterpret_cast<float2*>(&s.max[8 * t + 2 * j]) = make_float2(most[0], most[1]);
                    }
                }
#pragma unroll
                for (int i = 0; i < 4; i++) acc[t][i] *= rescale[t][i & 1];
            }
#ifndef OPENJET_BULK
            copy_wait_most((int)(issued - (base + 2 * run.units)));
#endif
            __syncthreads();
#pragma unroll 1
            for (uint32_t u = 0; u < step.units; u++) {
                const char* cells = cells_of(run.units + u);
#pragma unroll
                for (int k = 0; k < C::UNIT_TOKENS / 32; k++) {
                    const uint4* p = reinterpret_cast<const uint4*>(weights) + (u * (C::UNIT_TOKENS / 32) + k) * NT * 32 + lane;
                    add_values<Format, NT>(acc, p, cells + value_row + k * 32 * C::ROW_BYTES, cells + value_scale + k * 64, 4 * (warp & 1));
                }
            }
            if (step.ends) {
                if (threadIdx.x < step.queries) {
                    float whole = 0.0f;
#pragma unroll
                    for (int w = 0; w < WARPS; w++) whole += s.warp_sum[w][threadIdx.x];
                    float* to = a.partial + ((uint64_t)s.place[side][threadIdx.x] * a.splits + step.split) * PARTIAL + HEAD_DIM;
                    to[0] = s.max[threadIdx.x];
                    to[1] = whole;
                }
                constexpr int STEP = Format == KV_F16 ? 8 : 1;           // between the two numbers of a lane
                const int number = 16 * warp + (Format == KV_F16 ? g : 2 * g);
#pragma unroll
                for (int t = 0; t < NT; t++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int query = 8 * t + 2 * j + i;
                        if (query >= step.queries) continue;
                        float* to = a.partial + ((uint64_t)s.place[side][query] * a.splits + step.split) * PARTIAL + number;
                        to[0] = acc[t][i];
                        to[STEP] = acc[t][2 + i];
                    }
            }
            if (loads) side ^= 1;
            slot += 2 * (int)run.units;
            if (slot >= slots) {
                slot -= slots;
                phase++;
            }
        }
        listed = all;
        __syncthreads();                 // this list has been read
    }
}

template <uint32_t Format>
__device__ __forceinline__ void run_tiles(const AttentionArgs& a, char* smem, int smem_bytes, uint32_t tile) {
    if (tile <= 8) attention_run<Format, 1>(a, smem, smem_bytes);
    else if (tile <= 24) attention_run<Format, 3>(a, smem, smem_bytes);
    else attention_run<Format, 4>(a, smem, smem_bytes);
}

__device__ __forceinline__ void op_attention_decode(const AttentionArgs& a, char* smem, int smem_bytes, int block, int blocks) {
    DecodeShared& s = *reinterpret_cast<DecodeShared*>(smem);
    const uint32_t segments = header_word(smem, HEADER_SEGMENTS), rows = a.draft ? segments : header_word(smem, 0);
    const uint32_t kv_heads = a.pool.kv_heads, thread = threadIdx.x;
    const uint32_t group = a.heads / kv_heads, units = decode_units(a.pool.format, smem_bytes);
    const uint32_t tokens = units * (a.pool.format == KV_F16 ? Cells<KV_F16>::UNIT_TOKENS : Cells<KV_Q8_0>::UNIT_TOKENS);
    // All that the shares need is asked for at once, by a thread a row and a thread a segment.
    if (thread < rows && thread < MAX_DECODE_ROWS) s.row[thread] = rows_of(a)[thread];
    if (thread >= THREADS / 2 && thread - THREADS / 2 < segments) {
        const Segment& entry = a.table.segments()[thread - THREADS / 2];
        DecodeShare& share = s.share[thread - THREADS / 2];
        share.first = a.draft ? thread - THREADS / 2 : entry.first_row;
        share.rows = a.draft ? 1 : entry.rows;
        share.pages_offset = entry.pages_offset;
    }
    __syncthreads();
    if (thread < segments) {
        DecodeShare& share = s.share[thread];
        const bool takes_part = attends(s.row[share.first].kind);
        share.end = s.row[share.first + share.rows - 1].position + 1;
        share.steps = takes_part ? (share.end + tokens - 1) / tokens : 0;
        share.queries = share.rows * group;
        share.tiles = max((share.queries + DECODE_TILE - 1) / DECODE_TILE, 1u);
        share.tile = ((share.queries + 7) / 8 + share.tiles - 1) / share.tiles * 8;
        share.tiles = takes_part ? (share.queries + share.tile - 1) / share.tile : 0;
    }
    __syncthreads();
    uint32_t all = 0, tile = 8;
    for (uint32_t segment = 0; segment < segments; segment++) {
        const DecodeShare& share = s.share[segment];
        all += share.steps * share.tiles * kv_heads;
        if (share.steps) tile = max(tile, share.tile);
    }
    if (thread < 2) {
        (thread ? s.run.end : s.run.begin) = snap_step(s, segments, kv_heads, tokens, all * (block + thread) / blocks);
    }
    if (thread == 0) {
        s.run.units = units;
        s.run.log = units >> 1;
        s.run.group = group;
    }
    __syncthreads();
    if (s.run.begin == s.run.end) return pass_gate(smem);
    if (thread < RING_UNITS) arrivals_begin(s.come[thread], 1);
    fence_before_bulk();                 // and the barrier after the steps are listed
    if (a.pool.format == KV_F16) run_tiles<KV_F16>(a, smem, smem_bytes, tile);
    else if (a.pool.format == KV_Q8_0) run_tiles<KV_Q8_0>(a, smem, smem_bytes, tile);
    else run_tiles<KV_Q4_0>(a, smem, smem_bytes, tile);
    if (thread < RING_UNITS) arrivals_end(s.come[thread]);
}

}  // namespace openjet
