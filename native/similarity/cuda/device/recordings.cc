// Kernels that were put on a workspace's stream before, recorded as a graph and put there again. Shapes: none. Memory:
// the driver's, for at most MOST_RECORDINGS graphs a workspace.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <algorithm>
#include "facts.h"
#include "workspace.h"

namespace shoal_cuda {

Workspace::Recording::~Recording() {
  if (graph != nullptr) cudaGraphExecDestroy(graph);
}

void Workspace::record(Recording &recording, const std::function<void()> &launches) {
  refuse_hurried("its recording");
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "a recording");
  try {
    launches();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "a recording");
  const cudaError_t made = cudaGraphInstantiate(&recording.graph, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "a recording");
}

void Workspace::replay(const std::string &key, const std::function<void()> &launches) {
  constexpr size_t MOST_RECORDINGS = 16;
  if (!facts_of(device).can_record) return launches();
  const auto found =
      std::find_if(recordings_.begin(), recordings_.end(), [&](const auto &one) { return one->key == key; });
  if (found == recordings_.end()) {
    if (recordings_.size() == MOST_RECORDINGS)
      recordings_.erase(std::min_element(recordings_.begin(), recordings_.end(),
                                         [](const auto &a, const auto &b) { return a->last_used < b->last_used; }));
    recordings_.emplace_back(new Recording);
    recordings_.back()->key = key, recordings_.back()->last_used = ++replays_;
    return launches();
  }
  Recording &recording = **found;
  recording.last_used = ++replays_;
  if (recording.graph == nullptr) record(recording, launches);
  check(cudaGraphLaunch(recording.graph, stream), "recorded kernels");
}

} // namespace shoal_cuda
