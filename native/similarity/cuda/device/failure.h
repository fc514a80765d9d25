// Failures as exceptions that become a status at the edge (`answer`), and the stop flag of a call.
#pragma once
#include <cuda_runtime.h>
#include <exception>
#include <new>
#include <string>
#include "../../include/similarity_cuda.h"

namespace shoal_cuda {

struct Failure {
  int status;
  std::string words;
};

[[noreturn]] void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Throws what a call of the runtime reports: out of memory, no device, else lost. */
void check(cudaError_t error, const char *what);
/** Keeps the words for `shoal_cuda_error`. */
int remember(const Failure &failure);

/** Words for the last failure of this thread. */
const char *last_words();

/** Runs `work` and gives back its status. */
template <class Work>
int answer(const Work &work) {
  try {
    work();
    return SHOAL_CUDA_OK;
  } catch (const Failure &failure) {
    return remember(failure);
  } catch (const std::bad_alloc &) {
    return remember({SHOAL_CUDA_OUT_OF_MEMORY, "the memory of this process is used up"});
  } catch (const std::exception &error) {
    return remember({SHOAL_CUDA_OUT_OF_MEMORY, error.what()});
  }
}

inline bool is_stopped(shoal_stop stop) { return stop != nullptr && *stop != 0; }
inline void refuse_stopped(shoal_stop stop) {
  if (is_stopped(stop)) fail(SHOAL_CUDA_STOPPED, "stopped by the caller");
}

} // namespace shoal_cuda
