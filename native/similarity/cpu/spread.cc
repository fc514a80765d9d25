// Spreading activation over a graph of incoming edges, several sets of seeds at a time: the columns of a node lie
// together, so that one edge moves a whole vector. Each node's sum is made by one thread, in the order of its edges, so
// that neither threads nor where one call ends and the next goes on change a bit of it.
#include <cstring>
#include "rows.h"
#include "threads.h"

namespace {

/** Values, or edges and nodes, that a thread takes at a time. */
constexpr uint64_t BLOCK = 1 << 14;

/** The first node at `work` edges and nodes from the first on, or behind. */
uint64_t node_at(const shoal_graph &graph, uint64_t work) {
  uint64_t first = 0, last = graph.nodes;
  while (first < last) {
    const uint64_t node = first + (last - first) / 2;
    if (graph.begin[node] + node < work)
      first = node + 1;
    else
      last = node;
  }
  return first;
}

} // namespace

void shoal_spread(int isa, int threads, const shoal_graph *graph, uint32_t columns, uint64_t from, uint64_t to,
                  float decay, float threshold, float *activation, float *scratch, shoal_stop stop) {
  using namespace shoal;
  const Kernels &kernels = kernels_of(isa);
  const uint64_t size = graph->nodes * columns, step_work = graph->nodes + graph->begin[graph->nodes];
  if (from == 0) std::memcpy(scratch, activation, size * sizeof(float));
  while (from < to && !is_stopped(stop)) {
    const uint64_t step = from / step_work, first = from % step_work, last = std::min(step_work, first + to - from);
    float *given = scratch + step % 2 * size, *arriving = scratch + (step + 1) % 2 * size;
    if (first == 0)
      in_blocks(threads, (size + BLOCK - 1) / BLOCK, [&](auto next) {
        for (uint64_t block; next(&block);)
          for (uint64_t i = block * BLOCK; i < std::min(size, (block + 1) * BLOCK); i++)
            given[i] = given[i] >= threshold ? given[i] * decay : 0.0f;
      });
    // Equal shares of edges and nodes, not of nodes: degrees differ by orders of magnitude.
    in_blocks(threads, (last - first + BLOCK - 1) / BLOCK, [&](auto next) {
      for (uint64_t block; next(&block) && !is_stopped(stop);) {
        const uint64_t begins = first + block * BLOCK, ends = std::min(last, begins + BLOCK);
        kernels.gather(graph->begin, graph->source, graph->weight, node_at(*graph, begins), node_at(*graph, ends),
                       columns, given, arriving, activation);
      }
    });
    from += last - first;
  }
}
