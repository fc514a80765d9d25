// Which status of the interface a failure of CUDA or cuBLASLt is. Shapes: none. Memory: none.
//
// Build and test: sh native/encoder/build.sh cuda; sh native/encoder/build.sh test
#include "failure.h"
#include "cublaslt.h"

namespace shoal {
namespace {

/** What the toolkits before CUDA 12.8 have no name for. */
constexpr cudaError_t CONTAINED = static_cast<cudaError_t>(226), TENSOR_MEMORY_LEAK = static_cast<cudaError_t>(721);

int status_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return SHOAL_ENCODER_OUT_OF_MEMORY;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
      return SHOAL_ENCODER_UNSUPPORTED;
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case CONTAINED:
    case TENSOR_MEMORY_LEAK:
    case cudaErrorContextIsDestroyed:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorUnknown:
      return SHOAL_ENCODER_DEVICE_LOST;
    default:
      return SHOAL_ENCODER_FAILED;
  }
}

} // namespace

void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  cudaGetLastError(); // an error that is not sticky ends here
  throw Failure{status_of(error),
                std::string(what) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error)};
}

void check_product(int status, const char *what) {
  if (status == lt::SUCCESS) return;
  // cuBLASLt does not pass on what CUDA told it, and cudaGetLastError has not heard of it yet. A device that failed
  // fails every call (H200, 2026-11-23); this one is allowed in a recording too.
  size_t free_bytes = 0, all_bytes = 0;
  const cudaError_t now = cudaMemGetInfo(&free_bytes, &all_bytes);
  if (status_of(now) == SHOAL_ENCODER_DEVICE_LOST) check(now, what);
  cudaGetLastError();
  throw Failure{status == lt::ALLOC_FAILED ? SHOAL_ENCODER_OUT_OF_MEMORY : SHOAL_ENCODER_FAILED,
                std::string(what) + ": cuBLASLt status " + std::to_string(status)};
}

} // namespace shoal
