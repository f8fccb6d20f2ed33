// What happens to a row's logits before a token is chosen: op_sample_adjust and op_sample_weigh. See sample.cuh.
#pragma once
#include "sample.cuh"

namespace openjet {

// What is to be done for a row.
enum RowWork : uint32_t { WORK_NONE, WORK_PLAIN, WORK_CHANGED };

struct AdjustShared {
    float logits[SLICE];
    float values[WARPS];
    uint32_t tokens[WARPS];
    uint32_t work[MAX_DECODE_ROWS];
};

// Whether nothing changes a row's logits but a mask, and nobody asks for log probabilities.
__device__ __forceinline__ bool is_plain(const SampleArgs& a, const Segment& s) {
    const bool penalised = s.repetition_penalty != 1.0f || s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f;
    return !penalised && s.biases == 0 && s.logprobs == 0 && a.vocab % 4 == 0;
}

// The mask of a row's tokens, in words from the table's beginning; 0 where there is none.
__device__ __forceinline__ uint32_t mask_of(const SampleArgs& a, uint32_t r, const Segment& segment) {
    return a.draft == NO_DRAFT && segment.mask_offset ? *a.table.at(segment.mask_offset + r - segment.first_row) : 0;
}

// One warp for a (row, slice) of a plain row: no barriers, so that many slices are under way.
__device__ __forceinline__ void adjust_plain(const SampleArgs& a, uint32_t item, uint32_t r, uint32_t slice) {
    const Segment& segment = a.table.segments()[rows_of(a)[r].segment];
    const uint32_t begin = slice * SLICE, end = min(begin + SLICE, a.vocab), mask = mask_of(a, r, segment);
    const float* logits = a.logits + (uint64_t)r * a.vocab;
    // Greedy rows are decided by their slices' best tokens.
    float* adjusted = segment.temperature == 0.0f ? nullptr : adjusted_row(a, r);
    SliceStats stats = {};
    stats.max = -INFINITY;
    stats.best = 0xffffffffu;
    bool bad = false;
#pragma unroll 8
    for (uint32_t token = begin + 4 * lane_id(); token < end; token += 128) {
        const float4 raw = *reinterpret_cast<const float4*>(logits + token);
        float v[4] = {raw.x, raw.y, raw.z, raw.w};
        uint32_t allowed = a.usable ? a.usable[token / 32] >> (token % 32) : 0xfu;
        if (mask) allowed &= *a.table.at(mask + token / 32) >> (token % 32);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            bad |= !(fabsf(v[i]) < INFINITY);
            if (!(allowed >> i & 1)) v[i] = -INFINITY;
            if (better(v[i], token + i, stats.max, stats.best)) {
                stats.max = v[i];
                stats.best = token + i;
            }
        }
        if (adjusted) *reinterpret_cast<float4*>(adjusted + token) = make_float4(v[0], v[1], v[2], v[3]);
    }
    warp_best(stats.max, stats.best);
    stats.not_finite = __any_sync(0xffffffffu, bad) ? 1 : 0;
    if (lane_id() == 0) a.stats[item] = stats;
}

// Plain rows by warps where there are many, others by blocks.
__device__ __forceinline__ void op_sample_adjust(const SampleArgs& a, char* smem, int, int block, int blocks) {
    AdjustShared& s = *reinterpret_cast<AdjustShared*>(smem);
    const uint32_t count = slices(a), rows = row_count(a), t = threadIdx.x;
    // Where there are blocks for all, they are faster.
    const bool few = rows * count <= (uint32_t)blocks;
    bool changed = false;
    for (uint32_t r = t; r < rows; r += THREADS) {
        const Row row = rows_of(a)[r];
        const bool plain = !few && samples(a, row) && is_plain(a, a.table.segments()[row.segment]);
        const uint32_t work = plain ? WORK_PLAIN : samples(a, row) ? WORK_CHANGED : WORK_NONE;
        s.work[r] = work;
        changed |= work == WORK_CHANGED;
    }
    changed = __syncthreads_or(changed);
    for (uint32_t item = warp_id() * blocks + block; item < rows * count; item += blocks * WARPS) {
        const uint32_t r = item / count;
        if (s.work[r] == WORK_PLAIN) adjust_plain(a, item, r, item - r * count);
    }
    for (uint32_t item = block; changed && item < rows * count; item += blocks) {
        const uint32_t r = item / count, begin = item % count * SLICE, end = min(begin + SLICE, a.vocab);
        if (s.work[r] != WORK_CHANGED) continue;
        const Row row = rows_of(a)[r];
        const Segment& segment = a.table.segments()[row.segment];
        const float* logits = a.logits + (uint64_t)r * a.vocab;
        SliceStats stats = {};
        float raw[8];
        stats.raw_max = -INFINITY;
        stats.raw_best = 0xffffffffu;
        int bad = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t token = begin + t + i * THREADS;
            raw[i] = token < end ? logits[token] : -INFINITY;
            if (token < end && !(fabsf(raw[i]) < INFINITY)) bad = 1;
            if (token < end && !is_usable(a, token)) raw[i] = -INFINITY;
            if (better(raw[i], token, stats.raw_max, stats.raw_best)) {
                stats.raw_max = raw[i];
                stats.raw_best = token;
            }
            s.logits[t + i * THREADS] = raw[i];
        }
        stats.not_finite = (uint32_t)__syncthreads_or(bad);
        const bool repetition = segment.repetition_penalty != 1.0f;
        if (repetition || segment.frequency_penalty != 0.0f || segment.presence_penalty != 0.0f) {
            const uint32_t* pairs = a.table.at(segment.penalty_offset);
            const Added added(a, r, row, segment);
            const uint32_t from = first_pair(pairs, segment.penalties, begin), to = first_pair(pairs, segment.penalties, end);
            for (uint32_t i = from + t; i < to; i += THREADS) {
                float& logit = s.logits[pairs[2 * i] - begin];
                logit = penalise(segment, logit, pairs[2 * i + 1] + added.times(pairs[2 * i]));
            }
            for (uint32_t i = t; i < added.count; i += THREADS) {
                const uint32_t token = added[i];
                if (token < begin || token >= end) continue;
                bool seen = false;
                for (uint32_t k = 0; k < i; k++) seen |= added[k] == token;
                const uint32_t p = first_pair(pairs, segment.penalties, token);
                if (seen || (p < segment.penalties && pairs[2 * p] == token)) continue;
                s.logits[token - begin] = penalise(segment, s.logits[token - begin], added.times(token));
            }
            __syncthreads();
        }
        if (segment.biases) {
            const uint32_t* pairs = a.table.at(segment.bias_offset);
            const uint32_t from = first_pair(pairs, segment.biases, begin), to = first_pair(pairs, segment.biases, end);
            for (uint32_t i = from + t; i < to; i += THREADS) {
                // The first of a token's pairs adds all of them.
                if (i > from && pairs[2 * i - 2] == pairs[2 * i]) continue;
                for (uint32_t k = i; k < to && pairs[2 * k] == pairs[2 * i]; k++)
                    s.logits[pairs[2 * i] - begin] += __uint_as_float(pairs[2 * k + 1]);
            }
            __syncthreads();
        }
        const uint32_t mask = mask_of(a, r, segment);
        float* adjusted = adjusted_row(a, r);
        stats.max = -INFINITY;
        stats.best = 0xffffffffu;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t token = begin + t + i * THREADS;
            if (token >= end) continue;
            float logit = s.logits[t + i * THREADS];
            if (mask && !(*a.table.at(mask + token / 32) >> (token % 32) & 1)) logit = -INFINITY;
            adjusted[token] = logit;
            if (better(logit, token, stats.max, stats.best)) {
                stats.max = logit;
                stats.best = token;
            }
        }
        block_best(stats.max, stats.best, s.values, s.tokens);
        if (segment.logprobs) {
            block_best(stats.raw_max, stats.raw_best, s.values, s.tokens);
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; i++) sum += raw[i] > -INFINITY ? expf(raw[i] - stats.raw_max) : 0.0f;
            __syncthreads();
            stats.raw_sum = block_sum(sum, s.values);
        }
        if (t == 0) a.stats[item] = stats;
        __syncthreads();
    }
}

struct WeighShared {
    uint64_t scratch[WARPS];
    float speeds[WARPS];
    uint32_t tokens[WARPS];
};

// One block for each (row, slice) of rows with a temperature: the likely tokens, or the fastest where all may be drawn.
__device__ __forceinline__ void op_sample_weigh(const SampleArgs& a, char* smem, int, int block, int blocks) {
    WeighShared& s = *reinterpret_cast<WeighShared*>(smem);
    const uint32_t count = slices(a), rows = row_count(a);
    bool draws = false;
    for (uint32_t r = threadIdx.x; r < rows; r += THREADS) {
        const Row row = rows_of(a)[r];
        draws |= samples(a, row) && a.table.segments()[row.segment].temperature != 0.0f;
    }
    if (!__syncthreads_or(draws)) return;
    for (uint32_t item = block; item < rows * count; item += blocks) {
        const uint32_t r = item / count, begin = item % count * SLICE, end = min(begin + SLICE, a.vocab);
        const Row row = rows_of(a)[r];
        if (!samples(a, row)) continue;
        const Segment& segment = a.table.segments()[row.segment];
        if (segment.temperature == 0.0f) continue;
        float max;
        uint32_t best;
        row_best(a, r, max, best);
        if (!(max > -INFINITY)) continue;
        const float* adjusted = adjusted_row(a, r);
        float logits[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t token = begin + threadIdx.x * 8 + i;
            logits[i] = token < end ? adjusted[token] : -INFINITY;
        }
        SliceStats& stats = a.stats[item];
        if (draws_from_all(a, segment)) {
            const Distribution d = all_tokens(segment, max);
            float speed = 0.0f;
            uint32_t drawn = 0xffffffffu;
#pragma unroll 1
            for (int i = 0; i < 8; i++) {
                const uint32_t token = begin + threadIdx.x * 8 + i;
                const float weight = kept_weight(d, logits[i], token);
                if (!(weight > 0.0f)) continue;
                const float this_speed = speed_of(weight, segment.seed, row.position + 1, token);
                if (better(this_speed, token, speed, drawn)) {
                    speed = this_speed;
                    drawn = token;
                }
            }
            block_best(speed, drawn, s.speeds, s.tokens);
            if (threadIdx.x == 0) {
                stats.speed = speed;
                stats.drawn = drawn;
            }
            __syncthreads();
            continue;
        }
        uint64_t weight = 0, place, total;
#pragma unroll
        for (int i = 0; i < 8; i++) weight += weight_of(logits[i], max, segment.temperature);
        weight = block_sum_u64(weight, s.scratch);
        const auto count_within = [&](uint32_t range) {
            uint64_t within = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) within += exponent(logits[i], max, segment.temperature) >= -range_of(range);
            place = block_scan(within, s.scratch, total);
            return total <= SLICE_LIST;
        };
        // The widest range of which there is room for all.
        uint32_t range = 0;
        if (!count_within(0)) {
            uint32_t narrow = RANGES;
            while (range + 1 < narrow) {
                const uint32_t middle = (range + narrow) / 2;
                if (count_within(middle)) narrow = middle;
                else range = middle;
            }
            range = narrow;
            if (range < RANGES) count_within(range);
        }
        if (range < RANGES) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (exponent(logits[i], max, segment.temperature) >= -range_of(range))
                    a.candidates[(uint64_t)item * SLICE_LIST + place++] = {logits[i], begin + threadIdx.x * 8 + i};
        }
        if (threadIdx.x == 0) {
            stats.weight = weight;
            stats.listed = range < RANGES ? (uint32_t)total : 0;
            stats.range = range;
        }
        __syncthreads();
    }
}

}  // namespace openjet
