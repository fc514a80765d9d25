// Spreading activation over a graph of incoming edges, several sets of seeds at a time: the lanes of a node lie together, so
// that one edge moves a whole vector. Each node's sum is made by one thread, in the order of its edges.
#include <cstring>
#include "rows.h"
#include "threads.h"

void shoal_spread(int isa, int threads, const shoal_graph *graph, uint32_t lanes, uint32_t steps, float decay, float threshold, float *activation, float *scratch, shoal_stop stop) {
  using namespace shoal;
  const Kernels &kernels = kernels_of(isa);
  const uint64_t nodes = graph->nodes, size = nodes * lanes;
  float *given = scratch, *arriving = scratch + size;
  std::memcpy(given, activation, size * sizeof(float));
  constexpr uint64_t BLOCK = 1 << 16;
  // Equal shares of edges and nodes, not of nodes: degrees differ by orders of magnitude.
  std::vector<uint64_t> firsts{0};
  for (uint64_t node = 1, from = 0; node <= nodes; node++)
    if (node == nodes || graph->begin[node] - graph->begin[from] + node - from >= BLOCK) firsts.push_back(from = node);
  for (uint32_t step = 0; step < steps && !is_stopped(stop); step++) {
    in_blocks(threads, (size + BLOCK - 1) / BLOCK, [&](auto next) {
      for (uint64_t block; next(&block);)
        for (uint64_t i = block * BLOCK; i < std::min(size, (block + 1) * BLOCK); i++) given[i] = given[i] >= threshold ? given[i] * decay : 0.0f;
    });
    in_blocks(threads, firsts.size() - 1, [&](auto next) {
      for (uint64_t block; next(&block) && !is_stopped(stop);)
        kernels.gather(graph->begin, graph->source, graph->weight, firsts[block], firsts[block + 1], lanes, given, arriving, activation);
    });
    std::swap(given, arriving);
  }
}
