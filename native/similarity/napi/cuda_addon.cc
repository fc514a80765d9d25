// The CUDA library (similarity_cuda.h) for Node: opened by its path at run time, so that nothing of CUDA is needed to
// build or load this. What is not there, or is another version's, is told in words and is no error. Every status other
// than OK becomes an error with its name as `code`; what it means, and what to do then, is libs/similarity's business
// (cuda-library.ts).
//
// What lies on a device is held by handles. A handle is freed when it is let go (cudaFree) or collected, and never
// under a call that still uses it.
#include <dlfcn.h>
#include <sys/mman.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>
#include "../include/similarity_cuda.h"
#include "binding.h"
#include "cuda_addon.h"

namespace shoal {
namespace {

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

// So that nobody passes the one for the other.
const napi_type_tag LIBRARY_TAG = {0x5f1c3a90b7d24e61, 0x9e0d6c4b8a2f7315},
                    HANDLE_TAG = {0x1d7b5e3fc2a84906, 0x83f6a1d94c0e5b27};

template <class T>
T *external(napi_env env, Call &call, size_t i, const napi_type_tag &tag, const char *wanted) {
  const napi_value value = call.raw(i);
  napi_valuetype type;
  bool is_ours = false;
  void *data = nullptr;
  if (napi_typeof(env, value, &type) != napi_ok || type != napi_external ||
      napi_check_object_type_tag(env, value, &tag, &is_ours) != napi_ok || !is_ours)
    return call.refuse(i, wanted), nullptr;
  napi_get_value_external(env, value, &data);
  return static_cast<T *>(data);
}

const Library *library_at(napi_env env, Call &call, size_t i) {
  return external<Library>(env, call, i, LIBRARY_TAG, "an opened library");
}

/** Empty, and refused, when it was freed. */
Handle handle_of(napi_env env, Call &call, size_t i) {
  const Handle *handle = external<Handle>(env, call, i, HANDLE_TAG, "a handle");
  if (handle == nullptr) return nullptr;
  if (*handle == nullptr) call.refuse(i, "a handle that is still held");
  return *handle;
}

napi_value as_external(napi_env env, Handle held) {
  napi_value value;
  const auto forget = [](napi_env, void *data, void *) { delete static_cast<Handle *>(data); };
  napi_create_external(env, new Handle(std::move(held)), forget, nullptr, &value);
  napi_type_tag_object(env, value, &HANDLE_TAG);
  return value;
}

/**
 * The last four arguments of every computation: bytes it may use for its work, where times are written or null, stop,
 * how long this thread may wait for it (0: another one does).
 */
struct Terms {
  double *out;
  shoal_cuda_times times{};
  shoal_cuda_terms terms{};

  Terms(Call &call, size_t i) : out(nullptr) {
    terms.work_bytes = static_cast<uint64_t>(call.number(i));
    out = call.array<double>(i + 1);
    terms.stop = call.array<uint8_t>(i + 2);
    terms.most_wait_us = call.number(i + 3);
  }

  bool at_once() const { return terms.most_wait_us > 0; }

  /**
   * Runs `work(const shoal_cuda_terms *)`, and writes times: device, copying, kernels (µs), bytes copied, queries done
   * again.
   */
  template <class Work>
  void run(const Library &library, const Work &work) {
    if (out != nullptr) terms.times = &times;
    const int status = work(&terms);
    if (status == SHOAL_CUDA_LATER && at_once()) {
      terms.most_wait_us = 0; // the next time it is another thread that asks
      throw Later();
    }
    library.check(status);
    const double all[] = {times.device_us, times.copy_us, times.kernel_us, static_cast<double>(times.copied_bytes),
                          static_cast<double>(times.redone)};
    for (size_t i = 0; out != nullptr && i < sizeof all / sizeof *all; i++) out[i] = all[i];
  }
};

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

napi_value text(napi_env env, const std::string &words) {
  napi_value value;
  napi_create_string_utf8(env, words.c_str(), words.size(), &value);
  return value;
}

/** Why it cannot be used, or "". */
std::string open_library(const std::string &path, Library &library) {
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

/** cudaOpen(path): the library, or in words why it cannot be used. */
napi_value cuda_open(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const std::string path = call.text(0);
  if (call.is_bad) return nullptr;
  Library *library = new Library;
  const std::string problem = open_library(path, *library);
  if (!problem.empty()) return delete library, text(env, problem);
  napi_value value;
  // for as long as the process lives, as the library itself
  napi_create_external(env, library, nullptr, nullptr, &value);
  napi_type_tag_object(env, value, &LIBRARY_TAG);
  return value;
}

/**
 * cudaDevices(library): what each device is, or in words why there is none. Opens the driver: a second, the first time.
 */
napi_value cuda_devices(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  if (call.is_bad) return nullptr;
  int count = 0;
  if (library->device_count(&count) != SHOAL_CUDA_OK) return text(env, library->error());
  napi_value devices;
  napi_create_array_with_length(env, count, &devices);
  for (int i = 0; i < count; i++) {
    shoal_cuda_device facts;
    if (library->describe(i, &facts) != SHOAL_CUDA_OK) return text(env, library->error());
    napi_value device, value;
    napi_create_object(env, &device);
    napi_set_named_property(env, device, "name", text(env, facts.name));
    const std::pair<const char *, double> numbers[] = {{"compute", facts.compute},
                                                       {"multiprocessors", facts.multiprocessors},
                                                       {"totalBytes", static_cast<double>(facts.total_bytes)},
                                                       {"freeBytes", static_cast<double>(facts.free_bytes)}};
    for (const auto &[name, number] : numbers)
      napi_create_double(env, number, &value), napi_set_named_property(env, device, name, value);
    napi_set_element(env, devices, i, device);
  }
  return devices;
}

napi_value number(napi_env env, uint64_t bytes) {
  napi_value value;
  napi_create_double(env, static_cast<double>(bytes), &value);
  return value;
}

/** cudaHeldBytes(library, device) */
napi_value cuda_held_bytes(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const int device = static_cast<int>(call.number(1));
  return call.is_bad ? nullptr : number(env, library->held_bytes(device));
}

/** cudaTrim(library, device) */
napi_value cuda_trim(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const int device = static_cast<int>(call.number(1));
  return call.promise([=] { library->trim(device); });
}

/** cudaRowsBytes(library, …rows, has half) */
napi_value cuda_rows_bytes(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const shoal_rows rows = call.rows(1);
  const int has_half = static_cast<int>(call.number(8));
  return call.is_bad ? nullptr : number(env, library->rows_bytes(&rows, has_half));
}

/** cudaGraphBytes(library, nodes, edges) */
napi_value cuda_graph_bytes(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const uint64_t nodes = static_cast<uint64_t>(call.number(1)), edges = static_cast<uint64_t>(call.number(2));
  return call.is_bad ? nullptr : number(env, library->graph_bytes(nodes, edges));
}

/** cudaTopKBytes(library, rows, dims, queries, k): work memory that it likes best. */
napi_value cuda_top_k_bytes(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const uint64_t rows = static_cast<uint64_t>(call.number(1)), queries = static_cast<uint64_t>(call.number(3));
  const uint32_t dims = static_cast<uint32_t>(call.number(2)), k = static_cast<uint32_t>(call.number(4));
  return call.is_bad ? nullptr : number(env, library->topk_bytes(rows, dims, queries, k));
}

/** cudaUpload(library, device, …rows, has half, stop): a handle. */
napi_value cuda_upload(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const int device = static_cast<int>(call.number(1));
  const shoal_rows rows = call.rows(2);
  const int has_half = static_cast<int>(call.number(9));
  const uint8_t *stop = call.array<uint8_t>(10);
  const Handle held = std::make_shared<Held>();
  held->library = library, held->device = device;
  return call.promise([=] { library->check(library->upload(device, &rows, has_half, &held->rows, stop)); },
                      [held](napi_env env) { return as_external(env, held); });
}

/** cudaUploadGraph(library, device, nodes, begin, source, weight, stop): a handle. */
napi_value cuda_upload_graph(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const int device = static_cast<int>(call.number(1));
  const shoal_graph graph{static_cast<uint64_t>(call.number(2)), call.array<uint32_t>(3), call.array<uint32_t>(4),
                          call.array<float>(5)};
  const uint8_t *stop = call.array<uint8_t>(6);
  const Handle held = std::make_shared<Held>();
  held->library = library, held->device = device;
  return call.promise([=] { library->check(library->upload_graph(device, &graph, &held->graph, stop)); },
                      [held](napi_env env) { return as_external(env, held); });
}

/** cudaFree(handle): as soon as no call uses it. */
napi_value cuda_free(napi_env env, napi_callback_info info) {
  Call call(env, info);
  Handle *handle = external<Handle>(env, call, 0, HANDLE_TAG, "a handle");
  if (handle != nullptr) handle->reset();
  return nullptr;
}

/** cudaTopK(handle, queries, count, metric, k, found and best, scores, …terms) */
napi_value cuda_top_k(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Handle held = handle_of(env, call, 0);
  const float *queries = call.array<float>(1);
  const uint64_t count = static_cast<uint64_t>(call.number(2));
  const auto metric = static_cast<enum shoal_metric>(call.number(3));
  const uint32_t k = static_cast<uint32_t>(call.number(4));
  uint32_t *found = call.array<uint32_t>(5), *best = found + count;
  double *scores = call.array<double>(6);
  Terms terms(call, 7);
  return call.promise(
      [=]() mutable {
        terms.run(*held->library, [&](const shoal_cuda_terms *t) {
          const shoal_cuda_rows *part = held->rows;
          return held->library->topk(&part, 1, queries, count, metric, k, best, scores, found, t);
        });
      },
      nullptr, terms.at_once());
}

/** cudaTopKStreamed(library, device, …rows, queries, count, metric, k, found and best, scores, …terms) */
napi_value cuda_top_k_streamed(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const int device = static_cast<int>(call.number(1));
  const shoal_rows rows = call.rows(2);
  const float *queries = call.array<float>(9);
  const uint64_t count = static_cast<uint64_t>(call.number(10));
  const auto metric = static_cast<enum shoal_metric>(call.number(11));
  const uint32_t k = static_cast<uint32_t>(call.number(12));
  uint32_t *found = call.array<uint32_t>(13), *best = found + count;
  double *scores = call.array<double>(14);
  Terms terms(call, 15);
  return call.promise([=]() mutable {
    terms.run(*library, [&](const shoal_cuda_terms *t) {
      return library->topk_streamed(device, &rows, queries, count, metric, k, best, scores, found, t);
    });
  });
}

/** cudaRescore(handle, queries, count, metric, begin, candidates, scores, …terms) */
napi_value cuda_rescore(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Handle held = handle_of(env, call, 0);
  const float *queries = call.array<float>(1);
  const uint64_t count = static_cast<uint64_t>(call.number(2));
  const auto metric = static_cast<enum shoal_metric>(call.number(3));
  const uint32_t *begin = call.array<uint32_t>(4), *candidates = call.array<uint32_t>(5);
  double *scores = call.array<double>(6);
  Terms terms(call, 7);
  return call.promise(
      [=]() mutable {
        terms.run(*held->library, [&](const shoal_cuda_terms *t) {
          return held->library->rescore(held->rows, queries, count, metric, begin, candidates, scores, t);
        });
      },
      nullptr, terms.at_once());
}

/** cudaMatrix(handle, queries, count, metric, rows, …terms): the scores. */
napi_value cuda_matrix(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Handle held = handle_of(env, call, 0);
  const float *queries = call.array<float>(1);
  const uint64_t count = static_cast<uint64_t>(call.number(2));
  const auto metric = static_cast<enum shoal_metric>(call.number(3));
  const uint64_t rows = static_cast<uint64_t>(call.number(4));
  Terms terms(call, 5);
  const auto scores = std::make_shared<std::unique_ptr<Scores>>();
  return call.promise(
      [=]() mutable {
        scores->reset(new Scores(*held->library, held->device, count * rows, terms.at_once()));
        terms.run(*held->library, [&](const shoal_cuda_terms *t) {
          return held->library->matrix(held->rows, queries, count, metric, (*scores)->at(), t);
        });
      },
      [scores](napi_env env) { return Scores::as_array(env, std::move(*scores)); }, terms.at_once());
}

/** cudaSpread(handle, lanes, steps, decay, threshold, seeds, …terms): the totals. */
napi_value cuda_spread(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Handle held = handle_of(env, call, 0);
  const uint32_t lanes = static_cast<uint32_t>(call.number(1)), steps = static_cast<uint32_t>(call.number(2));
  const float decay = static_cast<float>(call.number(3)), threshold = static_cast<float>(call.number(4));
  size_t count = 0;
  const float *seeds = static_cast<Arguments &>(call).array<float>(5, 0, &count);
  Terms terms(call, 6);
  const auto totals = std::make_shared<std::unique_ptr<Scores>>();
  return call.promise(
      [=]() mutable {
        totals->reset(new Scores(*held->library, held->device, count, terms.at_once()));
        terms.run(*held->library, [&](const shoal_cuda_terms *t) {
          return held->library->spread(held->graph, lanes, steps, decay, threshold, seeds, (*totals)->at(), t);
        });
      },
      [totals](napi_env env) { return Scores::as_array(env, std::move(*totals)); }, terms.at_once());
}

} // namespace

void export_cuda(napi_env env, napi_value exports) {
  const napi_property_descriptor functions[] = {
#define SHOAL_EXPORT(NAME, FUNCTION) {NAME, nullptr, FUNCTION, nullptr, nullptr, nullptr, napi_enumerable, nullptr}
      SHOAL_EXPORT("cudaOpen", cuda_open),
      SHOAL_EXPORT("cudaDevices", cuda_devices),
      SHOAL_EXPORT("cudaHeldBytes", cuda_held_bytes),
      SHOAL_EXPORT("cudaTrim", cuda_trim),
      SHOAL_EXPORT("cudaRowsBytes", cuda_rows_bytes),
      SHOAL_EXPORT("cudaGraphBytes", cuda_graph_bytes),
      SHOAL_EXPORT("cudaTopKBytes", cuda_top_k_bytes),
      SHOAL_EXPORT("cudaUpload", cuda_upload),
      SHOAL_EXPORT("cudaUploadGraph", cuda_upload_graph),
      SHOAL_EXPORT("cudaFree", cuda_free),
      SHOAL_EXPORT("cudaTopK", cuda_top_k),
      SHOAL_EXPORT("cudaTopKStreamed", cuda_top_k_streamed),
      SHOAL_EXPORT("cudaRescore", cuda_rescore),
      SHOAL_EXPORT("cudaMatrix", cuda_matrix),
      SHOAL_EXPORT("cudaSpread", cuda_spread),
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
}

} // namespace shoal
