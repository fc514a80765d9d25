// What both halves of the addon (addon.cc, cuda_addon.cc) are made of: the arguments of a call, rows among them, and
// work that ends in a promise, on libuv's threads or at once. Arrays are the caller's, are held until the work is done,
// and results are written into them.
#pragma once
#include <node_api.h>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include "../../napi/arguments.h"
#include "../include/similarity.h"

namespace shoal {

/** Thrown by work: becomes an error in JavaScript with this `code`. */
struct Failure : std::runtime_error {
  std::string code;
  Failure(std::string code, const std::string &words) : std::runtime_error(words), code(std::move(code)) {}
};

/** Thrown by work that was to be done at once and cannot be: it is run once more, on another thread. */
struct Later {};

/** What a promise is fulfilled with, made in JavaScript's thread once the work is done; without it undefined. */
typedef std::function<napi_value(napi_env)> Value;

struct Job {
  napi_async_work work = nullptr;
  napi_deferred deferred = nullptr;
  napi_ref held = nullptr;
  std::function<void()> run;
  Value value;
  std::string failure, code;
};

class Call : public Arguments {
 public:
  using Arguments::Arguments;

  /** Null for null and undefined. */
  template <class T>
  T *array(size_t i) {
    return array_or_null<T>(i);
  }

  /** Seven arguments from `i` on: data, count, dims, stride, type, scales, longest. */
  shoal_rows rows(size_t i) {
    shoal_rows rows{};
    rows.data = array<char>(i);
    rows.count = static_cast<uint64_t>(number(i + 1));
    rows.dims = static_cast<uint32_t>(number(i + 2));
    rows.stride = static_cast<uint64_t>(number(i + 3));
    rows.dtype = static_cast<enum shoal_dtype>(number(i + 4));
    rows.scales = array<float>(i + 5);
    rows.longest = number(i + 6);
    return rows;
  }

  /**
   * A promise that `run` fulfils on another thread, or `at_once`: on this one, before there is a promise to wait for,
   * unless it throws Later.
   */
  napi_value promise(std::function<void()> run, Value value = nullptr, bool at_once = false) {
    if (is_bad) return nullptr;
    Job *job = new Job;
    job->run = std::move(run);
    job->value = std::move(value);
    napi_value promise, name;
    napi_create_promise(env_, &job->deferred, &promise);
    if (at_once) {
      try {
        execute(env_, job);
        complete(env_, napi_ok, job);
        return promise;
      } catch (const Later &) {
      }
    }
    job->held = hold();
    napi_create_string_utf8(env_, "shoal:similarity", NAPI_AUTO_LENGTH, &name);
    napi_create_async_work(env_, nullptr, name, execute, complete, job, &job->work);
    napi_queue_async_work(env_, job->work);
    return promise;
  }

 private:
  static void execute(napi_env, void *data) {
    Job *job = static_cast<Job *>(data);
    try {
      job->run();
    } catch (const std::bad_alloc &) {
      job->failure = "out of memory";
    } catch (const Failure &failure) {
      job->failure = failure.what();
      job->code = failure.code;
    } catch (const std::exception &error) {
      job->failure = error.what();
    }
  }

  static void complete(napi_env env, napi_status status, void *data) {
    Job *job = static_cast<Job *>(data);
    napi_value value, message, code = nullptr;
    napi_get_undefined(env, &value);
    if (status == napi_ok && job->failure.empty()) {
      napi_resolve_deferred(env, job->deferred, job->value ? job->value(env) : value);
    } else {
      napi_create_string_utf8(env, status == napi_ok ? job->failure.c_str() : "cancelled", NAPI_AUTO_LENGTH, &message);
      if (!job->code.empty()) napi_create_string_utf8(env, job->code.c_str(), NAPI_AUTO_LENGTH, &code);
      napi_create_error(env, code, message, &value);
      napi_reject_deferred(env, job->deferred, value);
    }
    if (job->work != nullptr) {
      napi_delete_reference(env, job->held);
      napi_delete_async_work(env, job->work);
    }
    delete job;
  }
};

} // namespace shoal
