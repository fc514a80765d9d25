// What both halves of the addon (addon.cc, cuda_addon.cc) read from a call: rows, graphs, and what is compared with
// rows. Each is checked here against the arrays that come with it: whatever is passed throws or is computed, and
// nothing reads or writes beyond what it was given.
#pragma once
#include <node_api.h>
#include "../../napi/call.h"
#include "../include/similarity.h"

namespace shoal {

class SimilarityCall : public Call {
 public:
  SimilarityCall(napi_env env, napi_callback_info info) : Call(env, info, "shoal:similarity") {}

  /** Null for null and undefined; else of at least so many elements. */
  template <class T>
  T *array(size_t i, double least = 0) {
    if (is_missing(i)) return nullptr;
    size_t length = 0;
    T *const found = Arguments::array<T>(i, 0, &length);
    if (!is_bad && !(static_cast<double>(length) >= least)) refuse_range(i, "a typed array of that length");
    return is_bad ? nullptr : found;
  }

  /** An array of at least so many elements, which must be there where that is more than none. */
  template <class T>
  T *filled(size_t i, double least) {
    if (least > 0 && is_missing(i)) refuse(i, "a typed array");
    return array<T>(i, least);
  }

  /** A flag that another thread sets, or null. */
  const uint8_t *stop(size_t i) { return array<uint8_t>(i, 1); }

  /** The index of an instruction set of this machine. */
  int isa(size_t i) { return whole<int32_t>(i, 0, shoal_isa_count() - 1); }

  bool is_missing(size_t i) {
    napi_valuetype type = napi_undefined;
    napi_typeof(env_, raw(i), &type);
    return type == napi_null || type == napi_undefined;
  }

  /** An array that must be there, and how many elements it has. */
  template <class T>
  T *counted(size_t i, size_t *count) {
    return Arguments::array<T>(i, 0, count);
  }

  /** Seven arguments from `i` on: data, count, dims, stride, type, scales, longest. */
  shoal_rows rows(size_t i) {
    shoal_rows rows{};
    rows.count = whole<uint64_t>(i + 1, 0, MOST_ROWS);
    rows.dims = whole<uint32_t>(i + 2, 1, MOST_DIMS);
    rows.dtype = static_cast<enum shoal_dtype>(whole<int32_t>(i + 4, SHOAL_F32, SHOAL_I8));
    const double element = rows.dtype == SHOAL_F32 ? 4 : rows.dtype == SHOAL_F16 ? 2 : 1;
    const double bytes = element * rows.dims;
    rows.stride = whole<uint64_t>(i + 3, bytes, MOST_ROWS);
    const double wanted = rows.count == 0 ? 0 : (double(rows.count) - 1) * double(rows.stride) + bytes;
    rows.data = filled<char>(i, wanted);
    const uint64_t unit = static_cast<uint64_t>(element);
    if (!is_bad && (rows.stride % unit != 0 || reinterpret_cast<uintptr_t>(rows.data) % unit != 0))
      refuse_range(i, "aligned to its elements");
    rows.scales = array<float>(i + 5, double(rows.count));
    rows.longest = number(i + 6);
    return rows;
  }

  /** Four arguments from `i` on: nodes, begin, source, weight. */
  shoal_graph graph(size_t i) {
    shoal_graph graph{};
    graph.nodes = whole<uint64_t>(i, 1, MOST_ROWS);
    graph.begin = filled<uint32_t>(i + 1, double(graph.nodes) + 1);
    const double edges = is_bad ? 0 : graph.begin[graph.nodes];
    graph.source = filled<uint32_t>(i + 2, edges);
    graph.weight = filled<float>(i + 3, edges);
    return graph;
  }

 private:
  /** Products of two of them, and of one with a row, are exact in a double. */
  static constexpr double MOST_ROWS = 4294967295.0, MOST_DIMS = 1 << 20;
};

/** Three arguments from `i` on, which rows are compared with: queries, count, metric. */
struct Queries {
  const float *values;
  uint64_t count;
  enum shoal_metric metric;

  /** Of `dims` values each; 0: of as many as rows on a device have, which knows them. */
  Queries(SimilarityCall &call, size_t i, uint32_t dims = 0)
      : values(nullptr),
        count(call.whole<uint64_t>(i + 1, 0, 4294967295.0)),
        metric(static_cast<enum shoal_metric>(call.whole<int32_t>(i + 2, SHOAL_DOT, SHOAL_COSINE))) {
    values = call.filled<float>(i, double(count) * dims);
  }
};

/** Three arguments from `i` on, of a search: k, one array of how many were found and their rows, scores. */
struct Best {
  uint32_t k;
  uint32_t *found, *rows;
  double *scores;

  Best(SimilarityCall &call, size_t i, uint64_t queries)
      : k(call.whole<uint32_t>(i, 1)),
        found(call.filled<uint32_t>(i + 1, double(queries) * (1 + double(k)))),
        rows(found == nullptr ? nullptr : found + queries),
        scores(call.filled<double>(i + 2, double(queries) * k)) {}
};

} // namespace shoal
