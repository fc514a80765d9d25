// The matrix products of an encoder, by cuBLASLt.
#pragma once
#include "state.h"

namespace shoal {

/** Where a run computes: a stream of an encoder, and how its memory is laid out. */
struct Place {
  shoal_encoder &encoder;
  Stream &stream;
  StreamLayout layout;
};

/**
 * What products are given: a little more than there is, so that their sizes stay round. Rows in between hold anything
 * and are read by nobody.
 */
uint64_t product_tokens(uint64_t tokens);

/** Describes the products of all layers; the weights are in place. */
void describe_products(shoal_encoder &e);
/** Tells the stream's matrices how many tokens the next products have. */
void set_columns(const Stream &stream, uint64_t tokens);
/** Launches one product of one layer on the place's stream. */
void run_product(const Place &place, int layer, Product product, uint64_t tokens);
/** Times what cuBLASLt proposes for runs of up to so many tokens, and keeps the fastest of each size. */
void prepare(shoal_encoder &e, uint64_t most_tokens);

/** Writes `count` values in fp16 like activations: zeros would make products faster than they are. */
void fill_with_noise(void *to, size_t count, unsigned blocks, cudaStream_t stream);

} // namespace shoal
