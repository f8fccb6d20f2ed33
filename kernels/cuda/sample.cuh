// From logits to tokens: what engine/src/sampling says, over rows and slices of the vocabulary.
//
// op_sample_adjust    for each (row, slice): penalties, bias, mask and usable tokens; the slice's maximum (adjust.cuh)
// op_sample_weigh     for each (row, slice), where a token is drawn: the slice's weight and its likely tokens (adjust.cuh)
// op_sample_pick      for each row: filters, the token that is drawn (pick.cuh)
// op_sample_accept    for each segment: how many drafts are what was drawn, and what comes next (accept.cuh)
// op_sample_logprobs  for each row that was used: log probabilities (accept.cuh)
//
// Sums of weights are whole numbers (fixed point), so that their order doesn't matter. Rows of one segment are worked on at
// the same time: each assumes that the drafts before it are accepted, and its result is used only if they are.
#pragma once
#include "random.cuh"
#include "slot.cuh"
#include "warp.cuh"

namespace openjet {

// Tokens of a slice: 8 a thread.
constexpr uint32_t SLICE = 8 * THREADS;
constexpr uint32_t MAX_SLICES = 128;
// Likely tokens that are listed of a slice, and of a row.
constexpr uint32_t SLICE_LIST = 256;
constexpr uint32_t ROW_LIST = SLICE;
// Tokens within the first of these ranges of the best logit (divided by the temperature) are listed, or within the next for which
// there is room: 32, beyond which no token has a weight, and every eighth power of two below, so that near a dense crowd of tokens
// one still has enough and not too many.
constexpr uint32_t RANGES = 64;
__device__ __forceinline__ float range_of(uint32_t range) { return exp2f(5.0f - 0.125f * (float)range); }
// Weights are counted in units of 2^-40: the smallest is above e^-28.
constexpr float WEIGHT_UNIT = 1099511627776.0f;

enum RowFlag : uint32_t { FLAG_NOT_FINITE = 1, FLAG_NOTHING_ALLOWED = 2 };

struct SliceStats {
    // Of the adjusted logits; the lowest id among equals.
    float max;
    uint32_t best;
    // Of the usable tokens' logits as they came: maximum, its lowest id, and the sum of e^(logit - maximum).
    float raw_max;
    uint32_t raw_best;
    float raw_sum;
    uint32_t not_finite;
    // Tokens that are listed: all within this range; RANGES where there was room for none.
    uint32_t listed;
    uint32_t range;
    // Where no filter but min-p cuts anything off: the slice's fastest token, and how fast it is (draw).
    float speed;
    uint32_t drawn;
    uint64_t weight;
};
static_assert(sizeof(SliceStats) == 48);

struct Candidate {
    float logit;
    uint32_t token;
};

// A distribution over adjusted logits: which tokens are kept.
struct Distribution {
    float temperature;
    float max;
    // Kept: order above `threshold`, or equal to it and the token at most `limit`; and weight at least `least`.
    uint32_t threshold;
    uint32_t limit;
    uint64_t least;
};

// What is drawn after a row.
struct RowPick {
    uint32_t token;
    uint32_t flags;
};

struct SampleArgs {
    Table table;
    // Rows x vocabulary.
    const float* logits;
    // Adjusted logits, rows x vocabulary.
    float* adjusted;
    // Rows x slices.
    SliceStats* stats;
    // Rows x slices x SLICE_LIST.
    Candidate* candidates;
    RowPick* picks;
    SlotState* slots;
    StepResult* result;
    // Trunk hidden states after the output norm, rows x hidden; the state of each slot that the next cell of the draft head
    // starts from, slots x hidden; and where the draft head finds it, segments x hidden.
    const float* hidden;
    float* pending_hidden;
    float* draft_hidden;
    // The draft head's rows, written by op_sample_accept.
    Row* draft_rows;
    // Tokens that may ever be chosen or listed, as a bit set; null where all may.
    const uint32_t* usable;
    uint32_t vocab;
    // NO_DRAFT, or which draft the rows propose.
    uint32_t draft;
    uint32_t draft_max;
    uint32_t hidden_width;
};
static_assert(sizeof(SampleArgs) == 120);
constexpr uint32_t NO_DRAFT = 0xffffffffu;

// The rows of this pass: those of the table, or the draft head's, of which row s belongs to segment s.
__device__ __forceinline__ const Row* rows_of(const SampleArgs& a) { return a.draft == NO_DRAFT ? a.table.rows() : a.draft_rows; }
__device__ __forceinline__ uint32_t row_count(const SampleArgs& a) {
    return a.draft == NO_DRAFT ? a.table.header().rows : a.table.header().segments;
}

__device__ __forceinline__ uint32_t slices(const SampleArgs& a) { return (a.vocab + SLICE - 1) / SLICE; }

__device__ __forceinline__ bool samples(const SampleArgs& a, const Row& row) {
    return (row.kind == ROW_DECODE || row.kind == ROW_PROMPT_LAST || row.kind == ROW_DRAFT) && a.table.segments()[row.segment].samples;
}

__device__ __forceinline__ bool is_usable(const SampleArgs& a, uint32_t token) {
    return !a.usable || (a.usable[token / 32] >> (token % 32) & 1);
}

// Where a row's adjusted logits are.
__device__ __forceinline__ float* adjusted_row(const SampleArgs& a, uint32_t r) { return a.adjusted + (uint64_t)r * a.vocab; }

// The tokens that this step adds to a segment's output before what a row chooses.
struct Added {
    const Row* drafts;
    const SegmentResult* result;
    uint32_t accepted;
    uint32_t count;

    __device__ Added(const SampleArgs& a, uint32_t r, const Row& row, const Segment& segment) {
        drafts = a.table.rows() + segment.first_row + 1;
        result = &a.result->segment[row.segment];
        accepted = a.draft == NO_DRAFT ? r - segment.first_row : result->accepted;
        count = a.draft == NO_DRAFT ? accepted : accepted + 1 + a.draft;
    }
    __device__ uint32_t operator[](uint32_t i) const {
        return i < accepted ? drafts[i].token : i == accepted ? result->token : result->draft[i - accepted - 1];
    }
    __device__ uint32_t times(uint32_t token) const {
        uint32_t n = 0;
        for (uint32_t i = 0; i < count; i++) n += (*this)[i] == token;
        return n;
    }
};

// First of `n` pairs, ascending by their first word, whose token is not below `token`.
__device__ __forceinline__ uint32_t first_pair(const uint32_t* pairs, uint32_t n, uint32_t token) {
    uint32_t low = 0;
    while (n > 0) {
        const uint32_t step = n / 2;
        if (pairs[2 * (low + step)] < token) {
            low += step + 1;
            n -= step + 1;
        } else {
            n = step;
        }
    }
    return low;
}

__device__ __forceinline__ float penalise(const Segment& s, float logit, uint32_t times) {
    if (s.repetition_penalty != 1.0f) logit = logit > 0.0f ? __fdiv_rn(logit, s.repetition_penalty) : __fmul_rn(logit, s.repetition_penalty);
    if (times > 0 && (s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f))
        logit = __fsub_rn(logit, __fadd_rn(__fmul_rn(s.frequency_penalty, (float)times), s.presence_penalty));
    return logit;
}

__device__ __forceinline__ bool better(float a, uint32_t a_token, float b, uint32_t b_token) {
    return a > b || (a == b && a_token < b_token);
}

// The best of a warp's (value, token) in every lane.
__device__ __forceinline__ void warp_best(float& value, uint32_t& token) {
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        const float v = __shfl_xor_sync(0xffffffffu, value, o);
        const uint32_t t = __shfl_xor_sync(0xffffffffu, token, o);
        if (better(v, t, value, token)) {
            value = v;
            token = t;
        }
    }
}
// The best of all threads' in every thread.
__device__ __forceinline__ void block_best(float& value, uint32_t& token, float* values, uint32_t* tokens) {
    warp_best(value, token);
    __syncthreads();
    if (lane_id() == 0) {
        values[warp_id()] = value;
        tokens[warp_id()] = token;
    }
    __syncthreads();
    value = values[0];
    token = tokens[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        if (better(values[w], tokens[w], value, token)) {
            value = values[w];
            token = tokens[w];
        }
}

// Maximum of a row's adjusted logits and where it is.
__device__ __forceinline__ void row_best(const SampleArgs& a, uint32_t r, float& max, uint32_t& token) {
    const SliceStats* stats = a.stats + r * slices(a);
    max = -INFINITY;
    token = 0xffffffffu;
    for (uint32_t i = lane_id(); i < slices(a); i += 32)
        if (better(stats[i].max, stats[i].best, max, token)) {
            max = stats[i].max;
            token = stats[i].best;
        }
    warp_best(max, token);
}

// Logarithm of a token's weight relative to the best one.
__device__ __forceinline__ float exponent(float logit, float max, float temperature) { return __fdiv_rn(__fsub_rn(logit, max), temperature); }
__device__ __forceinline__ uint64_t weight_of(float logit, float max, float temperature) {
    return (uint64_t)__fmul_rn(expf(exponent(logit, max, temperature)), WEIGHT_UNIT);
}

// Exclusive sum over the threads of the block, in their order, and the sum of all.
__device__ __forceinline__ uint64_t block_scan(uint64_t v, uint64_t* scratch, uint64_t& total) {
    uint64_t sum = v;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const uint64_t before = __shfl_up_sync(0xffffffffu, sum, o);
        if (lane_id() >= o) sum += before;
    }
    __syncthreads();
    if (lane_id() == 31) scratch[warp_id()] = sum;
    __syncthreads();
    uint64_t base = 0;
    total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w < warp_id()) base += scratch[w];
        total += scratch[w];
    }
    return base + sum - v;
}

// Larger for larger numbers; -0 and 0 are equal.
__device__ __forceinline__ uint32_t order_of(float x) {
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f));
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
// Of -infinity: such tokens are never kept.
constexpr uint32_t LOWEST_ORDER = 0x007fffffu;

// Weight of a token with a given adjusted logit, relative to the best one; 0 where it isn't kept.
__device__ __forceinline__ float kept_weight(const Distribution& d, float logit, uint32_t token) {
    const uint32_t order = order_of(logit);
    if (order < d.threshold || (order == d.threshold && token > d.limit)) return 0.0f;
    if (weight_of(logit, d.max, d.temperature) < d.least) return 0.0f;
    return expf(exponent(logit, d.max, d.temperature));
}

// A row's tokens before top-k and top-p.
__device__ __forceinline__ Distribution all_tokens(const Segment& segment, float max) {
    return {segment.temperature, max, LOWEST_ORDER + 1, 0xffffffffu, (uint64_t)ceilf(__fmul_rn(segment.min_p, WEIGHT_UNIT))};
}
// Whether top-k and top-p leave them all.
__device__ __forceinline__ bool draws_from_all(const SampleArgs& a, const Segment& segment) {
    return (segment.top_k == 0 || segment.top_k >= a.vocab) && segment.top_p >= 1.0f;
}

// When a token of weight 1 arrives: exponentially distributed, of a uniform number.
__device__ __forceinline__ float arrival(float u) { return -log1pf(-fminf(u, 1.0f - 1.0f / 16777216.0f)); }
// A token's speed: its weight as the rate over the time that it was given.
__device__ __forceinline__ float speed_of(float weight, uint64_t seed, uint32_t position, uint32_t token) {
    return __fdiv_rn(weight, arrival(uniform(seed, position, token)));
}
// A little less than the earliest of all times, 2^-33.
constexpr float EARLIEST = 1.16e-10f;

}  // namespace openjet
