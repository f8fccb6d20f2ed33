// What the ops of attention are told.
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
    // Partial results: for each (row, head), `splits` x PARTIAL f32: 256 numbers, max, sum, two of no use. Decode only.
    float* partial;
    // Gated output: rows x out_width, head h at 256 h, or of decode rows a fragment buffer, where there is one.
    float* out;
    char* fragments;
    const float* q_norm;
    const float* k_norm;
    // Of every rotary pair: turns (angle / 2 pi) per position, rope_pairs numbers, a multiple of 32.
    const double* rope_turns;
    KvPool pool;
    // The map of the pool's cells in units (attention_cells.cuh, bulk.cuh); src/program.rs puts it here where the chip has such.
    const void* cells_map;
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
static_assert(sizeof(AttentionArgs) == 184);

// The rows of this pass.
__device__ __forceinline__ const Row* rows_of(const AttentionArgs& a) { return a.draft ? a.draft_rows : a.table.rows(); }
__device__ __forceinline__ uint32_t row_count(const AttentionArgs& a) { return a.draft ? a.table.header().segments : a.table.header().rows; }

// Numbers of a partial result.
constexpr uint32_t PARTIAL = HEAD_DIM + 4;

// Whether a row of this kind is one that attends.
__device__ __forceinline__ bool attends(uint32_t kind) { return kind == ROW_DECODE || kind == ROW_PROMPT || kind == ROW_DRAFT; }

// The rows of a segment in this pass.
__device__ __forceinline__ bool attention_rows(const AttentionArgs& a, uint32_t segment, uint32_t& first, uint32_t& count) {
    const Segment& entry = a.table.segments()[segment];
    first = a.draft ? segment : entry.first_row;
    count = a.draft ? 1 : entry.rows;
    return attends(rows_of(a)[first].kind);
}

// Where split s begins, in pages: 32 splits of 4 pages, 112 of 8, then 32 pages each (up to 8,192, 65,536 and more tokens).
__device__ __forceinline__ uint32_t split_begin(uint32_t s) {
    if (s <= 32) return 4 * s;
    if (s <= 144) return 128 + 8 * (s - 32);
    return 1024 + 32 * (s - 144);
}
// The split that page `page` is in.
__device__ __forceinline__ uint32_t split_of(uint32_t page) {
    if (page < 128) return page / 4;
    if (page < 1024) return 32 + (page - 128) / 8;
    return 144 + (page - 1024) / 32;
}

}  // namespace openjet
