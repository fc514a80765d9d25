// Kernels of one stream that overlap: the next one's blocks are on the device, and have done what depends on nothing,
// when the last block of the previous one ends. Before sm_90, and where the driver compiled the code from older PTX,
// they follow each other as ever.
#pragma once
#include <utility>
#include "facts.h"

namespace shoal_cuda {

/**
 * What kernels before this one wrote can be read from here on, and what they read can be written. Each thread calls it
 * before any of that.
 */
__device__ __forceinline__ void after_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/** The next kernel of the stream may bring its blocks: called first of all by those that another follows. */
__device__ __forceinline__ void next_may_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/** Asks for `bytes` (a multiple of 16, like the address) of device memory in the second-level cache. */
__device__ __forceinline__ void bring_near(const char *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/** For kernels that call `after_previous`. */
template <class... Parameters, class... Arguments>
void launch_overlapping(const char *what, int device, void (*kernel)(Parameters...), dim3 grid, uint32_t threads,
                        size_t shared_bytes, cudaStream_t stream, Arguments &&...arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(threads), config.dynamicSmemBytes = shared_bytes,
  config.stream = stream;
  config.attrs = &overlap, config.numAttrs = facts_of(device).can_overlap ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), what);
}

} // namespace shoal_cuda
