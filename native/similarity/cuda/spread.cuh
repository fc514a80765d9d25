// One step of spreading as its kernels see it (spread.cu), and the edges of a large graph a second time, for steps in which many
// nodes give something to one lane (sliced.cu).
#pragma once
#include <cstdint>
#include "device.h"

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

/** Edges by slice of the nodes that give, in each slice by strip of the nodes that receive. */
struct Sliced {
  /** Number in its slice | number in its strip << 16 | how many of the edges before it in its 32 have the same receiver << 24; and the weight. Null: there are none. */
  uint2 *edges;
  /** First edge of each strip of each slice, and one more. */
  uint32_t *begin;
  /** First strip of each block of the kernel, and one more: about as much work each. */
  uint32_t *shares;
  uint32_t slices, width, strips, blocks;
};

/** Bytes that such edges take beside the graph; 0: the graph is better off without. */
uint64_t sliced_bytes(uint64_t nodes, uint64_t edges);
/** Floats that a call needs for what arrives from each slice. */
uint64_t sliced_floats(const Sliced &sliced);
/** Lays `sliced_bytes` bytes out and fills them, of a graph that lies on the device and has no node of more than 65,535 edges; nothing where the device has too little shared memory. */
Sliced slice(char *memory, const uint32_t *begin, const uint32_t *source, const float *weight, uint64_t nodes, uint64_t edges, int device, cudaStream_t stream);
/** One step of one lane, when more than `most_active` nodes give; nothing otherwise. `partial`: sliced_floats floats. */
void spread_sliced(const Step &step, const Sliced &sliced, float *partial, int device, cudaStream_t stream);

}  // namespace shoal_cuda
