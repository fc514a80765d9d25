// The encoder on CUDA: weights in fp16 in one allocation, lanes with a stream and one allocation each, products by
// cuBLASLt, all else by kernels.cuh. A run packs its tokens on the host into one copy, launches everything without
// waiting, and waits once, for the vectors. Memory is exactly what model.h predicts. Small runs are recorded as a graph
// each and replayed.
//
// A failure inside is an exception that ends at the C interface; none crosses it.
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <tuple>
#include <vector>
#include "cublaslt.h"
#include "kernels.cuh"
#include "model.h"

namespace shoal {
namespace {

struct Failure {
  int status;
  std::string message;
};

/** What the toolkits before CUDA 12.8 have no name for. */
constexpr cudaError_t CONTAINED = static_cast<cudaError_t>(226), TENSOR_MEMORY_LEAK = static_cast<cudaError_t>(721);

int status_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return SHOAL_ENCODER_OUT_OF_MEMORY;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
      return SHOAL_ENCODER_UNSUPPORTED;
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case CONTAINED:
    case TENSOR_MEMORY_LEAK:
    case cudaErrorContextIsDestroyed:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorUnknown:
      return SHOAL_ENCODER_DEVICE_LOST;
    default:
      return SHOAL_ENCODER_FAILED;
  }
}

void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  cudaGetLastError(); // an error that is not sticky ends here
  throw Failure{status_of(error),
                std::string(what) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error)};
}

void check_product(int status, const char *what) {
  if (status == lt::SUCCESS) return;
  // cuBLASLt does not pass on what CUDA told it, and cudaGetLastError has not heard of it yet. A device that failed
  // fails every call (H200, 2026-11-23); this one is allowed in a recording too.
  size_t free_bytes = 0, all_bytes = 0;
  const cudaError_t now = cudaMemGetInfo(&free_bytes, &all_bytes);
  if (status_of(now) == SHOAL_ENCODER_DEVICE_LOST) check(now, what);
  cudaGetLastError();
  throw Failure{status == lt::ALLOC_FAILED ? SHOAL_ENCODER_OUT_OF_MEMORY : SHOAL_ENCODER_FAILED,
                std::string(what) + ": cuBLASLt status " + std::to_string(status)};
}

template <class Work>
int guarded(Work work) {
  try {
    work();
    return SHOAL_ENCODER_OK;
  } catch (const Failure &failure) {
    return refuse(failure.status, failure.message);
  } catch (const std::bad_alloc &) {
    return refuse(SHOAL_ENCODER_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception &error) {
    return refuse(SHOAL_ENCODER_FAILED, error.what());
  }
}

/** Runs of so few tokens are recorded: launching 44 kernels one by one takes longer than they do. */
constexpr uint64_t MOST_RECORDED_TOKENS = 512;
constexpr size_t MOST_RECORDS = 64;
/** From here on a host thread that waits sleeps; below, it spins, because waking up costs as much as the run. */
constexpr uint64_t SLEEPS_FROM_TOKENS = 4096;
/** Products are chosen for sizes up to this; larger ones take the same. */
constexpr uint64_t LARGEST_CHOICE = 65536;
/**
 * Of those that cuBLASLt proposes for a product, best first by its own guess; 32 gave nothing faster than 8 (H200,
 * 2026-11-22).
 */
constexpr int CANDIDATES = 8;

enum Product { QKV, OUTPUT, WIDE, NARROW, PRODUCTS };

/** Sizes between which one choice of algorithm serves: 16, 24, 32, 48, … */
uint64_t choice_size(uint64_t tokens) {
  uint64_t power = 16;
  while (power < tokens && power < LARGEST_CHOICE) power *= 2;
  return power > 16 && power / 4 * 3 >= tokens ? power / 4 * 3 : power;
}

/**
 * What products are given: a little more than there is, so that their sizes stay round. Rows in between hold anything
 * and are read by nobody.
 */
uint64_t product_tokens(uint64_t tokens) {
  const uint64_t step = tokens <= 512 ? 16 : 64;
  return (tokens + step - 1) / step * step;
}

struct HostBuffer {
  char *data = nullptr;
  size_t bytes = 0;
  void grow(size_t wanted) {
    if (wanted <= bytes) return;
    release();
    check(cudaHostAlloc(reinterpret_cast<void **>(&data), wanted, cudaHostAllocDefault), "cudaHostAlloc");
    bytes = wanted;
  }
  void release() {
    if (data != nullptr) cudaFreeHost(data);
    data = nullptr, bytes = 0;
  }
};

struct RecordKey {
  uint64_t tokens, capacity_tokens, capacity_rows;
  bool operator<(const RecordKey &other) const {
    return std::tie(tokens, capacity_tokens, capacity_rows) <
           std::tie(other.tokens, other.capacity_tokens, other.capacity_rows);
  }
};

struct Lane {
  std::mutex busy;
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
  char *memory = nullptr;
  uint64_t tokens = 0, rows = 0; // what `memory` is for
  uint64_t bytes = 0;
  HostBuffer input, output;
  lt::Layout hidden = nullptr, triple = nullptr, wide = nullptr;
  std::map<RecordKey, cudaGraphExec_t> records;

  void forget_records() {
    for (auto &record : records)
      if (record.second != nullptr) cudaGraphExecDestroy(record.second);
    records.clear();
  }
};

/** How a run is launched: sizes of products and grids. What really is there, kernels read from Counts. */
struct Extent {
  uint64_t tokens, product_tokens, rows, tiles;
};

class Steps {
 public:
  std::vector<std::pair<const char *, cudaEvent_t>> marks;
  ~Steps() {
    for (auto &mark : marks) cudaEventDestroy(mark.second);
  }
  void mark(const char *name, cudaStream_t stream) {
    cudaEvent_t event;
    check(cudaEventCreate(&event), "cudaEventCreate");
    marks.emplace_back(name, event);
    check(cudaEventRecord(event, stream), "cudaEventRecord");
  }
};

} // namespace
} // namespace shoal

struct shoal_encoder {
  shoal_encoder_model model;
  shoal_encoder_options options;
  shoal::WeightLayout layout;
  int processors = 0;
  char *weights = nullptr;
  shoal::lt::Handle handle = nullptr;
  std::vector<shoal::lt::Description> descriptions; // layers × PRODUCTS
  shoal::lt::Layout matrices[shoal::PRODUCTS] = {};
  std::vector<std::unique_ptr<shoal::Lane>> lanes;
  std::mutex choosing;
  std::map<std::pair<int, uint64_t>, shoal::lt::Algorithm> choices;
  std::mutex counting;
  uint64_t held = 0, most_held = 0;

  shoal_encoder(const shoal_encoder_model &m, const shoal_encoder_options &o) : model(m), options(o), layout(m) {}
};

namespace shoal {
namespace {

// ---- open and close ---------------------------------------------------------------------------------------------

void check_supported(const shoal_encoder_model &model) {
  const int size = model.hidden / model.heads;
  if (size != 32 && size != 64)
    throw Failure{SHOAL_ENCODER_UNSUPPORTED,
                  "heads of " + std::to_string(size) + " values; there are kernels for 32 and 64"};
  if (model.intermediate % 8 != 0 || model.positions > 65536)
    throw Failure{SHOAL_ENCODER_UNSUPPORTED,
                  "an intermediate size that is no multiple of 8, or more than 65,536 positions"};
  if (!CublasLt::get().problem.empty()) throw Failure{SHOAL_ENCODER_UNSUPPORTED, CublasLt::get().problem};
}

/** Puts fp32 weights of the host where they belong; `staging` holds the largest. */
class Upload {
 public:
  Upload(shoal_encoder &e, uint64_t most_values) : encoder_(e) {
    check(cudaMalloc(reinterpret_cast<void **>(&staging_), most_values * 4 + 256), "memory to bring weights in");
    overflow_ = reinterpret_cast<int32_t *>(staging_ + most_values);
    row_ = nullptr;
    check(cudaMemset(overflow_, 0, 4), "cudaMemset");
  }
  ~Upload() {
    cudaFree(staging_);
    cudaFree(row_);
  }

  void halves(uint64_t place, const float *from, uint64_t count, const float *addend = nullptr) {
    const int row = encoder_.model.hidden;
    check(cudaMemcpy(staging_, from, count * 4, cudaMemcpyHostToDevice), "copy of weights");
    if (addend != nullptr) {
      if (row_ == nullptr) check(cudaMalloc(reinterpret_cast<void **>(&row_), row * 4), "memory to bring weights in");
      check(cudaMemcpy(row_, addend, row * 4, cudaMemcpyHostToDevice), "copy of weights");
    }
    narrow_kernel<<<1024, 256>>>(staging_, reinterpret_cast<__half *>(encoder_.weights + place), count,
                                 addend == nullptr ? nullptr : row_, row, overflow_);
    check(cudaGetLastError(), "narrow_kernel");
  }

  void floats(uint64_t place, const float *from, uint64_t count) {
    check(cudaMemcpy(encoder_.weights + place, from, count * 4, cudaMemcpyHostToDevice), "copy of weights");
  }

  void expect_no_overflow() {
    int32_t overflow = 0;
    check(cudaMemcpy(&overflow, overflow_, 4, cudaMemcpyDeviceToHost), "copy of weights");
    if (overflow != 0)
      throw Failure{SHOAL_ENCODER_UNSUPPORTED,
                    "the model has weights that fp16 cannot say (65,504 at most): use fp32 for it"};
  }

 private:
  shoal_encoder &encoder_;
  float *staging_ = nullptr, *row_ = nullptr;
  int32_t *overflow_ = nullptr;
};

void upload_weights(shoal_encoder &e, const float *const *weights) {
  const uint64_t h = static_cast<uint64_t>(e.model.hidden), i = static_cast<uint64_t>(e.model.intermediate);
  const uint64_t words = static_cast<uint64_t>(e.model.vocabulary) * h,
                 positions = static_cast<uint64_t>(e.model.positions) * h;
  Upload upload(e, std::max({words, positions, h * i, h * h}));
  const WeightLayout &l = e.layout;
  upload.halves(l.words, weights[SHOAL_WORDS], words);
  upload.halves(l.positions, weights[SHOAL_POSITIONS], positions, weights[SHOAL_FIRST_TYPE]);
  upload.floats(l.norm, weights[SHOAL_NORM], h), upload.floats(l.norm_bias, weights[SHOAL_NORM_BIAS], h);
  for (int layer = 0; layer < e.model.layers; layer++) {
    const float *const *w = weights + SHOAL_EMBEDDING_WEIGHTS + layer * SHOAL_LAYER_WEIGHTS;
    const uint64_t at = l.first_layer + static_cast<uint64_t>(layer) * l.layer_bytes;
    for (int part = 0; part < 3; part++) { // query, key, value lie beside each other: one product gives all three
      upload.halves(at + l.qkv + part * h * h * 2, w[SHOAL_QUERY + 2 * part], h * h);
      upload.halves(at + l.qkv_bias + part * h * 2, w[SHOAL_QUERY_BIAS + 2 * part], h);
    }
    upload.halves(at + l.output, w[SHOAL_OUTPUT], h * h), upload.halves(at + l.output_bias, w[SHOAL_OUTPUT_BIAS], h);
    upload.floats(at + l.output_norm, w[SHOAL_OUTPUT_NORM], h),
        upload.floats(at + l.output_norm_bias, w[SHOAL_OUTPUT_NORM_BIAS], h);
    upload.halves(at + l.wide, w[SHOAL_WIDE], i * h), upload.halves(at + l.wide_bias, w[SHOAL_WIDE_BIAS], i);
    upload.halves(at + l.narrow, w[SHOAL_NARROW], h * i), upload.halves(at + l.narrow_bias, w[SHOAL_NARROW_BIAS], h);
    upload.floats(at + l.narrow_norm, w[SHOAL_NARROW_NORM], h),
        upload.floats(at + l.narrow_norm_bias, w[SHOAL_NARROW_NORM_BIAS], h);
  }
  upload.expect_no_overflow();
}

/**
 * Row-major tokens × outputs is column-major outputs × tokens: the weight is the transposed left factor, the tokens are
 * the columns.
 */
void describe_products(shoal_encoder &e) {
  const CublasLt &lib = CublasLt::get();
  check_product(lib.create(&e.handle), "cublasLtCreate");
  const uint64_t h = static_cast<uint64_t>(e.model.hidden), i = static_cast<uint64_t>(e.model.intermediate);
  const uint64_t inputs[PRODUCTS] = {h, h, h, i}, outputs[PRODUCTS] = {3 * h, h, i, h};
  for (int p = 0; p < PRODUCTS; p++)
    check_product(lib.create_layout(&e.matrices[p], lt::F16, inputs[p], outputs[p], static_cast<int64_t>(inputs[p])),
                  "cublasLtMatrixLayoutCreate");
  for (int layer = 0; layer < e.model.layers; layer++) {
    const uint64_t at = e.layout.first_layer + static_cast<uint64_t>(layer) * e.layout.layer_bytes;
    const uint64_t biases[PRODUCTS] = {e.layout.qkv_bias, e.layout.output_bias, e.layout.wide_bias,
                                       e.layout.narrow_bias};
    for (int p = 0; p < PRODUCTS; p++) {
      lt::Description description = nullptr;
      check_product(lib.create_description(&description, lt::COMPUTE_32F, lt::F32), "cublasLtMatmulDescCreate");
      e.descriptions.push_back(description);
      const uint32_t epilogue = p == WIDE && !e.model.exact_gelu ? lt::EPILOGUE_GELU_BIAS : lt::EPILOGUE_BIAS;
      const void *bias = e.weights + at + biases[p];
      check_product(lib.set_description(description, lt::DESC_TRANSA, &lt::TRANSPOSED, sizeof lt::TRANSPOSED),
                    "transposition");
      check_product(lib.set_description(description, lt::DESC_EPILOGUE, &epilogue, sizeof epilogue), "epilogue");
      check_product(lib.set_description(description, lt::DESC_BIAS_POINTER, &bias, sizeof bias), "bias");
    }
  }
}

void open_lane(shoal_encoder &e) {
  e.lanes.push_back(std::make_unique<Lane>());
  Lane &lane = *e.lanes.back();
  const uint64_t h = static_cast<uint64_t>(e.model.hidden), i = static_cast<uint64_t>(e.model.intermediate);
  check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaEventCreateWithFlags(&lane.done, cudaEventBlockingSync | cudaEventDisableTiming), "cudaEventCreate");
  const CublasLt &lib = CublasLt::get();
  check_product(lib.create_layout(&lane.hidden, lt::F16, h, 16, static_cast<int64_t>(h)), "cublasLtMatrixLayoutCreate");
  check_product(lib.create_layout(&lane.triple, lt::F16, 3 * h, 16, static_cast<int64_t>(3 * h)),
                "cublasLtMatrixLayoutCreate");
  check_product(lib.create_layout(&lane.wide, lt::F16, i, 16, static_cast<int64_t>(i)), "cublasLtMatrixLayoutCreate");
}

void close_all(shoal_encoder &e) {
  const CublasLt &lib = CublasLt::get();
  for (auto &lane : e.lanes) {
    if (lane->stream != nullptr) cudaStreamSynchronize(lane->stream);
    lane->forget_records();
    cudaFree(lane->memory);
    lane->input.release(), lane->output.release();
    for (lt::Layout layout : {lane->hidden, lane->triple, lane->wide})
      if (layout != nullptr) lib.destroy_layout(layout);
    if (lane->done != nullptr) cudaEventDestroy(lane->done);
    if (lane->stream != nullptr) cudaStreamDestroy(lane->stream);
  }
  for (lt::Description description : e.descriptions) lib.destroy_description(description);
  for (lt::Layout layout : e.matrices)
    if (layout != nullptr) lib.destroy_layout(layout);
  if (e.handle != nullptr) lib.destroy(e.handle);
  cudaFree(e.weights);
  cudaGetLastError();
}

// ---- memory -----------------------------------------------------------------------------------------------------

void release(shoal_encoder &e, Lane &lane) {
  lane.forget_records();
  cudaFree(lane.memory);
  std::lock_guard<std::mutex> lock(e.counting);
  e.held -= lane.bytes;
  lane.memory = nullptr, lane.bytes = lane.tokens = lane.rows = 0;
}

/** Gives the lane room for so much. What it had goes back first: both at once would need more than the law says. */
void ensure(shoal_encoder &e, Lane &lane, const Capacity &wanted) {
  if (wanted.tokens <= lane.tokens && wanted.rows <= lane.rows) return;
  Capacity room(std::max(wanted.tokens, lane.tokens), std::max(wanted.rows, lane.rows));
  release(e, lane);
  uint64_t bytes = LaneLayout(e.model, room).bytes;
  {
    std::lock_guard<std::mutex> lock(e.counting);
    const uint64_t limit = e.options.memory_limit;
    if (limit != 0 && e.layout.bytes + e.held + bytes > limit)
      throw Failure{SHOAL_ENCODER_OUT_OF_MEMORY, "out of memory: " + std::to_string(bytes) + " bytes for " +
                                                     std::to_string(room.tokens) + " tokens are beyond the limit of " +
                                                     std::to_string(limit) + "; " +
                                                     std::to_string(e.layout.bytes + e.held) + " are held"};
  }
  check(cudaMalloc(reinterpret_cast<void **>(&lane.memory), bytes),
        ("out of memory: " + std::to_string(bytes) + " bytes for " + std::to_string(room.tokens) + " tokens").c_str());
  std::lock_guard<std::mutex> lock(e.counting);
  lane.bytes = bytes, lane.tokens = room.tokens, lane.rows = room.rows;
  e.held += bytes;
  e.most_held = std::max(e.most_held, e.held);
}

// ---- products ---------------------------------------------------------------------------------------------------

struct Operands {
  const char *matrix, *from;
  char *to;
  lt::Layout from_layout, to_layout;
  float beta;
};

Operands operands(const shoal_encoder &e, const Lane &lane, const LaneLayout &place, int layer, int product) {
  const char *weights = e.weights + e.layout.first_layer + static_cast<uint64_t>(layer) * e.layout.layer_bytes;
  char *hidden = lane.memory + place.hidden, *wide = lane.memory + place.wide, *context = lane.memory + place.context;
  switch (product) {
    case QKV:
      return {weights + e.layout.qkv, hidden, wide, lane.hidden, lane.triple, 0};
    // onto what it is added to
    case OUTPUT:
      return {weights + e.layout.output, context, hidden, lane.hidden, lane.hidden, 1};
    case WIDE:
      return {weights + e.layout.wide, hidden, wide, lane.hidden, lane.wide, 0};
    default:
      return {weights + e.layout.narrow, wide, hidden, lane.wide, lane.hidden, 1};
  }
}

void set_columns(const Lane &lane, uint64_t tokens) {
  for (lt::Layout layout : {lane.hidden, lane.triple, lane.wide})
    check_product(CublasLt::get().set_layout(layout, lt::LAYOUT_COLUMNS, &tokens, sizeof tokens), "columns");
}

int multiply(const shoal_encoder &e, const Lane &lane, const LaneLayout &place, int layer, int product,
             const lt::Algorithm &algorithm) {
  const Operands o = operands(e, lane, place, layer, product);
  const float alpha = 1;
  return CublasLt::get().matmul(
      e.handle, e.descriptions[static_cast<size_t>(layer) * PRODUCTS + static_cast<size_t>(product)], &alpha, o.matrix,
      e.matrices[product], o.from, o.from_layout, &o.beta, o.to, o.to_layout, o.to, o.to_layout, &algorithm,
      lane.memory + place.workspace, PRODUCT_WORKSPACE, lane.stream);
}

std::vector<lt::Heuristic> candidates(const shoal_encoder &e, const Lane &lane, const LaneLayout &place, int product,
                                      int wanted) {
  const CublasLt &lib = CublasLt::get();
  const Operands o = operands(e, lane, place, 0, product);
  lt::Preference preference = nullptr;
  check_product(lib.create_preference(&preference), "cublasLtMatmulPreferenceCreate");
  const uint64_t workspace = PRODUCT_WORKSPACE;
  lib.set_preference(preference, lt::PREFERENCE_WORKSPACE, &workspace, sizeof workspace);
  std::vector<lt::Heuristic> found(static_cast<size_t>(wanted));
  int count = 0;
  const int status = lib.heuristic(e.handle, e.descriptions[static_cast<size_t>(product)], e.matrices[product],
                                   o.from_layout, o.to_layout, o.to_layout, preference, wanted, found.data(), &count);
  lib.destroy_preference(preference);
  check_product(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0) throw Failure{SHOAL_ENCODER_FAILED, "cuBLASLt knows no algorithm for a product of this model"};
  found.resize(static_cast<size_t>(count));
  return found;
}

/** The fastest of what the library proposes, on this device and for this size. */
lt::Algorithm fastest(const shoal_encoder &e, const Lane &lane, const LaneLayout &place, int product,
                      const std::vector<lt::Heuristic> &found, uint64_t tokens) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  const int times = tokens <= 4096 ? 12 : 4;
  float least = INFINITY;
  size_t best = 0;
  for (size_t at = 0; at < found.size(); at++) {
    if (found[at].state != lt::SUCCESS || multiply(e, lane, place, 0, product, found[at].algorithm) != lt::SUCCESS)
      continue;
    cudaEventRecord(begin, lane.stream);
    for (int i = 0; i < times; i++) multiply(e, lane, place, 0, product, found[at].algorithm);
    cudaEventRecord(end, lane.stream);
    float time = INFINITY;
    if (cudaEventSynchronize(end) == cudaSuccess && cudaEventElapsedTime(&time, begin, end) == cudaSuccess &&
        time < least)
      least = time, best = at;
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  check(cudaGetLastError(), "timing of products");
  return found[best].algorithm;
}

/** Chosen before, or the library's first proposal. */
lt::Algorithm choice(shoal_encoder &e, const Lane &lane, const LaneLayout &place, int product, uint64_t tokens) {
  std::lock_guard<std::mutex> lock(e.choosing);
  const auto key = std::make_pair(product, choice_size(tokens));
  const auto known = e.choices.find(key);
  if (known != e.choices.end()) return known->second;
  return e.choices.emplace(key, candidates(e, lane, place, product, 1)[0].algorithm).first->second;
}

void run_product(shoal_encoder &e, const Lane &lane, const LaneLayout &place, int layer, int product, uint64_t tokens) {
  if (multiply(e, lane, place, layer, product, choice(e, lane, place, product, tokens)) == lt::SUCCESS) return;
  // an algorithm that was chosen for a neighbouring size may refuse this one
  check_product(multiply(e, lane, place, layer, product, candidates(e, lane, place, product, 1)[0].algorithm),
                "cublasLtMatmul");
}

// ---- a run ------------------------------------------------------------------------------------------------------

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

void run(shoal_encoder &e, int32_t index, const int32_t *ids, const int32_t *lengths, int32_t rows, int32_t width,
         float *embeddings, Steps *steps = nullptr) {
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

void prepare(shoal_encoder &e, uint64_t most_tokens) {
  Lane &lane = *e.lanes[0];
  std::lock_guard<std::mutex> lock(lane.busy);
  check(cudaSetDevice(e.options.device), "cudaSetDevice");
  const uint64_t largest = choice_size(std::min(most_tokens, LARGEST_CHOICE));
  ensure(e, lane, Capacity(largest, 16));
  const LaneLayout place(e.model, Capacity(lane.tokens, lane.rows));
  noise_kernel<<<1024, 256, 0, lane.stream>>>(reinterpret_cast<__half *>(lane.memory), place.embeddings / 2);
  check(cudaGetLastError(), "noise_kernel");
  for (uint64_t size = 16; size <= largest; size = choice_size(size + 1)) {
    set_columns(lane, size);
    for (int product = 0; product < PRODUCTS; product++) {
      const lt::Algorithm best =
          fastest(e, lane, place, product, candidates(e, lane, place, product, CANDIDATES), size);
      std::lock_guard<std::mutex> choosing(e.choosing);
      e.choices[{product, size}] = best;
    }
    if (size == LARGEST_CHOICE) break;
  }
  check(cudaStreamSynchronize(lane.stream), "timing of products");
  release(e, lane); // what is held from now on is what runs need
}

} // namespace
} // namespace shoal

// ---- the C interface --------------------------------------------------------------------------------------------

#define SHOAL_EXPORT extern "C" __attribute__((visibility("default")))
using namespace shoal;

SHOAL_EXPORT int shoal_encoder_abi(void) { return SHOAL_ENCODER_ABI; }
SHOAL_EXPORT const char *shoal_encoder_error(void) { return last_error().c_str(); }

SHOAL_EXPORT int shoal_encoder_devices(void) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  cudaGetLastError();
  refuse(SHOAL_ENCODER_UNSUPPORTED, cudaGetErrorString(error));
  return 0;
}

SHOAL_EXPORT int shoal_encoder_open(const shoal_encoder_model *model, const float *const *weights,
                                    const shoal_encoder_options *options, shoal_encoder **encoder) {
  if (model == nullptr || weights == nullptr || options == nullptr || encoder == nullptr || options->lanes < 1 ||
      options->lanes > 16)
    return refuse(SHOAL_ENCODER_BAD_ARGUMENT, "open needs a model, weights and 1 to 16 lanes");
  *encoder = nullptr;
  if (check_model(*model) != SHOAL_ENCODER_OK) return SHOAL_ENCODER_BAD_ARGUMENT;
  const int status = guarded([&] {
    check_supported(*model);
    check(cudaSetDevice(options->device), "cudaSetDevice");
    std::unique_ptr<shoal_encoder> opened(new shoal_encoder(*model, *options));
    try {
      check(cudaDeviceGetAttribute(&opened->processors, cudaDevAttrMultiProcessorCount, options->device),
            "cudaDeviceGetAttribute");
      if (options->memory_limit != 0 && opened->layout.bytes > options->memory_limit)
        throw Failure{SHOAL_ENCODER_OUT_OF_MEMORY, "out of memory: the weights alone are beyond the limit"};
      check(cudaMalloc(reinterpret_cast<void **>(&opened->weights), opened->layout.bytes),
            "out of memory for the weights");
      upload_weights(*opened, weights);
      describe_products(*opened);
      for (int lane = 0; lane < options->lanes; lane++) open_lane(*opened);
      check(cudaDeviceSynchronize(), "weights");
    } catch (...) {
      close_all(*opened);
      throw;
    }
    *encoder = opened.release();
  });
  return status;
}

SHOAL_EXPORT int shoal_encoder_prepare(shoal_encoder *encoder, uint64_t tokens) {
  return guarded([&] { prepare(*encoder, tokens); });
}

SHOAL_EXPORT int shoal_encoder_run(shoal_encoder *encoder, int32_t lane, const int32_t *ids, const int32_t *lengths,
                                   int32_t rows, int32_t width, float *embeddings) {
  return guarded([&] { run(*encoder, lane, ids, lengths, rows, width, embeddings); });
}

SHOAL_EXPORT int shoal_encoder_memory(shoal_encoder *encoder, shoal_encoder_memory_use *use) {
  std::lock_guard<std::mutex> lock(encoder->counting);
  *use = {encoder->layout.bytes, encoder->held, encoder->most_held};
  return SHOAL_ENCODER_OK;
}

SHOAL_EXPORT uint64_t shoal_encoder_weight_bytes(const shoal_encoder_model *model) {
  return WeightLayout(*model).bytes;
}
SHOAL_EXPORT uint64_t shoal_encoder_lane_bytes(const shoal_encoder_model *model, uint64_t tokens, uint64_t rows) {
  return LaneLayout(*model, Capacity(tokens, rows)).bytes;
}

SHOAL_EXPORT int shoal_encoder_shrink(shoal_encoder *encoder) {
  return guarded([&] {
    check(cudaSetDevice(encoder->options.device), "cudaSetDevice");
    for (auto &lane : encoder->lanes) {
      std::unique_lock<std::mutex> lock(lane->busy, std::try_to_lock);
      if (lock.owns_lock()) release(*encoder, *lane);
    }
  });
}

SHOAL_EXPORT void shoal_encoder_close(shoal_encoder *encoder) {
  if (encoder == nullptr) return;
  cudaSetDevice(encoder->options.device);
  close_all(*encoder);
  delete encoder;
}

SHOAL_EXPORT int shoal_encoder_profile(shoal_encoder *encoder, const int32_t *ids, const int32_t *lengths, int32_t rows,
                                       int32_t width, float *embeddings, shoal_encoder_step *steps, int32_t *count) {
  return guarded([&] {
    Steps taken;
    run(*encoder, 0, ids, lengths, rows, width, embeddings, &taken);
    const int32_t found = static_cast<int32_t>(taken.marks.size()) - 1, room = *count;
    for (int32_t at = 0; at < std::min(found, room); at++) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, taken.marks[static_cast<size_t>(at)].second,
                                 taken.marks[static_cast<size_t>(at) + 1].second),
            "cudaEventElapsedTime");
      steps[at] = {taken.marks[static_cast<size_t>(at) + 1].first, milliseconds * 1000};
    }
    *count = found;
  });
}

namespace {

/** Median milliseconds of seven goes. */
template <class Work>
double median_ms(Work work) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int i = 0; i < 9; i++) {
    cudaEventRecord(begin);
    work();
    cudaEventRecord(end);
    check(cudaEventSynchronize(end), "peak");
    float time = 0;
    cudaEventElapsedTime(&time, begin, end);
    if (i >= 2) times.push_back(time);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

} // namespace

SHOAL_EXPORT int shoal_encoder_peak(int32_t device, double *copy_bytes, double *product_flops) {
  return guarded([&] {
    const CublasLt &lib = CublasLt::get();
    if (!lib.problem.empty()) throw Failure{SHOAL_ENCODER_UNSUPPORTED, lib.problem};
    check(cudaSetDevice(device), "cudaSetDevice");
    constexpr uint64_t SIDE = 8192, MATRIX = SIDE * SIDE * 2;
    char *memory = nullptr;
    check(cudaMalloc(reinterpret_cast<void **>(&memory), 16 * MATRIX + PRODUCT_WORKSPACE), "cudaMalloc");
    noise_kernel<<<4096, 256>>>(reinterpret_cast<__half *>(memory), 8 * MATRIX);
    *copy_bytes =
        16 * MATRIX /
        (median_ms([&] { cudaMemcpyAsync(memory + 8 * MATRIX, memory, 8 * MATRIX, cudaMemcpyDeviceToDevice); }) / 1000);
    lt::Handle handle = nullptr;
    lt::Description description = nullptr;
    lt::Layout layout = nullptr;
    lt::Preference preference = nullptr;
    lt::Heuristic found{};
    int count = 0;
    const uint64_t workspace = PRODUCT_WORKSPACE;
    const float alpha = 1, beta = 0;
    lib.create(&handle), lib.create_description(&description, lt::COMPUTE_32F, lt::F32),
        lib.set_description(description, lt::DESC_TRANSA, &lt::TRANSPOSED, sizeof lt::TRANSPOSED);
    lib.create_layout(&layout, lt::F16, SIDE, SIDE, SIDE), lib.create_preference(&preference),
        lib.set_preference(preference, lt::PREFERENCE_WORKSPACE, &workspace, sizeof workspace);
    check_product(lib.heuristic(handle, description, layout, layout, layout, layout, preference, 1, &found, &count),
                  "cublasLtMatmulAlgoGetHeuristic");
    *product_flops = 2.0 * SIDE * SIDE * SIDE /
                     (median_ms([&] {
                        lib.matmul(handle, description, &alpha, memory, layout, memory + MATRIX, layout, &beta,
                                   memory + 2 * MATRIX, layout, memory + 2 * MATRIX, layout, &found.algorithm,
                                   memory + 16 * MATRIX, PRODUCT_WORKSPACE, nullptr);
                      }) /
                      1000);
    lib.destroy_preference(preference), lib.destroy_layout(layout), lib.destroy_description(description),
        lib.destroy(handle);
    check(cudaFree(memory), "peak");
  });
}
