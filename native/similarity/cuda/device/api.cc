// Those calls of the interface that compute nothing. Shapes and memory: similarity_cuda.h.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <algorithm>
#include <cstring>
#include "facts.h"
#include "pinned_pool.h"
#include "workspace.h"

using namespace shoal_cuda;

extern "C" {

int shoal_cuda_abi(void) { return SHOAL_CUDA_ABI; }

const char *shoal_cuda_error(void) { return last_words(); }

int shoal_cuda_device_count(int *count) {
  *count = 0;
  return answer([&] {
    check(cudaGetDeviceCount(count), "the devices");
    if (*count == 0) fail(SHOAL_CUDA_NO_DEVICE, "there is no device");
    *count = std::min(*count, MAX_DEVICES);
  });
}

int shoal_cuda_describe(int device, shoal_cuda_device *facts) {
  return answer([&] {
    use_device(device);
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "facts of the device");
    size_t free_bytes, total_bytes;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "free memory");
    std::memset(facts, 0, sizeof *facts);
    std::memcpy(facts->name, properties.name, sizeof facts->name - 1);
    facts->compute = properties.major * 10 + properties.minor;
    facts->multiprocessors = properties.multiProcessorCount;
    facts->total_bytes = total_bytes, facts->free_bytes = free_bytes;
  });
}

uint64_t shoal_cuda_held_bytes(int device) { return device < 0 || device >= MAX_DEVICES ? 0 : held_bytes(device); }

void shoal_cuda_trim(int device) {
  if (device < 0 || device >= MAX_DEVICES) return;
  trim(device);
  trim_pinned();
}

int shoal_cuda_take_pinned(int device, uint64_t bytes, void **memory) {
  *memory = nullptr;
  return answer([&] {
    use_device(device);
    *memory = take_pinned(bytes);
  });
}

void shoal_cuda_give_pinned(void *memory) { give_pinned(memory); }

} // extern "C"
