// cuBLASLt, opened at run time: only what is used, declared here, so that building needs no cuBLAS and running without
// it is a message instead of a library that does not load. Where the toolkit has the real header, these declarations
// are checked against it.
#pragma once
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <cstdint>
#include <string>

namespace shoal {

namespace lt {
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
using Handle = void *;
using Description = void *;
using Layout = void *;
using Preference = void *;
constexpr int SUCCESS = 0, ALLOC_FAILED = 3, COMPUTE_32F = 68, F32 = 0, F16 = 2;
constexpr int DESC_TRANSA = 3, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8, LAYOUT_COLUMNS = 3, PREFERENCE_WORKSPACE = 1;
constexpr uint32_t EPILOGUE_BIAS = 4, EPILOGUE_GELU_BIAS = 36;
constexpr int32_t TRANSPOSED = 1;
} // namespace lt

/** The functions, and the name of the library they are from. */
struct CublasLt {
  int (*create)(lt::Handle *);
  int (*destroy)(lt::Handle);
  int (*matmul)(lt::Handle, lt::Description, const void *alpha, const void *a, lt::Layout, const void *b, lt::Layout,
                const void *beta, const void *c, lt::Layout, void *d, lt::Layout, const lt::Algorithm *,
                void *workspace, size_t bytes, cudaStream_t);
  int (*heuristic)(lt::Handle, lt::Description, lt::Layout a, lt::Layout b, lt::Layout c, lt::Layout d, lt::Preference,
                   int wanted, lt::Heuristic *, int *found);
  int (*create_description)(lt::Description *, int compute, int scale);
  int (*set_description)(lt::Description, int, const void *, size_t);
  int (*destroy_description)(lt::Description);
  int (*create_layout)(lt::Layout *, int type, uint64_t rows, uint64_t columns, int64_t leading);
  int (*set_layout)(lt::Layout, int, const void *, size_t);
  int (*destroy_layout)(lt::Layout);
  int (*create_preference)(lt::Preference *);
  int (*set_preference)(lt::Preference, int, const void *, size_t);
  int (*destroy_preference)(lt::Preference);
  std::string problem;

  /** Once for the process; `problem` is empty when everything was found. */
  static const CublasLt &get() {
    static const CublasLt loaded = load();
    return loaded;
  }

 private:
  static CublasLt load() {
    CublasLt it{};
    void *library = nullptr;
    for (const char *name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      it.problem =
          "libcublasLt.so.13 is not found by the loader: install CUDA 13's cuBLAS, or add its folder to "
          "LD_LIBRARY_PATH";
      return it;
    }
    const auto find = [&](auto &function, const char *name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && it.problem.empty()) it.problem = std::string("libcublasLt has no ") + name;
    };
    find(it.create, "cublasLtCreate"), find(it.destroy, "cublasLtDestroy"), find(it.matmul, "cublasLtMatmul"),
        find(it.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(it.create_description, "cublasLtMatmulDescCreate"), find(it.set_description, "cublasLtMatmulDescSetAttribute"),
        find(it.destroy_description, "cublasLtMatmulDescDestroy");
    find(it.create_layout, "cublasLtMatrixLayoutCreate"), find(it.set_layout, "cublasLtMatrixLayoutSetAttribute"),
        find(it.destroy_layout, "cublasLtMatrixLayoutDestroy");
    find(it.create_preference, "cublasLtMatmulPreferenceCreate"),
        find(it.set_preference, "cublasLtMatmulPreferenceSetAttribute"),
        find(it.destroy_preference, "cublasLtMatmulPreferenceDestroy");
    return it;
  }
};

} // namespace shoal

#if __has_include(<cublasLt.h>)
#  include <cublasLt.h>
static_assert(sizeof(shoal::lt::Algorithm) == sizeof(cublasLtMatmulAlgo_t) &&
              sizeof(shoal::lt::Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(shoal::lt::Heuristic, workspace) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
              offsetof(shoal::lt::Heuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(shoal::lt::SUCCESS == CUBLAS_STATUS_SUCCESS && shoal::lt::ALLOC_FAILED == CUBLAS_STATUS_ALLOC_FAILED &&
              shoal::lt::COMPUTE_32F == CUBLAS_COMPUTE_32F);
static_assert(shoal::lt::F32 == CUDA_R_32F && shoal::lt::F16 == CUDA_R_16F && shoal::lt::TRANSPOSED == CUBLAS_OP_T);
static_assert(shoal::lt::DESC_TRANSA == CUBLASLT_MATMUL_DESC_TRANSA &&
              shoal::lt::DESC_EPILOGUE == CUBLASLT_MATMUL_DESC_EPILOGUE &&
              shoal::lt::DESC_BIAS_POINTER == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(shoal::lt::LAYOUT_COLUMNS == CUBLASLT_MATRIX_LAYOUT_COLS &&
              shoal::lt::PREFERENCE_WORKSPACE == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(shoal::lt::EPILOGUE_BIAS == CUBLASLT_EPILOGUE_BIAS &&
              shoal::lt::EPILOGUE_GELU_BIAS == CUBLASLT_EPILOGUE_GELU_BIAS);
#endif
