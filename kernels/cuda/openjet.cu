// The one kernel.
#include "program.cuh"

extern "C" __global__ void __launch_bounds__(openjet::THREADS, 1)
openjet_run(const openjet::Op* ops, uint32_t count, const uint32_t* table, uint32_t* counter, int smem_bytes) {
    extern __shared__ __align__(128) char smem[];
    openjet::run_program(ops, count, table, counter, smem, smem_bytes);
}
