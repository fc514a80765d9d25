// What the device can do at best: a large copy and a large product. Shapes: matrices of 8,192 × 8,192 in fp16. Memory:
// 16 of them and cuBLASLt's workspace, 2 GB, freed before it returns.
//
// Build and test: sh native/encoder/build.sh cuda; sh native/encoder/build.sh test
#include <algorithm>
#include <vector>
#include "products.h"

using namespace shoal;

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
    fill_with_noise(memory, 8 * MATRIX, 4096, nullptr);
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
