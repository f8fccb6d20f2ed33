// The kernel, for the CPU.
#include "../program.cuh"
#include "launch.h"
#include <cstdlib>
#include <vector>

extern "C" void openjet_host_run(const openjet::Op* ops, uint32_t count, const uint32_t* table, uint32_t* counter, int smem_bytes, uint32_t blocks) {
    std::vector<char*> smem(blocks);
    for (char*& s : smem) s = static_cast<char*>(aligned_alloc(128, ((size_t)smem_bytes + 127) / 128 * 128));
    host::launch(blocks, openjet::THREADS, [&] {
        openjet::run_program(ops, count, table, counter, smem[blockIdx.x], smem_bytes);
    });
    for (char* s : smem) free(s);
}
