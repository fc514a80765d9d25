// Copies of rows between ordinary memory of the host and a device, by several threads through pinned memory.
#pragma once
#include <functional>
#include "workspace.h"

namespace shoal_cuda {

/** Rows, the first of which lies at `at`; they are `apart` bytes apart. */
struct From {
  const void *at;
  size_t apart;
};
struct To {
  void *at;
  size_t apart;
};
/** How much is copied: `count` rows of `bytes` each. */
struct Extent {
  size_t bytes, count;
};

/** Copies rows to the device, ordered in `stream`. Returns once the host memory may change: copies from pinned memory
 * are under way then. */
void copy_in(Workspace &workspace, cudaStream_t stream, const To &to, const From &from, const Extent &extent,
             shoal_stop stop);
/** Copies rows from the device, ordered in `stream`. Returns once all is there. */
void copy_out(Workspace &workspace, cudaStream_t stream, const To &to, const From &from, const Extent &extent,
              shoal_stop stop);

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
/** `copy_in` of rows that do not all go to one place. */
void copy_in_chunks(Workspace &workspace, cudaStream_t stream, const Places &places, const From &from,
                    const Extent &extent, shoal_stop stop);

} // namespace shoal_cuda
