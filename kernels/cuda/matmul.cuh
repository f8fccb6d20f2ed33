// y = W x for 1 to 72 rows of activations, each weight read once.
//
// The inputs are cut into pieces of 512; a warp multiplies 16 outputs by one piece on the tensor cores and leaves the product in
// shared memory; then the pieces of an output are added in their order. What a number is made of and in which order is thus a
// function of the matrix alone: rows, row tiles, SMs and shared memory decide only who computes it and when. With `splits` the
// pieces are cut into that many runs, each with an output of its own, which the reader adds in order.
#pragma once
#include "fragment.cuh"
#include "tiles/dispatch.cuh"

namespace openjet {

constexpr int PIECE_TILES = 2;       // column tiles of a piece
constexpr int MAX_ROW_TILES = 9;
constexpr int MAX_JOBS = 4;

// One matrix of a group that shares its input.
struct MatmulJob {
    const char* weights;
    float* y;                        // [split][row][stride]
    uint32_t type;                   // WeightType
    uint32_t outputs;
    uint32_t stride;                 // floats from one row of y to the next
    uint32_t splits;
    uint64_t split_stride;           // floats from one split's output to the next
};
struct MatmulArgs {
    const char* x;                   // fragment buffer
    const uint32_t* rows;            // how many rows of x are real
    uint32_t inputs;
    uint32_t jobs;
    MatmulJob job[MAX_JOBS];
};

// Products of a quad of steps of one weight tile with `tiles` fragment tiles (N of them unless `Dynamic`), added to acc.
template <class T, int N, bool Dynamic>
__device__ __forceinline__ void multiply_quad(float (&acc)[N][4], const typename T::Quad& q, const Head& head, uint32_t w0, uint32_t w1,
                                              int quad, const char* x, int lane, int tiles) {
    const uint32_t x0 = __shfl_sync(0xffffffffu, w0, (lane & ~3) | quad);
    const uint32_t x1 = __shfl_sync(0xffffffffu, w1, (lane & ~3) | quad);
    const char* columns = x + (quad * 64 + lane) * 8;
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        float s0, s1;
        uint32_t a[4];
        if (T::BLOCK16) {
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                T::scale(head, x0, x1, upper, odd, s0, s1);
                T::fragment(q, upper, odd, a);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    if (Dynamic && n >= tiles) continue;
                    const uint2 b = *reinterpret_cast<const uint2*>(columns + n * FRAGMENT_BYTES + (8 * upper + odd) * 256);
                    float p[4];
                    mma_first(p, a, b.x, b.y);
                    acc[n][0] = fmaf(s0, p[0], acc[n][0]);
                    acc[n][1] = fmaf(s0, p[1], acc[n][1]);
                    acc[n][2] = fmaf(s1, p[2], acc[n][2]);
                    acc[n][3] = fmaf(s1, p[3], acc[n][3]);
                }
            }
        } else {
            uint32_t c[4], e[4], f[4];
            T::scale(head, x0, x1, upper, 0, s0, s1);
            T::fragment(q, upper, 0, a);
            T::fragment(q, upper, 1, c);
            if constexpr (planes<T> == 2) {
                T::plane(q, 1, upper, 0, e);
                T::plane(q, 1, upper, 1, f);
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (Dynamic && n >= tiles) continue;
                const uint2* b = reinterpret_cast<const uint2*>(columns + n * FRAGMENT_BYTES + 8 * upper * 256);
                const uint2 b0 = b[0], b1 = b[32];
                float p[4];
                mma_first(p, a, b0.x, b0.y);
                mma(p, c, b1.x, b1.y);
                if constexpr (planes<T> == 2) {
                    mma(p, e, b0.x, b0.y);
                    mma(p, f, b1.x, b1.y);
                }
                acc[n][0] = fmaf(s0, p[0], acc[n][0]);
                acc[n][1] = fmaf(s0, p[1], acc[n][1]);
                acc[n][2] = fmaf(s1, p[2], acc[n][2]);
                acc[n][3] = fmaf(s1, p[3], acc[n][3]);
            }
        }
    }
}

// The part of a tile's products that its zero points or minima make, for all 256 columns.
template <class T, int N, bool Dynamic>
__device__ __forceinline__ void multiply_offset(float (&acc)[N][4], const typename T::Scales& scales, const Head& head, const char* x, int lane, int tiles) {
    if (!T::OFFSET) return;
    uint32_t a[4];
    T::offset(scales, a);
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (Dynamic && n >= tiles) continue;
        const uint4 s = *reinterpret_cast<const uint4*>(x + n * FRAGMENT_BYTES + FRAGMENT_SUMS + lane * 16);
        float p[4];
        mma_first(p, a, s.x, s.y);
        mma(p, a, s.z, s.w);
        acc[n][0] = fmaf(head.m0, p[0], acc[n][0]);
        acc[n][1] = fmaf(head.m0, p[1], acc[n][1]);
        acc[n][2] = fmaf(head.m1, p[2], acc[n][2]);
        acc[n][3] = fmaf(head.m1, p[3], acc[n][3]);
    }
}

// Weight tiles of a warp on their way from memory: Held keeps `Depth` whole tiles in registers, ...
template <class T, int Depth> struct Held {
    struct Tile {
        typename T::Quad q[4];
        typename T::Scales s;
    } tile[Depth];
    __device__ __forceinline__ void load(int i, const char* t, int lane) {
#pragma unroll
        for (int quad = 0; quad < 4; quad++) T::load_quad(tile[i].q[quad], t, quad, lane);
        T::load_scales(tile[i].s, t, lane);
    }
    template <int N, bool Dynamic> __device__ __forceinline__ void multiply(int i, float (&acc)[N][4], const char* x, int lane, int tiles) {
        const Head head = T::head(tile[i].s, lane);
        multiply_offset<T, N, Dynamic>(acc, tile[i].s, head, x, lane, tiles);
        const uint32_t w0 = T::word0(tile[i].s), w1 = T::word1(tile[i].s);
#pragma unroll
        for (int quad = 0; quad < 4; quad++) multiply_quad<T, N, Dynamic>(acc, tile[i].q[quad], head, w0, w1, quad, x, lane, tiles);
    }
};
// ... Streamed the scales and the first quad, and fetches each further quad while it multiplies the one before: few registers and
// little code, for many rows and for rare types.
template <class T> struct Streamed {
    typename T::Quad first;
    typename T::Scales s;
    const char* from;
    __device__ __forceinline__ void load(int, const char* t, int lane) {
        T::load_quad(first, t, 0, lane);
        T::load_scales(s, t, lane);
        from = t;
    }
    template <int N, bool Dynamic> __device__ __forceinline__ void multiply(int, float (&acc)[N][4], const char* x, int lane, int tiles) {
        const Head head = T::head(s, lane);
        multiply_offset<T, N, Dynamic>(acc, s, head, x, lane, tiles);
        const uint32_t w0 = T::word0(s), w1 = T::word1(s);
        typename T::Quad q = first;
#pragma unroll 1
        for (int quad = 0; quad < 4; quad++) {
            if (sizeof(q) > 32) {
                if (quad > 0) T::load_quad(q, from, quad, lane);
                multiply_quad<T, N, Dynamic>(acc, q, head, w0, w1, quad, x, lane, tiles);
            } else {
                const typename T::Quad now = q;
                if (quad < 3) T::load_quad(q, from, quad + 1, lane);
                multiply_quad<T, N, Dynamic>(acc, now, head, w0, w1, quad, x, lane, tiles);
            }
        }
    }
};

// The part of a job that one block does in one split: output tiles tile0 .. tile1, pieces piece0 .. piece1.
struct MatmulPart {
    const char* weights;
    float* y;
    int column_tiles, tile0, tile1, piece0, piece1, outputs, stride, rows, row_tiles, type;
};

// What of the input stands in shared memory: column tiles first .. end.
struct Staged { int first, end; };

__device__ __forceinline__ void stage_input(char* shared, const char* x, int first, int end, int row_tiles, Staged& staged) {
    const bool here = staged.first == first && staged.end >= end;
    __syncthreads();
    if (here) return;
    const char* from = x + (size_t)first * row_tiles * FRAGMENT_BYTES;
    const int bytes = (end - first) * row_tiles * FRAGMENT_BYTES;
    for (int i = threadIdx.x * 16; i < bytes; i += THREADS * 16) copy16(shared + i, from + i);
    copy_commit();
    copy_wait<0>();
    if (threadIdx.x == 0) staged = {first, end};
    __syncthreads();
}

// A warp's walk over its (output tile, piece) items: chunks of pieces that fit in shared memory, in each groups of output tiles
// whose products fit, in each every 16th item.
struct Walk {
    int chunk, pieces, tile, tiles, item, items, row, column;    // row, column: item / pieces, item % pieces

    __device__ __forceinline__ void begin_group(const MatmulPart& p, int slots, int warp) {
        tiles = min(max(slots / pieces, 1), p.tile1 - tile);
        items = tiles * pieces;
        item = warp;
        row = warp / pieces;
        column = warp % pieces;
    }
    __device__ __forceinline__ void begin(const MatmulPart& p, int chunk_pieces, int slots, int warp) {
        chunk = p.piece0;
        pieces = min(chunk_pieces, p.piece1 - chunk);
        tile = p.tile0;
        begin_group(p, slots, warp);
        settle(p, chunk_pieces, slots, warp);
    }
    // Goes on to the next group or chunk that has an item for this warp; `chunk` is p.piece1 when there is none.
    __device__ __forceinline__ void settle(const MatmulPart& p, int chunk_pieces, int slots, int warp) {
        while (item >= items) {
            tile += tiles;
            if (tile >= p.tile1) {
                chunk += pieces;
                if (chunk >= p.piece1) return;
                pieces = min(chunk_pieces, p.piece1 - chunk);
                tile = p.tile0;
            }
            begin_group(p, slots, warp);
        }
    }
    __device__ __forceinline__ void next(const MatmulPart& p, int chunk_pieces, int slots, int warp) {
        item += WARPS;
        row += WARPS / pieces;
        column += WARPS % pieces;
        if (column >= pieces) {
            column -= pieces;
            row++;
        }
        settle(p, chunk_pieces, slots, warp);
    }
    __device__ __forceinline__ bool done(const MatmulPart& p) const { return chunk >= p.piece1; }
};

// Starts the load of the walk's next weight tile into place i, and moves on.
template <class T, class Weights>
__device__ __forceinline__ void fetch(Weights& weights, int i, const MatmulPart& p, Walk& ahead, int& ahead_tile, int chunk_pieces, int slots, int warp, int lane) {
    if (ahead.done(p)) return;
    const int column = (ahead.chunk + ahead.column) * PIECE_TILES + ahead_tile;
    if (column < p.column_tiles) weights.load(i, p.weights + ((size_t)(ahead.tile + ahead.row) * p.column_tiles + column) * T::BYTES, lane);
    if (++ahead_tile == PIECE_TILES) {
        ahead_tile = 0;
        ahead.next(p, chunk_pieces, slots, warp);
    }
}

// `Weights` is Held or Streamed, with `Depth` tiles of a warp in flight: 1 or 2.
template <class T, class Weights, int N, bool Dynamic, int Depth>
__device__ __noinline__ void matmul_part(const MatmulPart& part, const char* x, char* smem, int smem_bytes, Staged& staged) {
    const MatmulPart& p = part;
    const int lane = lane_id(), warp = warp_id();
    const int tiles = Dynamic ? p.row_tiles : N;
    const int column_bytes = tiles * FRAGMENT_BYTES, slot_bytes = tiles * 512;
    // A quarter of shared memory is for products, unless the whole input leaves more.
    const int all = min(p.piece1 * PIECE_TILES, p.column_tiles) - p.piece0 * PIECE_TILES;
    int chunk_pieces = max(1, smem_bytes / 4 * 3 / (PIECE_TILES * column_bytes));
    if (chunk_pieces * PIECE_TILES >= all) chunk_pieces = p.piece1 - p.piece0;
    const int input_bytes = min(chunk_pieces * PIECE_TILES, all) * column_bytes;
    const int slots = (smem_bytes - input_bytes) / slot_bytes;
    float4* products = reinterpret_cast<float4*>(smem + input_bytes);

    // Zeros, so that nothing here is taken to live before the function: that would cost its callers the registers.
    Weights weights = {};
    Walk ahead;
    ahead.begin(p, chunk_pieces, slots, warp);
    int ahead_tile = 0;
#pragma unroll
    for (int d = 0; d < Depth; d++) fetch<T>(weights, d, p, ahead, ahead_tile, chunk_pieces, slots, warp, lane);

    for (int chunk = p.piece0; chunk < p.piece1; chunk += chunk_pieces) {
        const int pieces = min(chunk_pieces, p.piece1 - chunk);
        const int column0 = chunk * PIECE_TILES;
        stage_input(smem, x, column0, min(column0 + pieces * PIECE_TILES, p.column_tiles), tiles, staged);
        const int group = max(slots / pieces, 1);
        for (int tile = p.tile0; tile < p.tile1; tile += group) {
            const int group_tiles = min(group, p.tile1 - tile);
            for (int item = warp, column = warp % pieces; item < group_tiles * pieces; item += WARPS) {
                float acc[N][4];
#pragma unroll
                for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
                // The scales of this lane's two rows in a column tile of the item.
                const char* xi = smem + column * PIECE_TILES * column_bytes + FRAGMENT_SCALES + (lane & 3) * 8;
                auto scales_of = [&](int t, int n) { return *reinterpret_cast<const float2*>(xi + t * column_bytes + n * FRAGMENT_BYTES); };
                int last = 0;
                static_assert(PIECE_TILES == 2 && (Depth == 1 || Depth == 2));
#pragma unroll
                for (int t = 0; t < PIECE_TILES; t++) {
                    const int at = column * PIECE_TILES + t;
                    if (column0 + at < p.column_tiles) {
                        if (t > 0) {
                            // The sum so far in the units of this tile's halves: an exact step, by a power of two.
#pragma unroll
                            for (int n = 0; n < N; n++) {
                                if (Dynamic && n >= tiles) continue;
                                const float2 before = scales_of(t - 1, n), now = scales_of(t, n);
                                const float r0 = before.x * exact_inverse(now.x), r1 = before.y * exact_inverse(now.y);
                                acc[n][0] *= r0;
                                acc[n][1] *= r1;
                                acc[n][2] *= r0;
                                acc[n][3] *= r1;
                            }
                        }
                        last = t;
                        weights.template multiply<N, Dynamic>(t % Depth, acc, smem + at * column_bytes, lane, tiles);
                    }
                    fetch<T>(weights, t % Depth, p, ahead, ahead_tile, chunk_pieces, slots, warp, lane);
                }
                float4* slot = products + (size_t)item * tiles * 32 + lane;
#pragma unroll
                for (int n = 0; n < N; n++) {
                    if (Dynamic && n >= tiles) continue;
                    const float2 s = scales_of(last, n);
                    slot[n * 32] = make_float4(acc[n][0] * s.x, acc[n][1] * s.y, acc[n][2] * s.x, acc[n][3] * s.y);
                }
                column += WARPS % pieces;
                if (column >= pieces) column -= pieces;
            }
            __syncthreads();
            const float* product = reinterpret_cast<const float*>(products);
            const int numbers = tiles * 128;
            for (int e = threadIdx.x; e < group_tiles * numbers; e += THREADS) {
                const int t = e / numbers, o = e - t * numbers, l = (o >> 2) & 31, i = o & 3;
                const int row = (o >> 7) * FRAGMENT_ROWS + (l & 3) * 2 + (i & 1);
                const int output = (tile + t) * TILE_N + (l >> 2) + (i >> 1) * 8;
                if (row < p.rows && output < p.outputs) {
                    float* y = p.y + (size_t)row * p.stride + output;
                    float v = chunk == p.piece0 ? 0.0f : *y;
                    for (int k = 0; k < pieces; k++) v += product[(size_t)(t * pieces + k) * numbers + o];
                    *y = v;
                }
            }
            __syncthreads();
        }
    }
}

template <class T> __device__ __forceinline__ void matmul_part_any(const MatmulPart& p, const char* x, char* smem, int smem_bytes, Staged& staged) {
    matmul_part<T, Streamed<T>, MAX_ROW_TILES, true, 1>(p, x, smem, smem_bytes, staged);
}
// For types that large matrices have.
template <class T, int Depth>
__device__ __forceinline__ void matmul_part_rows(const MatmulPart& p, const char* x, char* smem, int smem_bytes, Staged& staged) {
    switch (p.row_tiles) {
        case 1: matmul_part<T, Held<T, Depth>, 1, false, Depth>(p, x, smem, smem_bytes, staged); break;
        case 2: matmul_part<T, Held<T, Depth>, 2, false, Depth>(p, x, smem, smem_bytes, staged); break;
        case 3: matmul_part<T, Held<T, Depth>, 3, false, Depth>(p, x, smem, smem_bytes, staged); break;
        default: matmul_part_any<T>(p, x, smem, smem_bytes, staged);
    }
}

// What a block does of an op: at most one part for each split of each job.
constexpr int MAX_SPLITS = 4;
struct MatmulParts {
    MatmulPart part[MAX_JOBS * MAX_SPLITS];
    int count;
};

// Lists the parts of a block's share. Blocks take equal shares of the bytes, in the order of the jobs.
__device__ __forceinline__ void list_parts(MatmulParts& parts, const MatmulArgs& args, int rows, int block, int blocks) {
    const int column_tiles = ((int)args.inputs + TILE_K - 1) / TILE_K, pieces = (column_tiles + PIECE_TILES - 1) / PIECE_TILES;
    uint64_t total = 0;
    for (uint32_t j = 0; j < args.jobs; j++) {
        const MatmulJob& job = args.job[j];
        total += (uint64_t)((job.outputs + TILE_N - 1) / TILE_N) * job.splits * tile_bytes(job.type);
    }
    const uint64_t from = total * block / blocks, to = total * (block + 1) / blocks;
    uint64_t before = 0;
    parts.count = 0;
    for (uint32_t j = 0; j < args.jobs; j++) {
        const MatmulJob& job = args.job[j];
        const int tiles = ((int)job.outputs + TILE_N - 1) / TILE_N, bytes = tile_bytes(job.type);
        const uint64_t all = (uint64_t)tiles * job.splits * bytes;
        // A tile goes to the block whose share holds its first byte.
        auto bound = [&](uint64_t at) { return (int)(at <= before ? 0 : at >= before + all ? tiles * (int)job.splits : (at - before + bytes - 1) / bytes); };
        const int end = bound(to);
        for (int v = bound(from); v < end;) {
            const int split = v / tiles, stop = min(end, (split + 1) * tiles);
            parts.part[parts.count++] = {job.weights, job.y + split * job.split_stride, column_tiles, v - split * tiles, stop - split * tiles,
                                         pieces * split / (int)job.splits, pieces * (split + 1) / (int)job.splits, (int)job.outputs,
                                         (int)job.stride, rows, row_tiles(rows), (int)job.type};
            v = stop;
        }
        before += all;
    }
}

__device__ __forceinline__ void op_matmul(const MatmulArgs& args, char* smem, int smem_bytes, int block, int blocks) {
    const int rows = (int)*args.rows;
    if (rows == 0) return;
    MatmulParts& parts = *reinterpret_cast<MatmulParts*>(smem);
    Staged& staged = *reinterpret_cast<Staged*>(smem + sizeof(MatmulParts));
    constexpr int HEAD = (sizeof(MatmulParts) + sizeof(Staged) + 127) / 128 * 128;
    const char* x = args.x;
    smem += HEAD;
    smem_bytes -= HEAD;
    __syncthreads();
    if (threadIdx.x == 0) {
        list_parts(parts, args, rows, block, blocks);
        staged = {-1, -1};
    }
    __syncthreads();
    for (int i = 0; i < parts.count; i++) {
        const MatmulPart& p = parts.part[i];
        switch (p.type) {
            case W_F32: matmul_part_any<TileF32>(p, x, smem, smem_bytes, staged); break;
            case W_F16: matmul_part_any<TileF16>(p, x, smem, smem_bytes, staged); break;
            case W_Q4_0: matmul_part_any<TileQ4_0>(p, x, smem, smem_bytes, staged); break;
            case W_Q4_1: matmul_part_any<TileQ4_1>(p, x, smem, smem_bytes, staged); break;
            case W_Q5_0: matmul_part_any<TileQ5_0>(p, x, smem, smem_bytes, staged); break;
            case W_Q5_1: matmul_part_any<TileQ5_1>(p, x, smem, smem_bytes, staged); break;
            case W_Q8_0: matmul_part_rows<TileQ8_0, 1>(p, x, smem, smem_bytes, staged); break;
            case W_Q2_K: matmul_part_any<TileQ2_K>(p, x, smem, smem_bytes, staged); break;
            case W_Q3_K: matmul_part_any<TileQ3_K>(p, x, smem, smem_bytes, staged); break;
            case W_Q4_K: matmul_part_rows<TileQ4_K, 2>(p, x, smem, smem_bytes, staged); break;
            case W_Q5_K: matmul_part_rows<TileQ5_K, 2>(p, x, smem, smem_bytes, staged); break;
            case W_Q6_K: matmul_part_rows<TileQ6_K, 2>(p, x, smem, smem_bytes, staged); break;
            case W_IQ4_NL: matmul_part_any<TileIQ4_NL>(p, x, smem, smem_bytes, staged); break;
            default: matmul_part_any<TileIQ4_XS>(p, x, smem, smem_bytes, staged);
        }
    }
}

}  // namespace openjet
