// Spreading activation over a graph of outgoing edges, several sets of seeds at a time: the lanes of a node lie together, so
// that one edge moves a whole vector. Edges are turned round first; each thread then owns the nodes it writes to.
#include <algorithm>
#include <cstring>
#include "../include/similarity.h"
#include "kernels.h"
#include "threads.h"

namespace shoal {
const Kernels &kernels_of(int isa);

namespace {

/** The same graph by incoming edges, sources in rising order, so that sums are made in one order whatever the threads. */
struct Incoming {
  std::vector<uint64_t> begin;
  std::vector<uint32_t> source;
  std::vector<float> weight;

  explicit Incoming(const shoal_graph &graph) : begin(graph.nodes + 1), source(graph.begin[graph.nodes]), weight(source.size()) {
    for (uint64_t e = 0; e < source.size(); e++) begin[graph.target[e] + 1]++;
    for (uint64_t n = 0; n < graph.nodes; n++) begin[n + 1] += begin[n];
    std::vector<uint64_t> next(begin.begin(), begin.end() - 1);
    for (uint64_t from = 0; from < graph.nodes; from++)
      for (uint64_t e = graph.begin[from]; e < graph.begin[from + 1]; e++) {
        const uint64_t at = next[graph.target[e]]++;
        source[at] = static_cast<uint32_t>(from);
        weight[at] = graph.weight[e];
      }
  }
};

}  // namespace
}  // namespace shoal

void shoal_spread(int isa, int threads, const shoal_graph *graph, uint32_t lanes, uint32_t steps, float decay, float threshold, float *activation, float *scratch) {
  using namespace shoal;
  const Kernels &kernels = kernels_of(isa);
  const Incoming incoming(*graph);
  const uint64_t nodes = graph->nodes, size = nodes * lanes;
  float *given = scratch, *arriving = scratch + size;
  std::memcpy(given, activation, size * sizeof(float));
  for (uint32_t step = 0; step < steps; step++) {
    for (uint64_t i = 0; i < size; i++) given[i] = given[i] >= threshold ? given[i] * decay : 0.0f;
    in_parallel(threads, [&](int part) {
      // Equal shares of edges, not of nodes: degrees differ by orders of magnitude.
      const uint64_t edges = incoming.source.size();
      const auto node_at = [&](uint64_t edge) { return static_cast<uint64_t>(std::lower_bound(incoming.begin.begin(), incoming.begin.end() - 1, edge) - incoming.begin.begin()); };
      const uint64_t first = part == 0 ? 0 : node_at(edges * part / threads), last = part + 1 == threads ? nodes : node_at(edges * (part + 1) / threads);
      for (uint64_t node = first; node < last; node++) {
        float *to = arriving + node * lanes;
        std::memset(to, 0, lanes * sizeof(float));
        for (uint64_t e = incoming.begin[node]; e < incoming.begin[node + 1]; e++) kernels.axpy(incoming.weight[e], given + static_cast<uint64_t>(incoming.source[e]) * lanes, to, lanes);
        kernels.axpy(1.0f, to, activation + node * lanes, lanes);
      }
    });
    std::swap(given, arriving);
  }
}
