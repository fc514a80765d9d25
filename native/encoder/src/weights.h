// Weights on their way from the host to the device.
#pragma once
#include "state.h"

namespace shoal {

/** Throws where there are no kernels for such a model, or no cuBLASLt. */
void check_supported(const shoal_encoder_model &model);
/** Copies all weights, in fp16, into `e.weights`; throws where one is too large for fp16. */
void upload_weights(shoal_encoder &e, const float *const *weights);

} // namespace shoal
