// Page-locked memory for results, one pool for all devices.
#pragma once
#include "memory.h"

namespace shoal_cuda {

/** Memory of the pool, or throws OUT_OF_MEMORY where there is none (yet): see `shoal_cuda_take_pinned`. */
void *take_pinned(uint64_t bytes);
void give_pinned(void *memory);
/** Frees what nobody has taken. */
void trim_pinned();

} // namespace shoal_cuda
