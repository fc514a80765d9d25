// Workspaces of calls: leased, given back, recorded on and waited for. Shapes: none. Memory: work memory in powers of
// two, kept between calls until `trim`; pinned memory kept for good.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "workspace.h"
#include <algorithm>
#include <mutex>
#include <thread>
#include "facts.h"

namespace shoal_cuda {

namespace {

struct Device {
  std::mutex lock;
  std::vector<std::unique_ptr<Workspace>> idle;
};

/** Never destroyed: at exit the driver may be gone before this is. */
Device &device_of(int device) {
  static Device *const devices = new Device[MAX_DEVICES];
  return devices[device];
}

size_t class_of(size_t bytes) {
  size_t size = 1 << 16;
  while (size < bytes) size *= 2;
  return size;
}

} // namespace

Event::Event() { check(cudaEventCreate(&handle), "an event"); }
Event::~Event() { cudaEventDestroy(handle); }

double microseconds(const Event &from, const Event &to) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, from.handle, to.handle), "the time between events");
  return milliseconds * 1e3;
}

Workspace::Workspace(int number) : device(number) {
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  check(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), "a stream");
}

Workspace::~Workspace() {
  if (stream != nullptr) cudaStreamDestroy(stream);
  if (copies != nullptr) cudaStreamDestroy(copies);
}

char *Workspace::work(size_t bytes, size_t most) {
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

char *Workspace::host(size_t bytes) {
  if (host_.bytes() < bytes) {
    refuse_hurried("page-locked memory for it");
    host_ = Pinned();
    host_ = Pinned(class_of(bytes));
  }
  return host_.at();
}

uint32_t *Workspace::counter() {
  if (counter_.at() == nullptr) {
    refuse_hurried("memory for it");
    counter_ = Memory(device, sizeof(uint32_t));
    check(cudaMemsetAsync(counter_.at(), 0, sizeof(uint32_t), stream), "a counter");
  }
  return reinterpret_cast<uint32_t *>(counter_.at());
}

void Workspace::wait(const Event &event, shoal_stop stop) {
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

void Workspace::finish() noexcept {
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
      workspace_ = std::move(device.idle.back());
      device.idle.pop_back();
    }
  }
  if (!workspace_ && is_hurried) fail(SHOAL_CUDA_LATER, "everything is in use");
  if (!workspace_)
    workspace_.reset(new Workspace(number));
  else if (workspace_->is_behind && !is_hurried)
    workspace_->finish();
  workspace_->is_behind = false;
  workspace_->is_hurried = is_hurried;
  workspace_->is_timed = terms == nullptr || terms->times != nullptr;
  if (is_hurried)
    workspace_->until =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(terms->most_wait_us * 1e3));
}

Lease::~Lease() {
  if (workspace_->is_hurried)
    workspace_->is_behind = true; // whoever has it next looks
  else
    workspace_->finish();
  Device &device = device_of(workspace_->device);
  const std::lock_guard<std::mutex> guard(device.lock);
  device.idle.push_back(std::move(workspace_));
}

void finish_behind(int number) {
  Device &device = device_of(number);
  const std::lock_guard<std::mutex> guard(device.lock);
  for (auto &workspace : device.idle)
    if (workspace->is_behind) workspace->finish(), workspace->is_behind = false;
}

void trim(int number) {
  finish_behind(number);
  Device &device = device_of(number);
  const std::lock_guard<std::mutex> guard(device.lock);
  for (auto &workspace : device.idle)
    if (!workspace->is_behind) workspace->work_ = Memory(), workspace->recordings_.clear();
}

} // namespace shoal_cuda
