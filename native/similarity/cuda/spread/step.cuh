// One step of spreading as its kernels see it. Activation is nodes × columns: a column for each set of seeds, and those
// of a node lie together.
#pragma once
#include <cstdint>
#include "../device/workspace.h"

namespace shoal_cuda {

/** Columns that a block of the kernels takes at a time; bits and counts are kept for so many together. */
constexpr uint32_t BLOCK_COLUMNS = 16;
/** Nodes of more edges than this are cut into segments of SEGMENT_EDGES. */
constexpr uint32_t HEAVY_EDGES = 1024, SEGMENT_EDGES = 2048;

/** Which nodes give something, of one step: a bit for each, for every BLOCK_COLUMNS columns, and how many are set. */
struct Active {
  uint32_t *bits, *count;
};

struct Step {
  const uint32_t *begin, *source;
  const float *weight;
  const uint32_t *segments, *heavy;
  uint32_t nodes, columns;
  float decay, threshold;
  /** What nodes had before: the activation, or the seeds in the first step. */
  const float *given, *before;
  float *arriving, *activation, *partial;
  /** Null bits: none are kept. `spare` is that of the step after next. */
  Active active, next, spare;
  /** For every BLOCK_COLUMNS columns; and the number of giving nodes above which looking at bits saves nothing. */
  uint32_t words, most_active;
};

__device__ __forceinline__ bool gives(const Step &step, float value) { return value >= step.threshold && value != 0; }

} // namespace shoal_cuda
