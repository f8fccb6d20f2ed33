// The persistent kernel: all blocks walk a list of ops, with a grid barrier after an op that the next one depends on.
//
// The list is built once from the model (src/program.rs); what differs from step to step is in the step table.
#pragma once
#include "barrier.cuh"
#include "embed.cuh"
#include "matmul.cuh"
#include "norm.cuh"
#include "table.cuh"

namespace openjet {

// As in src/program.rs.
enum OpKind : uint32_t { OP_EMBED, OP_NORM, OP_PACK, OP_MATMUL };

struct alignas(16) Op {
    uint32_t kind;
    uint32_t min_draft;              // skipped when the step's draft depth is lower
    uint32_t barrier;                // wait for all blocks afterwards
    uint32_t reserved;
    char args[240];
};
static_assert(sizeof(Op) == 256);

template <class Args> __device__ __forceinline__ const Args& args_of(const Op& op) {
    static_assert(sizeof(Args) <= sizeof(op.args));
    return *reinterpret_cast<const Args*>(op.args);
}

__device__ __forceinline__ void run_op(const Op& op, char* smem, int smem_bytes, int block, int blocks) {
    switch (op.kind) {
        case OP_EMBED: op_embed(args_of<EmbedArgs>(op), smem, smem_bytes, block, blocks); break;
        case OP_NORM: op_norm(args_of<NormArgs>(op), smem, smem_bytes, block, blocks); break;
        case OP_PACK: op_pack(args_of<PackArgs>(op), smem, smem_bytes, block, blocks); break;
        case OP_MATMUL: op_matmul(args_of<MatmulArgs>(op), smem, smem_bytes, block, blocks); break;
    }
}

// `counter` is zero at the start.
__device__ __forceinline__ void run_program(const Op* ops, uint32_t count, const uint32_t* table, uint32_t* counter, char* smem, int smem_bytes) {
    Op& op = *reinterpret_cast<Op*>(smem);
    const uint32_t draft_depth = reinterpret_cast<const TableHeader*>(table)->draft_depth;
    uint32_t passed = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (threadIdx.x < sizeof(Op) / 16) reinterpret_cast<uint4*>(smem)[threadIdx.x] = reinterpret_cast<const uint4*>(ops + i)[threadIdx.x];
        __syncthreads();
        if (op.min_draft <= draft_depth) {
            run_op(op, smem + sizeof(Op), smem_bytes - (int)sizeof(Op), (int)blockIdx.x, (int)gridDim.x);
            if (op.barrier) grid_barrier(counter, passed);
        }
        __syncthreads();
    }
}

}  // namespace openjet
