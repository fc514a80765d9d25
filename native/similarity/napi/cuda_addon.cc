// The CUDA library (similarity_cuda.h) for Node: opened by its path at run time, so that nothing of CUDA is needed to
// build or load this. What is not there, or is another version's, is told in words and is no error. Every status other
// than OK becomes an error with its name as `code`; what it means, and what to do then, is libs/similarity's business
// (cuda-library.ts).
//
// What lies on a device is held by handles. A handle is freed when it is let go (cudaFree) or collected, and never
// under a call that still uses it.
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include "binding.h"
#include "cuda_addon.h"
#include "cuda_library.h"

namespace shoal {
namespace {

using Call = SimilarityCall;

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
    terms.work_bytes = call.whole<uint64_t>(i);
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

/** cudaOpen(path): the library, or in words why it cannot be used. */
napi_value cuda_open(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const std::string path = call.text(0);
  if (call.is_bad) return nullptr;
  Library *library = new Library;
  const std::string problem = open_library(path, *library);
  if (!problem.empty()) return delete library, text_of(env, problem);
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
  if (library->device_count(&count) != SHOAL_CUDA_OK) return text_of(env, library->error());
  napi_value devices;
  napi_create_array_with_length(env, count, &devices);
  for (int i = 0; i < count; i++) {
    shoal_cuda_device facts;
    if (library->describe(i, &facts) != SHOAL_CUDA_OK) return text_of(env, library->error());
    napi_value device;
    napi_create_object(env, &device);
    napi_set_named_property(env, device, "name", text_of(env, facts.name));
    const std::pair<const char *, double> numbers[] = {{"compute", facts.compute},
                                                       {"multiprocessors", facts.multiprocessors},
                                                       {"totalBytes", static_cast<double>(facts.total_bytes)},
                                                       {"freeBytes", static_cast<double>(facts.free_bytes)}};
    for (const auto &[key, number] : numbers) napi_set_named_property(env, device, key, number_of(env, number));
    napi_set_element(env, devices, i, device);
  }
  return devices;
}

/** cudaHeldBytes(library, device) */
napi_value cuda_held_bytes(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const int device = call.whole<int32_t>(1, 0);
  return call.is_bad ? nullptr : number_of(env, static_cast<double>(library->held_bytes(device)));
}

/** cudaTrim(library, device) */
napi_value cuda_trim(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const int device = call.whole<int32_t>(1, 0);
  return call.promise([=] { library->trim(device); });
}

/** cudaRowsBytes(library, …rows, has half) */
napi_value cuda_rows_bytes(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const shoal_rows rows = call.rows(1);
  const int has_half = call.whole<int>(8);
  return call.is_bad ? nullptr : number_of(env, static_cast<double>(library->rows_bytes(&rows, has_half)));
}

/** cudaGraphBytes(library, nodes, edges) */
napi_value cuda_graph_bytes(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const uint64_t nodes = call.whole<uint64_t>(1), edges = call.whole<uint64_t>(2);
  return call.is_bad ? nullptr : number_of(env, static_cast<double>(library->graph_bytes(nodes, edges)));
}

/** cudaTopKBytes(library, rows, dims, queries, k): work memory that it likes best. */
napi_value cuda_top_k_bytes(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const uint64_t rows = call.whole<uint64_t>(1), queries = call.whole<uint64_t>(3);
  const uint32_t dims = call.whole<uint32_t>(2), k = call.whole<uint32_t>(4);
  return call.is_bad ? nullptr : number_of(env, static_cast<double>(library->topk_bytes(rows, dims, queries, k)));
}

/** cudaUpload(library, device, …rows, has half, stop): a handle. */
napi_value cuda_upload(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const int device = call.whole<int32_t>(1, 0);
  const shoal_rows rows = call.rows(2);
  const int has_half = call.whole<int>(9);
  const uint8_t *stop = call.array<uint8_t>(10);
  const Handle held = std::make_shared<Held>();
  held->library = library, held->device = device;
  return call.promise([=] { library->check(library->upload(device, &rows, has_half, &held->rows, stop)); },
                      [held](napi_env env) { return as_external(env, held); });
}

/** cudaUploadGraph(library, device, …graph, stop): a handle. */
napi_value cuda_upload_graph(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const int device = call.whole<int32_t>(1, 0);
  const shoal_graph graph = call.graph(2);
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

/** A promise of what `work(library, rows or graph, terms)` does on the handle's device. */
template <class Work>
napi_value compute(Call &call, const Handle &held, Terms terms, const Work &work) {
  return call.promise(
      [held, terms, work]() mutable {
        terms.run(*held->library, [&](const shoal_cuda_terms *t) { return work(*held->library, *held, t); });
      },
      nullptr, terms.at_once());
}

/** The same for work that writes `count` values, which the promise is fulfilled with: work(…, where they go, terms). */
template <class Work>
napi_value compute_scores(Call &call, const Handle &held, Terms terms, size_t count, const Work &work) {
  const auto scores = std::make_shared<std::unique_ptr<Scores>>();
  return call.promise(
      [=]() mutable {
        scores->reset(new Scores(*held->library, held->device, count, terms.at_once()));
        terms.run(*held->library,
                  [&](const shoal_cuda_terms *t) { return work(*held->library, *held, (*scores)->at(), t); });
      },
      [scores](napi_env env) { return Scores::as_array(env, std::move(*scores)); }, terms.at_once());
}

/** cudaTopK(handle, …queries, k, found and best, scores, …terms) */
napi_value cuda_top_k(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Handle held = handle_of(env, call, 0);
  const Queries q(call, 1);
  const Best best(call, 4, q.count);
  return compute(call, held, Terms(call, 7), [=](const Library &library, const Held &of, const shoal_cuda_terms *t) {
    const shoal_cuda_rows *part = of.rows;
    return library.topk(&part, 1, q.values, q.count, q.metric, best.k, best.rows, best.scores, best.found, t);
  });
}

/** cudaTopKStreamed(library, device, …rows, …queries, k, found and best, scores, …terms) */
napi_value cuda_top_k_streamed(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Library *library = library_at(env, call, 0);
  const int device = call.whole<int32_t>(1, 0);
  const shoal_rows rows = call.rows(2);
  const Queries q(call, 9);
  const Best best(call, 12, q.count);
  Terms terms(call, 15);
  return call.promise([=]() mutable {
    terms.run(*library, [&](const shoal_cuda_terms *t) {
      return library->topk_streamed(device, &rows, q.values, q.count, q.metric, best.k, best.rows, best.scores,
                                    best.found, t);
    });
  });
}

/** cudaRescore(handle, …queries, begin, candidates, scores, …terms) */
napi_value cuda_rescore(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Handle held = handle_of(env, call, 0);
  const Queries q(call, 1);
  const uint32_t *begin = call.array<uint32_t>(4), *candidates = call.array<uint32_t>(5);
  double *scores = call.array<double>(6);
  return compute(call, held, Terms(call, 7), [=](const Library &library, const Held &of, const shoal_cuda_terms *t) {
    return library.rescore(of.rows, q.values, q.count, q.metric, begin, candidates, scores, t);
  });
}

/** cudaMatrix(handle, …queries, rows, …terms): the scores. */
napi_value cuda_matrix(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Handle held = handle_of(env, call, 0);
  const Queries q(call, 1);
  const uint64_t rows = call.whole<uint64_t>(4);
  return compute_scores(call, held, Terms(call, 5), q.count * rows,
                        [=](const Library &library, const Held &of, float *to, const shoal_cuda_terms *t) {
                          return library.matrix(of.rows, q.values, q.count, q.metric, to, t);
                        });
}

/** cudaSpread(handle, columns, steps, decay, threshold, seeds, …terms): the totals. */
napi_value cuda_spread(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Handle held = handle_of(env, call, 0);
  const uint32_t columns = call.whole<uint32_t>(1), steps = call.whole<uint32_t>(2);
  const float decay = call.real(3), threshold = call.real(4);
  size_t count = 0;
  const float *seeds = call.counted<float>(5, &count);
  return compute_scores(call, held, Terms(call, 6), count,
                        [=](const Library &library, const Held &of, float *to, const shoal_cuda_terms *t) {
                          return library.spread(of.graph, columns, steps, decay, threshold, seeds, to, t);
                        });
}

} // namespace

void export_cuda(napi_env env, napi_value exports) {
  export_functions(env, exports,
                   {{"cudaOpen", cuda_open},
                    {"cudaDevices", cuda_devices},
                    {"cudaHeldBytes", cuda_held_bytes},
                    {"cudaTrim", cuda_trim},
                    {"cudaRowsBytes", cuda_rows_bytes},
                    {"cudaGraphBytes", cuda_graph_bytes},
                    {"cudaTopKBytes", cuda_top_k_bytes},
                    {"cudaUpload", cuda_upload},
                    {"cudaUploadGraph", cuda_upload_graph},
                    {"cudaFree", cuda_free},
                    {"cudaTopK", cuda_top_k},
                    {"cudaTopKStreamed", cuda_top_k_streamed},
                    {"cudaRescore", cuda_rescore},
                    {"cudaMatrix", cuda_matrix},
                    {"cudaSpread", cuda_spread}});
}

} // namespace shoal
