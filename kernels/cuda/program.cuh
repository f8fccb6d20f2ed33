// The persistent kernel: all blocks walk a list of ops, with a grid barrier after an op that the next one depends on.
//
// The list is built once from the model (src/program.rs); what differs from step to step is in the step table. While a block runs
// an op, the next one comes to shared memory. A block goes on to the next op without waiting for the others: the op passes the barrier
// itself, at once or when it has asked for what depends on no op before, and its code comes from L2 meanwhile.
#pragma once
#include "accept.cuh"
#include "adjust.cuh"
#include "attention.cuh"
#include "barrier.cuh"
#include "deltanet_decode.cuh"
#include "deltanet_prompt.cuh"
#include "embed.cuh"
#include "matmul.cuh"
#include "norm.cuh"
#include "pack.cuh"
#include "pass.cuh"
#include "pick.cuh"
#include "prompt.cuh"

namespace openjet {

// As in src/program.rs.
enum OpKind : uint32_t {
    OP_EMBED, OP_NORM, OP_PACK, OP_MATMUL, OP_PREVIOUS, OP_PROMPT_END,
    OP_ATTENTION_PREPARE, OP_ATTENTION_DECODE, OP_ATTENTION_MERGE, OP_ATTENTION_PROMPT,
    OP_DELTANET_DECODE, OP_DELTANET_KEEP, OP_DELTANET_SETTLE,
    OP_DELTANET_CONVOLVE_PROMPT, OP_DELTANET_CHUNKS, OP_DELTANET_SCAN, OP_DELTANET_FINISH,
    OP_SAMPLE_ADJUST, OP_SAMPLE_WEIGH, OP_SAMPLE_PICK, OP_SAMPLE_ACCEPT, OP_SAMPLE_LOGPROBS,
    OP_PACK_PROMPT, OP_MATMUL_PROMPT, OP_RESIDUAL,
};

struct alignas(16) Op {
    uint32_t kind;
    uint32_t min_draft;              // where the step's draft depth is lower, the program ends before it
    uint32_t flags;                  // OP_BARRIER, OP_EARLY
    uint32_t next_matmul;            // index of the first matmul after this op, or NO_OP
    char args[256];
    uint32_t from, to;               // a matmul's share of this block; stands in the list of shares behind the ops
    uint32_t padding[2];
};
static_assert(sizeof(Op) == 288);
constexpr int OP_COPIED = 272;           // bytes of an op that are the same for all blocks
constexpr uint32_t NO_OP = 0xFFFFFFFFu;
constexpr uint32_t OP_BARRIER = 1;       // what comes next waits for all blocks
constexpr uint32_t OP_EARLY = 2;         // does not wait itself: it needs nothing from the op before the barrier

// An op as a function of its own: compiled apart from the others, with registers of its own. `PassesGate`: it does so itself.
template <class Args, void (*Run)(const Args&, char*, int, int, int), bool PassesGate>
__device__ __noinline__ void call(const Op& op, char* smem, int smem_bytes, int block, int blocks) {
    static_assert(sizeof(Args) <= sizeof(op.args));
    if (!PassesGate && !(op.flags & OP_EARLY)) pass_gate(smem);
    Run(*reinterpret_cast<const Args*>(op.args), smem, smem_bytes, block, blocks);
}

__device__ __forceinline__ void run_op(uint32_t kind, const Op& op, MatmulParts& parts, char* smem, int smem_bytes, int block, int blocks) {
#define OPENJET_OP(op_kind, Args, run) case op_kind: call<Args, run, false>(op, smem, smem_bytes, block, blocks); break
#define OPENJET_OP_PASSES_GATE(op_kind, Args, run) case op_kind: call<Args, run, true>(op, smem, smem_bytes, block, blocks); break
    switch (kind) {
        OPENJET_OP(OP_EMBED, EmbedArgs, op_embed);
        OPENJET_OP(OP_NORM, NormArgs, op_norm);
        OPENJET_OP_PASSES_GATE(OP_RESIDUAL, NormArgs, op_residual);
        OPENJET_OP(OP_PACK, PackArgs, op_pack);
        case OP_MATMUL: run_matmul(parts, smem, smem_bytes); break;
        OPENJET_OP(OP_PREVIOUS, PreviousArgs, op_previous);
        OPENJET_OP(OP_PROMPT_END, PromptEndArgs, op_prompt_end);
        OPENJET_OP_PASSES_GATE(OP_ATTENTION_PREPARE, AttentionArgs, op_attention_prepare);
        OPENJET_OP_PASSES_GATE(OP_ATTENTION_DECODE, AttentionArgs, op_attention_decode);
        OPENJET_OP(OP_ATTENTION_MERGE, AttentionArgs, op_attention_merge);
        OPENJET_OP(OP_ATTENTION_PROMPT, AttentionArgs, op_attention_prompt);
        OPENJET_OP_PASSES_GATE(OP_DELTANET_DECODE, DeltaArgs, op_deltanet_decode);
        OPENJET_OP(OP_DELTANET_KEEP, DeltaArgs, op_deltanet_keep);
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
        OPENJET_OP(OP_PACK_PROMPT, PackArgs, op_pack_prompt);
        OPENJET_OP(OP_MATMUL_PROMPT, MatmulArgs, op_matmul_prompt);
    }
#undef OPENJET_OP
#undef OPENJET_OP_PASSES_GATE
}

// What the kernel keeps in shared memory beside an op's own. Nothing of it is in registers while an op runs: they would be spilled,
// and after a barrier the L1 is empty, so that each spilled word costs a read from L2.
struct alignas(128) Running {
    Op op[2];                        // this one and the next
    Op matmul;                       // the next matmul ...
    MatmulParts parts;               // ... and this block's parts of it
    uint32_t index;                  // of this op
    uint32_t passed;                 // barriers, of the first thread
};
// Then come 128 bytes that begin with the gate (pass_gate), go on with DeltaItems and end with the step table's header (header_word), then
// the op's own.
constexpr int RUNNING_BYTES = sizeof(Running) + GATE;

// Starts the copy of op i to shared memory, by one warp. Behind all `count` ops lie the blocks' shares: [op][blocks + 1].
__device__ __forceinline__ void copy_op(Op& to, const Op* ops, uint32_t count, uint32_t i, int warp) {
    const int lane = thread_now() - 32 * warp;
    if ((uint32_t)lane >= 32) return;
    ops = argument_now(ops);
    const uint32_t* shares = reinterpret_cast<const uint32_t*>(ops + argument_now(count)) + (uint64_t)i * (blocks_now() + 1) + block_now();
    if (lane < OP_COPIED / 16) copy16(reinterpret_cast<char*>(&to) + lane * 16, reinterpret_cast<const char*>(ops + i) + lane * 16);
    if (lane >= 30) copy4(&to.from + (lane - 30), shares + (lane - 30));
}

__device__ __forceinline__ void prepare_matmul(Running& running, const char* own, int smem_bytes) {
    const MatmulArgs& args = *reinterpret_cast<const MatmulArgs*>(running.matmul.args);
    list_parts(running.parts, args, header_word(own, args.rows), (int)running.matmul.from, (int)running.matmul.to, smem_bytes);
}

// `counter` is zero at the start, and in the end.
__device__ __forceinline__ void run_program(const Op* ops, uint32_t count, const uint32_t* table, uint32_t* counter, char* smem, int smem_bytes) {
    if (count == 0) return;
    Running& running = *reinterpret_cast<Running*>(smem);
    char* own = smem + RUNNING_BYTES;
    TableHeader& header = reinterpret_cast<TableHeader*>(own)[-1];
    Gate& gate = *reinterpret_cast<Gate*>(own - GATE);
    constexpr int PREPARER = 64;     // a thread that does not wait for the other blocks
    const int thread = (int)threadIdx.x;
    if (thread == 0) {
        running.index = running.passed = 0;
        gate = {counter, 0, 0};
    }
    begin_parts(running.parts);
    DeltaItems::begin(own);
    if (thread < (int)sizeof(TableHeader) / 4) reinterpret_cast<uint32_t*>(&header)[thread] = table[thread];
    copy_op(running.op[0], ops, count, 0, 0);
    if (count > 1) copy_op(running.op[1], ops, count, 1, 1);
    const uint32_t first = ops->kind == OP_MATMUL ? 0 : ops->next_matmul;
    if (first != NO_OP) copy_op(running.matmul, ops, count, first, 2);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    if (thread == PREPARER && first != NO_OP) prepare_matmul(running, own, smem_bytes - RUNNING_BYTES);
    __syncthreads();
    // What says which op comes is read before the barrier, so that behind it there is nothing but the op.
    uint32_t at = 0, kind = running.op[0].kind;
    while (true) {
        const Op& op = running.op[at & 1];
        if (kind == OP_MATMUL && op.next_matmul != NO_OP) {
            copy_op(running.matmul, ops, count, op.next_matmul, 2);
            copy_commit();
        }
        run_op(kind, op, running.parts, own, argument_now(smem_bytes) - RUNNING_BYTES, block_now(), blocks_now());
        copy_wait<0>();
        at = reread(running.index);
        const Op& done = running.op[at & 1];
        const bool barrier = reread(done.flags) & OP_BARRIER, prepares = reread(done.kind) == OP_MATMUL && reread(done.next_matmul) != NO_OP;
        if (barrier) grid_arrive(counter, running.passed);
        else __syncthreads();
        if (++at == argument_now(count)) break;
        const Op& next = running.op[at & 1];
        if (next.min_draft > header.draft_depth) break;
        if (at + 1 < argument_now(count)) copy_op(running.op[(at + 1) & 1], ops, count, at + 1, 1);
        copy_commit();
        if (thread_now() == 0) running.index = at;
        if (prepares && thread_now() == PREPARER) prepare_matmul(running, own, argument_now(smem_bytes) - RUNNING_BYTES);
        kind = reread(next.kind);
        if (barrier && thread_now() == 0) gate.target = running.passed * blocks_now();   // `passed` is the first thread's
        __syncthreads();
    }
    grid_leave(counter, running.passed);
}

}  // namespace openjet
