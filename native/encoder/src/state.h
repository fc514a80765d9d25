// What an opened encoder on CUDA holds: the weights in fp16 in one allocation, and streams with one
// allocation each (the interface calls them lanes). Memory is exactly what model.h predicts.
#pragma once
#include <cuda_runtime.h>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>
#include "cublaslt.h"
#include "failure.h"
#include "model.h"

namespace shoal {

/** The four matrix products of a layer. */
enum Product { QKV, OUTPUT, WIDE, NARROW, PRODUCTS };

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

/** A CUDA stream, memory for one run at a time, and the small runs that were recorded on it. */
struct Stream {
  std::mutex busy;
  cudaStream_t handle = nullptr;
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
  std::vector<std::unique_ptr<shoal::Stream>> streams;
  std::mutex choosing;
  std::map<std::pair<int, uint64_t>, shoal::lt::Algorithm> choices;
  std::mutex counting;
  uint64_t held = 0, most_held = 0;

  shoal_encoder(const shoal_encoder_model &m, const shoal_encoder_options &o) : model(m), options(o), layout(m) {}
};
