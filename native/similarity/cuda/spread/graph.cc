// Brings a graph to a device and lays it out for the ways to spread. Shapes: nodes and incoming edges (CSR); what heavy
// nodes and slices are stands in graph.cuh and ways.cuh. Memory: 4 (nodes + 1) + 8 edges bytes, 8 for each heavy node
// and each of its segments, and `sliced_bytes`.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "graph.cuh"
#include <algorithm>
#include <memory>
#include <vector>
#include "../device/copies.h"
#include "../device/facts.h"

namespace shoal_cuda {

namespace {

/** Deals out begin, source and weight of a graph. */
shoal_graph lay_out(Shares &shares, uint64_t nodes, uint64_t edges) {
  shoal_graph graph{};
  graph.nodes = nodes;
  graph.begin = shares.take<uint32_t>(nodes + 1);
  graph.source = shares.take<uint32_t>(edges);
  graph.weight = shares.take<float>(edges);
  return graph;
}

/** Copies arrays of 4-byte elements to the device. */
class Upload {
 public:
  Upload(Workspace &workspace, shoal_stop stop) : workspace_(workspace), stop_(stop) {}
  void copy(const void *to, const void *from, uint64_t elements) {
    copy_in(workspace_, workspace_.stream, {const_cast<void *>(to), 4}, {from, 4}, {4, elements}, stop_);
  }

 private:
  Workspace &workspace_;
  shoal_stop stop_;
};

/** Lists of graph.cuh: segments, and heavy nodes with one entry more. */
struct HeavyLists {
  std::vector<uint32_t> segments, heavy;
};

HeavyLists heavy_lists(const shoal_graph &graph) {
  HeavyLists lists;
  for (uint64_t node = 0; node < graph.nodes; node++) {
    const uint64_t first = graph.begin[node], last = graph.begin[node + 1];
    if (last - first <= HEAVY_EDGES) continue;
    lists.heavy.push_back(static_cast<uint32_t>(node));
    lists.heavy.push_back(static_cast<uint32_t>(lists.segments.size() / 2));
    for (uint64_t edge = first; edge < last; edge += SEGMENT_EDGES) {
      lists.segments.push_back(static_cast<uint32_t>(edge));
      lists.segments.push_back(static_cast<uint32_t>(std::min<uint64_t>(edge + SEGMENT_EDGES, last)));
    }
  }
  lists.heavy.push_back(0);
  lists.heavy.push_back(static_cast<uint32_t>(lists.segments.size() / 2));
  return lists;
}

void add_heavy(shoal_cuda_graph &made, const HeavyLists &lists, Upload &upload) {
  made.heavy_count = static_cast<uint32_t>(lists.heavy.size() / 2 - 1);
  made.segment_count = static_cast<uint32_t>(lists.segments.size() / 2);
  if (made.heavy_count == 0) return;
  made.heavy_memory = Memory(made.device, (lists.segments.size() + lists.heavy.size()) * 4 + 512);
  Shares shares(made.heavy_memory.at());
  made.segments = shares.take<uint32_t>(lists.segments.size());
  made.heavy = shares.take<uint32_t>(lists.heavy.size());
  upload.copy(made.segments, lists.segments.data(), lists.segments.size());
  upload.copy(made.heavy, lists.heavy.data(), lists.heavy.size());
}

/** A second copy of the edges, where sliced.cu can use one. */
void add_slices(shoal_cuda_graph &made, const shoal_graph &graph, const shoal_graph &there, cudaStream_t stream) {
  if (made.heavy_count != 0 || !can_slice(made.device) || !can_keep_bits(made.device, made.nodes, made.edges)) return;
  const uint64_t bytes = sliced_bytes(made.nodes, made.edges);
  if (bytes == 0) return;
  made.sliced_memory = Memory(made.device, bytes);
  made.sliced = slice(made.sliced_memory.at(), graph, there, made.device, stream);
  if (made.sliced.edges == nullptr) made.sliced_memory = Memory();
}

} // namespace
} // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" {

uint64_t shoal_cuda_graph_bytes(uint64_t nodes, uint64_t edges) {
  Shares shares;
  lay_out(shares, nodes, edges);
  // Heavy nodes: 8 bytes for each and for each of their segments.
  shares.take<uint32_t>(2 * (edges / HEAVY_EDGES + 2) + 2 * (edges / SEGMENT_EDGES + edges / HEAVY_EDGES + 1));
  return shares.used() + sliced_bytes(nodes, edges);
}

int shoal_cuda_upload_graph(int device, const shoal_graph *graph, shoal_cuda_graph **uploaded, shoal_stop stop) {
  *uploaded = nullptr;
  return answer([&] {
    if (graph->nodes >= 1u << 31)
      fail(SHOAL_CUDA_INVALID, "%llu nodes: a device takes fewer than 2^31",
           static_cast<unsigned long long>(graph->nodes));
    Lease workspace(device);
    const uint64_t edges = graph->begin[graph->nodes];
    Shares count;
    lay_out(count, graph->nodes, edges);
    auto made = std::make_unique<shoal_cuda_graph>();
    made->device = device, made->nodes = graph->nodes, made->edges = edges;
    made->memory = Memory(device, count.used());
    Shares shares(made->memory.at());
    const shoal_graph there = lay_out(shares, graph->nodes, edges);
    made->begin = there.begin, made->source = there.source, made->weight = there.weight;
    Upload upload(*workspace, stop);
    upload.copy(there.begin, graph->begin, graph->nodes + 1);
    upload.copy(there.source, graph->source, edges);
    upload.copy(there.weight, graph->weight, edges);
    add_heavy(*made, heavy_lists(*graph), upload);
    add_slices(*made, *graph, there, workspace->stream);
    check(cudaStreamSynchronize(workspace->stream), "an upload");
    *uploaded = made.release();
  });
}

void shoal_cuda_free_graph(shoal_cuda_graph *graph) {
  if (graph != nullptr) finish_behind(graph->device);
  delete graph;
}

} // extern "C"
