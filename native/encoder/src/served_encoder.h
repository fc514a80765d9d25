// An encoder library in service of Node: one queue, urgent runs first, and a thread for each stream that takes from it.
// The device gets its next run without waiting for JavaScript, and no thread of Node or libuv blocks.
#pragma once
#include <node_api.h>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>
#include "../../napi/promise.h"
#include "../../napi/values.h"
#include "library.h"

namespace shoal {

using Clock = std::chrono::steady_clock;

/** Work that one promise waits for. `status` and `message` say what failed; else the answer is `figures`. */
struct Job {
  std::function<void(Job &, int32_t stream)> work;
  Promise promise;
  int status = SHOAL_ENCODER_OK;
  std::string message;
  std::vector<double> figures;
};

struct Sizes {
  shoal_encoder_model model;
  shoal_encoder_options options;
};

/** Token ids of a micro-batch: `ids` is rows × width, `lengths` says how many of each row are tokens. */
struct Batch {
  const int32_t *ids, *lengths;
  int32_t rows, width;
};

class Encoder {
 public:
  /** What JavaScript asked for so far; of its thread alone, as `hidden` is. */
  enum class State { fresh, open, closed };

  const Library library;
  shoal_encoder *encoder = nullptr; // from the end of `open` on
  State state = State::fresh;
  size_t hidden = 0; // of the model that it was opened with

  /** The first thread before all else: where the system refuses its thread, nothing points here yet. */
  Encoder(napi_env env, const std::string &path) : library(path), env_(env) {
    add_thread();
    napi_value name;
    napi_create_string_utf8(env, "shoal:encoder", NAPI_AUTO_LENGTH, &name);
    napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, this, settle, &settled_);
    napi_unref_threadsafe_function(env, settled_); // only what is asked for keeps the process alive
    napi_add_env_cleanup_hook(env, at_exit, this);
  }

  ~Encoder() {
    end();
    if (env_ == nullptr) return; // the process exits, and has taken the rest away
    napi_remove_env_cleanup_hook(env_, at_exit, this);
    napi_release_threadsafe_function(settled_, napi_tsfn_abort);
  }

  void ask(Job *job, bool is_urgent) {
    if (asked_++ == 0) napi_ref_threadsafe_function(env_, settled_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      (is_urgent ? urgent_ : waiting_).push_back(job);
    }
    wake_.notify_one();
  }

  /** Opens the library's encoder, in the first thread, and starts the others. */
  int open(const Sizes &sizes, const std::vector<const float *> &weights, uint64_t prepared_tokens) {
    int status = library.open(&sizes.model, weights.data(), &sizes.options, &encoder);
    if (status == SHOAL_ENCODER_OK && prepared_tokens > 0) status = library.prepare(encoder, prepared_tokens);
    for (int32_t i = 1; status == SHOAL_ENCODER_OK && i < sizes.options.lanes; i++) add_thread();
    return status;
  }

  void run(Job &job, int32_t stream, const Batch &batch, float *embeddings) {
    if (!is_open(job)) return;
    const Clock::time_point began = Clock::now();
    show(stream, began);
    note(job, library.run(encoder, stream, batch.ids, batch.lengths, batch.rows, batch.width, embeddings));
    show(stream, Clock::time_point());
    job.figures.push_back(std::chrono::duration<double, std::milli>(Clock::now() - began).count());
    tell_memory(job);
  }

  /** Where opening failed there is none, and the job says so. */
  bool is_open(Job &job) const {
    if (encoder != nullptr) return true;
    job.status = SHOAL_ENCODER_BAD_ARGUMENT;
    job.message = "the encoder could not be opened";
    return false;
  }

  /** Notes how a call ended; on the thread that made it, whose error it tells. */
  void note(Job &job, int status) const {
    job.status = status;
    if (status != SHOAL_ENCODER_OK) job.message = library.error();
  }

  void tell_memory(Job &job) const {
    shoal_encoder_memory_use use{};
    if (encoder != nullptr) library.memory(encoder, &use);
    for (const uint64_t bytes : {use.weights, use.lanes, use.most_lanes})
      job.figures.push_back(static_cast<double>(bytes));
  }

  /** Milliseconds of the run that goes on for longest; 0 when idle. */
  double running_ms() {
    const std::lock_guard<std::mutex> lock(mutex_);
    double longest = 0;
    for (const Clock::time_point began : began_)
      if (began != Clock::time_point())
        longest = std::max(longest, std::chrono::duration<double, std::milli>(Clock::now() - began).count());
    return longest;
  }

  /** Ends the encoder: what was asked before still runs; then the last thread closes the encoder and answers. */
  void close(Job *job) {
    if (asked_++ == 0) napi_ref_threadsafe_function(env_, settled_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      farewell_ = job;
      is_ending_ = true;
    }
    wake_.notify_all();
  }

 private:
  void add_thread() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int32_t stream = static_cast<int32_t>(threads_.size());
    began_.emplace_back();
    try {
      threads_.emplace_back([this, stream] { serve(stream); });
    } catch (const std::system_error &error) {
      throw std::runtime_error(std::string("the system refuses the thread of a lane (") + error.what() +
                               "): allow this process more of them, by ulimit -u or the container's limit of pids");
    }
    living_++; // the last that lives closes the encoder
  }

  void show(int32_t stream, Clock::time_point began) {
    const std::lock_guard<std::mutex> lock(mutex_);
    began_[static_cast<size_t>(stream)] = began;
  }

  void serve(int32_t stream) {
    for (Job *job = next(); job != nullptr; job = next()) {
      try {
        job->work(*job, stream);
      } catch (const std::exception &error) {
        job->status = SHOAL_ENCODER_FAILED;
        job->message = error.what();
      }
      job->work = nullptr;
      napi_call_threadsafe_function(settled_, job, napi_tsfn_blocking);
    }
    bool is_last = false;
    Job *farewell = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_last = --living_ == 0;
      if (is_last) farewell = farewell_;
    }
    if (!is_last) return;
    library.close(encoder);
    encoder = nullptr;
    if (farewell != nullptr) napi_call_threadsafe_function(settled_, farewell, napi_tsfn_blocking);
  }

  Job *next() {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return is_ending_ || !urgent_.empty() || !waiting_.empty(); });
    std::deque<Job *> &queue = urgent_.empty() ? waiting_ : urgent_;
    if (queue.empty() || is_dropping_) return nullptr;
    Job *job = queue.front();
    queue.pop_front();
    return job;
  }

  static void at_exit(void *encoder) {
    static_cast<Encoder *>(encoder)->env_ = nullptr;
    static_cast<Encoder *>(encoder)->end();
  }

  /** Waits for the runs that go on, and drops the others. */
  void end() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_ending_ = is_dropping_ = true;
      wake_.notify_all();
    }
    for (size_t i = 0; i < threads_.size(); i++)
      if (threads_[i].joinable()) threads_[i].join();
  }

  /** Settles the promise of a job, in JavaScript's thread. */
  static void settle(napi_env env, napi_value, void *encoder, void *data) {
    std::unique_ptr<Job> job(static_cast<Job *>(data));
    if (env == nullptr) return; // the process exits
    if (job->status != SHOAL_ENCODER_OK) {
      const napi_value error = error_of(env, job->message);
      napi_set_named_property(env, error, "status", number_of(env, job->status));
      job->promise.reject(env, error);
    } else {
      std::vector<napi_value> figures;
      for (const double figure : job->figures) figures.push_back(number_of(env, figure));
      job->promise.fulfil(env, array_of(env, figures));
    }
    static_cast<Encoder *>(encoder)->answered();
  }

  void answered() {
    if (--asked_ == 0) napi_unref_threadsafe_function(env_, settled_);
  }

  napi_env env_;
  napi_threadsafe_function settled_ = nullptr;
  size_t asked_ = 0; // by JavaScript's thread alone
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job *> urgent_, waiting_;
  std::deque<Clock::time_point> began_;
  std::deque<std::thread> threads_; // grows while it is walked over
  size_t living_ = 0;
  bool is_ending_ = false, is_dropping_ = false;
  Job *farewell_ = nullptr;
};

} // namespace shoal
