// y = W x for 1 to 72 rows of activations; each weight is read once for up to 24 of them.
//
// The inputs are cut into pieces of 512; a warp multiplies 16 outputs by one piece on the tensor cores; the pieces of an output are
// added in their order (matmul_part.cuh). What a number is made of and in which order is thus a function of the matrix alone: rows,
// row tiles, SMs and shared memory decide only who computes it and when. With `splits` the pieces are cut into that many runs, each
// with an output of its own, which the reader adds in order.
#pragma once
#include "matmul_part.cuh"

namespace openjet {

// One matrix of a group that shares its input.
struct MatmulJob {
    const char* weights;
    float* y;                        // [split][row][stride]
    uint16_t type;                   // WeightType
    uint16_t paired;                 // 1: the tiles are a pair's (tiles/tile.cuh), and y is silu(a) * b; then there is one split
    uint32_t outputs;                // of a pair as many as each of its matrices has rows
    uint32_t stride;                 // floats from one row of y to the next
    uint32_t splits;
    uint64_t split_stride;           // floats from one split's output to the next
};
static_assert(sizeof(MatmulJob) == 40);
struct MatmulArgs {
    const char* x;                   // fragment buffer, or prompt rows; null where there is `from`
    const void* x_map;               // the map of prompt rows' tiles (bulk.cuh); src/program.rs puts it here where the chip has such
    uint64_t rows;                   // the word of the step table's header that says how many
    uint32_t inputs;
    uint32_t jobs;
    MatmulJob job[MAX_JOBS];
    const float* squares;            // where the input is still to be divided by its root mean square: [row][column tile]
    float eps;
    uint32_t reserved;
    InputRows from;                  // where x is null, what becomes the input here; at most FRAGMENT_ROWS rows
};
static_assert(sizeof(MatmulArgs) == 248);

template <class T>
__device__ __forceinline__ void matmul_part_any(MatmulParts& parts, char* smem) {
    if (parts.part[parts.at].sums) matmul_part<T, Streamed<T>, ROW_TILES, true, true>(parts, smem);
    else matmul_part<T, Streamed<T>, ROW_TILES, true, false>(parts, smem);
}
// For types that large matrices have. Two tiles a warp where they are small and there are few rows: else one is enough on its way,
// or it is not memory that is waited for.
template <class T, int N> using Held = std::conditional_t<sizeof(Refilled<T>) + 16 * (N - 1) <= 88, Doubled<T>, Refilled<T>>;
template <class T, bool Sums> __device__ __forceinline__ void matmul_part_rows(MatmulParts& parts, char* smem) {
    switch (parts.part[parts.at].count_row_tiles) {
        case 1: matmul_part<T, Held<T, 1>, 1, false, Sums>(parts, smem); break;
        case 2: matmul_part<T, Held<T, 2>, 2, false, Sums>(parts, smem); break;
        default: matmul_part<T, Held<T, 3>, 3, false, Sums>(parts, smem);
    }
}
template <class T> __device__ __forceinline__ void matmul_part_large(MatmulParts& parts, char* smem) {
    if (parts.part[parts.at].sums) matmul_part_rows<T, true>(parts, smem);
    else matmul_part_rows<T, false>(parts, smem);
}

__device__ __forceinline__ int output_tiles(const MatmulJob& job) { return ((int)(job.outputs << job.paired) + TILE_N - 1) / TILE_N; }

// Walks a block's share: units (an output tile in one split of one job) from .. to in the order of jobs, splits and tiles, cut
// where split or job changes.
template <class Part> __device__ __forceinline__ void for_parts(const MatmulArgs& args, int from, int to, Part part) {
    const int column_tiles = ((int)args.inputs + TILE_K - 1) / TILE_K, pieces = (column_tiles + PIECE_TILES - 1) / PIECE_TILES;
    int before = 0;
    for (uint32_t j = 0; j < args.jobs && from < to; j++) {
        const MatmulJob& job = args.job[j];
        const int tiles = output_tiles(job), splits = (int)job.splits;
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
__device__ __forceinline__ void list_parts(MatmulParts& parts, const MatmulArgs& args, int rows, int from, int to, int smem_bytes) {
    int count = 0;
    for_parts(args, from, to, [&](const MatmulJob& job, int split, int tile0, int tile1, int column_tiles, int column0, int column1) {
        MatmulPart& p = parts.part[count++];
        p = {job.weights, job.y + split * job.split_stride, column_tiles, tile0, tile1, column0, column1, (int)job.outputs, (int)job.stride,
             job.type, job.paired, rows, row_tiles(rows), 0, min(row_tiles(rows), ROW_TILES), 0, 0, 0};
        if (rows) plan_part(p, smem_bytes);
    });
    parts.count = rows == 0 ? 0 : count;
    parts.at = 0;
    parts.x = args.x;
    parts.from = args.from;
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
            case W_F32: matmul_part_any<TileF32>(parts, smem); break;
            case W_F16: matmul_part_any<TileF16>(parts, smem); break;
            case W_Q4_0: matmul_part_any<TileQ4_0>(parts, smem); break;
            case W_Q4_1: matmul_part_any<TileQ4_1>(parts, smem); break;
            case W_Q5_0: matmul_part_any<TileQ5_0>(parts, smem); break;
            case W_Q5_1: matmul_part_any<TileQ5_1>(parts, smem); break;
            case W_Q8_0: matmul_part_large<TileQ8_0>(parts, smem); break;
            case W_Q2_K: matmul_part_any<TileQ2_K>(parts, smem); break;
            case W_Q3_K: matmul_part_any<TileQ3_K>(parts, smem); break;
            case W_Q4_K: matmul_part_large<TileQ4_K>(parts, smem); break;
            case W_Q5_K: matmul_part_large<TileQ5_K>(parts, smem); break;
            case W_Q6_K: matmul_part_large<TileQ6_K>(parts, smem); break;
            case W_IQ4_NL: matmul_part_any<TileIQ4_NL>(parts, smem); break;
            default: matmul_part_any<TileIQ4_XS>(parts, smem);
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
                plan_part(p, smem_bytes);
            }
        }
        __syncthreads();
    }
}

}  // namespace openjet
