// The four ways to spread, each in a file of its own: gather.cu, sparse.cu, sliced.cu, at_once.cu. Which serves when is
// decided by `choose_spread` in spread.cc.
#pragma once
#include "step.cuh"

namespace shoal_cuda {

// ---- gather.cu: every edge of every node

struct HeavyNodes {
  uint32_t count, segments;
};
/** Launches one step. Where bits are kept it does nothing when at most `most_active` nodes give. */
void spread_gathered(const Step &step, const HeavyNodes &heavy, int device, cudaStream_t stream);

// ---- sparse.cu: only edges whose source gives

/** Words of 32 bits for a bit of each node; whole words of 16 bytes, as they are copied into shared memory. */
uint32_t bit_words_for(uint64_t nodes);
/** Whether bits are worth it for such a graph, and fit. */
bool can_keep_bits(int device, uint64_t nodes, uint64_t edges);
/** Marks in `step.active` which nodes the seeds make give; its counts are the first of three steps'. */
void mark_seeds(const Step &step, int device, cudaStream_t stream);
/** Launches one step, which does nothing when more than `most_active` nodes give. */
void spread_sparse(const Step &step, int device, cudaStream_t stream);

// ---- sliced.cu: every edge, one column, out of a second copy of the edges

/** Edges by strip of the nodes that receive, in each strip by slice of the nodes that give. */
struct Sliced {
  /** Number in its slice | 4 × number in its strip << 16; and the weight. Groups of 32. Null: there are none. */
  uint2 *edges;
  /** First group of each slice of each strip, and one more. */
  uint32_t *begin;
  /** Nodes of a slice and of a strip, multiples of 32; blocks of the kernel. */
  uint32_t slices, width, strips, rows, blocks;
};

/** Bytes that such edges take beside the graph; 0: the graph is better off without. */
uint64_t sliced_bytes(uint64_t nodes, uint64_t edges);
/**
 * Whether the device and the code for it have what it takes: the copy engine, shared memory and number of
 * multiprocessors of sm_90.
 */
bool can_slice(int device);
/**
 * Lays `sliced_bytes` bytes (not 0) out on a device that `can_slice`, and fills them, of a graph that is `there` on the
 * device as well; nothing where few nodes have most of the edges.
 */
Sliced slice(char *memory, const shoal_graph &graph, const shoal_graph &there, int device, cudaStream_t stream);
/** Launches one step of one column for when more than `most_active` nodes give; nothing otherwise. */
void spread_sliced(const Step &step, const Sliced &sliced, int device, cudaStream_t stream);

// ---- at_once.cu: all steps of one column in one launch

/**
 * Whether all nodes find room on the device at the same time. Of a node of very many edges all others would wait for
 * the end.
 */
bool can_spread_at_once(int device, uint64_t nodes, uint64_t edges, uint32_t steps);
struct AllSteps {
  uint64_t edges;
  uint32_t steps;
  /** Room on the device for values of all nodes, as `Step::arriving` is. */
  float *given;
  /** Both in host memory. */
  const float *seeds;
  float *totals;
  shoal_stop stop;
};
/** Spreads from seeds to totals, and returns where the time went. */
shoal_cuda_times spread_at_once(Workspace &workspace, Step step, const AllSteps &all);

} // namespace shoal_cuda
