// The step table on the device: rows, segments and what they point at, one buffer uploaded per step.
//
// Mirrored by src/table.rs; both sides assert every size and offset. All offsets in a segment count 32-bit words from the
// start of the buffer; 0 stands for "none" (the header lies there).
#pragma once
#include "common.cuh"
#include <cstddef>

namespace openjet {

// Tokens in a page of the key-value pool.
constexpr uint32_t PAGE_TOKENS = 64;
// Most rows of a decode step.
constexpr uint32_t MAX_DECODE_ROWS = 72;
// Most segments of a step.
constexpr uint32_t MAX_SEGMENTS = 64;
// Deepest draft of the draft head.
constexpr uint32_t MAX_DRAFTS = 16;
// Most alternatives reported with a chosen token.
constexpr uint32_t MAX_TOP_LOGPROBS = 20;

enum RowKind : uint32_t {
    // Takes no part: its numbers are neither stored in pool or state nor sampled.
    ROW_IDLE = 0,
    // The newest token of a conversation or a draft.
    ROW_DECODE = 1,
    // A token of a prompt, in a prompt chunk's table.
    ROW_PROMPT = 2,
    // The last token of a prompt, in a decode step's table: its hidden state comes from the chunk's launch, it is only sampled.
    ROW_PROMPT_LAST = 3,
    // A row of the draft head; its token and position were written by the device.
    ROW_DRAFT = 4,
};

enum SegmentKind : uint32_t { SEGMENT_PROMPT = 0, SEGMENT_DECODE = 1 };

struct Row {
    uint32_t token;
    uint32_t position;
    uint32_t segment;
    uint32_t kind;
};

struct Segment {
    uint32_t slot;
    uint32_t first_row;
    uint32_t rows;
    uint32_t kind;
    // Position of the first row.
    uint32_t position;
    // Page ids, in order.
    uint32_t pages_offset;
    uint32_t pages;
    // Whether a token is chosen after the last accepted row.
    uint32_t samples;
    uint32_t end_offset;
    uint32_t ends;
    // Most tokens to yield.
    uint32_t budget;
    uint32_t draft_depth;
    // Pairs (token, times generated), ascending by token. 0 times: only in the prompt.
    uint32_t penalty_offset;
    uint32_t penalties;
    // Pairs (token, f32), ascending by token.
    uint32_t bias_offset;
    uint32_t biases;
    // One word a row: the offset of its bit set over the vocabulary, 0 where everything is allowed.
    uint32_t mask_offset;
    uint32_t top_k;
    // 0 for none, else 1 + alternatives.
    uint32_t logprobs;
    float temperature;
    float top_p;
    float min_p;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t reserved;
    uint64_t seed;
};

struct TableHeader {
    uint32_t rows;
    uint32_t segments;
    uint32_t reserved[2];
    // Length of the whole buffer in words.
    uint32_t words;
    // Deepest draft that a segment asks for.
    uint32_t draft_depth;
    // Segments with a temperature above 0.
    uint32_t draws;
    // Segments whose log probabilities are wanted.
    uint32_t logprobs;
};

// What a step did for a segment.
struct SegmentResult {
    uint32_t accepted;
    // The newly chosen token.
    uint32_t token;
    uint32_t drafts;
    // RowFlag of the row after which no token can follow.
    uint32_t flags;
    uint32_t draft[MAX_DRAFTS];
};

// Log probabilities of the token that was chosen after a row.
struct RowLogprobs {
    float chosen;
    uint32_t alternatives;
    uint32_t token[MAX_TOP_LOGPROBS];
    float logprob[MAX_TOP_LOGPROBS];
};

// Everything that the host reads back after a step.
struct StepResult {
    SegmentResult segment[MAX_SEGMENTS];
    RowLogprobs logprobs[MAX_DECODE_ROWS];
};

static_assert(sizeof(Row) == 16);
static_assert(sizeof(Segment) == 112 && offsetof(Segment, temperature) == 76 && offsetof(Segment, seed) == 104);
static_assert(sizeof(TableHeader) == 32);
// Where segments and rows stand, in words: known beforehand, so that nothing waits for it.
constexpr uint32_t SEGMENTS_OFFSET = sizeof(TableHeader) / 4;
constexpr uint32_t ROWS_OFFSET = SEGMENTS_OFFSET + MAX_SEGMENTS * sizeof(Segment) / 4;
static_assert(sizeof(SegmentResult) == 80);
static_assert(sizeof(RowLogprobs) == 168);
static_assert(sizeof(StepResult) == 64 * 80 + 72 * 168);

#if defined(__CUDACC__) || defined(OPENJET_HOST)
constexpr uint64_t HEADER_SEGMENTS = offsetof(TableHeader, segments) / 4;
// A word of the table's header: the kernel keeps a copy of it in front of an op's shared memory.
__device__ __forceinline__ int header_word(const char* smem, uint64_t word) {
    return (int)(reinterpret_cast<const uint32_t*>(smem) - sizeof(TableHeader) / 4)[word];
}

// A look at an uploaded table.
struct Table {
    const uint32_t* words;

    __device__ const TableHeader& header() const { return *reinterpret_cast<const TableHeader*>(words); }
    __device__ const Row* rows() const { return reinterpret_cast<const Row*>(words + ROWS_OFFSET); }
    __device__ const Segment* segments() const { return reinterpret_cast<const Segment*>(words + SEGMENTS_OFFSET); }
    __device__ const uint32_t* at(uint32_t offset) const { return words + offset; }
    __device__ uint32_t page(const Segment& segment, uint32_t position) const {
        return words[segment.pages_offset + position / PAGE_TOKENS];
    }
};
#endif

}  // namespace openjet
