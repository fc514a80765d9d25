// Copies of rows between ordinary memory of the host and a device, by several threads through pinned memory.
#pragma once
#include <functional>
#include "workspace.h"

namespace shoal_cuda {

/**
 * Copies `count` rows of `bytes` each between host memory (`host_stride` bytes apart) and device memory
 * (`device_stride` apart), ordered in `stream`. To the device it returns once the host memory may change, with copies
 * from pinned memory under way; from it, once all is there.
 */
void copy_in(Workspace &workspace, cudaStream_t stream, char *to, size_t device_stride, const char *from,
             size_t host_stride, size_t bytes, size_t count, shoal_stop stop);

/**
 * Where chunks of rows go, `chunk_rows` at a time: both are called by several threads, in no order but that no chunk is
 * left out.
 */
struct Places {
  size_t chunk_rows, device_stride;
  /** Where this chunk goes; may wait until there is room. */
  std::function<char *(size_t first, size_t rows)> place;
  /** Its copy is under way. */
  std::function<void(size_t first, size_t rows)> placed;
};
/** So many rows of these are copied at a time. */
size_t chunk_rows_of(size_t bytes, size_t count);
void copy_in(Workspace &workspace, cudaStream_t stream, const Places &places, const char *from, size_t host_stride,
             size_t bytes, size_t count, shoal_stop stop);
void copy_out(Workspace &workspace, cudaStream_t stream, char *to, size_t host_stride, const char *from,
              size_t device_stride, size_t bytes, size_t count, shoal_stop stop);

} // namespace shoal_cuda
