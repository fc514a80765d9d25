// One promise of an addon: made in JavaScript's thread, kept by the work it waits for, and settled once, in
// JavaScript's thread again. What it holds (the arguments of the call: arrays that the work reads and writes) is let go
// then.
#pragma once
#include <node_api.h>

namespace shoal {

class Promise {
 public:
  /** The promise itself, to be returned to the caller. */
  napi_value begin(napi_env env) {
    napi_value promise;
    napi_create_promise(env, &deferred_, &promise);
    return promise;
  }

  /** Keeps what this reference names until the promise is settled. */
  void hold(napi_ref held) { held_ = held; }

  void fulfil(napi_env env, napi_value value) {
    napi_resolve_deferred(env, deferred_, value);
    release(env);
  }

  void reject(napi_env env, napi_value error) {
    napi_reject_deferred(env, deferred_, error);
    release(env);
  }

 private:
  void release(napi_env env) {
    if (held_ != nullptr) napi_delete_reference(env, held_);
    held_ = nullptr;
  }

  napi_deferred deferred_ = nullptr;
  napi_ref held_ = nullptr;
};

} // namespace shoal
