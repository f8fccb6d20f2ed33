// What one block does of a matmul, part by part.
//
// Two ways lead to the same sums. Where shared memory holds the products of all pieces of a part, they stay there until the last
// one, and are added then. Where it does not, each output has a sum there, to which products are added as they are made: in the
// order of the pieces, so that a warp may have to wait for another.
#pragma once
#include "arrivals.cuh"
#include "barrier.cuh"
#include "multiply.cuh"
#include "pack.cuh"

namespace openjet {

constexpr int PIECE_TILES = 2;       // column tiles of a piece
constexpr int ROW_TILES = 3;         // row tiles that are multiplied at a time
constexpr int MAX_JOBS = 4;          // of an op
constexpr int PRODUCT_BYTES = TILE_N * FRAGMENT_ROWS * 4;    // an output tile's product or sum, of one row tile
constexpr int MAX_SUMS = 40;         // output tiles that have sums at a time
// How many lanes of a warp say that it has added a product. One is enough, after a warp's barrier; but compute-sanitizer's racecheck
// follows only what a lane says for itself, so a build for it has all of them say so.
#ifdef OPENJET_RACECHECK
constexpr int ARRIVING = 32;
#else
constexpr int ARRIVING = 1;
#endif

// The part of a job that one block does in one split: output tiles tile0 .. tile1, column tiles column0 .. column1.
struct MatmulPart {
    const char* weights;
    float* y;
    int column_tiles, tile0, tile1, column0, column1, outputs, stride;
    uint16_t type, paired;           // as MatmulJob's
    int rows, row_tiles;             // of all rows
    int first_row_tile, count_row_tiles;   // what is multiplied now
    int sums;                        // whether outputs have sums; then the part is done in groups of output tiles, whose sums fit
    int group, chunk;                // in shared memory, and in chunks of columns, whose inputs fit; else in one go
};

// What of the input stands in shared memory: column tiles first .. end of the row tiles from row_tile on.
struct Staged { int first, end, row_tile; };

// What a block does of an op: at most one part for each split of each job.
struct MatmulParts {
    MatmulPart part[MAX_JOBS * MAX_SPLITS];
    int count, at;                   // the one that is done now
    const char* x;                   // as MatmulArgs'
    InputRows from;
    const float* squares;
    float eps;
    float share;                     // of an input in the mean
    float factors[ROW_TILES * FRAGMENT_ROWS];   // that the outputs of the rows in shared memory are multiplied by
    Staged staged;
    // For each sum the pieces that were added, in turn: with one place for each warp, no two of the pieces that are under way are so
    // far from each other that one is taken for the other.
    Arrivals added[MAX_SUMS * WARPS];
};

// By all threads, before a block barrier, when the kernel begins.
__device__ __forceinline__ void begin_parts(MatmulParts& parts) {
    for (int i = (int)threadIdx.x; i < MAX_SUMS * WARPS; i += THREADS) arrivals_begin(parts.added[i], ARRIVING);
}

// By one thread, whenever the row tiles change.
__device__ __forceinline__ void plan_part(MatmulPart& p, int smem_bytes) {
    const int columns = p.column1 - p.column0, tiles = p.tile1 - p.tile0, pieces = (columns + PIECE_TILES - 1) / PIECE_TILES;
    const int column_bytes = p.count_row_tiles * FRAGMENT_BYTES, product_bytes = p.count_row_tiles * PRODUCT_BYTES;
    p.group = tiles;
    p.chunk = columns;
    p.sums = columns * column_bytes + tiles * pieces * product_bytes > smem_bytes;
    if (!p.sums) return;
    smem_bytes -= WARPS * product_bytes;         // each warp's product of a piece's first column tile
    if (tiles <= MAX_SUMS && columns * column_bytes + tiles * product_bytes <= smem_bytes) return;
    // Groups with a tile for each warp, if only they leave room for the inputs.
    const int room = (smem_bytes - columns * column_bytes) / product_bytes;
    const int most = min(min(tiles, MAX_SUMS), max(room, WARPS + 1));
    const int groups = (tiles + most - 1) / most;
    p.group = (tiles + groups - 1) / groups;
    const int fit = max(1, (smem_bytes - p.group * product_bytes) / (PIECE_TILES * column_bytes));
    const int chunks = (pieces + fit - 1) / fit;
    p.chunk = (pieces + chunks - 1) / chunks * PIECE_TILES;
}

// What the rows of a row tile are multiplied by: one over their root mean square, where the input is still to be divided by it. By a
// warp, four lanes a row.
__device__ __forceinline__ void row_factors(float* factors, const MatmulParts& parts, int row_tile, int rows, int column_tiles) {
    const int lane = lane_id(), row = row_tile * FRAGMENT_ROWS + (lane >> 2);
    const bool there = parts.squares && row < rows;
    const float* squares = parts.squares + (size_t)row * column_tiles;
    constexpr int TOGETHER = 8;          // under way at the same time
    float total = 0.0f;
#pragma unroll 1
    for (int first = lane & 3; there && first < column_tiles; first += 4 * TOGETHER) {
        float some[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) some[i] = first + 4 * i < column_tiles ? squares[first + 4 * i] : 0.0f;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) total += some[i];
    }
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if ((lane & 3) == 0) factors[lane >> 2] = parts.squares ? inverse_root(fmaf(total, parts.share, parts.eps)) : 1.0f;
}

// A warp a tile. Only rows that there are: what stands in the others' place makes numbers that nobody reads.
__device__ __forceinline__ void copy_input(char* shared, const char* x, int first, int end, const MatmulPart& p, int count) {
    const int lane = lane_id();
#pragma unroll 1
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
}
// The same from what the input is made of: each block makes what it needs, since an op that did it for all would take longer. A warp
// a row of a tile.
__device__ __forceinline__ void make_input(char* shared, const InputRows& from, int first, int end, int rows) {
#pragma unroll 1
    for (int i = warp_id(); i < (end - first) * rows; i += WARPS) {
        const int c = i / rows, row = i - c * rows;
        float v[8];
        input_columns<2>(v, from, row, (first + c) * TILE_K + lane_id() * 8);
        write_fragment_row(shared + c * FRAGMENT_BYTES, row, v);
    }
}

// Brings column tiles first .. end of the `count` row tiles of now to shared memory, and meanwhile asks for something else. `Few`:
// there may be nothing but `from`. Straight code that runs once is as slow as it is long, so loops here are not unrolled.
template <bool Few, class Ask>
__device__ __forceinline__ void stage_input(char* shared, MatmulParts& parts, int first, int end, const MatmulPart& p, int count, Ask ask) {
    const char* x = parts.x;
    Staged& staged = parts.staged;
    const bool here = staged.first == first && staged.end == end && staged.row_tile == p.first_row_tile;
    __syncthreads();
    if (here) return ask();
    const bool makes = Few && !x;
    if (!makes) copy_input(shared, x, first, end, p, count);
    ask();
    if (makes) make_input(shared, parts.from, first, end, p.rows);
    if (warp_id() < count) row_factors(parts.factors + warp_id() * FRAGMENT_ROWS, parts, p.first_row_tile + warp_id(), p.rows, p.column_tiles);
    copy_wait<0>();
    if (threadIdx.x == 0) staged = {first, end, p.first_row_tile};
    __syncthreads();
}

// A warp's walk over its items: an item is one piece of one output tile, a warp takes every 16th of those of a phase. With sums all
// output tiles of a piece follow each other, else all pieces of an output tile.
template <bool Sums> struct Walk {
    int at;                              // of the item: outer << 16 | inner
    int step, inner, outer;              // step: from item to item, less whole rounds of `inner`

    __device__ __forceinline__ void begin(int tiles, int pieces, int warp) {
        inner = Sums ? tiles : pieces;
        outer = Sums ? pieces : tiles;
        const int first = quotient(warp, inner), rounds = quotient(WARPS, inner);
        at = first << 16 | (warp - first * inner);
        step = rounds << 16 | (WARPS - rounds * inner);
    }
    __device__ __forceinline__ void next() {
        at += step;
        if ((at & 0xFFFF) >= inner) at += 0x10000 - inner;
    }
    __device__ __forceinline__ bool ended() const { return at >> 16 >= outer; }
    __device__ __forceinline__ int tile() const { return Sums ? at & 0xFFFF : at >> 16; }
    __device__ __forceinline__ int piece() const { return Sums ? at >> 16 : at & 0xFFFF; }
    // For small numbers.
    static __device__ __forceinline__ int quotient(int a, int b) {
#ifdef OPENJET_HOST
        return a / b;
#else
        return (int)__fdividef((float)a + 0.5f, (float)b);
#endif
    }
};

__device__ __forceinline__ float4 sum_of(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// How many outputs an output tile makes.
__device__ __forceinline__ int tile_outputs(int paired) { return TILE_N >> paired; }

// Writes the sums of row tile n of an output tile; of a pair, what both matrices' sums make.
__device__ __forceinline__ void write_outputs(const MatmulParts& parts, const MatmulPart& p, float4 v, int n, int tile, int lane) {
    const float2 factor = *reinterpret_cast<const float2*>(parts.factors + n * FRAGMENT_ROWS + (lane & 3) * 2);
    const int row = (p.first_row_tile + n) * FRAGMENT_ROWS + (lane & 3) * 2, output = tile * tile_outputs(p.paired) + (lane >> 2);
    float* y = p.y + (size_t)row * p.stride + output;
    const bool r0 = row < p.rows, r1 = row + 1 < p.rows, o0 = output < p.outputs, o1 = output + 8 < p.outputs;
    v = make_float4(v.x * factor.x, v.y * factor.y, v.z * factor.x, v.w * factor.y);
    if (p.paired) {
        if (r0 && o0) y[0] = silu(v.x) * v.z;
        if (r1 && o0) y[p.stride] = silu(v.y) * v.w;
        return;
    }
    if (r0 && o0) y[0] = v.x;
    if (r1 && o0) y[p.stride] = v.y;
    if (r0 && o1) y[8] = v.z;
    if (r1 && o1) y[p.stride + 8] = v.w;
}

// Adds a piece's product to its output tile's sum, when all pieces before have been added; of the last piece, writes the outputs.
template <int N, bool Dynamic>
__device__ __forceinline__ void add_product(float4 (&v)[N], MatmulParts& parts, const MatmulPart& p, int tile, int sum_at, int piece, float4* sums, int lane, int tiles) {
    Arrivals* const added = parts.added + sum_at * WARPS;
    float4* const sum = sums + sum_at * (tiles * 32);
    while (piece > 0 && !has_ended(added[(piece - 1) % WARPS], (uint32_t)(piece - 1) / WARPS)) host_yield();
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (!Dynamic || n < tiles) v[n] = sum_of(piece > 0 ? sum[n * 32] : make_float4(0.0f, 0.0f, 0.0f, 0.0f), v[n]);
    }
    if ((piece + 1) * PIECE_TILES < p.column1 - p.column0) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (!Dynamic || n < tiles) sum[n * 32] = v[n];
        }
        __syncwarp();
        if (lane < ARRIVING) arrive(added[piece % WARPS]);
        return;
    }
    // Of each place an even number of phases, so that the next sum finds it as this one did; when all lanes have looked at it.
    __syncwarp();
    if (ARRIVING == 1) {
        if (lane < WARPS && ((piece + WARPS - 1 - lane) / WARPS & 1)) arrive(added[lane]);
    } else {
        for (int i = 0; i < WARPS; i++) {
            if ((piece + WARPS - 1 - i) / WARPS & 1) arrive(added[i]);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (!Dynamic || n < tiles) write_outputs(parts, p, v[n], n, tile, lane);
    }
}

// The products of a warp's tile, and `next` is asked for in its place.
template <int N, bool Dynamic, class Weights>
__device__ __forceinline__ void multiply_tile(float4 (&v)[N], Weights& weights, const char* x, int lane, int tiles, Place next) {
    float acc[N][4];
    zero(acc);
    weights.template multiply<N, Dynamic>(acc, x, lane, tiles, next);
#pragma unroll
    for (int n = 0; n < N; n++) v[n] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
}

// `Weights` is Refilled, Doubled or Streamed.
template <class T, class Weights, int N, bool Dynamic, bool Sums>
__device__ __noinline__ void matmul_part(MatmulParts& parts, char* smem) {
    // What is needed after the loop over weights stays in shared memory meanwhile.
    const MatmulPart& p = parts.part[parts.at];
    const int lane = opaque(lane_id()), warp = warp_id();
    const int tiles = Dynamic ? p.count_row_tiles : N;
    const int column_bytes = tiles * FRAGMENT_BYTES;
    // Products: [output tile][piece][row tile][lane]. Or sums: [output tile][row tile][lane], then what each warp has of a piece.
    float4* const products = reinterpret_cast<float4*>(smem + p.chunk * column_bytes) + lane;
    float4* const own = products + (p.group + warp) * (tiles * 32);

    // Zeros, so that nothing here is taken to live before the function: that would cost its callers the registers.
    Weights weights = {};
    Walk<Sums> walk = {};
    int chunk = 0, group = 0;            // first column and output tile of the phase, which is one chunk of one group
    while (true) {
        const int columns = Sums ? min(p.chunk, p.column1 - p.column0 - chunk) : p.chunk, tile0 = p.tile0 + group;
        const char* const all_weights = p.weights + ((size_t)tile0 * p.column_tiles + p.column0 + chunk) * T::BYTES;
        auto place = [&](int second) { return all_weights + (uint32_t)((walk.tile() * p.column_tiles + walk.piece() * PIECE_TILES + second) * T::BYTES); };
        walk.begin(Sums ? min(p.group, p.tile1 - tile0) : p.group, (columns + PIECE_TILES - 1) / PIECE_TILES, warp);
        // Whether the piece that the walk is at has a second tile.
        auto whole = [&] { return walk.piece() * PIECE_TILES + 1 < columns; };
        auto ask = [&](bool now) {
            if (!now || walk.ended()) return;
            if constexpr (Weights::TILES == 2) {
                weights.tile[0].load(place(0), lane);
                weights.tile[1].load(Place{place(1), whole()}, lane);
            } else {
                weights.load(place(0), lane);
            }
        };
        const bool starts = chunk + group == 0, open = starts && peek_gate(smem);
        ask(!open);
        if (starts && !open) pass_gate(smem);
        stage_input<Dynamic || N == 1>(smem, parts, p.column0 + chunk, p.column0 + chunk + columns, p, tiles, [&] { ask(open); });
        static_assert(PIECE_TILES == 2);
        bool second = false;             // column tile of the piece, where one is multiplied at a time
#pragma unroll 1
        while (!walk.ended()) {
            const int tile = walk.tile(), piece = walk.piece(), column = piece * PIECE_TILES + second;
            const char* const x = smem + column * column_bytes;
            float4* const slot = Sums ? own : products + (tile * walk.inner + piece) * (tiles * 32);
            bool last = true;
            float4 v[N];
            if constexpr (Weights::TILES == 2) {
                const bool two = whole();
                walk.next();
                multiply_tile<N, Dynamic>(v, weights.tile[0], x, lane, tiles, {place(0), !walk.ended()});
                const Place next = {place(1), !walk.ended() && whole()};
                if (two) {
                    float4 more[N];
                    multiply_tile<N, Dynamic>(more, weights.tile[1], x + column_bytes, lane, tiles, next);
#pragma unroll
                    for (int n = 0; n < N; n++) v[n] = sum_of(v[n], more[n]);
                } else {
                    weights.tile[1].load(next, lane);
                }
            } else {
                const bool add = second;
                last = second || column + 1 == columns;
                second = !last;
                if (last) walk.next();
                multiply_tile<N, Dynamic>(v, weights, x, lane, tiles, {place(second), !walk.ended()});
#pragma unroll
                for (int n = 0; n < N; n++) {
                    if (add && (!Dynamic || n < tiles)) v[n] = sum_of(slot[n * 32], v[n]);
                }
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                if ((!Dynamic || n < tiles) && (!Sums || !last)) slot[n * 32] = v[n];
            }
            if (Sums && last) add_product<N, Dynamic>(v, parts, p, p.tile0 + group + tile, tile, chunk / PIECE_TILES + piece, products, lane, tiles);
        }
        if (!Sums) break;
        chunk += p.chunk;
        if (chunk < p.column1 - p.column0) continue;
        chunk = 0;
        group += p.group;
        if (group >= p.tile1 - p.tile0) return;
    }
    const int count = p.group * tiles, pieces = walk.inner;
    __syncthreads();
#pragma unroll 1
    for (int i = warp; i < count; i += WARPS) {
        const int t = i / tiles, n = i - t * tiles;
        const float4* product = products + ((size_t)t * pieces * tiles + n) * 32;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
        for (int k = 0; k < pieces; k++) v = sum_of(v, product[(size_t)k * tiles * 32]);
        write_outputs(parts, p, v, n, p.tile0 + t, lane);
    }
}

}  // namespace openjet
