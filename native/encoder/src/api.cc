// The C interface of encoder.h on CUDA. Shapes and memory: encoder.h. A failure inside becomes a status here.
//
// Build and test: sh native/encoder/build.sh cuda; sh native/encoder/build.sh test
#include <memory>
#include "streams.h"
#include "products.h"
#include "run.h"
#include "weights.h"

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
      for (int i = 0; i < options->lanes; i++) open_stream(*opened);
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
  return guarded([&] { run(*encoder, lane, {ids, lengths, rows, width}, embeddings); });
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
  return StreamLayout(*model, Capacity(tokens, rows)).bytes;
}

SHOAL_EXPORT int shoal_encoder_shrink(shoal_encoder *encoder) {
  return guarded([&] {
    check(cudaSetDevice(encoder->options.device), "cudaSetDevice");
    for (auto &stream : encoder->streams) {
      std::unique_lock<std::mutex> lock(stream->busy, std::try_to_lock);
      if (lock.owns_lock()) release(*encoder, *stream);
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
    run(*encoder, 0, {ids, lengths, rows, width}, embeddings, &taken);
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
