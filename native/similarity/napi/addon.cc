// The kernels as a Node addon, in plain N-API: one binary for every Node from 18 on. What is exported is declared and
// checked in libs/similarity/src/engines/native-addon.ts; here shapes are trusted and only types are looked at.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include "binding.h"
#include "cuda_addon.h"
#include "../cpu/mapped_file.h"

namespace {

using shoal::Arguments;
using shoal::Call;

/** isas(): names of the instruction sets, best first. */
napi_value isas(napi_env env, napi_callback_info) {
  napi_value names, name;
  napi_create_array(env, &names);
  for (int i = 0; i < shoal_isa_count(); i++) {
    napi_create_string_utf8(env, shoal_isa_name(i), NAPI_AUTO_LENGTH, &name);
    napi_set_element(env, names, static_cast<uint32_t>(i), name);
  }
  return names;
}

/** How many threads work on a call; asked for none, this one does it, at once. */
struct Threads {
  int count;
  bool at_once;

  explicit Threads(double asked) : count(std::max(1, static_cast<int>(asked))), at_once(asked == 0) {}

  /** At once waits for no disk: what is in a file and not in memory is waited for elsewhere. */
  bool at_once_on(const void *data, uint64_t size) const {
    return at_once && shoal::is_in_memory(static_cast<const char *>(data), size);
  }
  bool at_once_on(const shoal_rows &rows) const { return at_once_on(rows.data, rows.count * rows.stride); }
};

/**
 * What top-k, matrix and re-scoring begin with: isa, threads, …rows, queries, count, metric. Their own arguments follow
 * from 12 on.
 */
struct Comparison {
  int isa;
  Threads threads;
  shoal_rows rows;
  const float *queries;
  uint64_t count;
  enum shoal_metric metric;

  explicit Comparison(Call &call)
      : isa(static_cast<int>(call.number(0))),
        threads(call.number(1)),
        rows(call.rows(2)),
        queries(call.array<float>(9)),
        count(static_cast<uint64_t>(call.number(10))),
        metric(static_cast<enum shoal_metric>(call.number(11))) {}

  bool at_once() const { return threads.at_once_on(rows); }
};

/** lengths(isa, threads, …rows, lengths) */
napi_value lengths(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const int isa = static_cast<int>(call.number(0));
  const Threads threads(call.number(1));
  const shoal_rows rows = call.rows(2);
  double *out = call.array<double>(9);
  return call.promise([=] { shoal_lengths(isa, threads.count, &rows, out); }, nullptr, threads.at_once_on(rows));
}

/** allWithin(values, most): whether each is at most that without its sign; NaN is not. */
napi_value all_within(napi_env env, napi_callback_info info) {
  Call call(env, info);
  size_t count = 0;
  const float *values = static_cast<Arguments &>(call).array<float>(0, 0, &count);
  const double most = call.number(1);
  if (call.is_bad) return nullptr;
  napi_value answer;
  napi_get_boolean(env, shoal_all_within(values, count, most) != 0, &answer);
  return answer;
}

/** topK(isa, threads, …rows, queries, count, metric, k, found and best, scores, stop) */
napi_value top_k(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Comparison c(call);
  const uint32_t k = static_cast<uint32_t>(call.number(12));
  // One array: how many were found of each query, then their rows.
  uint32_t *found = call.array<uint32_t>(13), *best = found + c.count;
  double *scores = call.array<double>(14);
  const uint8_t *stop = call.array<uint8_t>(15);
  return call.promise(
      [=] { shoal_topk(c.isa, c.threads.count, c.queries, c.count, &c.rows, c.metric, k, best, scores, found, stop); },
      nullptr, c.at_once());
}

/** matrix(isa, threads, …rows, queries, count, metric, scores, stop) */
napi_value matrix(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Comparison c(call);
  float *scores = call.array<float>(12);
  const uint8_t *stop = call.array<uint8_t>(13);
  return call.promise(
      [=] { shoal_matrix(c.isa, c.threads.count, c.queries, c.count, &c.rows, c.metric, scores, stop); }, nullptr,
      c.at_once());
}

/** rescore(isa, threads, …rows, queries, count, metric, begin, candidates, scores, stop) */
napi_value rescore(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Comparison c(call);
  const uint32_t *begin = call.array<uint32_t>(12), *candidates = call.array<uint32_t>(13);
  double *scores = call.array<double>(14);
  const uint8_t *stop = call.array<uint8_t>(15);
  return call.promise(
      [=] {
        shoal_rescore(c.isa, c.threads.count, c.queries, c.count, &c.rows, c.metric, begin, candidates, scores, stop);
      },
      nullptr, c.at_once());
}

/** spread(isa, threads, nodes, begin, source, weight, lanes, from, to, decay, threshold, activation, scratch, stop) */
napi_value spread(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const int isa = static_cast<int>(call.number(0));
  const Threads threads(call.number(1));
  const shoal_graph graph{static_cast<uint64_t>(call.number(2)), call.array<uint32_t>(3), call.array<uint32_t>(4),
                          call.array<float>(5)};
  const uint32_t lanes = static_cast<uint32_t>(call.number(6));
  const uint64_t from = static_cast<uint64_t>(call.number(7)), to = static_cast<uint64_t>(call.number(8));
  const float decay = static_cast<float>(call.number(9)), threshold = static_cast<float>(call.number(10));
  float *activation = call.array<float>(11), *scratch = call.array<float>(12);
  const uint8_t *stop = call.array<uint8_t>(13);
  const uint64_t edges = call.is_bad ? 0 : graph.begin[graph.nodes];
  const bool at_once = threads.at_once_on(graph.begin, (graph.nodes + 1) * sizeof *graph.begin) &&
                       threads.at_once_on(graph.source, edges * sizeof *graph.source) &&
                       threads.at_once_on(graph.weight, edges * sizeof *graph.weight);
  return call.promise(
      [=] { shoal_spread(isa, threads.count, &graph, lanes, from, to, decay, threshold, activation, scratch, stop); },
      nullptr, at_once);
}

/** peak(isa, threads, out): GFLOP/s of multiply-adds into out[0]. */
napi_value peak(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const int isa = static_cast<int>(call.number(0)), threads = static_cast<int>(call.number(1));
  double *out = call.array<double>(2);
  return call.promise([=] { *out = shoal_peak(isa, threads); });
}

/** mapFile(path): its bytes as an ArrayBuffer; they are given back to the system when nobody holds it any more. */
napi_value map_file(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const std::string path = call.text(0);
  if (call.is_bad) return nullptr;
  size_t size = 0;
  char *data = shoal::map_file(path.c_str(), &size);
  if (data == nullptr)
    return napi_throw_error(env, errno == ENOENT ? "ENOENT" : "EMAP",
                            (path + " cannot be mapped: " + std::strerror(errno)).c_str()),
           nullptr;
  napi_value buffer = nullptr;
  const auto unmap = [](napi_env, void *mapped, void *) { shoal::unmap_file(static_cast<char *>(mapped)); };
  if (napi_create_external_arraybuffer(env, data, size, unmap, nullptr, &buffer) == napi_ok) return buffer;
  shoal::unmap_file(data);
  return napi_throw_error(env, "EMAP", "this runtime takes no memory from outside"), nullptr;
}

/** isCut(bytes): whether the mapped file that these bytes are in was cut since. */
napi_value is_cut(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const char *data = call.array<char>(0);
  if (call.is_bad) return nullptr;
  napi_value answer;
  napi_get_boolean(env, data != nullptr && shoal::is_cut(data), &answer);
  return answer;
}

} // namespace

NAPI_MODULE_INIT() {
  const napi_property_descriptor functions[] = {
#define SHOAL_EXPORT(NAME, FUNCTION) {NAME, nullptr, FUNCTION, nullptr, nullptr, nullptr, napi_enumerable, nullptr}
      SHOAL_EXPORT("isas", isas),        SHOAL_EXPORT("allWithin", all_within),
      SHOAL_EXPORT("lengths", lengths),  SHOAL_EXPORT("topK", top_k),
      SHOAL_EXPORT("matrix", matrix),    SHOAL_EXPORT("rescore", rescore),
      SHOAL_EXPORT("spread", spread),    SHOAL_EXPORT("peak", peak),
      SHOAL_EXPORT("mapFile", map_file), SHOAL_EXPORT("isCut", is_cut),
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
  shoal::export_cuda(env, exports);
  return exports;
}
