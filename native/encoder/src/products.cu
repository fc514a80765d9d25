// Matrix products by cuBLASLt, and which of its algorithms is the fastest for which size. Shapes: tokens × hidden, 3 ×
// hidden and intermediate, row-major fp16 (StreamLayout, WeightLayout in model.h). Memory: products work in the
// stream's allocation, whose last PRODUCT_WORKSPACE bytes are cuBLASLt's; nothing is allocated.
//
// Build and test: sh native/encoder/build.sh cuda; sh native/encoder/build.sh test
#include <algorithm>
#include <cmath>
#include <cuda_fp16.h>
#include "streams.h"
#include "products.h"

namespace shoal {
namespace {

/** Products are chosen for sizes up to this; larger ones take the same. */
constexpr uint64_t LARGEST_CHOICE = 65536;
/**
 * Of those that cuBLASLt proposes for a product, best first by its own guess; 32 gave nothing faster than 8 (H200,
 * 2026-11-22).
 */
constexpr int CANDIDATES = 8;

/** Something like activations, to time products with: zeros would run faster than what comes. */
__global__ void noise_kernel(__half *to, size_t count) {
  for (size_t at = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; at < count;
       at += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(at) * 2654435761u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    to[at] = __float2half_rn(static_cast<float>(x) * 4.656612873e-10f - 1.0f);
  }
}

/** Sizes between which one choice of algorithm serves: 16, 24, 32, 48, … */
uint64_t choice_size(uint64_t tokens) {
  uint64_t power = 16;
  while (power < tokens && power < LARGEST_CHOICE) power *= 2;
  return power > 16 && power / 4 * 3 >= tokens ? power / 4 * 3 : power;
}

struct Operands {
  const char *matrix, *from;
  char *to;
  lt::Layout from_layout, to_layout;
  float beta;
};

Operands operands(const Place &place, int layer, Product product) {
  const shoal_encoder &e = place.encoder;
  const Stream &stream = place.stream;
  const StreamLayout &at = place.layout;
  const char *weights = e.weights + e.layout.first_layer + static_cast<uint64_t>(layer) * e.layout.layer_bytes;
  char *hidden = stream.memory + at.hidden, *wide = stream.memory + at.wide, *context = stream.memory + at.context;
  switch (product) {
    case QKV:
      return {weights + e.layout.qkv, hidden, wide, stream.hidden, stream.triple, 0};
    // onto what it is added to
    case OUTPUT:
      return {weights + e.layout.output, context, hidden, stream.hidden, stream.hidden, 1};
    case WIDE:
      return {weights + e.layout.wide, hidden, wide, stream.hidden, stream.wide, 0};
    default:
      return {weights + e.layout.narrow, wide, hidden, stream.wide, stream.hidden, 1};
  }
}

int multiply(const Place &place, int layer, Product product, const lt::Algorithm &algorithm) {
  const shoal_encoder &e = place.encoder;
  const Operands o = operands(place, layer, product);
  const float alpha = 1;
  return CublasLt::get().matmul(
      e.handle, e.descriptions[static_cast<size_t>(layer) * PRODUCTS + static_cast<size_t>(product)], &alpha, o.matrix,
      e.matrices[product], o.from, o.from_layout, &o.beta, o.to, o.to_layout, o.to, o.to_layout, &algorithm,
      place.stream.memory + place.layout.workspace, PRODUCT_WORKSPACE, place.stream.handle);
}

std::vector<lt::Heuristic> candidates(const Place &place, Product product, int wanted) {
  const shoal_encoder &e = place.encoder;
  const CublasLt &lib = CublasLt::get();
  const Operands o = operands(place, 0, product);
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
lt::Algorithm fastest(const Place &place, Product product, uint64_t tokens) {
  const std::vector<lt::Heuristic> found = candidates(place, product, CANDIDATES);
  const cudaStream_t stream = place.stream.handle;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  const int times = tokens <= 4096 ? 12 : 4;
  float least = INFINITY;
  size_t best = 0;
  for (size_t at = 0; at < found.size(); at++) {
    if (found[at].state != lt::SUCCESS || multiply(place, 0, product, found[at].algorithm) != lt::SUCCESS) continue;
    cudaEventRecord(begin, stream);
    for (int i = 0; i < times; i++) multiply(place, 0, product, found[at].algorithm);
    cudaEventRecord(end, stream);
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
lt::Algorithm choice(const Place &place, Product product, uint64_t tokens) {
  shoal_encoder &e = place.encoder;
  std::lock_guard<std::mutex> lock(e.choosing);
  const auto key = std::make_pair(static_cast<int>(product), choice_size(tokens));
  const auto known = e.choices.find(key);
  if (known != e.choices.end()) return known->second;
  return e.choices.emplace(key, candidates(place, product, 1)[0].algorithm).first->second;
}

} // namespace

uint64_t product_tokens(uint64_t tokens) {
  const uint64_t step = tokens <= 512 ? 16 : 64;
  return (tokens + step - 1) / step * step;
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

void set_columns(const Stream &stream, uint64_t tokens) {
  for (lt::Layout layout : {stream.hidden, stream.triple, stream.wide})
    check_product(CublasLt::get().set_layout(layout, lt::LAYOUT_COLUMNS, &tokens, sizeof tokens), "columns");
}

void run_product(const Place &place, int layer, Product product, uint64_t tokens) {
  if (multiply(place, layer, product, choice(place, product, tokens)) == lt::SUCCESS) return;
  // an algorithm that was chosen for a neighbouring size may refuse this one
  check_product(multiply(place, layer, product, candidates(place, product, 1)[0].algorithm), "cublasLtMatmul");
}

void fill_with_noise(void *to, size_t count, unsigned blocks, cudaStream_t stream) {
  noise_kernel<<<blocks, 256, 0, stream>>>(static_cast<__half *>(to), count);
  check(cudaGetLastError(), "noise_kernel");
}

void prepare(shoal_encoder &e, uint64_t most_tokens) {
  Stream &stream = *e.streams[0];
  std::lock_guard<std::mutex> lock(stream.busy);
  check(cudaSetDevice(e.options.device), "cudaSetDevice");
  const uint64_t largest = choice_size(std::min(most_tokens, LARGEST_CHOICE));
  ensure(e, stream, Capacity(largest, 16));
  const Place place{e, stream, StreamLayout(e.model, Capacity(stream.tokens, stream.rows))};
  fill_with_noise(stream.memory, place.layout.embeddings / 2, 1024, stream.handle);
  for (uint64_t size = 16; size <= largest; size = choice_size(size + 1)) {
    set_columns(stream, size);
    for (const Product product : {QKV, OUTPUT, WIDE, NARROW}) {
      const lt::Algorithm best = fastest(place, product, size);
      std::lock_guard<std::mutex> choosing(e.choosing);
      e.choices[{product, size}] = best;
    }
    if (size == LARGEST_CHOICE) break;
  }
  check(cudaStreamSynchronize(stream.handle), "timing of products");
  release(e, stream); // what is held from now on is what runs need
}

} // namespace shoal
