// The streams of an encoder, which run side by side: each has memory for one run at a time.
#pragma once
#include "state.h"

namespace shoal {

/** Adds a stream without memory. */
void open_stream(shoal_encoder &e);
/** Frees everything, of an encoder that was opened in part as well. */
void close_all(shoal_encoder &e);
/** Gives back the memory of a stream. */
void release(shoal_encoder &e, Stream &stream);
/** Gives the stream room for so much. What it had goes back first: both at once would need more than the law says. */
void ensure(shoal_encoder &e, Stream &stream, const Capacity &wanted);

} // namespace shoal
