// What one call under way uses on a device: streams of its own, work memory and pinned memory that stay for the next
// call, events, and kernels that were recorded. Taken by `Lease`, by one call at a time. Knows no kernel.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "memory.h"

namespace shoal_cuda {

struct Event {
  Event();
  ~Event();
  Event(const Event &) = delete;
  cudaEvent_t handle;
};

/** Microseconds between two events that have passed. */
double microseconds(const Event &from, const Event &to);

/**
 * Copies between ordinary memory and a device by so many threads: one thread's memcpy is slower than the link. H200,
 * 2026-11-22, 55 GB/s when pinned, in and out: 4 MB at a time 52 and 53 GB/s, 2 MB 50, 1 MB 47, 0.5 MB 31, whether by 8
 * threads or 16; stores past the caches 43 to 48 in and 53 out. Into memory that was never touched 11.
 */
constexpr int COPY_THREADS = 8;
constexpr size_t COPY_BYTES = 4 << 20, LEAST_COPY_BYTES = 512 << 10;
/** What is smaller goes through the workspace's own pinned memory: starting threads would take longer. */
constexpr size_t FEW_BYTES = 2 << 20;
/**
 * So little is read again, or written, by kernels where it lies in pinned memory: each copy of its own took 6 to 7 µs
 * (H200, 2026-11-22).
 */
constexpr size_t DIRECT_BYTES = 64 << 10;

class Workspace {
 public:
  explicit Workspace(int device);
  ~Workspace();
  /**
   * At least so many bytes, in size classes (powers of two) as far as `most` allows (0: no bound). What was in them is
   * lost.
   */
  char *work(size_t bytes, size_t most);
  char *host(size_t bytes);
  /**
   * Does `launches` (kernels on `stream`), which put the same kernels with the same arguments there whenever `key` is
   * the same: from the second time on as one recorded graph: one query × 1,000 to 100,000 rows take 32 to 54 µs instead
   * of 36 to 59 (H200, 2026-11-22).
   */
  void replay(const std::string &key, const std::function<void()> &launches);
  /**
   * Waits for `event`; throws STOPPED once everything that this workspace has under way has ended, and LATER while it
   * has not.
   */
  void wait(const Event &event, shoal_stop stop);
  void finish() noexcept;
  /** Throws LATER where the caller may not wait for what takes as long as `what`. */
  void refuse_hurried(const char *what) const {
    if (is_hurried) fail(SHOAL_CUDA_LATER, "%s would take too long", what);
  }
  /**
   * Of kernels whose blocks wait for each other: what each block adds one to, and what it has come to when all that
   * were launched have ended.
   */
  uint32_t *counter();
  uint32_t counted = 0;
  /**
   * Events that only tell how long something took are recorded: each takes the host a microsecond, and the device
   * another.
   */
  bool is_timed = true;
  void mark(const Event &event, cudaStream_t at) const {
    if (is_timed) check(cudaEventRecord(event.handle, at), "an event");
  }
  /** Microseconds; 0 where nobody wants to know. */
  double between(const Event &from, const Event &to) const { return is_timed ? microseconds(from, to) : 0; }
  /** Nobody waits after `until`. */
  bool is_hurried = false;
  std::chrono::steady_clock::time_point until;
  /**
   * Work of a call that was hurried may still be under way, all of it ordered in `stream` and in memory of this
   * workspace.
   */
  bool is_behind = false;
  const int device;
  cudaStream_t stream = nullptr, copies = nullptr;
  Event begun, loaded, computed, ended, launched[3], copied[3];
  /** Two for each thread that copies. */
  Pinned staging[2 * COPY_THREADS];
  std::unique_ptr<Event> staged[2 * COPY_THREADS];

 private:
  friend void trim(int device);
  struct Recording {
    std::string key;
    /** Null: asked for once. */
    cudaGraphExec_t graph = nullptr;
    uint64_t last_used = 0;
    ~Recording();
  };
  void record(Recording &recording, const std::function<void()> &launches);
  Memory work_, counter_;
  Pinned host_;
  std::vector<std::unique_ptr<Recording>> recordings_;
  uint64_t replays_ = 0;
};

/** Bytes of plain values one after the other: a key of `Workspace::replay`. */
template <class... Values>
std::string key_of(const Values &...values) {
  std::string key;
  (key.append(reinterpret_cast<const char *>(&values), sizeof values), ...);
  return key;
}

class Lease {
 public:
  /**
   * For a call within `terms` (null: one that may wait, and is timed); throws LATER where there is no workspace to be
   * had at once.
   */
  explicit Lease(int device, const shoal_cuda_terms *terms = nullptr);
  ~Lease();
  Workspace *operator->() const { return workspace_.get(); }
  Workspace &operator*() const { return *workspace_; }

 private:
  std::unique_ptr<Workspace> workspace_;
};

/** Waits for what calls that were hurried have left under way: before anything that it may still read is freed. */
void finish_behind(int device);
/** Gives back work memory and recordings that no call uses. */
void trim(int device);

} // namespace shoal_cuda
