// Which status of the interface a failure is, and its words. Shapes: none. Memory: none.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "failure.h"
#include <cstdarg>
#include <cstdio>

namespace shoal_cuda {

static thread_local std::string words_of_last;

void fail(int status, const char *format, ...) {
  char words[512];
  va_list rest;
  va_start(rest, format);
  vsnprintf(words, sizeof words, format, rest);
  va_end(rest);
  throw Failure{status, words};
}

void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  cudaGetLastError(); // what is no longer pending does not fail the next call
  const char *words = cudaGetErrorString(error);
  switch (error) {
    case cudaErrorMemoryAllocation:
      fail(SHOAL_CUDA_OUT_OF_MEMORY, "%s: %s", what, words);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorStubLibrary:
    case cudaErrorSystemNotReady:
    case cudaErrorDevicesUnavailable:
      fail(SHOAL_CUDA_NO_DEVICE, "%s: %s", what, words);
    default:
      fail(SHOAL_CUDA_LOST, "%s: %s (%s)", what, words, cudaGetErrorName(error));
  }
}

int remember(const Failure &failure) {
  words_of_last = failure.words;
  return failure.status;
}

const char *last_words() { return words_of_last.c_str(); }

} // namespace shoal_cuda
