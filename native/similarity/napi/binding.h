// What both halves of the addon (addon.cc, cuda_addon.cc) read from a call: rows, graphs, and what is compared with
// rows. Shapes are trusted; libs/similarity/src/engines/native-addon.ts checks them.
#pragma once
#include <node_api.h>
#include "../../napi/call.h"
#include "../include/similarity.h"

namespace shoal {

class SimilarityCall : public Call {
 public:
  SimilarityCall(napi_env env, napi_callback_info info) : Call(env, info, "shoal:similarity") {}

  /** Null for null and undefined. */
  template <class T>
  T *array(size_t i) {
    return array_or_null<T>(i);
  }

  /** An array that must be there, and how many elements it has. */
  template <class T>
  T *counted(size_t i, size_t *count) {
    return Arguments::array<T>(i, 0, count);
  }

  /** Seven arguments from `i` on: data, count, dims, stride, type, scales, longest. */
  shoal_rows rows(size_t i) {
    shoal_rows rows{};
    rows.data = array<char>(i);
    rows.count = whole<uint64_t>(i + 1);
    rows.dims = whole<uint32_t>(i + 2);
    rows.stride = whole<uint64_t>(i + 3);
    rows.dtype = whole<enum shoal_dtype>(i + 4);
    rows.scales = array<float>(i + 5);
    rows.longest = number(i + 6);
    return rows;
  }

  /** Four arguments from `i` on: nodes, begin, source, weight. */
  shoal_graph graph(size_t i) {
    shoal_graph graph{};
    graph.nodes = whole<uint64_t>(i);
    graph.begin = array<uint32_t>(i + 1);
    graph.source = array<uint32_t>(i + 2);
    graph.weight = array<float>(i + 3);
    return graph;
  }
};

/** Three arguments from `i` on, which rows are compared with: queries, count, metric. */
struct Queries {
  const float *values;
  uint64_t count;
  enum shoal_metric metric;

  Queries(SimilarityCall &call, size_t i)
      : values(call.array<float>(i)),
        count(call.whole<uint64_t>(i + 1)),
        metric(call.whole<enum shoal_metric>(i + 2)) {}
};

/** Three arguments from `i` on, of a search: k, one array of how many were found and their rows, scores. */
struct Best {
  uint32_t k;
  uint32_t *found, *rows;
  double *scores;

  Best(SimilarityCall &call, size_t i, uint64_t queries)
      : k(call.whole<uint32_t>(i)),
        found(call.array<uint32_t>(i + 1)),
        rows(found + queries),
        scores(call.array<double>(i + 2)) {}
};

} // namespace shoal
