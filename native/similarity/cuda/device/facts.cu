// Asks each device once what it is. Shapes: none. Memory: none.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "facts.h"
#include <algorithm>
#include <cstdlib>

namespace shoal_cuda {

namespace {

__global__ void nothing() {}

struct Known {
  std::mutex lock;
  bool is_known = false;
  Facts facts{};
};

/** Never destroyed: at exit the driver may be gone before this is. */
Known &known(int device) {
  static Known *const devices = new Known[MAX_DEVICES];
  return devices[device];
}

} // namespace

void use_device(int device) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "the devices");
  if (device < 0 || device >= std::min(count, MAX_DEVICES))
    fail(SHOAL_CUDA_NO_DEVICE, "there is no device %d: this process sees %d", device, count);
  check(cudaSetDevice(device), "the device");
}

const Facts &facts_of(int number) {
  Known &device = known(number);
  const std::lock_guard<std::mutex> guard(device.lock);
  if (device.is_known) return device.facts;
  const auto ask = [&](cudaDeviceAttr what) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, what, number), "facts of the device");
    return value;
  };
  cudaFuncAttributes code;
  check(cudaFuncGetAttributes(&code, nothing), "facts of the device");
  const char *const launches = std::getenv("SHOAL_CUDA_LAUNCHES");
  const bool is_in_order = launches != nullptr && launches[0] == 'i',
             is_single = is_in_order || (launches != nullptr && launches[0] == 's');
  device.facts = {ask(cudaDevAttrComputeCapabilityMajor) * 10 + ask(cudaDevAttrComputeCapabilityMinor),
                  code.ptxVersion,
                  ask(cudaDevAttrMultiProcessorCount),
                  static_cast<size_t>(ask(cudaDevAttrMaxSharedMemoryPerBlockOptin)),
                  code.ptxVersion >= 90 && !is_in_order,
                  !is_single,
                  ask(cudaDevAttrCooperativeLaunch) != 0};
  device.is_known = true;
  return device.facts;
}

} // namespace shoal_cuda
