// The lanes of an encoder: each has a stream of its own and memory for one run at a time.
#pragma once
#include "state.h"

namespace shoal {

/** Adds a lane without memory. */
void open_lane(shoal_encoder &e);
/** Frees everything, of an encoder that was opened in part as well. */
void close_all(shoal_encoder &e);
/** Gives back the memory of a lane. */
void release(shoal_encoder &e, Lane &lane);
/** Gives the lane room for so much. What it had goes back first: both at once would need more than the law says. */
void ensure(shoal_encoder &e, Lane &lane, const Capacity &wanted);

} // namespace shoal
