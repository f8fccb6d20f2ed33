// The steps of decode attention: how contexts are cut, what a block gets of them, and its lists in shared memory.
#pragma once
#include "attention_args.cuh"
#include "attention_cells.cuh"
#include "barrier.cuh"
#include "bulk.cuh"

namespace openjet {

// Most queries of an item.
constexpr uint32_t DECODE_TILE = 32;
// Most units of a step: 4 x 64 tokens, 4 x 32 of f16.
constexpr uint32_t STEP_UNITS = 4;
// Units that stand in the ring.
constexpr int RING_UNITS = 24;
// Steps that are listed at a time.
constexpr uint32_t LISTED = 64;

// What a segment brings.
struct DecodeShare {
    uint32_t first, rows, pages_offset;
    uint32_t end;                        // tokens that its last row sees
    uint32_t steps;                      // of a query tile and head
    uint32_t queries, tile, tiles;       // of a key-value head; of a tile of these; such tiles
};

struct DecodeStep {
    uint32_t row;                        // first row of the segment
    uint32_t position;                   // of the first token
    uint32_t lowest;                     // position of the tile's first row
    uint16_t head, query, queries, split;
    uint8_t units;
    bool loads, begins, ends;            // other queries than the step before; first and last step of its split
};

// A block's run of steps.
struct DecodeRun {
    uint32_t begin, end;
    uint32_t units, log;                 // of a step; their logarithm
    uint32_t group;                      // query heads of a key-value head
};

struct DecodeShared {
    Arrivals come[RING_UNITS];
    // Of each warp and query; 8 more so that a read of 8 rows hits all banks. These and `last` are read two at a time.
    float warp_max[WARPS][DECODE_TILE + 8];
    float warp_sum[WARPS][DECODE_TILE];
    float max[DECODE_TILE];
    // Of this step's queries and the next one's: last position that it sees, -1 where there is none; its place in the partial results.
    int last[2][DECODE_TILE];
    uint32_t place[2][DECODE_TILE];
    Row row[MAX_DECODE_ROWS];
    int keys[LISTED][STEP_UNITS];        // units of the pool, -1 where there is none
    DecodeStep step[LISTED + 1];
    DecodeShare share[MAX_SEGMENTS];
    DecodeRun run;
};
static_assert(offsetof(DecodeShared, warp_max) % 8 == 0 && offsetof(DecodeShared, warp_sum) % 8 == 0 && offsetof(DecodeShared, max) % 8 == 0 &&
              offsetof(DecodeShared, last) % 8 == 0 && offsetof(DecodeShared, row) % 16 == 0);
// Behind it stand the queries and the weights of a step, 16 bytes a lane for 8 queries x 32 numbers or tokens, then the ring.
constexpr int DECODE_SHARED = (sizeof(DecodeShared) + 127) / 128 * 128;
constexpr int TILE8_BYTES = 8 * HEAD_DIM * 2;

// Units of a step: fewer where shared memory is small. The same for every step of an op, as it decides bits.
__device__ __forceinline__ uint32_t decode_units(uint32_t format, int smem_bytes) {
    const int bytes = format == KV_F16 ? Cells<KV_F16>::UNIT_BYTES : format == KV_Q8_0 ? Cells<KV_Q8_0>::UNIT_BYTES : Cells<KV_Q4_0>::UNIT_BYTES;
    const int units = (smem_bytes - DECODE_SHARED - (int)DECODE_TILE / 8 * 2 * TILE8_BYTES) / bytes;
    return units >= 10 ? 4 : units >= 5 ? 2 : 1;
}

// Lists steps from `from` on.
template <uint32_t Format>
__device__ __forceinline__ void list_steps(const AttentionArgs& a, DecodeShared& s, const DecodeRun& run, uint32_t from) {
    using C = Cells<Format>;
    const uint32_t n = threadIdx.x >> run.log, u = threadIdx.x & (run.units - 1), x = from + n;
    if (n >= LISTED || x >= run.end) return;
    uint32_t segment = 0, base = 0;
    for (;;) {
        const DecodeShare& share = s.share[segment];
        const uint32_t all = share.steps * share.tiles * a.pool.kv_heads;
        if (x < base + all) break;
        base += all;
        segment++;
    }
    const DecodeShare& share = s.share[segment];
    const uint32_t local = x - base, rest = local / share.steps, c = local - rest * share.steps;
    const uint32_t tile = rest / a.pool.kv_heads, head = rest - tile * a.pool.kv_heads;
    const uint32_t tokens = run.units * C::UNIT_TOKENS, position = c * tokens, at = position + u * C::UNIT_TOKENS;
    int keys = -1;
    if (at < share.end) {
        const uint32_t page = a.table.at(share.pages_offset)[at / PAGE_TOKENS];
        keys = (int)((((page * a.pool.layers + a.layer) * 2) * a.pool.kv_heads + head) * C::TILE_UNITS + at % PAGE_TOKENS / C::UNIT_TOKENS);
    }
    s.keys[n][u] = keys;
    if (u != 0) return;
    DecodeStep& step = s.step[n];
    const uint32_t split = split_of(position / PAGE_TOKENS);
    step.row = share.first;
    step.position = position;
    step.query = (uint16_t)(tile * share.tile);
    step.queries = (uint16_t)min(share.queries - step.query, share.tile);
    step.lowest = s.row[share.first + step.query / run.group].position;
    step.head = (uint16_t)head;
    step.split = (uint16_t)split;
    step.units = (uint8_t)min(run.units, (share.end - position + C::UNIT_TOKENS - 1) / C::UNIT_TOKENS);
    step.loads = x == run.begin || c == 0;
    step.begins = split_begin(split) * PAGE_TOKENS == position;
    step.ends = c + 1 == share.steps || split_begin(split + 1) * PAGE_TOKENS == position + tokens;
}

// Queries of a step to shared memory, in the order in which the tensor cores take them beside the keys.
template <uint32_t Format, int NT>
__device__ __forceinline__ void load_queries(const AttentionArgs& a, DecodeShared& s, char* queries, const DecodeStep& step, uint32_t group, int side) {
    const int piece = (int)threadIdx.x & 63, block = piece >> 3, k = piece >> 2 & 1, j = piece & 3;
#pragma unroll 1
    for (int n = 0; n < NT; n++) {
        const uint32_t g = threadIdx.x >> 6, slot = 8 * n + g;
        uint2 data = make_uint2(0, 0);
        int last = -1;
        uint32_t place = 0;
        if (slot < step.queries) {
            const uint32_t i = step.query + slot, row = step.row + i / group, head = step.head * group + i % group;
            place = row * a.heads + head;
            data = reinterpret_cast<const uint2*>(a.queries + (uint64_t)place * HEAD_DIM)[piece];
            last = (int)s.row[row].position;
        }
        char* to = queries + ((n * KV_BLOCKS + block) * 32 + 4 * g) * 16 + k * 8;
        if (Format == KV_F16) {
            to += (2 * j & 3) * 16 + (j >> 1) * 4;
            *reinterpret_cast<uint32_t*>(to) = data.x;
            *reinterpret_cast<uint32_t*>(to + 16) = data.y;
        } else if (Format == KV_Q8_0) {
            *reinterpret_cast<uint2*>(to + j * 16) = data;
        } else {
            *reinterpret_cast<uint2*>(to + j * 16) = make_uint2(__byte_perm(data.x, data.y, 0x5410), __byte_perm(data.x, data.y, 0x7632));
        }
        if (piece == 0) {
            s.last[side][slot] = last;
            s.place[side][slot] = place;
        }
    }
}

// The first step from x on that begins a split.
__device__ __forceinline__ uint32_t snap_step(const DecodeShared& s, uint32_t segments, uint32_t kv_heads, uint32_t tokens, uint32_t x) {
    uint32_t base = 0;
    for (uint32_t segment = 0; segment < segments; segment++) {
        const DecodeShare& share = s.share[segment];
        const uint32_t all = share.steps * share.tiles * kv_heads;
        if (x < base + all) {
            const uint32_t c = (x - base) % share.steps, split = split_of(c * tokens / PAGE_TOKENS);
            if (split_begin(split) * PAGE_TOKENS == c * tokens) return x;
            return x - c + min(split_begin(split + 1) * PAGE_TOKENS / tokens, share.steps);
        }
        base += all;
    }
    return base;
}

}  // namespace openjet
