// Barriers in shared memory at which the copy engine says what it has brought (Hopper and later).
#pragma once
#include <cstdint>

namespace shoal_cuda {

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t shared_address(const void *at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra there;\nbra "
      "again;\nthere:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/** By whoever made barriers: from the next meeting of the block on the copy engine knows them. */
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/** One arrival, and so many bytes that others bring. */
__device__ __forceinline__ void expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
#endif

} // namespace shoal_cuda
