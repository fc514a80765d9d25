// Puts the weights of a model on the device. Shapes: encoder.h has the order and sizes of what comes in, WeightLayout
// (model.h) the place of each on the device: matrices, tables and biases in fp16, norms in fp32.
// Memory: `weights` is allocated by the caller (WeightLayout::bytes); beside it, while weights come in, as much as the
// largest of them has in fp32.
//
// Build and test: sh native/encoder/build.sh cuda; sh native/encoder/build.sh test
#include <algorithm>
#include <cuda_fp16.h>
#include "weights.h"

namespace shoal {
namespace {

/**
 * Weights on their way in: fp32 to fp16; says when a value is beyond what fp16 holds. `addend`: a row added to each row
 * of so many.
 */
__global__ void narrow_kernel(const float *__restrict__ from, __half *__restrict__ to, size_t count,
                              const float *__restrict__ addend, int row, int32_t *overflow) {
  for (size_t at = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; at < count;
       at += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const float value = from[at] + (addend == nullptr ? 0.0f : addend[at % row]);
    to[at] = __float2half_rn(value);
    if (isfinite(value) && __hisinf(to[at])) *overflow = 1;
  }
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

} // namespace

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

} // namespace shoal
