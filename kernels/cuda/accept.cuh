// What follows a step's picks: how many drafts stand, log probabilities, and where the draft head starts. See sample.cuh.
#pragma once
#include "sample.cuh"

namespace openjet {

__device__ __forceinline__ bool ends_text(const Table& table, const Segment& segment, uint32_t token) {
    for (uint32_t i = 0; i < segment.ends; i++)
        if (table.at(segment.end_offset)[i] == token) return true;
    return false;
}

// One block for each segment.
__device__ __forceinline__ void op_sample_accept(const SampleArgs& a, char* smem, int, int block, int blocks) {
    uint32_t& accepted_rows = *reinterpret_cast<uint32_t*>(smem);
    for (uint32_t n = block; n < a.table.header().segments; n += blocks) {
        const Segment& segment = a.table.segments()[n];
        const Row* rows = a.table.rows() + segment.first_row;
        if (threadIdx.x == 0) {
            SegmentResult result = {};
            const RowPick* picks = a.picks + segment.first_row;
            if (segment.samples) {
                for (uint32_t i = 0; i < segment.rows; i++) {
                    if (picks[i].flags) {
                        result = {};
                        result.flags = picks[i].flags;
                        break;
                    }
                    result.token = picks[i].token;
                    const bool stands = i + 1 < segment.rows && rows[i + 1].token == result.token;
                    if (!stands || i + 1 >= segment.budget || ends_text(a.table, segment, result.token)) break;
                    result.accepted = i + 1;
                }
            }
            SlotState& slot = a.slots[segment.slot];
            if (segment.kind != SEGMENT_PROMPT) {
                slot.pending = result.accepted + 1;
                slot.parity ^= 1;
            }
            const bool drafts = segment.samples && !result.flags && segment.draft_depth > 0 && !ends_text(a.table, segment, result.token);
            a.draft_rows[n] = {result.token, segment.position + result.accepted + 1, n, drafts ? ROW_DRAFT : ROW_IDLE};
            a.result->segment[n] = result;
            accepted_rows = result.accepted;
        }
        __syncthreads();
        const float* hidden = a.hidden + (uint64_t)(segment.first_row + accepted_rows) * a.hidden_width;
        for (uint32_t i = threadIdx.x; i < a.hidden_width; i += THREADS) {
            a.pending_hidden[(uint64_t)segment.slot * a.hidden_width + i] = hidden[i];
            a.draft_hidden[(uint64_t)n * a.hidden_width + i] = hidden[i];
        }
        __syncthreads();
    }
}

struct LogprobsShared {
    float values[WARPS];
    uint32_t tokens[WARPS];
    // The best token of each slice that was not reported yet.
    float best[MAX_SLICES];
    uint32_t token[MAX_SLICES];
};

// One block for each row, after op_sample_accept: log probabilities under the model's own distribution.
__device__ __forceinline__ void op_sample_logprobs(const SampleArgs& a, char* smem, int, int block, int blocks) {
    LogprobsShared& s = *reinterpret_cast<LogprobsShared*>(smem);
    const uint32_t count = slices(a), t = threadIdx.x;
    for (uint32_t r = block; r < row_count(a); r += blocks) {
        const Row row = rows_of(a)[r];
        if (!samples(a, row)) continue;
        const Segment& segment = a.table.segments()[row.segment];
        const SegmentResult& result = a.result->segment[row.segment];
        const uint32_t j = r - segment.first_row;
        if (segment.logprobs == 0 || result.flags || j > result.accepted) continue;
        const SliceStats* stats = a.stats + (uint64_t)r * count;
        const float* logits = a.logits + (uint64_t)r * a.vocab;
        float max = -INFINITY;
        for (uint32_t i = 0; i < count; i++) max = fmaxf(max, stats[i].raw_max);
        float sum = 0.0f;
        for (uint32_t i = 0; i < count; i++) sum = fmaf(stats[i].raw_sum, expf(stats[i].raw_max - max), sum);
        const float log_sum = logf(sum);
        for (uint32_t i = t; i < count; i += THREADS) {
            s.best[i] = stats[i].raw_max;
            s.token[i] = stats[i].raw_best;
        }
        __syncthreads();
        const uint32_t wanted = min(segment.logprobs - 1, min(MAX_TOP_LOGPROBS, a.vocab));
        RowLogprobs& out = a.result->logprobs[r];
        uint32_t listed = 0;
        for (; listed < wanted; listed++) {
            float value = -INFINITY;
            uint32_t token = 0xffffffffu;
            if (t < count) {
                value = s.best[t];
                token = s.token[t];
            }
            block_best(value, token, s.values, s.tokens);
            // There are no more usable tokens.
            if (!(value > -INFINITY)) break;
            if (t == 0) {
                out.token[listed] = token;
                out.logprob[listed] = value - max - log_sum;
            }
            // The slice's next best.
            const uint32_t slice = token / SLICE, end = min((slice + 1) * SLICE, a.vocab);
            float next = -INFINITY;
            uint32_t next_token = 0xffffffffu;
            for (uint32_t i = slice * SLICE + t; i < end; i += THREADS)
                if (is_usable(a, i) && better(value, token, logits[i], i) && better(logits[i], i, next, next_token)) {
                    next = logits[i];
                    next_token = i;
                }
            block_best(next, next_token, s.values, s.tokens);
            if (t == 0) {
                s.best[slice] = next;
                s.token[slice] = next_token;
            }
            __syncthreads();
        }
        if (t == 0) {
            const uint32_t chosen = j < result.accepted ? a.table.rows()[r + 1].token : result.token;
            out.chosen = logits[chosen] - max - log_sum;
            out.alternatives = listed;
        }
        __syncthreads();
    }
}

}  // namespace openjet
