// A run: packs its tokens on the host into one copy, launches everything without waiting, and waits once, for the
// vectors. Small runs are recorded as a graph each and replayed. Shapes: ids are rows × width, vectors rows × hidden;
// on the device tokens are packed, without padding (tokens.cuh, InputLayout in model.h). Memory: the lane's allocation,
// and pinned host memory for what goes in and comes out; both grow with the largest run and stay.
// Build and test: sh native/encoder/build.sh cuda; sh native/encoder/build.sh test
#include <cmath>
#include <cstring>
#include "attention.cuh"
#include "gelu.cuh"
#include "lanes.h"
#include "norms.cuh"
#include "pooling.cuh"
#include "products.h"
#include "run.h"

namespace shoal {
namespace {

/** Runs of so few tokens are recorded: launching 44 kernels one by one takes longer than they do. */
constexpr uint64_t MOST_RECORDED_TOKENS = 512;
constexpr size_t MOST_RECORDS = 64;
/** From here on a host thread that waits sleeps; below, it spins, because waking up costs as much as the run. */
constexpr uint64_t SLEEPS_FROM_TOKENS = 4096;

/** How a run is launched: sizes of products and grids. What really is there, kernels read from Counts. */
struct Extent {
  uint64_t tokens, product_tokens, rows, tiles;
};

/**
 * Ids, places, starts and tiles of a run as they go to the device. Tiles of long rows first, so that none is left over
 * at the end.
 */
Counts pack(const shoal_encoder_model &model, const int32_t *ids, const int32_t *lengths, int32_t rows, int32_t width,
            const InputLayout &to, char *input) {
  int32_t *starts = reinterpret_cast<int32_t *>(input + to.starts),
          *packed = reinterpret_cast<int32_t *>(input + to.ids);
  uint16_t *places = reinterpret_cast<uint16_t *>(input + to.places);
  Tile *tiles = reinterpret_cast<Tile *>(input + to.tiles);
  std::vector<int32_t> first_of_length(static_cast<size_t>(std::min(width, model.positions)) + 2, 0);
  constexpr int32_t STEP = static_cast<int32_t>(TILE_QUERIES);
  const auto tiles_of = [](int32_t length) { return (length + STEP - 1) / STEP; };
  int32_t token = 0;
  for (int32_t row = 0; row < rows; row++) {
    const int32_t length = lengths[row];
    starts[row] = token;
    std::memcpy(packed + token, ids + static_cast<size_t>(row) * width, static_cast<size_t>(length) * 4);
    for (int32_t at = 0; at < length; at++) places[token + at] = static_cast<uint16_t>(at);
    token += length;
    first_of_length[static_cast<size_t>(length)] += tiles_of(length);
  }
  starts[rows] = token;
  int32_t next = 0;
  for (size_t length = first_of_length.size(); length-- > 0;) {
    const int32_t count = first_of_length[length];
    first_of_length[length] = next;
    next += count;
  }
  for (int32_t row = 0; row < rows; row++) {
    const int32_t length = lengths[row];
    int32_t &at = first_of_length[static_cast<size_t>(length)];
    for (int32_t query = 0; query < length; query += STEP) tiles[at++] = {starts[row], length, query, 0};
  }
  const Counts counts{token, rows, next, 0};
  std::memcpy(input, &counts, sizeof counts);
  return counts;
}

unsigned blocks(uint64_t count, uint64_t per_block) {
  return static_cast<unsigned>(std::max<uint64_t>((count + per_block - 1) / per_block, 1));
}

/** Embeddings where `ids` is given, else the norm in place. */
void launch_norm(const shoal_encoder &e, const Lane &lane, const Extent &extent, const int32_t *ids,
                 const uint16_t *places, uint64_t weight, uint64_t bias, __half *hidden, const Counts *counts) {
  const float *w = reinterpret_cast<const float *>(e.weights + weight),
              *b = reinterpret_cast<const float *>(e.weights + bias);
  const __half *words = reinterpret_cast<const __half *>(e.weights + e.layout.words),
               *positions = reinterpret_cast<const __half *>(e.weights + e.layout.positions);
  const float epsilon = e.model.norm_epsilon;
  const unsigned grid = std::min(blocks(extent.tokens, 8), static_cast<unsigned>(e.processors) * 8);
  const auto start = [&](auto quads) {
    constexpr int QUADS = decltype(quads)::value;
    if (ids == nullptr)
      norm_kernel<QUADS><<<grid, 256, 0, lane.stream>>>(hidden, w, b, epsilon, counts);
    else
      embed_kernel<QUADS><<<grid, 256, 0, lane.stream>>>(words, positions, ids, places, w, b, epsilon, hidden, counts);
  };
  switch (e.model.hidden % 128 == 0 ? e.model.hidden / 128 : 0) {
    case 2:
      start(std::integral_constant<int, 2>());
      break;
    case 3:
      start(std::integral_constant<int, 3>());
      break;
    case 4:
      start(std::integral_constant<int, 4>());
      break;
    case 6:
      start(std::integral_constant<int, 6>());
      break;
    case 8:
      start(std::integral_constant<int, 8>());
      break;
    default:
      any_norm_kernel<<<blocks(extent.tokens, 8), 256, 0, lane.stream>>>(words, positions, ids, places, w, b, epsilon,
                                                                         hidden, e.model.hidden, counts);
  }
  check(cudaGetLastError(), "norm");
}

void launch_attention(const shoal_encoder &e, const Lane &lane, const Extent &extent, const __half *qkv,
                      __half *context, const Tile *tiles, const Counts *counts) {
  const int size = e.model.hidden / e.model.heads;
  const float scale = 1.44269504f / std::sqrt(static_cast<float>(size));
  const unsigned grid = blocks(extent.tiles, ATTENTION_WARPS) * static_cast<unsigned>(e.model.heads);
  const auto kernel = size == 32 ? attention_kernel<32, 2, 4> : attention_kernel<64, 1, 2>;
  kernel<<<grid, ATTENTION_WARPS * WARP, 0, lane.stream>>>(qkv, context, tiles, e.model.heads, scale, counts);
  check(cudaGetLastError(), "attention");
}

/** Everything from ids to vectors, on the lane's stream. */
void launch(shoal_encoder &e, Lane &lane, const LaneLayout &place, const InputLayout &input, const Extent &extent,
            Steps *steps = nullptr) {
  const auto mark = [&](const char *name) {
    if (steps != nullptr) steps->mark(name, lane.stream);
  };
  const char *in = lane.memory + place.input;
  const Counts *counts = reinterpret_cast<const Counts *>(in);
  __half *hidden = reinterpret_cast<__half *>(lane.memory + place.hidden),
         *wide = reinterpret_cast<__half *>(lane.memory + place.wide),
         *context = reinterpret_cast<__half *>(lane.memory + place.context);
  const uint64_t tokens = extent.product_tokens;
  set_columns(lane, tokens);
  mark("begin");
  launch_norm(e, lane, extent, reinterpret_cast<const int32_t *>(in + input.ids),
              reinterpret_cast<const uint16_t *>(in + input.places), e.layout.norm, e.layout.norm_bias, hidden, counts);
  mark("embeddings");
  for (int layer = 0; layer < e.model.layers; layer++) {
    const uint64_t at = e.layout.first_layer + static_cast<uint64_t>(layer) * e.layout.layer_bytes;
    run_product(e, lane, place, layer, QKV, tokens);
    mark("query, key, value");
    launch_attention(e, lane, extent, wide, context, reinterpret_cast<const Tile *>(in + input.tiles), counts);
    mark("attention");
    run_product(e, lane, place, layer, OUTPUT, tokens);
    mark("output");
    launch_norm(e, lane, extent, nullptr, nullptr, at + e.layout.output_norm, at + e.layout.output_norm_bias, hidden,
                counts);
    mark("norm");
    run_product(e, lane, place, layer, WIDE, tokens);
    mark("wide");
    if (e.model.exact_gelu) {
      exact_gelu_kernel<<<static_cast<unsigned>(e.processors) * 8, 256, 0, lane.stream>>>(
          wide, static_cast<size_t>(e.model.intermediate), counts);
      check(cudaGetLastError(), "exact_gelu_kernel");
      mark("gelu");
    }
    run_product(e, lane, place, layer, NARROW, tokens);
    mark("narrow");
    launch_norm(e, lane, extent, nullptr, nullptr, at + e.layout.narrow_norm, at + e.layout.narrow_norm_bias, hidden,
                counts);
    mark("norm");
  }
  const int groups = std::max(1, POOL_THREADS / (e.model.hidden / 8));
  pool_kernel<<<static_cast<unsigned>(extent.rows), POOL_THREADS, static_cast<size_t>(groups) * e.model.hidden * 4,
                lane.stream>>>(hidden, reinterpret_cast<const int32_t *>(in + input.starts), e.model.hidden,
                               e.model.pooling == SHOAL_ENCODER_CLS, e.model.normalize,
                               reinterpret_cast<float *>(lane.memory + place.embeddings), counts);
  check(cudaGetLastError(), "pool_kernel");
  mark("pooling");
}

/** The copy in, the run and the copy out. */
void launch_all(shoal_encoder &e, Lane &lane, const LaneLayout &place, const InputLayout &input, const Extent &extent,
                Steps *steps = nullptr) {
  check(cudaMemcpyAsync(lane.memory + place.input, lane.input.data, input.bytes, cudaMemcpyHostToDevice, lane.stream),
        "copy in");
  launch(e, lane, place, input, extent, steps);
  check(cudaMemcpyAsync(lane.output.data, lane.memory + place.embeddings,
                        extent.rows * static_cast<uint64_t>(e.model.hidden) * 4, cudaMemcpyDeviceToHost, lane.stream),
        "copy out");
}

cudaGraphExec_t record(shoal_encoder &e, Lane &lane, const LaneLayout &place, const InputLayout &input,
                       const Extent &extent) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(lane.stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    launch_all(e, lane, place, input, extent);
  } catch (...) {
    cudaStreamEndCapture(lane.stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(lane.stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t made = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&made, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  return made;
}

/** Recorded when a size is met for the second time: by then all code is loaded, and what comes once is not worth it. */
void replay(shoal_encoder &e, Lane &lane, const LaneLayout &place, const InputLayout &input, const Capacity &room,
            uint64_t tokens) {
  const RecordKey key{product_tokens(tokens), room.tokens, room.rows};
  const Extent extent{key.tokens, key.tokens, room.rows, room.tiles};
  const auto known = lane.records.find(key);
  if (known == lane.records.end()) {
    if (lane.records.size() >= MOST_RECORDS) lane.forget_records();
    lane.records[key] = nullptr;
    return launch_all(e, lane, place, input, extent);
  }
  if (known->second == nullptr) known->second = record(e, lane, place, input, extent);
  check(cudaGraphLaunch(known->second, lane.stream), "cudaGraphLaunch");
}

void wait(Lane &lane, uint64_t tokens) {
  if (tokens < SLEEPS_FROM_TOKENS) return check(cudaStreamSynchronize(lane.stream), "run");
  check(cudaEventRecord(lane.done, lane.stream), "cudaEventRecord");
  check(cudaEventSynchronize(lane.done), "run");
}

} // namespace

void run(shoal_encoder &e, int32_t index, const int32_t *ids, const int32_t *lengths, int32_t rows, int32_t width,
         float *embeddings, Steps *steps) {
  if (index < 0 || static_cast<size_t>(index) >= e.lanes.size() || embeddings == nullptr)
    throw Failure{SHOAL_ENCODER_BAD_ARGUMENT, "there is no lane " + std::to_string(index)};
  uint64_t tokens = 0;
  if (check_run(e.model, ids, lengths, rows, width, &tokens) != SHOAL_ENCODER_OK)
    throw Failure{SHOAL_ENCODER_BAD_ARGUMENT, last_error()};
  Lane &lane = *e.lanes[static_cast<size_t>(index)];
  std::lock_guard<std::mutex> lock(lane.busy);
  check(cudaSetDevice(e.options.device), "cudaSetDevice");
  const Capacity room(tokens, static_cast<uint64_t>(rows));
  const InputLayout input(room);
  ensure(e, lane, room);
  const bool is_recorded = steps == nullptr && tokens <= MOST_RECORDED_TOKENS;
  const size_t output_bytes =
      (is_recorded ? room.rows : static_cast<uint64_t>(rows)) * static_cast<uint64_t>(e.model.hidden) * 4;
  // they copy from where these lie
  if (input.bytes > lane.input.bytes || output_bytes > lane.output.bytes) lane.forget_records();
  lane.input.grow(input.bytes), lane.output.grow(output_bytes);
  const Counts counts = pack(e.model, ids, lengths, rows, width, input, lane.input.data);
  const LaneLayout place(e.model, Capacity(lane.tokens, lane.rows));
  if (is_recorded) {
    replay(e, lane, place, input, room, tokens);
  } else {
    launch_all(e, lane, place, input,
               {tokens, product_tokens(tokens), static_cast<uint64_t>(rows), static_cast<uint64_t>(counts.tiles)},
               steps);
  }
  wait(lane, tokens);
  const float *found = reinterpret_cast<const float *>(lane.output.data);
  const size_t size = static_cast<size_t>(e.model.hidden);
  if (!e.model.normalize)
    std::memcpy(embeddings, found, static_cast<size_t>(rows) * size * 4);
  else
    for (int32_t row = 0; row < rows; row++) write_unit(found + row * size, embeddings + row * size, e.model.hidden);
}

} // namespace shoal
