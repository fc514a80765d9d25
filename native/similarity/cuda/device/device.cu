// Devices, memory, slots and copies: see device.h. And those calls of the interface that compute nothing.
#include "device.h"
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <thread>
#include "../../cpu/threads.h"

namespace shoal_cuda {
namespace {

thread_local std::string last_words;
std::atomic<size_t> held[MAX_DEVICES];

struct Device {
  std::mutex lock;
  std::vector<std::unique_ptr<Slot>> idle;
  bool is_known = false;
  Facts facts{};
};

/** Never destroyed: at exit the driver may be gone before this is. */
Device &device_of(int device) {
  static Device *const devices = new Device[MAX_DEVICES];
  return devices[device];
}

__global__ void nothing() {}

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

size_t class_of(size_t bytes) {
  size_t size = 1 << 16;
  while (size < bytes) size *= 2;
  return size;
}

} // namespace

void fail(int status, const char *format, ...) {
  char words[512];
  va_list rest;
  va_start(rest, format);
  vsnprintf(words, sizeof words, format, rest);
  va_end(rest);
  throw Failure{status, words};
}

void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  cudaGetLastError(); // what is no longer pending does not fail the next call
  const char *words = cudaGetErrorString(error);
  switch (error) {
    case cudaErrorMemoryAllocation:
      fail(SHOAL_CUDA_OUT_OF_MEMORY, "%s: %s", what, words);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorStubLibrary:
    case cudaErrorSystemNotReady:
    case cudaErrorDevicesUnavailable:
      fail(SHOAL_CUDA_NO_DEVICE, "%s: %s", what, words);
    default:
      fail(SHOAL_CUDA_LOST, "%s: %s (%s)", what, words, cudaGetErrorName(error));
  }
}

int remember(const Failure &failure) {
  last_words = failure.words;
  return failure.status;
}

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

Event::Event() { check(cudaEventCreate(&handle), "an event"); }
Event::~Event() { cudaEventDestroy(handle); }

double microseconds(const Event &from, const Event &to) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, from.handle, to.handle), "the time between events");
  return milliseconds * 1e3;
}

Slot::Slot(int number) : device(number) {
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  check(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), "a stream");
}

Slot::~Slot() {
  if (stream != nullptr) cudaStreamDestroy(stream);
  if (copies != nullptr) cudaStreamDestroy(copies);
}

char *Slot::work(size_t bytes, size_t most) {
  if (most != 0 && bytes > most)
    fail(SHOAL_CUDA_OUT_OF_MEMORY, "the smallest piece of this work takes %zu bytes, and %zu are allowed", bytes, most);
  if (work_.bytes() >= bytes && (most == 0 || work_.bytes() <= most)) return work_.at();
  refuse_hurried("memory for it");
  work_ = Memory();
  const size_t size = most == 0 ? class_of(bytes) : std::min(class_of(bytes), most);
  try {
    work_ = Memory(device, size);
  } catch (const Failure &failure) {
    if (failure.status != SHOAL_CUDA_OUT_OF_MEMORY || size == bytes) throw;
    work_ = Memory(device, bytes);
  }
  return work_.at();
}

char *Slot::host(size_t bytes) {
  if (host_.bytes() < bytes) {
    refuse_hurried("page-locked memory for it");
    host_ = Pinned();
    host_ = Pinned(class_of(bytes));
  }
  return host_.at();
}

uint32_t *Slot::counter() {
  if (counter_.at() == nullptr) {
    refuse_hurried("memory for it");
    counter_ = Memory(device, sizeof(uint32_t));
    check(cudaMemsetAsync(counter_.at(), 0, sizeof(uint32_t), stream), "a counter");
  }
  return reinterpret_cast<uint32_t *>(counter_.at());
}

Slot::Recording::~Recording() {
  if (graph != nullptr) cudaGraphExecDestroy(graph);
}

void Slot::record(Recording &recording, const std::function<void()> &launches) {
  refuse_hurried("its recording");
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "a recording");
  try {
    launches();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "a recording");
  const cudaError_t made = cudaGraphInstantiate(&recording.graph, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "a recording");
}

void Slot::replay(const std::string &key, const std::function<void()> &launches) {
  constexpr size_t MOST_RECORDINGS = 16;
  if (!facts_of(device).can_record) return launches();
  const auto found =
      std::find_if(recordings_.begin(), recordings_.end(), [&](const auto &one) { return one->key == key; });
  if (found == recordings_.end()) {
    if (recordings_.size() == MOST_RECORDINGS)
      recordings_.erase(std::min_element(recordings_.begin(), recordings_.end(),
                                         [](const auto &a, const auto &b) { return a->last_used < b->last_used; }));
    recordings_.emplace_back(new Recording);
    recordings_.back()->key = key, recordings_.back()->last_used = ++replays_;
    return launches();
  }
  Recording &recording = **found;
  recording.last_used = ++replays_;
  if (recording.graph == nullptr) record(recording, launches);
  check(cudaGraphLaunch(recording.graph, stream), "recorded kernels");
}

void Slot::wait(const Event &event, shoal_stop stop) {
  for (int spins = 0;; spins++) {
    const cudaError_t state = cudaEventQuery(event.handle);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) check(state, "work on the device");
    if (is_stopped(stop)) break;
    if (is_hurried) {
      if (std::chrono::steady_clock::now() > until) refuse_hurried("the device's work");
      continue;
    }
    // Short work is waited for at once; for long work the core is left to others.
    if (spins > 2000) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  finish();
  refuse_stopped(stop);
}

void Slot::finish() noexcept {
  cudaStreamSynchronize(copies);
  cudaStreamSynchronize(stream);
}

Lease::Lease(int number, const shoal_cuda_terms *terms) {
  use_device(number);
  Device &device = device_of(number);
  const bool is_hurried = terms != nullptr && terms->most_wait_us > 0;
  {
    const std::lock_guard<std::mutex> guard(device.lock);
    if (!device.idle.empty() && !(is_hurried && device.idle.back()->is_behind &&
                                  cudaStreamQuery(device.idle.back()->stream) == cudaErrorNotReady)) {
      slot_ = std::move(device.idle.back());
      device.idle.pop_back();
    }
  }
  if (!slot_ && is_hurried) fail(SHOAL_CUDA_LATER, "everything is in use");
  if (!slot_)
    slot_.reset(new Slot(number));
  else if (slot_->is_behind && !is_hurried)
    slot_->finish();
  slot_->is_behind = false;
  slot_->is_hurried = is_hurried;
  slot_->is_timed = terms == nullptr || terms->times != nullptr;
  if (is_hurried)
    slot_->until =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(terms->most_wait_us * 1e3));
}

Lease::~Lease() {
  if (slot_->is_hurried)
    slot_->is_behind = true; // whoever has it next looks
  else
    slot_->finish();
  Device &device = device_of(slot_->device);
  const std::lock_guard<std::mutex> guard(device.lock);
  device.idle.push_back(std::move(slot_));
}

void finish_behind(int number) {
  Device &device = device_of(number);
  const std::lock_guard<std::mutex> guard(device.lock);
  for (auto &slot : device.idle)
    if (slot->is_behind) slot->finish(), slot->is_behind = false;
}

void trim(int number) {
  finish_behind(number);
  Device &device = device_of(number);
  const std::lock_guard<std::mutex> guard(device.lock);
  for (auto &slot : device.idle)
    if (!slot->is_behind) slot->work_ = Memory(), slot->recordings_.clear();
}

size_t held_bytes(int device) { return held[device]; }

void use_device(int device) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "the devices");
  if (device < 0 || device >= std::min(count, MAX_DEVICES))
    fail(SHOAL_CUDA_NO_DEVICE, "there is no device %d: this process sees %d", device, count);
  check(cudaSetDevice(device), "the device");
}

const Facts &facts_of(int number) {
  Device &device = device_of(number);
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

bool is_pinned(const void *at) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, at) != cudaSuccess) return cudaGetLastError(), false;
  return attributes.type == cudaMemoryTypeHost;
}

namespace {

void copy_rows(char *to, size_t to_stride, const char *from, size_t from_stride, size_t bytes, size_t count) {
  if (to_stride == from_stride)
    std::memcpy(to, from, (count - 1) * to_stride + bytes);
  else
    for (size_t i = 0; i < count; i++) std::memcpy(to + i * to_stride, from + i * from_stride, bytes);
}

/**
 * Each thread has two pinned buffers and fills (or empties) one while the other is copied; each takes the next chunk
 * that nobody has. A buffer is touched only when its event says that the copy before has ended, of this call or an
 * earlier one. `work(next, buffers, events)` does them; next(&first, &rows) is false when there are no more.
 */
template <class Work>
void in_chunks(Slot &slot, size_t rows, size_t row_bytes, size_t count, const Work &work) {
  const size_t chunks = divided_up(count, rows);
  const int threads = static_cast<int>(
      std::min<size_t>({static_cast<size_t>(COPY_THREADS), chunks, std::max(1u, std::thread::hardware_concurrency())}));
  const size_t buffer_bytes = std::max(rows * row_bytes, COPY_BYTES);
  for (int i = 0; i < 2 * threads; i++) {
    if (!slot.staged[i]) slot.staged[i].reset(new Event);
    if (slot.staging[i].bytes() >= buffer_bytes) continue;
    check(cudaEventSynchronize(slot.staged[i]->handle), "a copy");
    slot.staging[i] = Pinned(buffer_bytes);
  }
  std::atomic<int> thread{0};
  shoal::in_blocks(threads, chunks, [&](auto next) {
    check(cudaSetDevice(slot.device), "the device");
    const int mine = 2 * thread.fetch_add(1);
    work(
        [&](size_t *first, size_t *some) {
          uint64_t block;
          if (!next(&block)) return false;
          *first = block * rows, *some = std::min(rows, count - block * rows);
          return true;
        },
        slot.staging + mine, slot.staged + mine);
  });
}

} // namespace

size_t chunk_rows_of(size_t bytes, size_t count) {
  return std::max<size_t>(1, std::min(COPY_BYTES, std::max(LEAST_COPY_BYTES, bytes * count / COPY_THREADS)) / bytes);
}

void copy_in(Slot &slot, cudaStream_t stream, const Places &places, const char *from, size_t host_stride, size_t bytes,
             size_t count, shoal_stop stop) {
  const auto copy = [&](size_t first, size_t rows, const char *source, size_t apart) {
    char *const target = places.place(first, rows);
    if (places.device_stride == bytes && apart == bytes)
      check(cudaMemcpyAsync(target, source, rows * bytes, cudaMemcpyHostToDevice, stream), "a copy to the device");
    else
      check(cudaMemcpy2DAsync(target, places.device_stride, source, apart, bytes, rows, cudaMemcpyHostToDevice, stream),
            "a copy to the device");
    places.placed(first, rows);
  };
  if (is_pinned(from)) {
    for (size_t first = 0; first < count; first += places.chunk_rows) {
      refuse_stopped(stop);
      copy(first, std::min(places.chunk_rows, count - first), from + first * host_stride, host_stride);
    }
    return check(cudaStreamSynchronize(stream), "a copy to the device");
  }
  in_chunks(slot, places.chunk_rows, bytes, count,
            [&](auto next, const Pinned *buffers, const std::unique_ptr<Event> *events) {
              size_t first, rows;
              for (int turn = 0; next(&first, &rows); turn ^= 1) {
                refuse_stopped(stop);
                check(cudaEventSynchronize(events[turn]->handle), "a copy to the device");
                copy_rows(buffers[turn].at(), bytes, from + first * host_stride, host_stride, bytes, rows);
                copy(first, rows, buffers[turn].at(), bytes);
                check(cudaEventRecord(events[turn]->handle, stream), "a copy to the device");
              }
            });
}

void copy_in(Slot &slot, cudaStream_t stream, char *to, size_t device_stride, const char *from, size_t host_stride,
             size_t bytes, size_t count, shoal_stop stop) {
  const Places places{chunk_rows_of(bytes, count), device_stride,
                      [=](size_t first, size_t) { return to + first * device_stride; }, [](size_t, size_t) {}};
  if (count > 0) copy_in(slot, stream, places, from, host_stride, bytes, count, stop);
}

void copy_out(Slot &slot, cudaStream_t stream, char *to, size_t host_stride, const char *from, size_t device_stride,
              size_t bytes, size_t count, shoal_stop stop) {
  if (count == 0) return;
  if (is_pinned(to)) {
    check(cudaMemcpy2DAsync(to, host_stride, from, device_stride, bytes, count, cudaMemcpyDeviceToHost, stream),
          "a copy from the device");
    return check(cudaStreamSynchronize(stream), "a copy from the device");
  }
  in_chunks(slot, chunk_rows_of(bytes, count), bytes, count,
            [&](auto next, const Pinned *buffers, const std::unique_ptr<Event> *events) {
              size_t first[2], rows[2];
              const auto ask = [&](int turn) {
                if (!next(&first[turn], &rows[turn])) return false;
                refuse_stopped(stop);
                check(cudaEventSynchronize(events[turn]->handle), "a copy from the device");
                const char *const source = from + first[turn] * device_stride;
                if (device_stride == bytes)
                  check(cudaMemcpyAsync(buffers[turn].at(), source, bytes * rows[turn], cudaMemcpyDeviceToHost, stream),
                        "a copy from the device");
                else
                  check(cudaMemcpy2DAsync(buffers[turn].at(), bytes, source, device_stride, bytes, rows[turn],
                                          cudaMemcpyDeviceToHost, stream),
                        "a copy from the device");
                check(cudaEventRecord(events[turn]->handle, stream), "a copy from the device");
                return true;
              };
              bool is_asked = ask(0);
              for (int turn = 0; is_asked; turn ^= 1) {
                is_asked = ask(turn ^ 1); // the next one is on its way while this one is put in place
                check(cudaEventSynchronize(events[turn]->handle), "a copy from the device");
                copy_rows(to + first[turn] * host_stride, host_stride, buffers[turn].at(), bytes, bytes, rows[turn]);
              }
            });
}

} // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" {

int shoal_cuda_abi(void) { return SHOAL_CUDA_ABI; }

const char *shoal_cuda_error(void) { return last_words.c_str(); }

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
  pinned_pool().trim();
}

int shoal_cuda_take_pinned(int device, uint64_t bytes, void **memory) {
  *memory = nullptr;
  return answer([&] {
    use_device(device);
    *memory = pinned_pool().take(bytes);
  });
}

void shoal_cuda_give_pinned(void *memory) { pinned_pool().give(memory); }

} // extern "C"
