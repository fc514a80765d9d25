// The CUDA library (similarity_cuda.h), opened by its path at run time: its functions, what it holds on a device, and
// results in memory that it copies into fastest.
#pragma once
#include <dlfcn.h>
#include <sys/mman.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include "../../napi/call.h"
#include "../include/similarity_cuda.h"

namespace shoal {

/** The functions of one opened library. It is never closed: a driver does not like to be unloaded. */
struct Library {
  // clang-format off
#define SHOAL_FUNCTIONS(APPLY) \
  APPLY(abi) APPLY(error) APPLY(device_count) APPLY(describe) APPLY(held_bytes) APPLY(trim) APPLY(rows_bytes) \
  APPLY(upload) APPLY(free_rows) APPLY(topk_bytes) APPLY(topk) APPLY(topk_streamed) APPLY(rescore) \
  APPLY(matrix) APPLY(graph_bytes) APPLY(upload_graph) APPLY(free_graph) APPLY(spread) APPLY(take_pinned) \
  APPLY(give_pinned)
// clang-format on
#define SHOAL_DECLARE(NAME) decltype(&shoal_cuda_##NAME) NAME;
  SHOAL_FUNCTIONS(SHOAL_DECLARE)

  /** Throws Failure by the status and the library's words. To be called on the thread that made the call. */
  void check(int status) const {
    static const char *const codes[] = {"OK", "OUT_OF_MEMORY", "STOPPED", "NO_DEVICE", "INVALID", "LOST"};
    if (status != SHOAL_CUDA_OK)
      throw Failure(status > 0 && status <= SHOAL_CUDA_LOST ? codes[status] : "LOST", error());
  }
};

/** Rows or a graph on a device, for as long as a handle or a running call has it. */
struct Held {
  const Library *library = nullptr;
  int device = 0;
  shoal_cuda_rows *rows = nullptr;
  shoal_cuda_graph *graph = nullptr;
  Held() = default;
  Held(const Held &) = delete;
  ~Held() {
    if (rows != nullptr) library->free_rows(rows);
    if (graph != nullptr) library->free_graph(graph);
  }
};
typedef std::shared_ptr<Held> Handle;

/** Why it cannot be used, or "". */
inline std::string open_library(const std::string &path, Library &library) {
  void *opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return dlerror();
#define SHOAL_FIND(NAME)                                                                       \
  library.NAME = reinterpret_cast<decltype(library.NAME)>(dlsym(opened, "shoal_cuda_" #NAME)); \
  if (library.NAME == nullptr) return path + " has no function shoal_cuda_" #NAME;
  SHOAL_FUNCTIONS(SHOAL_FIND)
  const int abi = library.abi();
  if (abi != SHOAL_CUDA_ABI)
    return path + " was built for version " + std::to_string(abi) + " of the interface, this is " +
           std::to_string(SHOAL_CUDA_ABI) + ": build it again";
  return "";
}

/**
 * Results that JavaScript gets without a copy, and that are freed when it has forgotten them: in pinned memory, where
 * there is some.
 */
class Scores {
 public:
  /**
   * `at_once`: in no memory that a device may still write into when they are gone, and that might have to be locked
   * first.
   */
  Scores(const Library &library, int device, size_t count, bool at_once) : library_(library), count_(count) {
    is_pinned_ = !at_once && count * 4 > FEW_BYTES && library.take_pinned(device, count * 4, &memory_) == SHOAL_CUDA_OK;
    if (!is_pinned_) allocate(count * 4);
  }
  Scores(const Scores &) = delete;
  ~Scores() { is_pinned_ ? library_.give_pinned(memory_) : std::free(memory_); }
  float *at() const { return static_cast<float *>(memory_); }

  static napi_value as_array(napi_env env, std::unique_ptr<Scores> scores) {
    const size_t count = scores->count_;
    napi_value buffer, array;
    const auto forget = [](napi_env, void *, void *of) { delete static_cast<Scores *>(of); };
    if (napi_create_external_arraybuffer(env, scores->memory_, count * 4, forget, scores.get(), &buffer) == napi_ok) {
      scores.release();
    } else { // a runtime that does not let memory in
      void *own;
      napi_create_arraybuffer(env, count * 4, &own, &buffer);
      std::memcpy(own, scores->memory_, count * 4);
    }
    napi_create_typedarray(env, napi_float32_array, count, buffer, 0, &array);
    return array;
  }

 private:
  /** Much of it in large pages: writing 400 MB that were never touched took 37 ms instead of 13 (H200, 2026-11-22). */
  void allocate(size_t bytes) {
    constexpr size_t PAGE = 2 << 20;
    const bool is_large = bytes >= 2 * PAGE;
    if (posix_memalign(&memory_, is_large ? PAGE : 64, std::max<size_t>(1, bytes)) != 0) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (is_large) madvise(memory_, bytes / PAGE * PAGE, MADV_HUGEPAGE);
#endif
  }

  /** So few are written into pinned memory of the library's own, and copied from there. */
  static constexpr size_t FEW_BYTES = 64 << 10;
  const Library &library_;
  size_t count_;
  void *memory_ = nullptr;
  bool is_pinned_;
};

} // namespace shoal
