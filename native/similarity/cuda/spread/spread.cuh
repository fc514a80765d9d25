// One step of spreading as its kernels see it (spread.cu), the edges of a large graph a second time, for steps in which
// many nodes give something to one lane (sliced.cu), and all steps to one lane in a small graph (at_once.cu).
#pragma once
#include <cstdint>
#include "../device/workspace.h"

namespace shoal_cuda {

/** Which nodes give something, of one step: a bit for each, for every BLOCK_LANES lanes, and how many are set. */
struct Active {
  uint32_t *bits, *count;
};

struct Step {
  const uint32_t *begin, *source;
  const float *weight;
  const uint32_t *segments, *heavy;
  uint32_t nodes, lanes;
  float decay, threshold;
  /** What nodes had before: the activation, or the seeds in the first step. */
  const float *given, *before;
  float *arriving, *activation, *partial;
  /** Null bits: none are kept. `spare` is that of the step after next. */
  Active active, next, spare;
  /** For every BLOCK_LANES lanes; and the number of giving nodes above which looking at bits saves nothing. */
  uint32_t words, most_active;
};

__device__ __forceinline__ bool gives(const Step &step, float value) { return value >= step.threshold && value != 0; }

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
 * Lays `sliced_bytes` bytes (not 0) out on a device that `can_slice`, and fills them, of a graph that lies there as
 * well; nothing where few nodes have most of the edges.
 */
Sliced slice(char *memory, const shoal_graph &graph, const uint32_t *begin, const uint32_t *source, const float *weight,
             int device, cudaStream_t stream);
/** One step of one lane, when more than `most_active` nodes give; nothing otherwise. */
void spread_sliced(const Step &step, const Sliced &sliced, int device, cudaStream_t stream);

/**
 * Whether all nodes find room on the device at the same time. Of a node of very many edges all others would wait for
 * the end.
 */
bool can_spread_at_once(int device, uint64_t nodes, uint64_t edges, uint32_t steps);
/** From `seeds` to `totals`, both in host memory; `given` and `step.arriving` are room for values of all nodes. */
void spread_at_once(Workspace &workspace, Step step, uint64_t edges, uint32_t steps, float *given, const float *seeds,
                    float *totals, shoal_cuda_times &times, shoal_stop stop);

} // namespace shoal_cuda
