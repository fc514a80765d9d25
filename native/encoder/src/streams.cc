// Opens and closes streams, and gives them memory. Shapes: Capacity and StreamLayout (model.h). Memory: one allocation
// a stream, of exactly StreamLayout::bytes; what is held is counted in the encoder and stays below `memory_limit`.
//
// Build and test: sh native/encoder/build.sh cuda; sh native/encoder/build.sh test
#include <algorithm>
#include "streams.h"

namespace shoal {

void open_stream(shoal_encoder &e) {
  e.streams.push_back(std::make_unique<Stream>());
  Stream &stream = *e.streams.back();
  const uint64_t h = static_cast<uint64_t>(e.model.hidden), i = static_cast<uint64_t>(e.model.intermediate);
  check(cudaStreamCreateWithFlags(&stream.handle, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaEventCreateWithFlags(&stream.done, cudaEventBlockingSync | cudaEventDisableTiming), "cudaEventCreate");
  const CublasLt &lib = CublasLt::get();
  check_product(lib.create_layout(&stream.hidden, lt::F16, h, 16, static_cast<int64_t>(h)),
                "cublasLtMatrixLayoutCreate");
  check_product(lib.create_layout(&stream.triple, lt::F16, 3 * h, 16, static_cast<int64_t>(3 * h)),
                "cublasLtMatrixLayoutCreate");
  check_product(lib.create_layout(&stream.wide, lt::F16, i, 16, static_cast<int64_t>(i)), "cublasLtMatrixLayoutCreate");
}

void close_all(shoal_encoder &e) {
  const CublasLt &lib = CublasLt::get();
  for (auto &stream : e.streams) {
    if (stream->handle != nullptr) cudaStreamSynchronize(stream->handle);
    stream->forget_records();
    cudaFree(stream->memory);
    stream->input.release(), stream->output.release();
    for (lt::Layout layout : {stream->hidden, stream->triple, stream->wide})
      if (layout != nullptr) lib.destroy_layout(layout);
    if (stream->done != nullptr) cudaEventDestroy(stream->done);
    if (stream->handle != nullptr) cudaStreamDestroy(stream->handle);
  }
  for (lt::Description description : e.descriptions) lib.destroy_description(description);
  for (lt::Layout layout : e.matrices)
    if (layout != nullptr) lib.destroy_layout(layout);
  if (e.handle != nullptr) lib.destroy(e.handle);
  cudaFree(e.weights);
  cudaGetLastError();
}

void release(shoal_encoder &e, Stream &stream) {
  stream.forget_records();
  cudaFree(stream.memory);
  std::lock_guard<std::mutex> lock(e.counting);
  e.held -= stream.bytes;
  stream.memory = nullptr, stream.bytes = stream.tokens = stream.rows = 0;
}

void ensure(shoal_encoder &e, Stream &stream, const Capacity &wanted) {
  if (wanted.tokens <= stream.tokens && wanted.rows <= stream.rows) return;
  Capacity room(std::max(wanted.tokens, stream.tokens), std::max(wanted.rows, stream.rows));
  release(e, stream);
  uint64_t bytes = StreamLayout(e.model, room).bytes;
  {
    std::lock_guard<std::mutex> lock(e.counting);
    const uint64_t limit = e.options.memory_limit;
    if (limit != 0 && e.layout.bytes + e.held + bytes > limit)
      throw Failure{SHOAL_ENCODER_OUT_OF_MEMORY, "out of memory: " + std::to_string(bytes) + " bytes for " +
                                                     std::to_string(room.tokens) + " tokens are beyond the limit of " +
                                                     std::to_string(limit) + "; " +
                                                     std::to_string(e.layout.bytes + e.held) + " are held"};
  }
  check(cudaMalloc(reinterpret_cast<void **>(&stream.memory), bytes),
        ("out of memory: " + std::to_string(bytes) + " bytes for " + std::to_string(room.tokens) + " tokens").c_str());
  std::lock_guard<std::mutex> lock(e.counting);
  stream.bytes = bytes, stream.tokens = room.tokens, stream.rows = room.rows;
  e.held += bytes;
  e.most_held = std::max(e.most_held, e.held);
}

} // namespace shoal
