// The kernels as a Node addon, in plain N-API: one binary for every Node from 18 on. What is exported is declared in
// libs/similarity/src/engines/native-addon.ts; what is passed is checked here (binding.h) before a kernel sees it.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>
#include "../cpu/mapped_file.h"
#include "binding.h"
#include "cuda_addon.h"

namespace {

using Call = shoal::SimilarityCall;

/** isas(): names of the instruction sets, best first. */
napi_value isas(napi_env env, napi_callback_info) {
  std::vector<napi_value> names;
  for (int i = 0; i < shoal_isa_count(); i++) names.push_back(shoal::text_of(env, shoal_isa_name(i)));
  return shoal::array_of(env, names);
}

/** How many threads work on a call; asked for none, this one does it, at once. */
struct Threads {
  int count;
  bool at_once;

  Threads(Call &call, size_t i) : Threads(call.whole<int32_t>(i, 0, MOST)) {}
  explicit Threads(int asked) : count(std::max(1, asked)), at_once(asked == 0) {}

  static constexpr double MOST = 1024;

  /** At once waits for no disk: what is in a file and not in memory is waited for elsewhere. */
  bool at_once_on(const void *data, uint64_t size) const {
    return at_once && shoal::is_in_memory(static_cast<const char *>(data), size);
  }
  bool at_once_on(const shoal_rows &rows) const { return at_once_on(rows.data, rows.count * rows.stride); }
};

/**
 * What top-k, matrix and re-scoring begin with: isa, threads, …rows, …queries. Their own arguments follow from 12 on.
 */
struct Comparison {
  int isa;
  Threads threads;
  shoal_rows rows;
  shoal::Queries queries;

  explicit Comparison(Call &call)
      : isa(call.isa(0)), threads(call, 1), rows(call.rows(2)), queries(call, 9, rows.dims) {
    if (queries.metric == SHOAL_COSINE && rows.count > 0 && rows.scales == nullptr)
      call.refuse(7, "the factors of the rows, which cosine needs");
  }

  bool at_once() const { return threads.at_once_on(rows); }
};

/** lengths(isa, threads, …rows, lengths) */
napi_value lengths(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const int isa = call.isa(0);
  const Threads threads(call, 1);
  const shoal_rows rows = call.rows(2);
  double *out = call.filled<double>(9, double(rows.count));
  return call.promise([=] { shoal_lengths(isa, threads.count, &rows, out); }, nullptr, threads.at_once_on(rows));
}

/** allWithin(values, most): whether each is at most that without its sign; NaN is not. */
napi_value all_within(napi_env env, napi_callback_info info) {
  Call call(env, info);
  size_t count = 0;
  const float *values = call.counted<float>(0, &count);
  const double most = call.number(1);
  return call.is_bad ? nullptr : shoal::truth_of(env, shoal_all_within(values, count, most) != 0);
}

/** topK(isa, threads, …rows, …queries, k, found and best, scores, stop) */
napi_value top_k(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Comparison c(call);
  const shoal::Best best(call, 12, c.queries.count);
  const uint8_t *stop = call.stop(15);
  return call.promise(
      [=] {
        shoal_topk(c.isa, c.threads.count, c.queries.values, c.queries.count, &c.rows, c.queries.metric, best.k,
                   best.rows, best.scores, best.found, stop);
      },
      nullptr, c.at_once());
}

/** matrix(isa, threads, …rows, …queries, scores, stop) */
napi_value matrix(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Comparison c(call);
  float *scores = call.filled<float>(12, double(c.queries.count) * double(c.rows.count));
  const uint8_t *stop = call.stop(13);
  return call.promise(
      [=] {
        shoal_matrix(c.isa, c.threads.count, c.queries.values, c.queries.count, &c.rows, c.queries.metric, scores,
                     stop);
      },
      nullptr, c.at_once());
}

/** `begin` rises, and every candidate is a row. */
void check_candidates(Call &call, const uint32_t *begin, uint64_t queries, const uint32_t *candidates, uint64_t rows) {
  for (uint64_t q = 0; q < queries; q++)
    if (begin[q] > begin[q + 1]) return call.refuse_range(12, "rising");
  for (uint32_t at = begin[0]; at < begin[queries]; at++)
    if (candidates[at] >= rows) return call.refuse_range(13, "row numbers");
}

/** Throws where an edge begins or ends outside of the graph: looked at once, in the part that is the first. */
void check_graph(const shoal_graph &graph) {
  for (uint64_t node = 0; node < graph.nodes; node++)
    if (graph.begin[node] > graph.begin[node + 1]) throw shoal::Failure("INVALID", "the edges of a graph do not rise");
  for (uint32_t edge = graph.begin[0]; edge < graph.begin[graph.nodes]; edge++)
    if (graph.source[edge] >= graph.nodes) throw shoal::Failure("INVALID", "an edge comes from no node");
}

/** rescore(isa, threads, …rows, …queries, begin, candidates, scores, stop) */
napi_value rescore(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Comparison c(call);
  const uint32_t *begin = call.filled<uint32_t>(12, double(c.queries.count) + 1);
  const double all = call.is_bad ? 0 : begin[c.queries.count];
  const uint32_t *candidates = call.filled<uint32_t>(13, all);
  double *scores = call.filled<double>(14, all);
  if (!call.is_bad) check_candidates(call, begin, c.queries.count, candidates, c.rows.count);
  const uint8_t *stop = call.stop(15);
  return call.promise(
      [=] {
        shoal_rescore(c.isa, c.threads.count, c.queries.values, c.queries.count, &c.rows, c.queries.metric, begin,
                      candidates, scores, stop);
      },
      nullptr, c.at_once());
}

constexpr double MOST_STEPS = 10000;

/** spread(isa, threads, …graph, lanes, from, to, decay, threshold, activation, scratch, stop) */
napi_value spread(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const int isa = call.isa(0);
  const Threads threads(call, 1);
  const shoal_graph graph = call.graph(2);
  const uint32_t columns = call.whole<uint32_t>(6, 1, 65536);
  // A step is as much work as the graph has nodes and edges; so many steps are more than anybody means.
  const double step = call.is_bad ? 0 : double(graph.nodes) + graph.begin[graph.nodes];
  const uint64_t from = call.whole<uint64_t>(7, 0), to = call.whole<uint64_t>(8, double(from), MOST_STEPS * step);
  const float decay = call.real(9), threshold = call.real(10);
  const double cells = double(graph.nodes) * columns;
  float *activation = call.filled<float>(11, cells), *scratch = call.filled<float>(12, 2 * cells);
  const uint8_t *stop = call.stop(13);
  const uint64_t edges = call.is_bad ? 0 : graph.begin[graph.nodes];
  const bool at_once = threads.at_once_on(graph.begin, (graph.nodes + 1) * sizeof *graph.begin) &&
                       threads.at_once_on(graph.source, edges * sizeof *graph.source) &&
                       threads.at_once_on(graph.weight, edges * sizeof *graph.weight);
  return call.promise(
      [=] {
        if (from == 0) check_graph(graph);
        shoal_spread(isa, threads.count, &graph, columns, from, to, decay, threshold, activation, scratch, stop);
      },
      nullptr, at_once);
}

/** peak(isa, threads, out): GFLOP/s of multiply-adds into out[0]. */
napi_value peak(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const int isa = call.isa(0), threads = call.whole<int32_t>(1, 1, 256);
  double *out = call.filled<double>(2, 1);
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
  return call.is_bad ? nullptr : shoal::truth_of(env, data != nullptr && shoal::is_cut(data));
}

} // namespace

NAPI_MODULE_INIT() {
  shoal::export_functions(env, exports,
                          {{"isas", isas},
                           {"allWithin", all_within},
                           {"lengths", lengths},
                           {"topK", top_k},
                           {"matrix", matrix},
                           {"rescore", rescore},
                           {"spread", spread},
                           {"peak", peak},
                           {"mapFile", map_file},
                           {"isCut", is_cut}});
  shoal::export_cuda(env, exports);
  return exports;
}
