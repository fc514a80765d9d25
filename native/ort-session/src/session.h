// Sessions of ONNX Runtime through its C API. Knows nothing of Node and starts no thread: whoever calls sees to it that
// a graph is used by one thread at a time (the CUDA provider keeps handles and workspace for each thread that ran it).
// Every failure is an Error with the runtime's own words; running out of memory is told by those words alone.
#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace shoal::ort {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/**
 * Opens the library once for the process and gives its version. Throws when it cannot be opened or its API is older
 * than 23.
 */
std::string load(const std::string &library);

struct GraphOptions {
  std::string path;
  bool is_cuda = false;
  /** Of one run on the CPU. */
  int threads = 1;
  /** Prefix of the file with the runtime's trace; empty: none. */
  std::string trace;
  /** Of the CUDA provider, by its own names. */
  std::vector<std::pair<std::string, std::string>> provider_options;
  /** CUDA alone: work is launched on a stream of the graph's own, which replay() needs. */
  bool owns_stream = false;
  /**
   * CPU alone: most that the arena may hold (0: no limit). A graph with a limit takes its arena from the process: there
   * is one, with the limit that was named last.
   */
  uint64_t cpu_arena_bytes = 0;
};

/** What the arena of the device holds, bytes. */
struct ArenaStatistics {
  double in_use = 0, most_in_use = 0, held = 0, limit = 0;
};

struct Batch {
  int32_t *ids, *lengths;
  float *embeddings;
  int64_t rows, width, dims;
};

class Graph {
 public:
  explicit Graph(const GraphOptions &options);
  ~Graph();
  Graph(const Graph &) = delete;

  /** Reads ids [rows, width] and lengths [rows], writes embeddings [rows, dims]. */
  void run(const Batch &batch);
  /**
   * The same for few shapes that come again and again: the provider records what it launches for a shape the second
   * time, and replays it afterwards. For a graph that was opened with enable_cuda_graph and a stream of its own; each
   * shape keeps buffers on the device.
   */
  void replay(const Batch &batch);
  /**
   * Rows that are all of this one id and of this length; what comes out is thrown away. `shrinks`: afterwards the arena
   * gives back what no tensor lies in. (The allocator has a function for it; in 1.30 it is empty.)
   */
  void run_plain(int64_t rows, int64_t width, int32_t id, bool shrinks);
  /** From any thread: the run that is going on ends with an Error before its next node. */
  void cancel();
  ArenaStatistics statistics() const;
  /** Ends the trace; the path of its file. */
  std::string end_trace();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace shoal::ort
