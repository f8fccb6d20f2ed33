// op_sample_pick: a row's distribution and its token. See sample.cuh.
#pragma once
#include "sample.cuh"

namespace openjet {

struct PickShared {
    float logits[ROW_LIST];
    uint32_t tokens[ROW_LIST];
    uint64_t scratch[WARPS];
    float speeds[WARPS];
    uint32_t chosen[WARPS];
};

// Tokens in ascending order with their adjusted logits: a list in shared memory, or a whole row.
struct TokenList {
    const float* logits;
    const uint32_t* tokens;
    uint32_t count;
    __device__ uint32_t token(uint32_t i) const { return tokens[i]; }
};
struct TokenRow {
    const float* logits;
    uint32_t count;
    __device__ uint32_t token(uint32_t i) const { return i; }
};

// Sum of f(logit, token) over a source, in every thread.
template <class Source, class F> __device__ __forceinline__ uint64_t sum_over(const Source& source, uint64_t* scratch, F f) {
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < source.count; i += THREADS) sum += f(source.logits[i], source.token(i));
    return block_sum_u64(sum, scratch);
}

// Largest number whose `reaches` is true; it is true for 0 and, once false, stays so.
template <class F> __device__ __forceinline__ uint32_t last_true(F reaches) {
    uint32_t n = 0;
    for (int bit = 31; bit >= 0; bit--)
        if (reaches(n | 1u << bit)) n |= 1u << bit;
    return n;
}

// floor(u total / 2^24).
__device__ __forceinline__ uint64_t fraction_of(uint64_t total, uint32_t u) {
    return (total >> 24) * u + ((total & 0xffffffu) * u >> 24);
}

// The weight that top-p asks for, of the weight of all tokens that compete. At least one token is kept, also for 0.
__device__ __forceinline__ uint64_t nucleus(const Segment& segment, uint64_t whole) {
    const uint64_t wanted = fraction_of(whole, (uint32_t)__fmul_rn(segment.top_p, 16777216.0f));
    return wanted > 0 ? wanted : 1;
}

// Cuts `d`, which has all tokens, down to those of top-k and top-p. `whole` is the weight of all.
template <class Source>
__device__ void filter(Distribution& d, const Segment& segment, const Source& source, uint64_t whole, uint32_t vocab, uint64_t* scratch) {
    // The n-th of the tokens of order `threshold`, in ascending order, is the last one that is kept.
    const auto limit_ties = [&](uint64_t n, uint32_t limit_before) {
        const uint32_t threshold = d.threshold;
        const auto ties_up_to = [&](uint32_t last) {
            return sum_over(source, scratch, [&](float logit, uint32_t token) {
                return (uint64_t)(order_of(logit) == threshold && token <= last && token <= limit_before);
            });
        };
        if (ties_up_to(0xffffffffu) <= n) {
            d.limit = limit_before;
            return;
        }
        // The first token up to which there are n: one more than the last up to which there are fewer.
        d.limit = ties_up_to(0) >= n ? 0 : 1 + last_true([&](uint32_t last) { return ties_up_to(last) < n; });
    };
    if (segment.top_k > 0 && segment.top_k < vocab) {
        const auto at_least = [&](uint32_t order) {
            return sum_over(source, scratch, [&](float logit, uint32_t) { return (uint64_t)(order_of(logit) >= order); });
        };
        const uint64_t k = segment.top_k;
        const uint32_t threshold = last_true([&](uint32_t order) { return at_least(order) >= k; });
        if (threshold > LOWEST_ORDER) {
            d.threshold = threshold;
            limit_ties(k - at_least(threshold + 1), 0xffffffffu);
        }
        const Distribution kept = d;
        whole = sum_over(source, scratch, [&](float logit, uint32_t token) {
            const uint32_t order = order_of(logit);
            const bool in = order > kept.threshold || (order == kept.threshold && token <= kept.limit);
            return in ? weight_of(logit, kept.max, kept.temperature) : 0;
        });
    }
    if (segment.top_p < 1.0f) {
        const Distribution kept = d;
        const uint64_t wanted = nucleus(segment, whole);
        const auto heavier = [&](uint32_t order) {
            return sum_over(source, scratch, [&](float logit, uint32_t token) {
                const uint32_t o = order_of(logit);
                const bool in = o > kept.threshold || (o == kept.threshold && token <= kept.limit);
                return in && o >= order ? weight_of(logit, kept.max, kept.temperature) : 0;
            });
        };
        const uint32_t threshold = last_true([&](uint32_t order) { return heavier(order) >= wanted; });
        if (threshold >= kept.threshold) {
            const uint64_t above = heavier(threshold + 1), with = heavier(threshold);
            const uint64_t ties = sum_over(source, scratch, [&](float logit, uint32_t token) {
                const uint32_t o = order_of(logit);
                return (uint64_t)(o == threshold && (o > kept.threshold || token <= kept.limit));
            });
            // All ties weigh the same.
            const uint64_t each = (with - above) / ties;
            d.threshold = threshold;
            limit_ties((wanted - above + each - 1) / each, threshold == kept.threshold ? kept.limit : 0xffffffffu);
        }
    }
}

// The token that is drawn at a position, in every thread: each of those that are kept arrives after a time of its own,
// exponentially distributed with its weight as the rate, and the first one is taken. `best` has weight 1.
template <class Source>
__device__ uint32_t draw(PickShared& s, const Distribution& d, const Source& source, uint64_t seed, uint32_t position, uint32_t best) {
    float speed = speed_of(1.0f, seed, position, best);
    uint32_t chosen = best;
    for (uint32_t i = threadIdx.x; i < source.count; i += THREADS) {
        const uint32_t token = source.token(i);
        const float weight = kept_weight(d, source.logits[i], token);
        // Even the earliest time is too late for most.
        if (!(weight > speed * EARLIEST)) continue;
        const float this_speed = speed_of(weight, seed, position, token);
        if (better(this_speed, token, speed, chosen)) {
            speed = this_speed;
            chosen = token;
        }
    }
    block_best(speed, chosen, s.speeds, s.chosen);
    return chosen;
}

// A row's lists, one behind the other.
struct Lists {
    const SliceStats* stats;
    const Candidate* candidates;
    uint32_t slices;
    float max, temperature;

    __device__ uint32_t places() const { return slices * SLICE_LIST; }
    // Whether there is a token at a place, and within `range`.
    __device__ bool holds(uint32_t place, float range) const {
        return place < places() && place % SLICE_LIST < stats[place / SLICE_LIST].listed && exponent(candidates[place].logit, max, temperature) >= -range;
    }
};

// Copies a row's lists into shared memory, as far as all of them reach and there is room. False where that is not all that the
// filters may keep.
__device__ bool gather(PickShared& s, const SampleArgs& a, uint32_t r, const Segment& segment, float max, uint64_t whole, uint32_t& n) {
    const uint32_t count = slices(a);
    const Lists lists = {a.stats + (uint64_t)r * count, a.candidates + (uint64_t)r * count * SLICE_LIST, count, max, segment.temperature};
    uint32_t range = 0;
    n = 0;
    for (uint32_t slice = 0; slice < count; slice++) {
        range = range > lists.stats[slice].range ? range : lists.stats[slice].range;
        n += lists.stats[slice].listed;
    }
    const bool all = range == 0 && n <= ROW_LIST;
    if (!all) {
        const auto fits = [&](uint32_t range) {
            uint64_t within = 0;
#pragma unroll 4
            for (uint32_t i = threadIdx.x; i < lists.places(); i += THREADS) within += lists.holds(i, range_of(range));
            n = (uint32_t)block_sum_u64(within, s.scratch);
            return n <= ROW_LIST;
        };
        // The widest for which there is room.
        uint32_t narrow = RANGES;
        while (range < narrow) {
            const uint32_t middle = (range + narrow) / 2;
            if (fits(middle)) narrow = middle;
            else range = middle + 1;
        }
        if (range == RANGES) return false;
        fits(range);
    }
    __syncthreads();
    if (all) {
        uint32_t at = 0;
        for (uint32_t slice = 0; slice < count; slice++) {
            const Candidate* from = lists.candidates + slice * SLICE_LIST;
            for (uint32_t i = threadIdx.x; i < lists.stats[slice].listed; i += THREADS) {
                s.logits[at + i] = from[i].logit;
                s.tokens[at + i] = from[i].token;
            }
            at += lists.stats[slice].listed;
        }
    } else {
        uint64_t before = 0, more;
        for (uint32_t first = 0; first < lists.places(); first += THREADS) {
            const uint32_t i = first + threadIdx.x;
            const bool in = lists.holds(i, range_of(range));
            const uint64_t at = before + block_scan(in, s.scratch, more);
            if (in) {
                s.logits[at] = lists.candidates[i].logit;
                s.tokens[at] = lists.candidates[i].token;
            }
            before += more;
        }
    }
    __syncthreads();
    if (range == 0) return true;
    if (segment.top_k > 0 && segment.top_k < a.vocab) return segment.top_k <= n;
    const uint64_t listed = sum_over(TokenList{s.logits, s.tokens, n}, s.scratch,
                                     [&](float logit, uint32_t) { return weight_of(logit, max, segment.temperature); });
    return listed >= nucleus(segment, whole);
}

// The token that is drawn where all may be: the fastest of the slices' fastest.
__device__ __forceinline__ uint32_t fastest(const SampleArgs& a, uint32_t r) {
    const SliceStats* stats = a.stats + (uint64_t)r * slices(a);
    float speed = 0.0f;
    uint32_t token = 0xffffffffu;
    for (uint32_t i = lane_id(); i < slices(a); i += 32)
        if (better(stats[i].speed, stats[i].drawn, speed, token)) {
            speed = stats[i].speed;
            token = stats[i].drawn;
        }
    warp_best(speed, token);
    return token;
}

// Chooses a row's token from source.
template <class Source>
__device__ uint32_t choose(PickShared& s, const Source& source, const Segment& segment, float max, uint32_t best, uint64_t whole,
                           uint32_t vocab, uint32_t position) {
    Distribution d = all_tokens(segment, max);
    filter(d, segment, source, whole, vocab, s.scratch);
    return draw(s, d, source, segment.seed, position, best);
}

// What the draft head's row does next: it goes on from its proposal unless that ends the text or was the last one asked for.
__device__ __forceinline__ void propose(const SampleArgs& a, uint32_t r, const Segment& segment, const RowPick& pick) {
    Row& row = a.draft_rows[r];
    SegmentResult& result = a.result->segment[row.segment];
    if (pick.flags) {
        row.kind = ROW_IDLE;
        return;
    }
    result.draft[a.draft] = pick.token;
    result.drafts = a.draft + 1;
    bool over = a.draft + 1 >= min(segment.draft_depth, a.draft_max);
    for (uint32_t i = 0; i < segment.ends; i++) over |= a.table.at(segment.end_offset)[i] == pick.token;
    if (over) row.kind = ROW_IDLE;
    row.token = pick.token;
    row.position += 1;
}

// One block for each row.
__device__ __forceinline__ void op_sample_pick(const SampleArgs& a, char* smem, int, int block, int blocks) {
    PickShared& s = *reinterpret_cast<PickShared*>(smem);
    const uint32_t count = slices(a);
    for (uint32_t r = block; r < row_count(a); r += blocks) {
        const Row row = rows_of(a)[r];
        if (!samples(a, row)) continue;
        const Segment& segment = a.table.segments()[row.segment];
        const SliceStats* stats = a.stats + (uint64_t)r * count;
        uint64_t whole = 0;
        bool bad = false;
        for (uint32_t i = lane_id(); i < count; i += 32) {
            bad |= stats[i].not_finite != 0;
            whole += stats[i].weight;
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) whole += __shfl_xor_sync(0xffffffffu, whole, o);
        RowPick pick = {};
        float max;
        uint32_t best, n;
        row_best(a, r, max, best);
        if (__any_sync(0xffffffffu, bad)) pick.flags = FLAG_NOT_FINITE;
        else if (!(max > -INFINITY)) pick.flags = FLAG_NOTHING_ALLOWED;
        else if (segment.temperature == 0.0f) pick.token = best;
        else if (draws_from_all(a, segment)) pick.token = fastest(a, r);
        else if (gather(s, a, r, segment, max, whole, n))
            pick.token = choose(s, TokenList{s.logits, s.tokens, n}, segment, max, best, whole, a.vocab, row.position + 1);
        else
            pick.token = choose(s, TokenRow{adjusted_row(a, r), a.vocab}, segment, max, best, whole, a.vocab, row.position + 1);
        __syncthreads();                 // all have read the row, which a draft changes: who saw that would leave this round
        if (threadIdx.x == 0) {
            if (a.draft == NO_DRAFT) a.picks[r] = pick;
            else propose(a, r, segment, pick);
        }
        __syncthreads();
    }
}

}  // namespace openjet
