// What a call holds on a device, and how it ends: memory that is counted, a stream and work memory for each call that
// is under way, copies through pinned memory, and failures as exceptions that become a status at the edge (`answer`).
// Knows no kernel.
#pragma once
#include <cuda_runtime.h>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>
#include "../../include/similarity_cuda.h"

namespace shoal_cuda {

struct Failure {
  int status;
  std::string words;
};

[[noreturn]] void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Throws what a call of the runtime reports: out of memory, no device, else lost. */
void check(cudaError_t error, const char *what);
/** Keeps the words for `shoal_cuda_error`. */
int remember(const Failure &failure);

/** Runs `work` and gives back its status. */
template <class Work>
int answer(const Work &work) {
  try {
    work();
    return SHOAL_CUDA_OK;
  } catch (const Failure &failure) {
    return remember(failure);
  } catch (const std::bad_alloc &) {
    return remember({SHOAL_CUDA_OUT_OF_MEMORY, "the memory of this process is used up"});
  } catch (const std::exception &error) {
    return remember({SHOAL_CUDA_OUT_OF_MEMORY, error.what()});
  }
}

constexpr int MAX_DEVICES = 64;

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

/** Parts of one piece of memory, each on a multiple of 256 bytes. Over null it only counts. */
class Parts {
 public:
  explicit Parts(char *base = nullptr) : base_(base) {}
  template <class T>
  T *take(size_t count) {
    T *part = reinterpret_cast<T *>(base_ + used_);
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return part;
  }
  size_t used() const { return used_; }

 private:
  char *base_;
  size_t used_ = 0;
};

struct Event {
  Event();
  ~Event();
  Event(const Event &) = delete;
  cudaEvent_t handle;
};

/** Whether devices copy from and to it as it is. */
bool is_pinned(const void *at);

/** Microseconds between two events that have passed. */
double microseconds(const Event &from, const Event &to);

/**
 * Copies between ordinary memory and a device by so many threads: one thread's memcpy is slower than the link. H200,
 * 2026-11-22, 55 GB/s when pinned, in and out: 4 MB at a time 52 and 53 GB/s, 2 MB 50, 1 MB 47, 0.5 MB 31, whether by 8
 * threads or 16; stores past the caches 43 to 48 in and 53 out. Into memory that was never touched 11.
 */
constexpr int COPY_THREADS = 8;
constexpr size_t COPY_BYTES = 4 << 20, LEAST_COPY_BYTES = 512 << 10;
/** What is smaller goes through the slot's own pinned memory: starting threads would take longer. */
constexpr size_t FEW_BYTES = 2 << 20;
/**
 * So little is read again, or written, by kernels where it lies in pinned memory: each copy of its own took 6 to 7 µs
 * (H200, 2026-11-22).
 */
constexpr size_t DIRECT_BYTES = 64 << 10;

/**
 * What one call under way uses: streams of its own, work memory and pinned memory that stay for the next call. Taken by
 * `Lease`, by one call at a time.
 */
class Slot {
 public:
  explicit Slot(int device);
  ~Slot();
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
   * Waits for `event`; throws STOPPED once everything that this slot has under way has ended, and LATER while it has
   * not.
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
   * Work of a call that was hurried may still be under way, all of it ordered in `stream` and in memory of this slot.
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

/** Bytes of plain values one after the other: a key of `Slot::replay`. */
template <class... Values>
std::string key_of(const Values &...values) {
  std::string key;
  (key.append(reinterpret_cast<const char *>(&values), sizeof values), ...);
  return key;
}

class Lease {
 public:
  /**
   * For a call within `terms` (null: one that may wait, and is timed); throws LATER where there is no slot to be had at
   * once.
   */
  explicit Lease(int device, const shoal_cuda_terms *terms = nullptr);
  ~Lease();
  Slot *operator->() const { return slot_.get(); }
  Slot &operator*() const { return *slot_; }

 private:
  std::unique_ptr<Slot> slot_;
};

/** Waits for what calls that were hurried have left under way: before anything that it may still read is freed. */
void finish_behind(int device);
void trim(int device);
size_t held_bytes(int device);
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

const Facts &facts_of(int device);
/** Throws NO_DEVICE when there is none with this number; makes it the thread's device. */
void use_device(int device);

/**
 * Copies `count` rows of `bytes` each between host memory (`host_stride` bytes apart) and device memory
 * (`device_stride` apart), ordered in `stream`. To the device it returns once the host memory may change, with copies
 * from pinned memory under way; from it, once all is there.
 */
void copy_in(Slot &slot, cudaStream_t stream, char *to, size_t device_stride, const char *from, size_t host_stride,
             size_t bytes, size_t count, shoal_stop stop);

/**
 * Where chunks of rows go, `chunk_rows` at a time: both are called by several threads, in no order but that no chunk is
 * left out.
 */
struct Places {
  size_t chunk_rows, device_stride;
  /** Where this chunk goes; may wait until there is room. */
  std::function<char *(size_t first, size_t rows)> place;
  /** Its copy is under way. */
  std::function<void(size_t first, size_t rows)> placed;
};
/** So many rows of these are copied at a time. */
size_t chunk_rows_of(size_t bytes, size_t count);
void copy_in(Slot &slot, cudaStream_t stream, const Places &places, const char *from, size_t host_stride, size_t bytes,
             size_t count, shoal_stop stop);
void copy_out(Slot &slot, cudaStream_t stream, char *to, size_t host_stride, const char *from, size_t device_stride,
              size_t bytes, size_t count, shoal_stop stop);

inline bool is_stopped(shoal_stop stop) { return stop != nullptr && *stop != 0; }
inline void refuse_stopped(shoal_stop stop) {
  if (is_stopped(stop)) fail(SHOAL_CUDA_STOPPED, "stopped by the caller");
}

template <class T>
__host__ __device__ constexpr T divided_up(T a, T b) {
  return (a + b - 1) / b;
}

} // namespace shoal_cuda
