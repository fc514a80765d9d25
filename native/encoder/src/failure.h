// Failures inside the CUDA encoder: exceptions that end at the C interface (`guarded`); none crosses it.
#pragma once
#include <cuda_runtime.h>
#include <exception>
#include <new>
#include <string>
#include "model.h"

/** Functions of the C interface; all else is hidden. */
#define SHOAL_EXPORT extern "C" __attribute__((visibility("default")))

namespace shoal {

struct Failure {
  int status;
  std::string message;
};

/** Throws what a call of the runtime reports. */
void check(cudaError_t error, const char *what);
/** Throws what a call of cuBLASLt reports. */
void check_product(int status, const char *what);

/** Runs `work` and gives back its status; the words are in `last_error`. */
template <class Work>
int guarded(Work work) {
  try {
    work();
    return SHOAL_ENCODER_OK;
  } catch (const Failure &failure) {
    return refuse(failure.status, failure.message);
  } catch (const std::bad_alloc &) {
    return refuse(SHOAL_ENCODER_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception &error) {
    return refuse(SHOAL_ENCODER_FAILED, error.what());
  }
}

} // namespace shoal
