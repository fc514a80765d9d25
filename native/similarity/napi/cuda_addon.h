// The half of the addon that opens the CUDA library (similarity_cuda.h) at run time.
#pragma once
#include <node_api.h>

namespace shoal {

void export_cuda(napi_env env, napi_value exports);

} // namespace shoal
