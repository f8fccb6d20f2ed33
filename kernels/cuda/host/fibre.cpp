// Fibres that stand for a grid's threads: see shim.h. x86-64, System V.
#include "launch.h"
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <sys/mman.h>
#include <vector>
#include "shim.h"

namespace host {

thread_local Thread* self;
thread_local dim3 block_dim, grid_dim;

namespace {

constexpr size_t STACK = 256 * 1024;

struct Barrier { uint32_t arrived = 0, or_value = 0, or_result = 0; std::vector<struct Fibre*> waiting; };
struct Warp { Barrier barrier; uint32_t slots[2][32 * 8]; };
struct Block { Barrier barrier; std::vector<Warp> warps; unsigned threads; unsigned done = 0; };
struct Fibre : Thread { void* sp; Block* block; Warp* warp; uint32_t parity = 0; void* stack; };

thread_local std::deque<Fibre*>* ready;
thread_local void* scheduler_sp;
thread_local const std::function<void()>* body;
thread_local size_t live;

extern "C" void openjet_fibre_switch(void** save, void* to);
asm(R"(
.text
.globl openjet_fibre_switch
openjet_fibre_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

Fibre* me() { return static_cast<Fibre*>(self); }

void resume_next() {
    Fibre* from = me();
    if (ready->empty()) {
        fprintf(stderr, "device code on the CPU: every thread waits at a barrier that not all reach\n");
        abort();
    }
    Fibre* to = ready->front();
    ready->pop_front();
    if (to == from) return;
    self = to;
    openjet_fibre_switch(&from->sp, to->sp);
}

void entry() {
    (*body)();
    Fibre* f = me();
    f->block->done++;
    live--;
    void* scrap;
    if (live == 0) openjet_fibre_switch(&scrap, scheduler_sp);
    if (ready->empty()) {
        fprintf(stderr, "device code on the CPU: a thread ended while others wait at a barrier\n");
        abort();
    }
    Fibre* to = ready->front();
    ready->pop_front();
    self = to;
    openjet_fibre_switch(&scrap, to->sp);
    abort();
}

void arrive(Barrier& b, uint32_t expected) {
    if (++b.arrived == expected) {
        b.arrived = 0;
        b.or_result = b.or_value;
        b.or_value = 0;
        for (Fibre* f : b.waiting) ready->push_back(f);
        b.waiting.clear();
        return;
    }
    b.waiting.push_back(me());
    resume_next();
}

}  // namespace

int lane() { return (int)(self->thread_idx.x & 31); }
void yield() { ready->push_back(me()); resume_next(); }
void block_barrier() { Block* b = me()->block; arrive(b->barrier, b->threads); }
int block_barrier_or(int v) {
    Block* b = me()->block;
    b->barrier.or_value |= (uint32_t)(v != 0);
    arrive(b->barrier, b->threads);
    int r = (int)b->barrier.or_result;
    arrive(b->barrier, b->threads);
    return r;
}
// Threads of one warp that collect at different masks at the same time are not supported: no op does that.
void warp_barrier(uint32_t mask) { arrive(me()->warp->barrier, (uint32_t)__builtin_popcount(mask)); }
uint32_t* warp_slots() {
    Fibre* f = me();
    f->parity ^= 1;
    return f->warp->slots[f->parity];
}

void mma16816(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
    uint32_t* s = warp_slots();
    int l = lane();
    for (int i = 0; i < 4; i++) s[l * 8 + i] = a[i];
    s[l * 8 + 4] = b0;
    s[l * 8 + 5] = b1;
    warp_barrier(0xffffffffu);
    auto h = [](uint32_t w, int hi) { return _cvtsh_ss((uint16_t)(hi ? w >> 16 : w)); };
    int g = l >> 2, j = l & 3;
    for (int i = 0; i < 4; i++) {
        int row8 = i >> 1, col = 2 * j + (i & 1);
        float t = 0.0f;
        for (int k = 0; k < 16; k++) {
            uint32_t av = s[(4 * g + (k & 7) / 2) * 8 + row8 + (k >= 8 ? 2 : 0)];
            uint32_t bv = s[(4 * col + (k & 7) / 2) * 8 + 4 + (k >= 8 ? 1 : 0)];
            t += h(av, k & 1) * h(bv, k & 1);
        }
        d[i] += t;
    }
}

void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
    std::vector<Block> grid(blocks);
    std::vector<std::unique_ptr<Fibre>> fibres;
    std::deque<Fibre*> queue;
    size_t total = (size_t)blocks * threads;
    char* stacks = (char*)mmap(nullptr, total * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) { perror("mmap"); abort(); }
    block_dim = {threads, 1, 1};
    grid_dim = {blocks, 1, 1};
    for (unsigned b = 0; b < blocks; b++) {
        grid[b].threads = threads;
        grid[b].warps = std::vector<Warp>((threads + 31) / 32);
        for (unsigned t = 0; t < threads; t++) {
            auto f = std::make_unique<Fibre>();
            f->thread_idx = {t, 0, 0};
            f->block_idx = {b, 0, 0};
            f->block = &grid[b];
            f->warp = &grid[b].warps[t / 32];
            uintptr_t top = (uintptr_t)stacks + ((size_t)b * threads + t + 1) * STACK;
            void** sp = (void**)(top & ~(uintptr_t)15);
            *--sp = nullptr;                 // keeps the stack aligned as after a call
            *--sp = (void*)entry;
            for (int i = 0; i < 6; i++) *--sp = nullptr;
            f->sp = sp;
            queue.push_back(f.get());
            fibres.push_back(std::move(f));
        }
    }
    ready = &queue;
    body = &kernel;
    live = total;
    Fibre* first = queue.front();
    queue.pop_front();
    self = first;
    openjet_fibre_switch(&scheduler_sp, first->sp);
    ready = nullptr;
    self = nullptr;
    munmap(stacks, total * STACK);
}

}  // namespace host
