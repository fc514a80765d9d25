// Spreading activation: a sparse matrix (CSR by incoming edges) times columns of activation that lie together, step by
// step. Here is which of the four ways serves when (`choose_spread`), and the call around them. Shapes: seeds and
// totals are nodes × columns. Memory: the graph (graph.cc); a call takes 3 × 4 × nodes × columns bytes, or fewer
// columns at a time, and two sets of bits.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <algorithm>
#include "../device/copies.h"
#include "../device/facts.h"
#include "graph.cuh"

namespace shoal_cuda {

namespace {

// clang-format off
/**
 * Which way serves when: the first row whose conditions all hold. Times of an H200, 2026-11-22 to 25.
 *
 * | way              | serves                                     | because                                          |
 * |------------------|--------------------------------------------|--------------------------------------------------|
 * | AT_ONCE          | one column, no bits kept, no heavy node,   | one launch for all steps: 10,000 nodes, 200,000  |
 * |   at_once.cu     | 1 to 64 steps, up to 32,768 nodes that all | edges in 25 µs a call, by gather.cu in 41        |
 * |                  | have room on the device at the same time   |                                                  |
 * | SPARSE_OR_SLICED | one column, bits kept, edges there a       | both are launched for each step; where up to an  |
 * |   sparse.cu      | second time: Hopper's copy engine, 4 M     | eighth of the nodes give sparse.cu works, else   |
 * |   sliced.cu      | edges, evenly spread, no heavy node        | sliced.cu: 20 M edges in 75 µs, gathered in 189  |
 * | SPARSE_OR_GATHER | bits kept; any columns and nodes           | the same, and where more give every edge is read |
 * |   sparse.cu      |                                            | by gather.cu                                     |
 * |   gather.cu      |                                            |                                                  |
 * | GATHER           | everything else                            | a small graph is read before a second kernel has |
 * |   gather.cu      |                                            | begun                                            |
 *
 * Bits are kept of graphs of 2^18 edges and more, whose nodes have a bit each in a multiprocessor's shared memory.
 */
// clang-format on
enum class Way { AT_ONCE, SPARSE_OR_SLICED, SPARSE_OR_GATHER, GATHER };

Way choose_spread(const shoal_cuda_graph &graph, uint32_t columns, uint32_t steps) {
  const bool keeps_bits = can_keep_bits(graph.device, graph.nodes, graph.edges);
  if (columns == 1 && !keeps_bits && graph.heavy_count == 0 &&
      can_spread_at_once(graph.device, graph.nodes, graph.edges, steps))
    return Way::AT_ONCE;
  if (!keeps_bits) return Way::GATHER;
  return columns == 1 && graph.sliced.edges != nullptr ? Way::SPARSE_OR_SLICED : Way::SPARSE_OR_GATHER;
}

/** What is asked for. */
struct Asked {
  uint32_t columns, steps;
  float decay, threshold;
  /** nodes × columns, in host memory. */
  const float *seeds;
  float *totals;
};

/** `wide` columns of each node. */
void copy_columns(float *to, uint64_t to_apart, const float *from, uint64_t from_apart, uint32_t wide, uint64_t nodes) {
  if (to_apart == wide && from_apart == wide)
    std::copy_n(from, nodes * wide, to);
  else
    for (uint64_t node = 0; node < nodes; node++) std::copy_n(from + node * from_apart, wide, to + node * to_apart);
}

class Spreading {
 public:
  Spreading(Workspace &workspace, const shoal_cuda_graph &graph, const Asked &asked, const shoal_cuda_terms &terms)
      : workspace_(workspace),
        graph_(graph),
        asked_(asked),
        terms_(terms),
        way_(choose_spread(graph, asked.columns, asked.steps)),
        words_(bit_words_for(graph.nodes)),
        keeps_bits_(can_keep_bits(graph.device, graph.nodes, graph.edges)) {
    wide_ = asked.columns;
    while (wide_ > 1 && terms.work_bytes != 0 && bytes_for(wide_) > terms.work_bytes)
      wide_ = wide_ > 8 ? wide_ / 2 / 4 * 4 : wide_ > 4 ? 4 : wide_ / 2;
    const uint64_t nodes = graph.nodes, wide = wide_;
    Shares scratch(workspace.work(bytes_for(wide), terms.work_bytes));
    total_ = scratch.take<float>(nodes * wide);
    for (float *&buffer : buffers_) buffer = scratch.take<float>(nodes * wide);
    partial_ = scratch.take<float>(graph.segment_count * wide);
    for (uint32_t *&bits : bits_) bits = scratch.take<uint32_t>(bit_words(wide));
    counts_ = scratch.take<uint32_t>(count_words(wide));
  }

  shoal_cuda_times run() {
    if (way_ == Way::AT_ONCE)
      return spread_at_once(workspace_, first_step(1),
                            {graph_.edges, asked_.steps, buffers_[0], asked_.seeds, asked_.totals, terms_.stop});
    for (uint32_t first = 0; first < asked_.columns; first += wide_)
      spread_columns(first, std::min(wide_, asked_.columns - first));
    return times_;
  }

 private:
  uint64_t bit_words(uint64_t wide) const {
    return keeps_bits_ ? divided_up<uint64_t>(wide, BLOCK_COLUMNS) * words_ : 0;
  }
  uint64_t count_words(uint64_t wide) const { return 3 * divided_up<uint64_t>(wide, BLOCK_COLUMNS); }
  uint64_t bytes_for(uint64_t wide) const {
    return (3 * graph_.nodes + graph_.segment_count) * wide * 4 + (2 * bit_words(wide) + count_words(wide)) * 4 + 4096;
  }

  /** The first step of so many columns; which nodes give is not known yet. */
  Step first_step(uint32_t columns) const {
    Step step{};
    step.begin = graph_.begin, step.source = graph_.source, step.weight = graph_.weight;
    step.segments = graph_.segments, step.heavy = graph_.heavy;
    step.nodes = static_cast<uint32_t>(graph_.nodes), step.columns = columns;
    step.decay = asked_.decay, step.threshold = asked_.threshold;
    step.given = buffers_[0], step.before = buffers_[0]; // the seeds
    step.arriving = buffers_[1], step.activation = total_, step.partial = partial_;
    step.words = words_;
    step.most_active = static_cast<uint32_t>(graph_.nodes / 8);
    return step;
  }

  /** Which nodes give in step i; null bits where none are kept. */
  Active active(uint32_t i, uint32_t columns) const {
    const uint32_t blocks = divided_up(columns, BLOCK_COLUMNS);
    return keeps_bits_ ? Active{bits_[i % 2], counts_ + i % 3 * blocks} : Active{};
  }

  /** From seeds to totals of some columns. Little is copied through the workspace's own pinned memory. */
  void spread_columns(uint32_t first, uint32_t columns) {
    const uint64_t bytes = graph_.nodes * columns * 4;
    const bool is_small = bytes <= FEW_BYTES; // then the steps are under way before the seeds have arrived
    workspace_.mark(workspace_.begun, workspace_.stream);
    if (!is_small) workspace_.refuse_hurried("copies of all values");
    float *const pinned = is_small ? reinterpret_cast<float *>(workspace_.host(bytes)) : nullptr;
    bring_seeds(first, columns, pinned);
    workspace_.mark(workspace_.loaded, workspace_.stream);
    take_steps(columns);
    bring_totals(first, columns, pinned);
    times_.device_us += workspace_.between(workspace_.begun, workspace_.ended);
    times_.copy_us += workspace_.between(workspace_.begun, workspace_.loaded) +
                      workspace_.between(workspace_.computed, workspace_.ended);
    times_.kernel_us += workspace_.between(workspace_.loaded, workspace_.computed);
    times_.copied_bytes += 2 * bytes;
  }

  void bring_seeds(uint32_t first, uint32_t columns, float *pinned) {
    const uint64_t nodes = graph_.nodes;
    float *const to = asked_.steps == 0 ? total_ : buffers_[0];
    if (pinned != nullptr) {
      copy_columns(pinned, columns, asked_.seeds + first, asked_.columns, columns, nodes);
      check(cudaMemcpyAsync(to, pinned, nodes * columns * 4, cudaMemcpyHostToDevice, workspace_.stream), "seeds");
    } else {
      copy_in(workspace_, workspace_.stream, {to, columns * 4ull}, {asked_.seeds + first, asked_.columns * 4ull},
              {columns * 4ull, nodes}, terms_.stop);
    }
  }

  void take_steps(uint32_t columns) {
    Step step = first_step(columns);
    if (keeps_bits_ && asked_.steps > 0) {
      step.active = active(0, columns);
      mark_seeds(step, graph_.device, workspace_.stream);
    }
    for (uint32_t i = 0; i < asked_.steps; i++) {
      // Eight steps under way while eight are waited for: the caller may stop between.
      if (i % 8 == 0 && i >= 16) workspace_.wait(workspace_.launched[i / 8 % 2], terms_.stop);
      step.active = active(i, columns), step.next = active(i + 1, columns), step.spare = active(i + 2, columns);
      spread_once(step);
      if (i % 8 == 7) check(cudaEventRecord(workspace_.launched[i / 8 % 2].handle, workspace_.stream), "an event");
      step.given = buffers_[(i + 1) % 2], step.before = total_, step.arriving = buffers_[i % 2];
    }
  }

  void spread_once(const Step &step) {
    if (keeps_bits_) spread_sparse(step, graph_.device, workspace_.stream);
    if (way_ == Way::SPARSE_OR_SLICED)
      spread_sliced(step, graph_.sliced, graph_.device, workspace_.stream);
    else
      spread_gathered(step, graph_.heavy_nodes(), graph_.device, workspace_.stream);
  }

  void bring_totals(uint32_t first, uint32_t columns, float *pinned) {
    const uint64_t nodes = graph_.nodes;
    if (pinned != nullptr) {
      workspace_.mark(workspace_.computed, workspace_.stream);
      check(cudaMemcpyAsync(pinned, total_, nodes * columns * 4, cudaMemcpyDeviceToHost, workspace_.stream),
            "activation");
    } else {
      check(cudaEventRecord(workspace_.computed.handle, workspace_.stream), "an event");
      workspace_.wait(workspace_.computed, terms_.stop);
      copy_out(workspace_, workspace_.stream, {asked_.totals + first, asked_.columns * 4ull}, {total_, columns * 4ull},
               {columns * 4ull, nodes}, terms_.stop);
    }
    check(cudaEventRecord(workspace_.ended.handle, workspace_.stream), "an event");
    workspace_.wait(workspace_.ended, terms_.stop);
    if (pinned != nullptr) copy_columns(asked_.totals + first, asked_.columns, pinned, columns, columns, nodes);
  }

  Workspace &workspace_;
  const shoal_cuda_graph &graph_;
  const Asked asked_;
  const shoal_cuda_terms &terms_;
  const Way way_;
  const uint32_t words_;
  const bool keeps_bits_;
  /** Columns that are taken at a time. */
  uint32_t wide_;
  float *total_, *buffers_[2], *partial_;
  uint32_t *bits_[2], *counts_;
  shoal_cuda_times times_{};
};

} // namespace
} // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" int shoal_cuda_spread(const shoal_cuda_graph *graph, uint32_t columns, uint32_t steps, float decay,
                                 float threshold, const float *seeds, float *totals, const shoal_cuda_terms *terms) {
  return answer([&] {
    const shoal_cuda_terms none{}, &limits = terms == nullptr ? none : *terms;
    if (graph->nodes == 0 || columns == 0) return;
    Lease workspace(graph->device, &limits);
    Spreading spreading(*workspace, *graph, {columns, steps, decay, threshold, seeds, totals}, limits);
    const shoal_cuda_times times = spreading.run();
    if (limits.times != nullptr) *limits.times = times;
  });
}
