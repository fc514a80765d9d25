// Opens and closes lanes, and gives them memory. Shapes: Capacity and LaneLayout (model.h). Memory: one allocation a
// lane, of exactly LaneLayout::bytes; what is held is counted in the encoder and stays below `memory_limit`.
// Build and test: sh native/encoder/build.sh cuda; sh native/encoder/build.sh test
#include <algorithm>
#include "lanes.h"

namespace shoal {

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

void release(shoal_encoder &e, Lane &lane) {
  lane.forget_records();
  cudaFree(lane.memory);
  std::lock_guard<std::mutex> lock(e.counting);
  e.held -= lane.bytes;
  lane.memory = nullptr, lane.bytes = lane.tokens = lane.rows = 0;
}

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

} // namespace shoal
