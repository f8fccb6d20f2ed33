// The persistent kernel: all blocks walk a list of ops, with a grid barrier after an op that the next one depends on.
//
// The list is built once from the model (src/program.rs); what differs from step to step is in the step table.
#pragma once
#include "accept.cuh"
#include "attention.cuh"
#include "barrier.cuh"
#include "deltanet_prompt.cuh"
#include "embed.cuh"
#include "matmul.cuh"
#include "norm.cuh"
#include "pass.cuh"
#include "pick.cuh"

namespace openjet {

// As in src/program.rs.
enum OpKind : uint32_t {
    OP_EMBED, OP_NORM, OP_PACK, OP_MATMUL, OP_PREVIOUS, OP_PROMPT_END,
    OP_ATTENTION_PREPARE, OP_ATTENTION_DECODE, OP_ATTENTION_MERGE, OP_ATTENTION_PROMPT,
    OP_DELTANET_CONVOLVE, OP_DELTANET_DECODE, OP_DELTANET_SETTLE,
    OP_DELTANET_CONVOLVE_PROMPT, OP_DELTANET_CHUNKS, OP_DELTANET_SCAN, OP_DELTANET_FINISH,
    OP_SAMPLE_ADJUST, OP_SAMPLE_WEIGH, OP_SAMPLE_PICK, OP_SAMPLE_ACCEPT, OP_SAMPLE_LOGPROBS,
};

struct alignas(16) Op {
    uint32_t kind;
    uint32_t min_draft;              // skipped when the step's draft depth is lower
    uint32_t barrier;                // wait for all blocks afterwards
    uint32_t reserved;
    char args[240];
};
static_assert(sizeof(Op) == 256);

// An op as a function of its own: compiled apart from the others, with registers of its own.
template <class Args, void (*Run)(const Args&, char*, int, int, int)>
__device__ __noinline__ void call(const Op& op, char* smem, int smem_bytes, int block, int blocks) {
    static_assert(sizeof(Args) <= sizeof(op.args));
    Run(*reinterpret_cast<const Args*>(op.args), smem, smem_bytes, block, blocks);
}

__device__ __forceinline__ void run_op(const Op& op, char* smem, int smem_bytes, int block, int blocks) {
#define OPENJET_OP(kind, Args, run) case kind: call<Args, run>(op, smem, smem_bytes, block, blocks); break
    switch (op.kind) {
        OPENJET_OP(OP_EMBED, EmbedArgs, op_embed);
        OPENJET_OP(OP_NORM, NormArgs, op_norm);
        OPENJET_OP(OP_PACK, PackArgs, op_pack);
        OPENJET_OP(OP_MATMUL, MatmulArgs, op_matmul);
        OPENJET_OP(OP_PREVIOUS, PreviousArgs, op_previous);
        OPENJET_OP(OP_PROMPT_END, PromptEndArgs, op_prompt_end);
        OPENJET_OP(OP_ATTENTION_PREPARE, AttentionArgs, op_attention_prepare);
        OPENJET_OP(OP_ATTENTION_DECODE, AttentionArgs, op_attention_decode);
        OPENJET_OP(OP_ATTENTION_MERGE, AttentionArgs, op_attention_merge);
        OPENJET_OP(OP_ATTENTION_PROMPT, AttentionArgs, op_attention_prompt);
        OPENJET_OP(OP_DELTANET_CONVOLVE, DeltaArgs, op_deltanet_convolve);
        OPENJET_OP(OP_DELTANET_DECODE, DeltaArgs, op_deltanet_decode);
        OPENJET_OP(OP_DELTANET_SETTLE, SettleArgs, op_deltanet_settle);
        OPENJET_OP(OP_DELTANET_CONVOLVE_PROMPT, DeltaArgs, op_deltanet_convolve_prompt);
        OPENJET_OP(OP_DELTANET_CHUNKS, DeltaArgs, op_deltanet_chunks);
        OPENJET_OP(OP_DELTANET_SCAN, DeltaArgs, op_deltanet_scan);
        OPENJET_OP(OP_DELTANET_FINISH, DeltaArgs, op_deltanet_finish);
        OPENJET_OP(OP_SAMPLE_ADJUST, SampleArgs, op_sample_adjust);
        OPENJET_OP(OP_SAMPLE_WEIGH, SampleArgs, op_sample_weigh);
        OPENJET_OP(OP_SAMPLE_PICK, SampleArgs, op_sample_pick);
        OPENJET_OP(OP_SAMPLE_ACCEPT, SampleArgs, op_sample_accept);
        OPENJET_OP(OP_SAMPLE_LOGPROBS, SampleArgs, op_sample_logprobs);
    }
#undef OPENJET_OP
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
