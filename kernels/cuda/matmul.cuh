// y = W x for 1 to 72 rows of activations; each weight is read once for up to 24 of them.
//
// The inputs are cut into pieces of 512; a warp multiplies 16 outputs by one piece on the tensor cores and leaves the product in
// shared memory; then the pieces of an output are added in their order. What a number is made of and in which order is thus a
// function of the matrix alone: rows, row tiles, SMs and shared memory decide only who computes it and when. With `splits` the
// pieces are cut into that many runs, each with an output of its own, which the reader adds in order.
#pragma once
#include "barrier.cuh"
#include "multiply.cuh"
#include "table.cuh"

namespace openjet {

constexpr int PIECE_TILES = 2;       // column tiles of a piece
constexpr int ROW_TILES = 3;           // row tiles that are multiplied at a time
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
    const char* x;                   // fragment buffer, or prompt rows
    const void* x_map;               // the map of prompt rows' tiles (bulk.cuh); src/program.rs puts it here where the chip has such
    uint64_t rows;                   // the word of the step table\'s header that says how many
    uint32_t inputs;
    uint32_t jobs;
    MatmulJob job[MAX_JOBS];
    const float* squares;            // where the input is still to be divided by its root mean square: [row][column tile]
    float eps;
    uint32_t reserved;
};

// The part of a job that one block does in one split: output tiles tile0 .. tile1, column tiles column0 .. column1.
struct MatmulPart {
    const char* weights;
    float* y;
    int column_tiles, tile0, tile1, column0, column1, outputs, stride, type;
    int rows, row_tiles;             // of all rows
    int first_row_tile, count_row_tiles;   // what is multiplied now
};

// What of the input stands in shared memory: column tiles first .. end of the row tiles from row_tile on.
struct Staged { int first, end, row_tile; };

// What a block does of an op: at most one part for each split of each job.
struct MatmulParts {
    MatmulPart part[MAX_JOBS * MAX_SPLITS];
    int count, at;                   // the one that is done now
    const char* x;
    const float* squares;            // as MatmulArgs'
    float eps;
    float share;                     // of an input in the mean
    float factors[ROW_TILES * 8];    // of the rows whose input stands in shared memory
    Staged staged;
};

// One over the root mean square of each row of a row tile, by a warp, four lanes a row.
__device__ __forceinline__ void row_factors(float* factors, const MatmulParts& parts, int row_tile, int rows, int column_tiles) {
    const int lane = lane_id(), row = row_tile * FRAGMENT_ROWS + (lane >> 2);
    float total = 0.0f;
    for (int c = lane & 3; row < rows && c < column_tiles; c += 4) total += parts.squares[(size_t)row * column_tiles + c];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if ((lane & 3) == 0) factors[lane >> 2] = inverse_root(fmaf(total, parts.share, parts.eps));
}


// A warp a tile. Only rows that there are: what stands in the others' place makes numbers that nobody reads.
__device__ __forceinline__ void stage_input(char* shared, MatmulParts& parts, int first, int end, const MatmulPart& p, int count) {
    const char* x = parts.x;
    Staged& staged = parts.staged;
    const bool here = staged.first == first && staged.end >= end && staged.row_tile == p.first_row_tile;
    __syncthreads();
    if (here) return;
    const int lane = lane_id();
    for (int i = warp_id(); i < (end - first) * count; i += WARPS) {
        const int c = i / count, tile = p.first_row_tile + i - c * count;
        const char* from = x + ((size_t)(first + c) * p.row_tiles + tile) * FRAGMENT_BYTES;
        char* to = shared + i * FRAGMENT_BYTES;
        // 64 bytes of a row in each of nine runs of 512, then the scales.
        if (lane < 4 * (p.rows - tile * FRAGMENT_ROWS)) {
#pragma unroll
            for (int run = 0; run < FRAGMENT_SCALES; run += 512) copy16(to + run + lane * 16, from + run + lane * 16);
        }
        if (lane < 2) copy16(to + FRAGMENT_SCALES + lane * 16, from + FRAGMENT_SCALES + lane * 16);
    }
    copy_commit();
    const bool divides = parts.squares != nullptr;
    if (divides && warp_id() < count) row_factors(parts.factors + warp_id() * FRAGMENT_ROWS, parts, p.first_row_tile + warp_id(), p.rows, p.column_tiles);
    copy_wait<0>();
    if (threadIdx.x == 0) staged = {first, end, p.first_row_tile};
    __syncthreads();
    if (!divides) return;
    // Into the scales of the rows' halves.
    for (int i = threadIdx.x; i < (end - first) * count * FRAGMENT_ROWS; i += THREADS) {
        const int tile = i / FRAGMENT_ROWS, g = i % FRAGMENT_ROWS;
        reinterpret_cast<float*>(shared + tile * FRAGMENT_BYTES + FRAGMENT_SCALES)[g] *= parts.factors[tile % count * FRAGMENT_ROWS + g];
    }
    __syncthreads();
}

// How a part is done: in chunks of columns whose inputs fit in shared memory, in each of them groups of output tiles whose
// products fit. A phase is one group of one chunk.
struct Phases {
    int chunk, chunks, group, groups;    // column tiles of a chunk, output tiles of a group

    __device__ __forceinline__ Phases(const MatmulPart& p, int column_bytes, int slot_bytes, int smem_bytes) {
        const int columns = p.column1 - p.column0, tiles = p.tile1 - p.tile0;
        const int pieces = (columns + PIECE_TILES - 1) / PIECE_TILES;
        chunk = pieces * PIECE_TILES;
        group = tiles;
        chunks = groups = 1;
        if (columns * column_bytes + tiles * pieces * slot_bytes <= smem_bytes) return;
        // A third of shared memory is for products, unless the whole input leaves more.
        int most = max(1, smem_bytes / 3 * 2 / (PIECE_TILES * column_bytes));
        chunks = (pieces + most - 1) / most;
        chunk = (pieces + chunks - 1) / chunks * PIECE_TILES;
        const int input_bytes = min(chunk, columns) * column_bytes;
        most = max(1, (smem_bytes - input_bytes) / (slot_bytes * (chunk / PIECE_TILES)));
        groups = (tiles + most - 1) / most;
        group = (tiles + groups - 1) / groups;
        groups = (tiles + group - 1) / group;
        chunks = (columns + chunk - 1) / chunk;
    }
};

// A warp's walk over its items of a phase: an item is one piece of one output tile; a warp takes every 16th.
struct Walk {
    int item, items;
    int piece, pieces, rest;             // rest: pieces from item to item, less whole output tiles
    int single;                          // the piece that has one column tile, or none
    uint32_t at, step, wrap;             // byte offset of the item's first tile; to the next item; the same when `piece` wraps

    template <int TileBytes> __device__ __forceinline__ void begin(const MatmulPart& p, const Phases& f, int c, int g, int warp) {
        const int column = p.column0 + c * f.chunk, tile = p.tile0 + g * f.group, columns = min(f.chunk, p.column1 - column);
        pieces = (columns + PIECE_TILES - 1) / PIECE_TILES;
        single = pieces * PIECE_TILES > columns ? pieces - 1 : -1;
        item = warp;
        items = min(f.group, p.tile1 - tile) * pieces;
        const int row = warp / pieces, rows = WARPS / pieces;
        piece = warp - row * pieces;
        rest = WARPS - rows * pieces;
        at = (uint32_t)((tile + row) * p.column_tiles + column + piece * PIECE_TILES) * TileBytes;
        step = (uint32_t)(rows * p.column_tiles + rest * PIECE_TILES) * TileBytes;
        wrap = (uint32_t)(p.column_tiles - pieces * PIECE_TILES) * TileBytes;
    }
    __device__ __forceinline__ void next() {
        item += WARPS;
        at += step;
        piece += rest;
        if (piece >= pieces) {
            piece -= pieces;
            at += wrap;
        }
    }
};

// `Weights` is Refilled or Streamed.
template <class T, class Weights, int N, bool Dynamic>
__device__ __noinline__ void matmul_part(MatmulParts& parts, char* smem, int smem_bytes) {
    // What is needed after the loop over weights stays in shared memory meanwhile.
    const MatmulPart& p = parts.part[parts.at];
    const char* const all_weights = p.weights;
    const int lane = opaque(lane_id()), warp = warp_id();
    const int tiles = Dynamic ? p.count_row_tiles : N;
    const int column_bytes = tiles * FRAGMENT_BYTES;
    const Phases phases(p, column_bytes, tiles * 512, smem_bytes);
    float4* products = reinterpret_cast<float4*>(smem + min(phases.chunk, p.column1 - p.column0) * column_bytes);

    // Zeros, so that nothing here is taken to live before the function: that would cost its callers the registers.
    Weights weights = {};
    Walk walk = {};
    walk.begin<T::BYTES>(p, phases, 0, 0, warp);
    if (walk.item < walk.items) weights.load(all_weights + walk.at, lane);
    pass_gate(smem);

    int c = 0, g = 0;
    while (true) {
        const int column0 = p.column0 + c * phases.chunk, columns = min(phases.chunk, p.column1 - column0);
        const int tile0 = p.tile0 + g * phases.group, count = min(phases.group, p.tile1 - tile0), pieces = walk.pieces;
        if (g == 0) stage_input(smem, parts, column0, column0 + columns, p, tiles);
        static_assert(PIECE_TILES == 2);
        bool second = false;             // column tile of the piece
#pragma unroll 1
        while (walk.item < walk.items) {
            const char* xi = smem + (walk.piece * PIECE_TILES + second) * column_bytes;
            float4* slot = products + (size_t)walk.item * tiles * 32 + lane;
            const bool add = second;
            second = !second && walk.piece != walk.single;
            if (!second) walk.next();
            const char* next = walk.item < walk.items ? all_weights + walk.at + (second ? T::BYTES : 0) : nullptr;
            float acc[N][4];
            zero(acc);
            weights.template multiply<N, Dynamic>(acc, xi, lane, tiles, next);
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (Dynamic && n >= tiles) continue;
                float4 v = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
                if (add) {
                    const float4 first = slot[n * 32];
                    v = make_float4(first.x + v.x, first.y + v.y, first.z + v.z, first.w + v.w);
                }
                slot[n * 32] = v;
            }
        }
        // The first weights of the next phase come while this one's products are added.
        const bool first = c == 0;
        if (++g == phases.groups) {
            g = 0;
            c++;
        }
        const bool more = c < phases.chunks;
        if (more) {
            walk.begin<T::BYTES>(p, phases, c, g, warp);
            if (walk.item < walk.items) weights.load(all_weights + walk.at, lane);
        }
        __syncthreads();
        const MatmulPart to = p;
        for (int i = warp; i < count * tiles; i += WARPS) {
            const int t = i / tiles, n = i - t * tiles, row = (to.first_row_tile + n) * FRAGMENT_ROWS + (lane & 3) * 2, output = (tile0 + t) * TILE_N + (lane >> 2);
            float* y = to.y + (size_t)row * to.stride + output;
            const bool r0 = row < to.rows, r1 = row + 1 < to.rows, o0 = output < to.outputs, o1 = output + 8 < to.outputs;
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (!first) {
                if (r0 && o0) v.x = y[0];
                if (r1 && o0) v.y = y[to.stride];
                if (r0 && o1) v.z = y[8];
                if (r1 && o1) v.w = y[to.stride + 8];
            }
            const float4* product = products + ((size_t)t * pieces * tiles + n) * 32 + lane;
#pragma unroll 4
            for (int k = 0; k < pieces; k++) {
                const float4 a = product[(size_t)k * tiles * 32];
                v.x += a.x;
                v.y += a.y;
                v.z += a.z;
                v.w += a.w;
            }
            if (r0 && o0) y[0] = v.x;
            if (r1 && o0) y[to.stride] = v.y;
            if (r0 && o1) y[8] = v.z;
            if (r1 && o1) y[to.stride + 8] = v.w;
        }
        if (!more) return;
        __syncthreads();
    }
}

template <class T>
__device__ __forceinline__ void matmul_part_any(MatmulParts& parts, char* smem, int smem_bytes) {
    matmul_part<T, Streamed<T>, ROW_TILES, true>(parts, smem, smem_bytes);
}
// For types that large matrices have.
template <class T>
__device__ __forceinline__ void matmul_part_rows(MatmulParts& parts, char* smem, int smem_bytes) {
    switch (parts.part[parts.at].count_row_tiles) {
        case 1: matmul_part<T, Refilled<T>, 1, false>(parts, smem, smem_bytes); break;
        case 2: matmul_part<T, Refilled<T>, 2, false>(parts, smem, smem_bytes); break;
        default: matmul_part<T, Refilled<T>, 3, false>(parts, smem, smem_bytes);
    }
}

// Walks a block's share: units (an output tile in one split of one job) from .. to in the order of jobs, splits and tiles, cut
// where split or job changes.
template <class Part> __device__ __forceinline__ void for_parts(const MatmulArgs& args, int from, int to, Part part) {
    const int column_tiles = ((int)args.inputs + TILE_K - 1) / TILE_K, pieces = (column_tiles + PIECE_TILES - 1) / PIECE_TILES;
    int before = 0;
    for (uint32_t j = 0; j < args.jobs && from < to; j++) {
        const MatmulJob& job = args.job[j];
        const int tiles = ((int)job.outputs + TILE_N - 1) / TILE_N, splits = (int)job.splits;
        for (int split = 0; split < splits; split++, before += tiles) {
            const int end = min(to, before + tiles);
            if (from >= end) continue;
            const int column0 = splits == 1 ? 0 : pieces * split / splits * PIECE_TILES;
            const int column1 = split + 1 == splits ? column_tiles : pieces * (split + 1) / splits * PIECE_TILES;
            part(job, split, from - before, end - before, column_tiles, column0, column1);
            from = end;
        }
    }
}

// Lists a block's parts of a matmul; by one thread, before the matmul begins.
__device__ __forceinline__ void list_parts(MatmulParts& parts, const MatmulArgs& args, int rows, int from, int to) {
    int count = 0;
    for_parts(args, from, to, [&](const MatmulJob& job, int split, int tile0, int tile1, int column_tiles, int column0, int column1) {
        parts.part[count++] = {job.weights, job.y + split * job.split_stride, column_tiles, tile0, tile1, column0, column1,
                               (int)job.outputs, (int)job.stride, (int)job.type, rows, row_tiles(rows), 0, min(row_tiles(rows), ROW_TILES)};
    });
    parts.count = rows == 0 ? 0 : count;
    parts.at = 0;
    parts.x = args.x;
    parts.squares = args.squares;
    parts.eps = args.eps;
    parts.share = 1.0f / (float)args.inputs;
    parts.staged = {-1, -1, -1};
}

// `parts` stands in shared memory and is this block's.
__device__ __forceinline__ void run_matmul(MatmulParts& parts, char* smem, int smem_bytes) {
    if (parts.count == 0) return pass_gate(smem);
    while (true) {
        switch (parts.part[reread(parts.at)].type) {
            case W_F32: matmul_part_any<TileF32>(parts, smem, smem_bytes); break;
            case W_F16: matmul_part_any<TileF16>(parts, smem, smem_bytes); break;
            case W_Q4_0: matmul_part_any<TileQ4_0>(parts, smem, smem_bytes); break;
            case W_Q4_1: matmul_part_any<TileQ4_1>(parts, smem, smem_bytes); break;
            case W_Q5_0: matmul_part_any<TileQ5_0>(parts, smem, smem_bytes); break;
            case W_Q5_1: matmul_part_any<TileQ5_1>(parts, smem, smem_bytes); break;
            case W_Q8_0: matmul_part_rows<TileQ8_0>(parts, smem, smem_bytes); break;
            case W_Q2_K: matmul_part_any<TileQ2_K>(parts, smem, smem_bytes); break;
            case W_Q3_K: matmul_part_any<TileQ3_K>(parts, smem, smem_bytes); break;
            case W_Q4_K: matmul_part_rows<TileQ4_K>(parts, smem, smem_bytes); break;
            case W_Q5_K: matmul_part_rows<TileQ5_K>(parts, smem, smem_bytes); break;
            case W_Q6_K: matmul_part_rows<TileQ6_K>(parts, smem, smem_bytes); break;
            case W_IQ4_NL: matmul_part_any<TileIQ4_NL>(parts, smem, smem_bytes); break;
            default: matmul_part_any<TileIQ4_XS>(parts, smem, smem_bytes);
        }
        // The next row tiles of the part, or the next part.
        const int at = reread(parts.at);
        MatmulPart& p = parts.part[at];
        const bool done = p.first_row_tile + ROW_TILES >= p.row_tiles;
        if (done && at + 1 == parts.count) break;
        __syncthreads();
        if (threadIdx.x == 0) {
            if (done) {
                parts.at = at + 1;
            } else {
                p.first_row_tile += ROW_TILES;
                p.count_row_tiles = min(ROW_TILES, p.row_tiles - p.first_row_tile);
            }
        }
        __syncthreads();
    }
}

}  // namespace openjet
