// Memory of devices, which is counted, and page-locked memory of the host.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include "failure.h"

namespace shoal_cuda {

/** Device memory, counted in `shoal_cuda_held_bytes`. */
class Memory {
 public:
  Memory() = default;
  Memory(int device, size_t bytes);
  Memory(Memory &&other) noexcept { *this = std::move(other); }
  Memory &operator=(Memory &&other) noexcept;
  ~Memory();
  char *at() const { return at_; }
  size_t bytes() const { return bytes_; }

 private:
  int device_ = 0;
  char *at_ = nullptr;
  size_t bytes_ = 0;
};

/** Page-locked host memory, which devices copy from and to at the link's full rate. */
class Pinned {
 public:
  Pinned() = default;
  explicit Pinned(size_t bytes);
  Pinned(Pinned &&other) noexcept { *this = std::move(other); }
  Pinned &operator=(Pinned &&other) noexcept;
  ~Pinned();
  char *at() const { return at_; }
  size_t bytes() const { return bytes_; }

 private:
  char *at_ = nullptr;
  size_t bytes_ = 0;
};

/**
 * Deals one piece of memory out, each share on a multiple of 256 bytes. Over null it only counts what would be dealt.
 */
class Shares {
 public:
  explicit Shares(char *base = nullptr) : base_(base) {}
  template <class T>
  T *take(size_t count) {
    T *share = reinterpret_cast<T *>(base_ + used_);
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return share;
  }
  size_t used() const { return used_; }

 private:
  char *base_;
  size_t used_ = 0;
};

/** Bytes of a device's memory that are held. */
size_t held_bytes(int device);

/** Whether devices copy from and to it as it is. */
bool is_pinned(const void *at);

} // namespace shoal_cuda
