// The pool of page-locked memory. Shapes: none. Memory: at most SHOAL_CUDA_MOST_PINNED_BYTES, kept until it is trimmed
// or another size needs the room.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "pinned_pool.h"
#include <algorithm>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <vector>
#include "../../cpu/threads.h"
#include "facts.h"
#include "workspace.h"

namespace shoal_cuda {

namespace {

/**
 * Memory is locked once so many times as much was missed. 1 GB in large pages took 28 ms to touch and 18 to 24 to lock,
 * 1 MB 0.65; a result of 400 MB elsewhere 4 to 29 ms longer, one of 3 MB 0.3 (H200, 2026-11-22).
 */
constexpr uint64_t PINNING_COSTS = 4;

/** Page-locked memory. Much of it in large pages that are locked afterwards: cudaHostAlloc took 130 ms for 400 MB. */
class Locked {
 public:
  explicit Locked(size_t bytes) : bytes_(bytes) {
    if (bytes < PAGE) {
      small_ = Pinned(bytes);
      at_ = small_.at();
      return;
    }
    bytes_ = divided_up(bytes, PAGE) * PAGE;
    void *const at = mmap(nullptr, bytes_ + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    mapped_ = static_cast<char *>(at);
    at_ = mapped_ + (PAGE - reinterpret_cast<uintptr_t>(mapped_) % PAGE) % PAGE;
    madvise(at_, bytes_, MADV_HUGEPAGE);
    shoal::in_blocks(COPY_THREADS, bytes_ / PAGE, [&](auto next) {
      for (uint64_t page; next(&page);)
        for (size_t byte = 0; byte < PAGE; byte += 4096) static_cast<volatile char *>(at_)[page * PAGE + byte] = 0;
    });
    const cudaError_t error = cudaHostRegister(at_, bytes_, cudaHostRegisterPortable);
    if (error == cudaSuccess) return;
    cudaGetLastError();
    munmap(mapped_, bytes_ + PAGE);
    fail(SHOAL_CUDA_OUT_OF_MEMORY, "locking %zu bytes: %s", bytes_, cudaGetErrorString(error));
  }
  Locked(const Locked &) = delete;
  ~Locked() {
    if (small_.at() != nullptr) return;
    cudaHostUnregister(at_);
    munmap(mapped_, bytes_ + PAGE);
  }
  char *at() const { return at_; }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t PAGE = 2 << 20;
  size_t bytes_;
  Pinned small_;
  char *mapped_ = nullptr, *at_;
};

/** Page-locked memory for results, one pool for all devices. Never destroyed, as devices. */
class PinnedPool {
 public:
  void *take(uint64_t bytes) {
    std::unique_lock<std::mutex> guard(lock_);
    const uint64_t size = size_for(bytes);
    Block *best = nullptr;
    for (Block &block : blocks_)
      if (!block.is_taken && block.memory->bytes() >= size && block.memory->bytes() <= 2 * size &&
          (best == nullptr || block.memory->bytes() < best->memory->bytes()))
        best = &block;
    if (best != nullptr) return best->is_taken = true, best->memory->at();
    make_room(size);
    coming_ += size;
    guard.unlock(); // nobody waits for the locking of what somebody else wants
    std::unique_ptr<Locked> made;
    std::exception_ptr failure;
    try {
      made.reset(new Locked(size));
    } catch (...) {
      failure = std::current_exception();
    }
    guard.lock();
    coming_ -= size;
    if (failure) std::rethrow_exception(failure);
    blocks_.push_back({std::move(made), true});
    return blocks_.back().memory->at();
  }

  void give(void *memory) {
    const std::lock_guard<std::mutex> guard(lock_);
    for (Block &block : blocks_)
      if (block.memory->at() == memory) block.is_taken = false;
  }

  void trim() {
    const std::lock_guard<std::mutex> guard(lock_);
    drop(0);
  }

 private:
  struct Block {
    std::unique_ptr<Locked> memory;
    bool is_taken;
  };

  /** At most a quarter more, or 16 KB. */
  static uint64_t size_for(uint64_t bytes) {
    uint64_t step = 1 << 14;
    while (step * 8 < bytes) step *= 2;
    return divided_up(bytes, step) * step;
  }

  void make_room(uint64_t size) {
    if (size > SHOAL_CUDA_MOST_PINNED_BYTES)
      fail(SHOAL_CUDA_OUT_OF_MEMORY, "%llu bytes of pinned memory are more than all that there may be",
           static_cast<unsigned long long>(size));
    missed_ += size;
    if (missed_ < PINNING_COSTS * size) fail(SHOAL_CUDA_OUT_OF_MEMORY, "pinned memory is not worth it yet");
    if (drop(SHOAL_CUDA_MOST_PINNED_BYTES - size) > SHOAL_CUDA_MOST_PINNED_BYTES - size)
      fail(SHOAL_CUDA_OUT_OF_MEMORY, "all pinned memory is taken");
    missed_ = 0;
  }

  /** Frees what nobody has, until no more than `most` bytes are held; how many are. */
  uint64_t drop(uint64_t most) {
    uint64_t held = coming_;
    for (const Block &block : blocks_) held += block.memory->bytes();
    for (size_t i = 0; i < blocks_.size() && held > most;) {
      if (blocks_[i].is_taken) {
        i++;
        continue;
      }
      held -= blocks_[i].memory->bytes();
      blocks_.erase(blocks_.begin() + static_cast<long>(i));
    }
    return held;
  }

  std::mutex lock_;
  std::vector<Block> blocks_;
  uint64_t missed_ = 0, coming_ = 0;
};

PinnedPool &pinned_pool() {
  static PinnedPool *const pool = new PinnedPool;
  return *pool;
}

} // namespace

void *take_pinned(uint64_t bytes) { return pinned_pool().take(bytes); }
void give_pinned(void *memory) { pinned_pool().give(memory); }
void trim_pinned() { pinned_pool().trim(); }

} // namespace shoal_cuda
