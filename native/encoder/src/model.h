// What both libraries say of a model and a run before anything is computed: whether they can, and what memory it takes.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdint>
#include <string>
#include "../include/encoder.h"

namespace shoal {

inline std::string &last_error() {
  static thread_local std::string message;
  return message;
}

inline int refuse(int status, const std::string &message) {
  last_error() = message;
  return status;
}

inline int check_model(const shoal_encoder_model &model) {
  const bool is_whole = model.hidden > 0 && model.layers > 0 && model.heads > 0 && model.intermediate > 0 &&
                        model.vocabulary > 0 && model.positions > 0;
  if (!is_whole || model.hidden % model.heads != 0)
    return refuse(SHOAL_ENCODER_BAD_ARGUMENT, "the model's sizes do not make a model");
  return SHOAL_ENCODER_OK;
}

/** Checks a run and counts its tokens. */
inline int check_run(const shoal_encoder_model &model, const int32_t *ids, const int32_t *lengths, int32_t rows,
                     int32_t width, uint64_t *tokens) {
  if (ids == nullptr || lengths == nullptr || rows < 1 || width < 1)
    return refuse(SHOAL_ENCODER_BAD_ARGUMENT, "a run needs rows");
  uint64_t sum = 0;
  for (int32_t row = 0; row < rows; row++) {
    const int32_t length = lengths[row];
    if (length < 1 || length > width || length > model.positions)
      return refuse(SHOAL_ENCODER_BAD_ARGUMENT, "row " + std::to_string(row) + " has " + std::to_string(length) +
                                                    " tokens; the width is " + std::to_string(width) +
                                                    ", the model takes " + std::to_string(model.positions));
    const int32_t *row_ids = ids + static_cast<size_t>(row) * width;
    uint32_t largest = 0;
    for (int32_t at = 0; at < length; at++) largest = std::max(largest, static_cast<uint32_t>(row_ids[at]));
    if (largest >= static_cast<uint32_t>(model.vocabulary))
      return refuse(SHOAL_ENCODER_BAD_ARGUMENT, "row " + std::to_string(row) + " has the token id " +
                                                    std::to_string(static_cast<int32_t>(largest)) +
                                                    "; the vocabulary has " + std::to_string(model.vocabulary));
    sum += static_cast<uint64_t>(length);
  }
  *tokens = sum;
  return SHOAL_ENCODER_OK;
}

/**
 * A row on its way out: of length 1 by its length in fp64 (sums in fp32 are off by up to 1e-6), or NaN where it is no
 * vector. `from` may be `to`.
 */
inline void write_unit(const float *from, float *to, int32_t size) {
  double squares = 0;
  for (int32_t i = 0; i < size; i++) squares += static_cast<double>(from[i]) * from[i];
  const bool is_vector = squares > 0.9 && squares < 1.1; // what is not of length 1 by now was no number on the way
  const double factor = is_vector ? 1 / std::sqrt(squares) : NAN;
  for (int32_t i = 0; i < size; i++) to[i] = static_cast<float>(from[i] * factor);
}

// ---- the memory law: what the CUDA library allocates, byte for byte ----------------------------------------------

constexpr uint64_t ALIGNMENT = 256;
/** Queries of one tile of the attention. */
constexpr uint64_t TILE_QUERIES = 32;
/** Of cuBLASLt in each stream: what NVIDIA advises for Hopper. */
constexpr uint64_t PRODUCT_WORKSPACE = 32u << 20;

inline uint64_t aligned(uint64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/** Up to the next of eight steps between powers of two, so that growing runs do not allocate anew each time. */
inline uint64_t capacity(uint64_t wanted, uint64_t least) {
  uint64_t power = least;
  while (power < wanted) power *= 2;
  const uint64_t step = std::max<uint64_t>(power / 16, 1);
  return std::max(least, (wanted + step - 1) / step * step);
}

struct Capacity {
  uint64_t tokens, rows, tiles;
  Capacity(uint64_t most_tokens, uint64_t most_rows)
      : tokens(capacity(most_tokens, 128)), rows(capacity(most_rows, 16)), tiles(tokens / TILE_QUERIES + rows) {}
};

/** What goes to the device in one copy: counts, starts of rows, tiles of attention, ids, positions. */
struct InputLayout {
  uint64_t starts, tiles, ids, places, bytes;
  explicit InputLayout(const Capacity &c)
      : starts(aligned(16)),
        tiles(starts + aligned((c.rows + 1) * 4)),
        ids(tiles + aligned(c.tiles * 16)),
        places(ids + aligned(c.tokens * 4)),
        bytes(places + aligned(c.tokens * 2)) {}
};

/**
 * One allocation of a stream. `wide` holds queries, keys, values and context of the attention, then the feed-forward
 * layer.
 */
struct StreamLayout {
  uint64_t hidden, wide, context, embeddings, input, workspace, bytes;
  StreamLayout(const shoal_encoder_model &m, const Capacity &c) {
    const uint64_t h = static_cast<uint64_t>(m.hidden);
    hidden = 0;
    wide = hidden + aligned(c.tokens * h * 2);
    context = wide + aligned(c.tokens * 3 * h * 2);
    const uint64_t attention_end = context + aligned(c.tokens * h * 2);
    embeddings = std::max(attention_end, wide + aligned(c.tokens * static_cast<uint64_t>(m.intermediate) * 2));
    input = embeddings + aligned(c.rows * h * 4);
    workspace = input + InputLayout(c).bytes;
    bytes = workspace + PRODUCT_WORKSPACE;
  }
};

/** Places of the weights in one allocation: matrices, tables and biases in fp16, norms in fp32. */
struct WeightLayout {
  uint64_t words, positions, norm, norm_bias, first_layer, layer_bytes, bytes;
  // from the start of a layer
  uint64_t qkv, qkv_bias, output, output_bias, output_norm, output_norm_bias, wide, wide_bias, narrow, narrow_bias,
      narrow_norm, narrow_norm_bias;
  explicit WeightLayout(const shoal_encoder_model &m) {
    const uint64_t h = static_cast<uint64_t>(m.hidden), i = static_cast<uint64_t>(m.intermediate);
    uint64_t at = 0;
    const auto take = [&at](uint64_t values, uint64_t size) {
      const uint64_t place = at;
      at += aligned(values * size);
      return place;
    };
    words = take(static_cast<uint64_t>(m.vocabulary) * h, 2),
    positions = take(static_cast<uint64_t>(m.positions) * h, 2), norm = take(h, 4), norm_bias = take(h, 4);
    first_layer = at;
    at = 0;
    qkv = take(3 * h * h, 2), qkv_bias = take(3 * h, 2), output = take(h * h, 2), output_bias = take(h, 2),
    output_norm = take(h, 4), output_norm_bias = take(h, 4);
    wide = take(i * h, 2), wide_bias = take(i, 2), narrow = take(h * i, 2), narrow_bias = take(h, 2),
    narrow_norm = take(h, 4), narrow_norm_bias = take(h, 4);
    layer_bytes = at;
    bytes = first_layer + static_cast<uint64_t>(m.layers) * layer_bytes;
  }
};

} // namespace shoal
