// Takes and gives back memory of devices, counted in `held_bytes`, and page-locked memory. Shapes: none.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "memory.h"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include "facts.h"

namespace shoal_cuda {

static std::atomic<size_t> held[MAX_DEVICES];

Memory::Memory(int device, size_t bytes) : device_(device), bytes_(std::max<size_t>(bytes, 256)) {
  void *at;
  char what[64];
  snprintf(what, sizeof what, "%zu bytes on device %d", bytes_, device);
  check(cudaMalloc(&at, bytes_), what);
  at_ = static_cast<char *>(at);
  held[device] += bytes_;
}

Memory &Memory::operator=(Memory &&other) noexcept {
  std::swap(device_, other.device_);
  std::swap(at_, other.at_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Memory::~Memory() {
  if (at_ == nullptr) return;
  cudaFree(at_);
  held[device_] -= bytes_;
}

Pinned::Pinned(size_t bytes) : bytes_(bytes) {
  void *at;
  check(cudaHostAlloc(&at, bytes, cudaHostAllocPortable), "page-locked host memory");
  at_ = static_cast<char *>(at);
}

Pinned &Pinned::operator=(Pinned &&other) noexcept {
  std::swap(at_, other.at_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Pinned::~Pinned() {
  if (at_ != nullptr) cudaFreeHost(at_);
}

size_t held_bytes(int device) { return held[device]; }

bool is_pinned(const void *at) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, at) != cudaSuccess) return cudaGetLastError(), false;
  return attributes.type == cudaMemoryTypeHost;
}

} // namespace shoal_cuda
