// What connects passes: the hidden state before each row, for the draft head's cells, and what a prompt's pass leaves behind.
#pragma once
#include "slot.cuh"
#include "common.cuh"

namespace openjet {

struct PreviousArgs {
    Table table;
    const float* hidden;             // trunk hidden states after the output norm: [row][width]
    const float* pending_hidden;     // of the last consumed token of each slot: [slot][width]
    float* out;                      // [row][width]
    uint32_t width;
    uint32_t reserved;
};

// out[row] = the hidden state of the position before the row's.
__device__ __forceinline__ void op_previous(const PreviousArgs& a, char*, int, int block, int blocks) {
    for (uint32_t r = block; r < a.table.header().rows; r += blocks) {
        const Segment& segment = a.table.segments()[a.table.rows()[r].segment];
        const float* from = r == segment.first_row ? a.pending_hidden + (uint64_t)segment.slot * a.width : a.hidden + (uint64_t)(r - 1) * a.width;
        for (uint32_t i = threadIdx.x; i < a.width; i += THREADS) a.out[(uint64_t)r * a.width + i] = from[i];
    }
}

struct PromptEndArgs {
    Table table;
    SlotState* slots;
    const float* x;                  // residual stream after the last block: [row][width]
    const float* hidden;             // the same after the output norm
    float* last_x;                   // of the last row of each slot's prompt: [slot][width]
    float* pending_hidden;
    uint32_t width;
    uint32_t reserved;
};

// After a prompt's pass: nothing is pending in its slots, and their last row is kept for the head and the draft head.
__device__ __forceinline__ void op_prompt_end(const PromptEndArgs& a, char*, int, int block, int blocks) {
    for (uint32_t n = block; n < a.table.header().segments; n += blocks) {
        const Segment& segment = a.table.segments()[n];
        const uint64_t from = (uint64_t)(segment.first_row + segment.rows - 1) * a.width, to = (uint64_t)segment.slot * a.width;
        for (uint32_t i = threadIdx.x; i < a.width; i += THREADS) {
            a.last_x[to + i] = a.x[from + i];
            a.pending_hidden[to + i] = a.hidden[from + i];
        }
        if (threadIdx.x == 0) a.slots[segment.slot].pending = 0;
    }
}

}  // namespace openjet
