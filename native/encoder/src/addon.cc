// An encoder library as a Node addon, in plain N-API. What is exported is declared in
// libs/inference/src/encoder-addon.ts; here shapes are trusted and only types are looked at. An encoder is one queue,
// urgent runs first, and a thread for each lane that takes from it: the device gets its next run without waiting for
// JavaScript, and no thread of Node or libuv blocks. Buffers are the caller's, are held until their run has ended, and
// results are written into them.
#include <node_api.h>
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
#include "../../napi/arguments.h"
#include "checksum.h"
#include "halves.h"
#include "library.h"

namespace {

using Clock = std::chrono::steady_clock;

/** What one promise stands for. `status` and `message` of what failed; else the answer is `figures`. */
struct Job {
  std::function<void(Job &, int32_t lane)> work;
  napi_deferred deferred = nullptr;
  napi_ref held = nullptr;
  int status = SHOAL_ENCODER_OK;
  std::string message;
  std::vector<double> figures;
};

struct Sizes {
  shoal_encoder_model model;
  shoal_encoder_options options;
};

void settle(napi_env env, napi_value, void *encoder, void *data);

class Encoder {
 public:
  const shoal::Library library;
  shoal_encoder *encoder = nullptr; // from the end of `open` on

  /** The first lane before all else: where the system refuses its thread, nothing points here yet. */
  Encoder(napi_env env, const std::string &path) : library(path), env_(env) {
    add_lane();
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

  void answered() {
    if (--asked_ == 0) napi_unref_threadsafe_function(env_, settled_);
  }

  /** By the first lane's thread. */
  int open(const Sizes &sizes, const std::vector<const float *> &weights, uint64_t prepared_tokens) {
    int status = library.open(&sizes.model, weights.data(), &sizes.options, &encoder);
    if (status == SHOAL_ENCODER_OK && prepared_tokens > 0) status = library.prepare(encoder, prepared_tokens);
    for (int32_t lane = 1; status == SHOAL_ENCODER_OK && lane < sizes.options.lanes; lane++) add_lane();
    return status;
  }

  void run(Job &job, int32_t lane, const int32_t *ids, const int32_t *lengths, int32_t rows, int32_t width,
           float *embeddings) {
    const Clock::time_point began = Clock::now();
    show(lane, began);
    note(job, library.run(encoder, lane, ids, lengths, rows, width, embeddings));
    show(lane, Clock::time_point());
    job.figures.push_back(std::chrono::duration<double, std::milli>(Clock::now() - began).count());
    tell_memory(job);
  }

  /** On the thread that made the call, whose error it tells. */
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

  /** Of the run that goes on for longest; 0 when idle. */
  double running_ms() {
    const std::lock_guard<std::mutex> lock(mutex_);
    double longest = 0;
    for (const Clock::time_point began : began_)
      if (began != Clock::time_point())
        longest = std::max(longest, std::chrono::duration<double, std::milli>(Clock::now() - began).count());
    return longest;
  }

  /** What was asked before still runs; then the last lane closes the encoder and answers. */
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
  void add_lane() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int32_t lane = static_cast<int32_t>(threads_.size());
    began_.emplace_back();
    try {
      threads_.emplace_back([this, lane] { serve(lane); });
    } catch (const std::system_error &error) {
      throw std::runtime_error(std::string("the system refuses the thread of a lane (") + error.what() +
                               "): allow this process more of them, by ulimit -u or the container's limit of pids");
    }
    living_++; // the last that lives closes the encoder
  }

  void show(int32_t lane, Clock::time_point began) {
    const std::lock_guard<std::mutex> lock(mutex_);
    began_[static_cast<size_t>(lane)] = began;
  }

  void serve(int32_t lane) {
    for (Job *job = next(); job != nullptr; job = next()) {
      try {
        job->work(*job, lane);
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

  /** The runs that go on are waited for, the others dropped. */
  void end() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_ending_ = is_dropping_ = true;
      wake_.notify_all();
    }
    for (size_t i = 0; i < threads_.size(); i++)
      if (threads_[i].joinable()) threads_[i].join();
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

void settle(napi_env env, napi_value, void *encoder, void *data) {
  std::unique_ptr<Job> job(static_cast<Job *>(data));
  if (env == nullptr) return; // the process exits
  napi_value value = nullptr, message, status;
  if (job->status != SHOAL_ENCODER_OK) {
    napi_create_string_utf8(env, job->message.c_str(), NAPI_AUTO_LENGTH, &message);
    napi_create_error(env, nullptr, message, &value);
    napi_create_int32(env, job->status, &status);
    napi_set_named_property(env, value, "status", status);
    napi_reject_deferred(env, job->deferred, value);
  } else {
    napi_create_array(env, &value);
    for (size_t i = 0; i < job->figures.size(); i++) {
      napi_value figure;
      napi_create_double(env, job->figures[i], &figure);
      napi_set_element(env, value, static_cast<uint32_t>(i), figure);
    }
    napi_resolve_deferred(env, job->deferred, value);
  }
  if (job->held != nullptr) napi_delete_reference(env, job->held);
  static_cast<Encoder *>(encoder)->answered();
}

class Call : public shoal::Arguments {
 public:
  using Arguments::Arguments;

  /** Ten sizes of the model and three of the encoder, in the order of encoder.h. */
  Sizes sizes(size_t i) {
    Sizes sizes{};
    const double *v = array<double>(i, 13);
    if (is_bad) return sizes;
    const auto whole = [v](int at) { return static_cast<int32_t>(v[at]); };
    sizes.model = {whole(0), whole(1), whole(2), whole(3), whole(4), whole(5), static_cast<float>(v[6]),
                   whole(7), whole(8), whole(9)};
    sizes.options = {whole(10), whole(11), static_cast<uint64_t>(v[12])};
    return sizes;
  }

  std::shared_ptr<Encoder> encoder(size_t i) {
    const auto *shared = external<std::shared_ptr<Encoder>>(i, "an encoder");
    return shared == nullptr ? nullptr : *shared;
  }

  /** A job whose promise is returned; the arguments are held until it is settled. */
  Job *job(napi_value *promise) {
    Job *job = new Job;
    napi_create_promise(env_, &job->deferred, promise);
    job->held = hold();
    return job;
  }

  /** A promise that `work` fulfils in one of the encoder's lanes. */
  napi_value promise(const std::shared_ptr<Encoder> &encoder, std::function<void(Job &, int32_t lane)> work,
                     bool is_urgent = false) {
    if (is_bad) return nullptr;
    napi_value promise;
    Job *job = this->job(&promise);
    job->work = std::move(work);
    encoder->ask(job, is_urgent);
    return promise;
  }
};

/** encoder(library): throws where the library cannot be opened. */
napi_value make_encoder(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const std::string path = call.text(0);
  if (call.is_bad) return nullptr;
  try {
    napi_value external;
    auto *shared = new std::shared_ptr<Encoder>(new Encoder(env, path));
    napi_create_external(
        env, shared, [](napi_env, void *data, void *) { delete static_cast<std::shared_ptr<Encoder> *>(data); },
        nullptr, &external);
    return external;
  } catch (const std::exception &error) {
    return napi_throw_error(env, nullptr, error.what()), nullptr;
  }
}

/** devices(library): how many can be used, and why there are none; throws where the library cannot be opened. */
napi_value devices(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const std::string path = call.text(0);
  if (call.is_bad) return nullptr;
  try {
    const shoal::Library library(path);
    const int count = library.devices();
    napi_value found, number, reason;
    napi_create_array(env, &found);
    napi_create_int32(env, count, &number);
    napi_create_string_utf8(env, count > 0 ? "" : library.error(), NAPI_AUTO_LENGTH, &reason);
    napi_set_element(env, found, 0, number);
    napi_set_element(env, found, 1, reason);
    return found;
  } catch (const std::exception &error) {
    return napi_throw_error(env, nullptr, error.what()), nullptr;
  }
}

/** open(encoder, sizes, weights, preparedTokens) */
napi_value open(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0);
  const Sizes sizes = call.sizes(1);
  const std::vector<const float *> weights = call.arrays<float>(2, 1);
  const uint64_t tokens = static_cast<uint64_t>(call.number(3));
  return call.promise(encoder, [encoder = encoder.get(), sizes, weights, tokens](Job &self, int32_t) {
    encoder->note(self, encoder->open(sizes, weights, tokens));
    encoder->tell_memory(self);
  });
}

/** run(encoder, ids, lengths, embeddings, rows, width, isUrgent): [milliseconds, weights, lanes, most of lanes] */
napi_value run(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0);
  const int32_t rows = static_cast<int32_t>(call.number(4)), width = static_cast<int32_t>(call.number(5));
  const bool is_urgent = call.truth(6);
  const int32_t *ids = call.array<int32_t>(1, static_cast<size_t>(rows) * static_cast<size_t>(width)),
                *lengths = call.array<int32_t>(2, static_cast<size_t>(rows));
  float *embeddings = call.array<float>(3, static_cast<size_t>(rows));
  return call.promise(
      encoder,
      [=, encoder = encoder.get()](Job &self, int32_t lane) {
        encoder->run(self, lane, ids, lengths, rows, width, embeddings);
      },
      is_urgent);
}

/** shrink(encoder): [weights, lanes, most of lanes] */
napi_value shrink(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0);
  return call.promise(
      encoder,
      [encoder = encoder.get()](Job &self, int32_t) {
        encoder->note(self, encoder->library.shrink(encoder->encoder));
        encoder->tell_memory(self);
      },
      true);
}

/** close(encoder): after everything that was asked before. */
napi_value close(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0);
  if (call.is_bad) return nullptr;
  napi_value promise;
  encoder->close(call.job(&promise));
  return promise;
}

napi_value number_of(napi_env env, double value) {
  napi_value number;
  napi_create_double(env, value, &number);
  return number;
}

/** bytes(encoder, sizes, tokens, rows): of a lane; of the weights where tokens is 0. */
napi_value bytes(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0);
  const Sizes sizes = call.sizes(1);
  const double tokens = call.number(2), rows = call.number(3);
  if (call.is_bad) return nullptr;
  const shoal::Library &library = encoder->library;
  return number_of(env,
                   static_cast<double>(tokens == 0 ? library.weight_bytes(&sizes.model)
                                                   : library.lane_bytes(&sizes.model, static_cast<uint64_t>(tokens),
                                                                        static_cast<uint64_t>(rows))));
}

napi_value running_ms(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0);
  return call.is_bad ? nullptr : number_of(env, encoder->running_ms());
}

/** halves(values, halves): whether there is an instruction for that; `halves` has room for as many. */
napi_value halves(napi_env env, napi_callback_info info) {
  Call call(env, info);
  size_t count = 0;
  const float *const values = call.array<float>(0, 0, &count);
  uint16_t *const to = call.array<uint16_t>(1, count);
  if (call.is_bad) return nullptr;
  if (shoal::has_halves()) shoal::to_halves(values, to, count);
  napi_value done;
  napi_get_boolean(env, shoal::has_halves(), &done);
  return done;
}

/** checksum(bytes): their CRC-32, or undefined where there is no instruction for that. */
napi_value checksum(napi_env env, napi_callback_info info) {
  Call call(env, info);
  size_t count = 0;
  const uint8_t *const bytes = call.array<uint8_t>(0, 0, &count);
  if (call.is_bad || !shoal::has_checksum()) return nullptr;
  return number_of(env, shoal::checksum(bytes, count));
}

} // namespace

NAPI_MODULE_INIT() {
  const napi_property_descriptor functions[] = {
      {"encoder", nullptr, make_encoder, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"devices", nullptr, devices, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"open", nullptr, open, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"run", nullptr, run, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"shrink", nullptr, shrink, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"close", nullptr, close, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"bytes", nullptr, bytes, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"runningMs", nullptr, running_ms, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"halves", nullptr, halves, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"checksum", nullptr, checksum, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
  return exports;
}
