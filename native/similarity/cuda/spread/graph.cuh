// A graph on a device, as the interface hands it out.
#pragma once
#include "ways.cuh"

struct shoal_cuda_graph {
  int device;
  shoal_cuda::Memory memory;
  uint64_t nodes, edges;
  const uint32_t *begin, *source;
  const float *weight;
  /**
   * Pieces of heavy nodes: (first edge, last edge); heavy node h has segments heavy[2h + 1] to heavy[2h + 3], and is
   * node heavy[2h].
   */
  shoal_cuda::Memory heavy_memory;
  const uint32_t *segments, *heavy;
  uint32_t segment_count, heavy_count;
  shoal_cuda::Memory sliced_memory;
  shoal_cuda::Sliced sliced;

  shoal_cuda::HeavyNodes heavy_nodes() const { return {heavy_count, segment_count}; }
};
