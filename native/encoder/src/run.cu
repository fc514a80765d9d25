// A run: packs its tokens on the host into one copy, launches everything without waiting, and waits once, for the
// vectors. Small runs are recorded as a graph each and replayed. Shapes: ids are rows × width, vectors rows × hidden;
// on the device tokens are packed, without padding (tokens.cuh, InputLayout in model.h). Memory: the stream's
// allocation, and pinned host memory for what goes in and comes out; both grow with the largest run and stay.
//
// Build and test: sh native/encoder/build.sh cuda; sh native/encoder/build.sh test
#include <cmath>
#include <cstring>
#include "attention.cuh"
#include "gelu.cuh"
#include "streams.h"
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

/** A run on its way to the device: where it computes, how its input lies there, and how large its launches are. */
struct Launch {
  const Place &place;
  const InputLayout &input;
  Extent extent;

  /** What the input begins with, as kernels read it. */
  const Counts *counts() const { return input_at<Counts>(0); }
  template <class T>
  const T *input_at(uint64_t offset) const {
    return reinterpret_cast<const T *>(at(place.layout.input + offset));
  }
  __half *halves_at(uint64_t offset) const { return reinterpret_cast<__half *>(at(offset)); }
  char *at(uint64_t offset) const { return place.stream.memory + offset; }
};

/**
 * Ids, places, starts and tiles of a run as they go to the device. Tiles of long rows first, so that none is left over
 * at the end.
 */
Counts pack(const shoal_encoder_model &model, const Batch &batch, const InputLayout &to, char *input) {
  const int32_t *const ids = batch.ids, *const lengths = batch.lengths, rows = batch.rows, width = batch.width;
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

/** Norms `hidden` in place by the weights at these offsets; of embeddings, which it looks up first, where asked to. */
void launch_norm(const Launch &launch, uint64_t weight, uint64_t bias, bool is_embedding = false) {
  const shoal_encoder &e = launch.place.encoder;
  const cudaStream_t stream = launch.place.stream.handle;
  const Counts *counts = launch.counts();
  const int32_t *ids = is_embedding ? launch.input_at<int32_t>(launch.input.ids) : nullptr;
  const uint16_t *places = is_embedding ? launch.input_at<uint16_t>(launch.input.places) : nullptr;
  __half *hidden = launch.halves_at(launch.place.layout.hidden);
  const float *w = reinterpret_cast<const float *>(e.weights + weight),
              *b = reinterpret_cast<const float *>(e.weights + bias);
  const __half *words = reinterpret_cast<const __half *>(e.weights + e.layout.words),
               *positions = reinterpret_cast<const __half *>(e.weights + e.layout.positions);
  const float epsilon = e.model.norm_epsilon;
  const uint64_t tokens = launch.extent.tokens;
  const unsigned grid = std::min(blocks(tokens, 8), static_cast<unsigned>(e.processors) * 8);
  const auto start = [&](auto quads) {
    constexpr int QUADS = decltype(quads)::value;
    if (is_embedding)
      embed_kernel<QUADS><<<grid, 256, 0, stream>>>(words, positions, ids, places, w, b, epsilon, hidden, counts);
    else
      norm_kernel<QUADS><<<grid, 256, 0, stream>>>(hidden, w, b, epsilon, counts);
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
      any_norm_kernel<<<blocks(tokens, 8), 256, 0, stream>>>(words, positions, ids, places, w, b, epsilon, hidden,
                                                             e.model.hidden, counts);
  }
  check(cudaGetLastError(), "norm");
}

void launch_attention(const Launch &launch) {
  const shoal_encoder_model &model = launch.place.encoder.model;
  const StreamLayout &layout = launch.place.layout;
  const int size = model.hidden / model.heads;
  const float scale = 1.44269504f / std::sqrt(static_cast<float>(size));
  const unsigned grid = blocks(launch.extent.tiles, ATTENTION_WARPS) * static_cast<unsigned>(model.heads);
  const auto kernel = size == 32 ? attention_kernel<32, 2, 4> : attention_kernel<64, 1, 2>;
  kernel<<<grid, ATTENTION_WARPS * WARP, 0, launch.place.stream.handle>>>(
      launch.halves_at(layout.wide), launch.halves_at(layout.context), launch.input_at<Tile>(launch.input.tiles),
      model.heads, scale, launch.counts());
  check(cudaGetLastError(), "attention");
}

void launch_gelu(const Launch &launch) {
  const shoal_encoder &e = launch.place.encoder;
  exact_gelu_kernel<<<static_cast<unsigned>(e.processors) * 8, 256, 0, launch.place.stream.handle>>>(
      launch.halves_at(launch.place.layout.wide), static_cast<size_t>(e.model.intermediate), launch.counts());
  check(cudaGetLastError(), "exact_gelu_kernel");
}

void launch_pooling(const Launch &launch) {
  const shoal_encoder_model &model = launch.place.encoder.model;
  const StreamLayout &layout = launch.place.layout;
  const int groups = std::max(1, POOL_THREADS / (model.hidden / 8));
  pool_kernel<<<static_cast<unsigned>(launch.extent.rows), POOL_THREADS, static_cast<size_t>(groups) * model.hidden * 4,
                launch.place.stream.handle>>>(launch.halves_at(layout.hidden),
                                              launch.input_at<int32_t>(launch.input.starts), model.hidden,
                                              model.pooling == SHOAL_ENCODER_CLS, model.normalize,
                                              reinterpret_cast<float *>(launch.at(layout.embeddings)), launch.counts());
  check(cudaGetLastError(), "pool_kernel");
}

/** Everything from ids to vectors, on the run's stream. */
void launch_encoder(const Launch &launch, Steps *steps) {
  const Place &place = launch.place;
  const shoal_encoder &e = place.encoder;
  const auto mark = [&](const char *name) {
    if (steps != nullptr) steps->mark(name, place.stream.handle);
  };
  const uint64_t tokens = launch.extent.product_tokens;
  set_columns(place.stream, tokens);
  mark("begin");
  launch_norm(launch, e.layout.norm, e.layout.norm_bias, true);
  mark("embeddings");
  for (int layer = 0; layer < e.model.layers; layer++) {
    const uint64_t at = e.layout.first_layer + static_cast<uint64_t>(layer) * e.layout.layer_bytes;
    run_product(place, layer, QKV, tokens);
    mark("query, key, value");
    launch_attention(launch);
    mark("attention");
    run_product(place, layer, OUTPUT, tokens);
    mark("output");
    launch_norm(launch, at + e.layout.output_norm, at + e.layout.output_norm_bias);
    mark("norm");
    run_product(place, layer, WIDE, tokens);
    mark("wide");
    if (e.model.exact_gelu) {
      launch_gelu(launch);
      mark("gelu");
    }
    run_product(place, layer, NARROW, tokens);
    mark("narrow");
    launch_norm(launch, at + e.layout.narrow_norm, at + e.layout.narrow_norm_bias);
    mark("norm");
  }
  launch_pooling(launch);
  mark("pooling");
}

/** The copy in, the run and the copy out. */
void launch_all(const Launch &launch, Steps *steps = nullptr) {
  Stream &stream = launch.place.stream;
  const StreamLayout &layout = launch.place.layout;
  check(cudaMemcpyAsync(launch.at(layout.input), stream.input.data, launch.input.bytes, cudaMemcpyHostToDevice,
                        stream.handle),
        "copy in");
  launch_encoder(launch, steps);
  const uint64_t bytes = launch.extent.rows * static_cast<uint64_t>(launch.place.encoder.model.hidden) * 4;
  check(cudaMemcpyAsync(stream.output.data, launch.at(layout.embeddings), bytes, cudaMemcpyDeviceToHost, stream.handle),
        "copy out");
}

cudaGraphExec_t record(const Launch &launch) {
  const cudaStream_t stream = launch.place.stream.handle;
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    launch_all(launch);
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t made = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&made, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  return made;
}

/** Recorded when a size is met for the second time: by then all code is loaded, and what comes once is not worth it. */
void replay(const Place &place, const InputLayout &input, const Capacity &room, uint64_t tokens) {
  Stream &stream = place.stream;
  const RecordKey key{product_tokens(tokens), room.tokens, room.rows};
  const Launch launch{place, input, {key.tokens, key.tokens, room.rows, room.tiles}};
  const auto known = stream.records.find(key);
  if (known == stream.records.end()) {
    if (stream.records.size() >= MOST_RECORDS) stream.forget_records();
    stream.records[key] = nullptr;
    return launch_all(launch);
  }
  if (known->second == nullptr) known->second = record(launch);
  check(cudaGraphLaunch(known->second, stream.handle), "cudaGraphLaunch");
}

void wait(Stream &stream, uint64_t tokens) {
  if (tokens < SLEEPS_FROM_TOKENS) return check(cudaStreamSynchronize(stream.handle), "run");
  check(cudaEventRecord(stream.done, stream.handle), "cudaEventRecord");
  check(cudaEventSynchronize(stream.done), "run");
}

/** Copies vectors to the caller, of length 1 to the last bit where they are normalized. */
void give_out(const shoal_encoder_model &model, const float *found, int32_t rows, float *embeddings) {
  const size_t size = static_cast<size_t>(model.hidden);
  if (!model.normalize)
    std::memcpy(embeddings, found, static_cast<size_t>(rows) * size * 4);
  else
    for (int32_t row = 0; row < rows; row++) write_unit(found + row * size, embeddings + row * size, model.hidden);
}

} // namespace

void run(shoal_encoder &e, int32_t index, const Batch &batch, float *embeddings, Steps *steps) {
  if (index < 0 || static_cast<size_t>(index) >= e.streams.size() || embeddings == nullptr)
    throw Failure{SHOAL_ENCODER_BAD_ARGUMENT, "there is no lane " + std::to_string(index)};
  uint64_t tokens = 0;
  if (check_run(e.model, batch.ids, batch.lengths, batch.rows, batch.width, &tokens) != SHOAL_ENCODER_OK)
    throw Failure{SHOAL_ENCODER_BAD_ARGUMENT, last_error()};
  Stream &stream = *e.streams[static_cast<size_t>(index)];
  std::lock_guard<std::mutex> lock(stream.busy);
  check(cudaSetDevice(e.options.device), "cudaSetDevice");
  const uint64_t rows = static_cast<uint64_t>(batch.rows);
  const Capacity room(tokens, rows);
  const InputLayout input(room);
  ensure(e, stream, room);
  const bool is_recorded = steps == nullptr && tokens <= MOST_RECORDED_TOKENS;
  const size_t output_bytes = (is_recorded ? room.rows : rows) * static_cast<uint64_t>(e.model.hidden) * 4;
  // they copy from where these lie
  if (input.bytes > stream.input.bytes || output_bytes > stream.output.bytes) stream.forget_records();
  stream.input.grow(input.bytes), stream.output.grow(output_bytes);
  const Counts counts = pack(e.model, batch, input, stream.input.data);
  const Place place{e, stream, StreamLayout(e.model, Capacity(stream.tokens, stream.rows))};
  if (is_recorded)
    replay(place, input, room, tokens);
  else
    launch_all({place, input, {tokens, product_tokens(tokens), rows, static_cast<uint64_t>(counts.tiles)}}, steps);
  wait(stream, tokens);
  give_out(e.model, reinterpret_cast<const float *>(stream.output.data), batch.rows, embeddings);
}

} // namespace shoal
