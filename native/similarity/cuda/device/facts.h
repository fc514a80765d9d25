// What is known of the devices of this process.
#pragma once
#include <atomic>
#include <mutex>
#include "failure.h"

namespace shoal_cuda {

constexpr int MAX_DEVICES = 64;

struct Facts {
  /**
   * Compute capability, and that for which the code was written that the device runs: what the driver compiled from
   * older PTX knows nothing newer.
   */
  int compute, code;
  int multiprocessors;
  size_t shared_bytes;
  /**
   * The code that this device runs knows `after_previous` (launch.cuh). SHOAL_CUDA_LAUNCHES=in-order does without, and
   * without recordings; =single without those alone (tests and benches).
   */
  bool can_overlap, can_record;
  /** Blocks of one launch may wait for each other. */
  bool can_wait_for_all;
};
const Facts &facts_of(int device);
/** Throws NO_DEVICE when there is none with this number; makes it the thread's device. */
void use_device(int device);

/**
 * Lets a kernel use so many bytes of dynamic shared memory: asked once for each device, because asking takes as long as
 * a launch.
 */
template <auto KERNEL>
void allow_shared(int device, size_t bytes) {
  static std::atomic<size_t> allowed[MAX_DEVICES];
  static std::mutex asking; // without it a call that wants less could take away what another was just given
  if (allowed[device].load() >= bytes) return;
  const std::lock_guard<std::mutex> guard(asking);
  if (allowed[device].load() >= bytes) return;
  check(cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "shared memory of a kernel");
  allowed[device] = bytes;
}

template <class T>
__host__ __device__ constexpr T divided_up(T a, T b) {
  return (a + b - 1) / b;
}

} // namespace shoal_cuda
