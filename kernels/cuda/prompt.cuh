// y = W x for the rows of a prompt's pass, many at a time.
//
// Inputs come as prompt rows (prompt_rows.cuh).
// A unit is 64 to 256 outputs x 128 rows in one split: a warp decodes 16 of the outputs to halves in registers, the rows stand in shared
// memory for all warps, and four warps multiply together where the chip has wgmma. Weights become halves relative to the largest
// scale of an output in 256 inputs; the sums move on from unit to unit of scale in f32. Nothing depends on how many rows there are.
#pragma once
#include "bulk.cuh"
#include "matmul.cuh"
#include "prompt_rows.cuh"
#include "wgmma.cuh"

namespace openjet {

constexpr int PROMPT_STAGES = 3;         // column tiles in shared memory at a time

// The power of two above a number that is not large.
__device__ __forceinline__ float power_above(float x) { return __uint_as_float((__float_as_uint(x) & 0x7F800000u) + (1u << 23)); }

// One tile's scales and zero points of a lane's sub-blocks as halves: of rows g and g+8, pairs of steps.
template <class T> struct RelativeScales {
    static constexpr int WORDS = T::BLOCK16 ? 4 : 2;
    uint32_t scale[WORDS], zero[WORDS];  // [upper (BLOCK16 only)][row g or g+8]
    float unit0, unit1;                  // what the halves of rows g and g+8 are in units of

    // `before0`, `before1`: the units of the tile before.
    __device__ __forceinline__ void set(const typename T::Scales& scales, int lane, float before0, float before1) {
        const Head head = T::head(scales, lane);
        const uint32_t w0 = T::word0(scales), w1 = T::word1(scales);
        uint32_t offsets[4] = {};
        T::offset(scales, offsets);
        float s[2][2][2], z[2][2][2];    // [row][upper][odd]
        float most0 = 0.0f, most1 = 0.0f, zero0 = 0.0f, zero1 = 0.0f;
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                T::scale(head, w0, w1, upper, odd, s[0][upper][odd], s[1][upper][odd]);
                const uint32_t o0 = offsets[2 * upper], o1 = offsets[2 * upper + 1];
                z[0][upper][odd] = head.m0 * (odd ? high_float(o0) : low_float(o0));
                z[1][upper][odd] = head.m1 * (odd ? high_float(o1) : low_float(o1));
                most0 = fmaxf(most0, fabsf(s[0][upper][odd]) * (1.0f / 1024));
                most1 = fmaxf(most1, fabsf(s[1][upper][odd]) * (1.0f / 1024));
                zero0 = fmaxf(zero0, fabsf(z[0][upper][odd]) * (1.0f / 16));
                zero1 = fmaxf(zero1, fabsf(z[1][upper][odd]) * (1.0f / 16));
            }
        }
#pragma unroll
        for (int o = 1; o < 4; o <<= 1) {
            most0 = fmaxf(most0, __shfl_xor_sync(0xffffffffu, most0, o));
            most1 = fmaxf(most1, __shfl_xor_sync(0xffffffffu, most1, o));
            zero0 = fmaxf(zero0, __shfl_xor_sync(0xffffffffu, zero0, o));
            zero1 = fmaxf(zero1, __shfl_xor_sync(0xffffffffu, zero1, o));
        }
        // Units in which the scales are halves without rounding: that of the integer scales, or a power of two.
        if (integer_scales<T> != 0.0f) {
            most0 = fabsf(head.d0) * integer_scales<T>;
            most1 = fabsf(head.d1) * integer_scales<T>;
        } else {
            most0 = power_above(most0);
            most1 = power_above(most1);
        }
        // Zero points must be halves too, and a tile of next to nothing must not blow up the sums so far.
        unit0 = fmaxf(fmaxf(most0, zero0), before0 * 0x1p-40f);
        unit1 = fmaxf(fmaxf(most1, zero1), before1 * 0x1p-40f);
        const float r0 = 1.0f / unit0, r1 = 1.0f / unit1;
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            if (T::BLOCK16) {
                scale[2 * upper] = bits(__floats2half2_rn(s[0][upper][0] * r0, s[0][upper][1] * r0));
                scale[2 * upper + 1] = bits(__floats2half2_rn(s[1][upper][0] * r1, s[1][upper][1] * r1));
                zero[2 * upper] = bits(__floats2half2_rn(z[0][upper][0] * r0, z[0][upper][1] * r0));
                zero[2 * upper + 1] = bits(__floats2half2_rn(z[1][upper][0] * r1, z[1][upper][1] * r1));
            }
        }
        if (!T::BLOCK16) {
            scale[0] = bits(__floats2half2_rn(s[0][0][0] * r0, s[0][1][0] * r0));
            scale[1] = bits(__floats2half2_rn(s[1][0][0] * r1, s[1][1][0] * r1));
            zero[0] = bits(__floats2half2_rn(z[0][0][0] * r0, z[0][1][0] * r0));
            zero[1] = bits(__floats2half2_rn(z[1][0][0] * r1, z[1][1][0] * r1));
        }
    }
    // Fragments of the two steps of (quad, upper) as relative halves.
    __device__ __forceinline__ void decode(const typename T::Quad& q, int quad, int upper, int lane, uint32_t* a, uint32_t* c) const {
        T::fragment(q, upper, 0, a);
        T::fragment(q, upper, 1, c);
        const int first = T::BLOCK16 ? 2 * upper : 0;
        half2 s[2], z[2];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            s[row] = as_half2(of_quad(scale[first + row], lane, quad));
            z[row] = as_half2(of_quad(zero[first + row], lane, quad));
        }
        // Sub-blocks of 32: both steps have that of `upper`.
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const half2 si = s[i & 1], zi = z[i & 1];
            const bool high = T::BLOCK16 ? false : upper != 0, high_odd = T::BLOCK16 ? true : upper != 0;
            a[i] = bits(__hfma2(as_half2(a[i]), high ? __high2half2(si) : __low2half2(si), high ? __high2half2(zi) : __low2half2(zi)));
            c[i] = bits(__hfma2(as_half2(c[i]), high_odd ? __high2half2(si) : __low2half2(si), high_odd ? __high2half2(zi) : __low2half2(zi)));
        }
    }
};

// Column tiles of inputs that stand in shared memory.
__device__ __forceinline__ int prompt_stages(int smem_bytes) { return min(PROMPT_STAGES, smem_bytes / PROMPT_TILE_BYTES); }

// A unit of work: up to 16 output tiles x one group of rows.
struct PromptUnit {
    const char* weights;                 // of the first output tile and column
    const char* x;                       // prompt rows ...
    const void* x_map;                   // ... and the map of their tiles
    const float* scales;                 // of the row group
    float* y;                            // of the group's first row, the first output
    int column_tiles, columns, tiles, outputs, stride, rows;   // rows and outputs: how many there are from here on
    int x_tile;                          // of the row group's first column
    int before;                          // columns of the units before: stages and arrivals go on from there
    int paired;                          // as MatmulJob's
};

// What of a matmul stands in shared memory before the stages.
struct PromptState {
    PromptUnit unit;
    int width;                           // output tiles of a unit
    Arrivals arrived[PROMPT_STAGES];
};
constexpr int PROMPT_STATE_BYTES = 128;
static_assert(sizeof(PromptState) <= PROMPT_STATE_BYTES);

// acc += a B for 16 outputs of each warp, 16 columns and 128 rows, which stand at `b`: two cores of 8 columns x 128 rows.
__device__ __forceinline__ void multiply_prompt_step(float (&acc)[16][4], const uint32_t* a, const char* b, int lane) {
#ifdef OPENJET_WGMMA
    wgmma128(acc, a, b);
#else
    const uint32_t* words = reinterpret_cast<const uint32_t*>(b) + (lane >> 2) * 4 + (lane & 3);
#pragma unroll
    for (int t = 0; t < 16; t++) mma(acc[t], a, words[t * 32], words[t * 32 + PROMPT_GROUP * 4]);
#endif
}

// A function of its own for each type: the compiler then waits for each product (it cannot follow them across a call), which measured
// no slower, since four groups of warps take turns.
template <class T>
__device__ __noinline__ void multiply_prompt_unit(PromptState& state, char* smem, int smem_bytes) {
    const PromptUnit u = state.unit;
    const int lane = opaque(lane_id()), warp = warp_id();
    // Quads that take many registers are not loaded ahead.
    constexpr bool WIDE = sizeof(typename T::Quad) > 32;
#ifdef OPENJET_WGMMA
    [[maybe_unused]] constexpr int UNROLL = 4;
#else
    [[maybe_unused]] constexpr int UNROLL = 1;            // else the compiler loads too much ahead
#endif
    const int stages = prompt_stages(smem_bytes);
    // Four warps go together; one whose outputs do not exist reads the last tile and stores nothing.
    const bool works = (warp & ~3) < u.tiles;
    const char* from = u.weights + (size_t)min(warp, u.tiles - 1) * u.column_tiles * T::BYTES;
    // A column tile of inputs to its place among the stages: at once by one thread where the chip can, else by all.
    auto fetch = [&](int c) {
        const int at = (u.before + c) % stages;
        char* stage = smem + at * PROMPT_TILE_BYTES;
#ifdef OPENJET_BULK
        if (threadIdx.x != 0 || c >= u.columns) return;
        Arrivals& arrived = state.arrived[at];
        arrive_expecting(arrived, PROMPT_TILE_BYTES);
        copy_tile(stage, state.unit.x, state.unit.x_map, state.unit.x_tile + c, PROMPT_TILE_BYTES, arrived);
#else
        const char* source = u.x + (size_t)(u.x_tile + c) * PROMPT_TILE_BYTES;
        for (int i = threadIdx.x * 16; c < u.columns && i < PROMPT_TILE_BYTES; i += THREADS * 16) copy16(stage + i, source + i);
        copy_commit();
#endif
    };
    auto wait = [&](int c) {
#ifdef OPENJET_BULK
        while (!has_ended(state.arrived[(u.before + c) % stages], (u.before + c) / stages)) host_yield();
#else
        if (stages < PROMPT_STAGES) copy_wait<0>();
        else copy_wait<PROMPT_STAGES - 2>();
#endif
    };
    typename T::Quad next = {};
    typename T::Scales scales = {};
    if (works) {
        T::load_scales(scales, from, lane);
        if (!WIDE) T::load_quad(next, from, 0, lane);
    }
    for (int c = 0; c < stages - 1; c++) fetch(c);
    float acc[16][4];
    zero(acc);
    float unit0 = 1.0f, unit1 = 1.0f;
    for (int c = 0; c < u.columns; c++) {
        if (stages == 1) {
            __syncthreads();
            fetch(c);
        }
        wait(c);
        __syncthreads();                 // nobody reads the stage any more that comes next
        if (stages > 1) fetch(c + stages - 1);
        if (!works) continue;
        const char* x = smem + (u.before + c) % stages * PROMPT_TILE_BYTES;
        const char* tile = from + (size_t)c * T::BYTES;
        RelativeScales<T> relative;
        if constexpr (T::OFFSET) {
            relative.set(scales, lane, unit0, unit1);
        } else {
            const Head head = T::head(scales, lane);
            relative.unit0 = head.d0 == 0.0f ? unit0 : head.d0;
            relative.unit1 = head.d1 == 0.0f ? unit1 : head.d1;
        }
        const float r0 = unit0 / relative.unit0, r1 = unit1 / relative.unit1;
        unit0 = relative.unit0;
        unit1 = relative.unit1;
        if (c > 0) {
#pragma unroll
            for (int t = 0; t < 16; t++) {
                acc[t][0] *= r0;
                acc[t][1] *= r0;
                acc[t][2] *= r1;
                acc[t][3] *= r1;
            }
        }
        if (c + 1 < u.columns) T::load_scales(scales, tile + T::BYTES, lane);
#pragma unroll UNROLL
        for (int quad = 0; quad < 4; quad++) {
            typename T::Quad now = next;
            if (WIDE) T::load_quad(now, tile, quad, lane);
            else if (quad < 3) T::load_quad(next, tile, quad + 1, lane);
            else if (c + 1 < u.columns) T::load_quad(next, tile + T::BYTES, 0, lane);
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                uint32_t a[8];
                const char* b = x + (2 * quad + 8 * upper) * (2 * PROMPT_GROUP * 16);
                if constexpr (T::OFFSET) {
                    relative.decode(now, quad, upper, lane, a, a + 4);
                } else {
                    T::fragment(now, upper, 0, a);
                    T::fragment(now, upper, 1, a + 4);
                }
                wgmma_begin<1>();
                multiply_prompt_step(acc, a, b, lane);
                multiply_prompt_step(acc, a + 4, b + 2 * PROMPT_GROUP * 16, lane);
                wgmma_end();
                if constexpr (planes<T> == 2) {
                    uint32_t rest[8];
                    T::plane(now, 1, upper, 0, rest);
                    T::plane(now, 1, upper, 1, rest + 4);
                    wgmma_begin<1>();
                    multiply_prompt_step(acc, rest, b, lane);
                    multiply_prompt_step(acc, rest + 4, b + 2 * PROMPT_GROUP * 16, lane);
                    wgmma_end();
                }
            }
        }
        wgmma_wait<0>();
    }
    if (warp < u.tiles) {
        const bool paired = state.unit.paired;
        const int output = warp * tile_outputs(paired) + (lane >> 2);
#pragma unroll
        for (int t = 0; t < 16; t++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = t * 8 + (lane & 3) * 2 + i;
                if (row >= u.rows) continue;
                const float scale = u.scales[row];
                float* y = u.y + (size_t)row * u.stride + output;
                const float first = acc[t][i] * unit0 * scale, second = acc[t][i + 2] * unit1 * scale;
                if (output < u.outputs) y[0] = paired ? silu(first) * second : first;
                if (!paired && output + 8 < u.outputs) y[8] = second;
            }
        }
    }
}

// How many output tiles a unit has so that the blocks are done soonest; four warps go together, so a multiple of four. By a warp. A
// unit of 12 tiles takes 0.89 times as long as one of 16: mostly a warp waits for its own instructions.
__device__ __forceinline__ int unit_width(const MatmulArgs& args, int groups, int blocks) {
    constexpr int BESIDE_TILES = 21;     // what else a unit takes, in tiles
    const int width = 4 + 4 * (lane_id() & 3);
    int units = 0;
    for (uint32_t j = 0; j < args.jobs; j++) units += (output_tiles(args.job[j]) + width - 1) / width * (int)args.job[j].splits;
    int best = (units * groups + blocks - 1) / blocks * (width + BESIDE_TILES) * 32 + WARPS - width;
    best = min(best, __shfl_xor_sync(0xffffffffu, best, 1));
    best = min(best, __shfl_xor_sync(0xffffffffu, best, 2));
    return WARPS - best % 32;
}

// Arguments as a decode matmul's, with prompt rows as input. Units that share weights run at the same time.
__device__ __forceinline__ void op_matmul_prompt(const MatmulArgs& args, char* smem, int smem_bytes, int block, int blocks) {
    const int rows = header_word(smem, args.rows), groups = prompt_groups(rows);
    const int column_tiles = ((int)args.inputs + TILE_K - 1) / TILE_K, pieces = (column_tiles + PIECE_TILES - 1) / PIECE_TILES;
    const float* scales = reinterpret_cast<const float*>(args.x + (size_t)groups * column_tiles * PROMPT_TILE_BYTES);
    PromptState& state = *reinterpret_cast<PromptState*>(smem);
    PromptUnit& unit = state.unit;
    smem += PROMPT_STATE_BYTES;
    smem_bytes -= PROMPT_STATE_BYTES;
    const int stages = prompt_stages(smem_bytes);
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; s++) arrivals_begin(state.arrived[s], 1);
        fence_tiles(args.x_map);
        unit.before = unit.columns = 0;
    }
    if (warp_id() == 0) {
        const int width = unit_width(args, groups, blocks);
        if (lane_id() == 0) state.width = width;
    }
    __syncthreads();
    const int width = state.width;
    int item = block, before = 0;
    for (uint32_t j = 0; j < args.jobs; j++) {
        const MatmulJob& job = args.job[j];
        const int tiles = output_tiles(job), sets = (tiles + width - 1) / width, splits = (int)job.splits;
        for (; item < before + sets * splits * groups; item += blocks) {
            if (threadIdx.x == 0) {
                const int local = item - before, group = local % groups, set = local / groups % sets, split = local / groups / sets;
                const int column0 = pieces * split / splits * PIECE_TILES;
                const int column1 = min(pieces * (split + 1) / splits * PIECE_TILES, column_tiles);
                const int tile = set * width, row = group * PROMPT_GROUP, output = tile * tile_outputs(job.paired);
                unit = {job.weights + ((size_t)tile * column_tiles + column0) * tile_bytes(job.type),
                        args.x,
                        args.x_map,
                        scales + row,
                        job.y + split * job.split_stride + (size_t)row * job.stride + output,
                        column_tiles, column1 - column0, min(width, tiles - tile), (int)job.outputs - output, (int)job.stride, rows - row,
                        group * column_tiles + column0, unit.before + unit.columns, job.paired};
            }
            fence_before_bulk();
            __syncthreads();
            switch (job.type) {
                case W_F16: multiply_prompt_unit<TileF16>(state, smem, smem_bytes); break;
                case W_Q4_0: multiply_prompt_unit<TileQ4_0>(state, smem, smem_bytes); break;
                case W_Q8_0: multiply_prompt_unit<TileQ8_0>(state, smem, smem_bytes); break;
                case W_Q4_K: multiply_prompt_unit<TileQ4_K>(state, smem, smem_bytes); break;
                case W_Q5_K: multiply_prompt_unit<TileQ5_K>(state, smem, smem_bytes); break;
                case W_Q6_K: multiply_prompt_unit<TileQ6_K>(state, smem, smem_bytes); break;
                case W_IQ4_XS: multiply_prompt_unit<TileIQ4_XS>(state, smem, smem_bytes); break;
                case W_F32: multiply_prompt_unit<TileF32>(state, smem, smem_bytes); break;
                case W_Q4_1: multiply_prompt_unit<TileQ4_1>(state, smem, smem_bytes); break;
                case W_Q5_0: multiply_prompt_unit<TileQ5_0>(state, smem, smem_bytes); break;
                case W_Q5_1: multiply_prompt_unit<TileQ5_1>(state, smem, smem_bytes); break;
                case W_Q2_K: multiply_prompt_unit<TileQ2_K>(state, smem, smem_bytes); break;
                case W_Q3_K: multiply_prompt_unit<TileQ3_K>(state, smem, smem_bytes); break;
                default: multiply_prompt_unit<TileIQ4_NL>(state, smem, smem_bytes);
            }
            // All have read the unit and its inputs.
            __syncthreads();
        }
        before += sets * splits * groups;
    }
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; s++) arrivals_end(state.arrived[s]);
    }
}

}  // namespace openjet
