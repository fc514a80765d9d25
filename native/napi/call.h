// A call from JavaScript whose work ends in a promise: on one of libuv's threads, or in the caller's, before there is
// anything to wait for. Arrays are the caller's, are held until the work is done, and results are written into them.
#pragma once
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include "arguments.h"
#include "promise.h"
#include "values.h"

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

class Call : public Arguments {
 public:
  /** `name`: of the addon, as traces of asynchronous work show it. */
  Call(napi_env env, napi_callback_info info, const char *name) : Arguments(env, info), name_(name) {}

  /**
   * A promise that `run` fulfils on another thread, or `at_once`: on this one, before there is a promise to wait for,
   * unless it throws Later.
   */
  napi_value promise(std::function<void()> run, Value value = nullptr, bool at_once = false) {
    if (is_bad) return nullptr;
    Job *job = new Job;
    job->run = std::move(run);
    job->value = std::move(value);
    const napi_value promise = job->promise.begin(env_);
    if (at_once) {
      try {
        execute(env_, job);
        complete(env_, napi_ok, job);
        return promise;
      } catch (const Later &) {
      }
    }
    job->promise.hold(hold());
    napi_create_async_work(env_, nullptr, shoal::text_of(env_, name_), execute, complete, job, &job->work);
    napi_queue_async_work(env_, job->work);
    return promise;
  }

 private:
  struct Job {
    Promise promise;
    /** Null for work that is done at once. */
    napi_async_work work = nullptr;
    std::function<void()> run;
    Value value;
    std::string failure, code;
  };

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
    if (status == napi_ok && job->failure.empty())
      job->promise.fulfil(env, job->value ? job->value(env) : undefined_of(env));
    else
      job->promise.reject(env, error_of(env, status == napi_ok ? job->failure : "cancelled", job->code));
    if (job->work != nullptr) napi_delete_async_work(env, job->work);
    delete job;
  }

  const char *name_;
};

} // namespace shoal
