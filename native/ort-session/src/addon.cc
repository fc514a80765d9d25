// Sessions of ONNX Runtime as a Node addon, in plain N-API. What is exported is declared in
// libs/inference/src/native-ort.ts; here shapes are trusted and only types are looked at. A line is a thread with the
// runs that wait for it, urgent ones first: no thread of Node or libuv ever blocks, and the device gets its next run
// without waiting for JavaScript. Buffers are the caller's and are held until their run has ended. When the process
// exits, the run that is going on is cut off and waited for.
#include <node_api.h>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#include "../../napi/arguments.h"
#include "session.h"

namespace {

using shoal::ort::Batch;
using shoal::ort::Graph;
using shoal::ort::GraphOptions;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/** What one promise stands for. */
struct Job {
  std::function<void(Job &)> work;
  bool is_urgent = false;
  napi_deferred deferred = nullptr;
  napi_ref held = nullptr;
  std::string failure;
  /** The answer: numbers, or a text. */
  std::vector<double> figures;
  std::string text;
};

void settle(napi_env env, napi_value, void *line, void *data);

class Line {
 public:
  std::vector<std::unique_ptr<Graph>> graphs; // touched by the thread alone

  /** The thread first: where the system refuses it, nothing points here yet. */
  explicit Line(napi_env env) : env_(env) {
    thread_ = std::thread([this] { serve(); });
    napi_value name;
    napi_create_string_utf8(env, "shoal:ort-session", NAPI_AUTO_LENGTH, &name);
    napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, this, settle, &settled_);
    napi_unref_threadsafe_function(env, settled_); // only what is asked for keeps the process alive
    napi_add_env_cleanup_hook(env, at_exit, this);
  }

  ~Line() {
    end();
    if (env_ == nullptr) return; // the process exits, and has taken the rest away
    napi_remove_env_cleanup_hook(env_, at_exit, this);
    napi_release_threadsafe_function(settled_, napi_tsfn_abort);
  }

  void ask(Job *job) {
    if (asked_++ == 0) napi_ref_threadsafe_function(env_, settled_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (is_over_) return refuse(job);
      (job->is_urgent ? urgent_ : waiting_).push_back(job);
    }
    wake_.notify_one();
  }

  void answered() {
    if (--asked_ == 0) napi_unref_threadsafe_function(env_, settled_);
  }

  /** The run that is going on ends with an error; those that wait stay. */
  void cancel() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (current_ != nullptr) current_->cancel();
  }

  /** By the thread itself: what it does now is the last. */
  void close() {
    graphs.clear();
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }

  double running_ms() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return current_ == nullptr ? 0 : ms_since(began_);
  }

  /** While `run` goes on it can be cancelled and is timed. */
  double timed(Graph &graph, const std::function<void()> &run) {
    show(&graph);
    const Clock::time_point began = Clock::now();
    struct Hide {
      Line *line;
      ~Hide() { line->show(nullptr); }
    } hide{this};
    run();
    return ms_since(began);
  }

 private:
  void show(Graph *graph) {
    const std::lock_guard<std::mutex> lock(mutex_);
    current_ = graph;
    began_ = Clock::now();
  }

  void serve() {
    for (Job *job = next(); job != nullptr; job = next()) {
      try {
        job->work(*job);
      } catch (const std::bad_alloc &) {
        job->failure = "std::bad_alloc";
      } catch (const std::exception &error) {
        job->failure = error.what();
      }
      job->work = nullptr;
      napi_call_threadsafe_function(settled_, job, napi_tsfn_blocking);
    }
    graphs.clear();
    refuse_rest();
  }

  /** What was asked after the end. */
  void refuse_rest() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
    for (std::deque<Job *> *queue : {&urgent_, &waiting_}) {
      for (Job *job : *queue) refuse(job);
      queue->clear();
    }
  }

  void refuse(Job *job) {
    job->failure = "this line is closed";
    napi_call_threadsafe_function(settled_, job, napi_tsfn_blocking);
  }

  Job *next() {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return is_ending_ || !urgent_.empty() || !waiting_.empty(); });
    if (is_ending_) return nullptr;
    std::deque<Job *> &queue = urgent_.empty() ? waiting_ : urgent_;
    Job *job = queue.front();
    queue.pop_front();
    return job;
  }

  static void at_exit(void *line) {
    static_cast<Line *>(line)->env_ = nullptr;
    static_cast<Line *>(line)->end();
  }

  /** Cuts off the run that is going on, and waits until the thread is gone. */
  void end() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_ending_ = true;
      if (current_ != nullptr) current_->cancel();
    }
    wake_.notify_one();
    thread_.join();
  }

  napi_env env_;
  napi_threadsafe_function settled_ = nullptr;
  size_t asked_ = 0; // by JavaScript's thread alone
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job *> urgent_, waiting_;
  Graph *current_ = nullptr;
  Clock::time_point began_;
  bool is_ending_ = false, is_over_ = false;
  std::thread thread_;
};

void settle(napi_env env, napi_value, void *line, void *data) {
  std::unique_ptr<Job> job(static_cast<Job *>(data));
  if (env == nullptr) return; // the process exits
  napi_value value = nullptr, message;
  if (!job->failure.empty()) {
    napi_create_string_utf8(env, job->failure.c_str(), NAPI_AUTO_LENGTH, &message);
    napi_create_error(env, nullptr, message, &value);
    napi_reject_deferred(env, job->deferred, value);
  } else {
    if (!job->text.empty()) {
      napi_create_string_utf8(env, job->text.c_str(), NAPI_AUTO_LENGTH, &value);
    } else {
      napi_create_array(env, &value);
      for (size_t i = 0; i < job->figures.size(); i++) {
        napi_value figure;
        napi_create_double(env, job->figures[i], &figure);
        napi_set_element(env, value, static_cast<uint32_t>(i), figure);
      }
    }
    napi_resolve_deferred(env, job->deferred, value);
  }
  if (job->held != nullptr) napi_delete_reference(env, job->held);
  static_cast<Line *>(line)->answered();
}

class Call : public shoal::Arguments {
 public:
  using Arguments::Arguments;

  std::shared_ptr<Line> line(size_t i) {
    const auto *shared = external<std::shared_ptr<Line>>(i, "a line");
    return shared == nullptr ? nullptr : *shared;
  }

  /** A promise that `work` fulfils on the line's thread. */
  napi_value promise(const std::shared_ptr<Line> &line, std::function<void(Job &)> work, bool is_urgent = false) {
    if (is_bad) return nullptr;
    Job *job = new Job;
    job->work = std::move(work);
    job->is_urgent = is_urgent;
    napi_value promise;
    napi_create_promise(env_, &job->deferred, &promise);
    job->held = hold();
    line->ask(job);
    return promise;
  }
};

Graph &graph_of(Line &line, size_t index) {
  if (index >= line.graphs.size()) throw shoal::ort::Error("there is no graph " + std::to_string(index));
  return *line.graphs[index];
}

void tell_statistics(Job &job, const Graph &graph) {
  const shoal::ort::ArenaStatistics found = graph.statistics();
  for (const double figure : {found.in_use, found.most_in_use, found.held, found.limit}) job.figures.push_back(figure);
}

/** load(library): the version of ONNX Runtime */
napi_value load(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const std::string library = call.text(0);
  if (call.is_bad) return nullptr;
  try {
    napi_value version;
    napi_create_string_utf8(env, shoal::ort::load(library).c_str(), NAPI_AUTO_LENGTH, &version);
    return version;
  } catch (const std::exception &error) {
    return napi_throw_error(env, nullptr, error.what()), nullptr;
  }
}

/** line(): a thread that opens and runs graphs; throws where the system refuses it */
napi_value line(napi_env env, napi_callback_info) {
  try {
    napi_value external;
    auto *shared = new std::shared_ptr<Line>(new Line(env));
    napi_create_external(
        env, shared, [](napi_env, void *data, void *) { delete static_cast<std::shared_ptr<Line> *>(data); }, nullptr,
        &external);
    return external;
  } catch (const std::exception &error) {
    const std::string message = std::string("the system refuses the thread of a line (") + error.what() +
                                "): allow this process more of them, by ulimit -u or the container's limit of pids";
    return napi_throw_error(env, nullptr, message.c_str()), nullptr;
  }
}

/** open(line, path, isCuda, threads, trace, providerOptions, cpuArenaBytes, ownsStream): [index of the graph] */
napi_value open(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto line = call.line(0);
  GraphOptions options;
  options.path = call.text(1);
  options.is_cuda = call.truth(2);
  options.threads = static_cast<int>(call.number(3));
  options.trace = call.text(4);
  const std::vector<std::string> pairs = call.texts(5); // key, value, key, value …
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) options.provider_options.emplace_back(pairs[i], pairs[i + 1]);
  options.cpu_arena_bytes = static_cast<uint64_t>(call.number(6));
  options.owns_stream = call.truth(7);
  return call.promise(line, [line = line.get(), options](Job &job) {
    line->graphs.push_back(std::make_unique<Graph>(options));
    job.figures = {static_cast<double>(line->graphs.size() - 1)};
  });
}

/**
 * run(line, graph, ids, lengths, embeddings, rows, width, dims, isUrgent, isReplayed): [milliseconds, in use, most in
 * use, held, limit]
 */
napi_value run(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto line = call.line(0);
  const size_t index = static_cast<size_t>(call.number(1));
  size_t ids = 0, lengths = 0, embeddings = 0;
  Batch batch{};
  batch.ids = call.array<int32_t>(2, 0, &ids);
  batch.lengths = call.array<int32_t>(3, 0, &lengths);
  batch.embeddings = call.array<float>(4, 0, &embeddings);
  batch.rows = static_cast<int64_t>(call.number(5));
  batch.width = static_cast<int64_t>(call.number(6));
  batch.dims = static_cast<int64_t>(call.number(7));
  const bool is_urgent = call.truth(8), is_replayed = call.truth(9);
  if (!call.is_bad &&
      (ids < static_cast<size_t>(batch.rows * batch.width) || lengths < static_cast<size_t>(batch.rows) ||
       embeddings < static_cast<size_t>(batch.rows * batch.dims))) {
    return napi_throw_range_error(env, nullptr, "the batch is larger than its buffers"), nullptr;
  }
  return call.promise(
      line,
      [line = line.get(), index, batch, is_replayed](Job &job) {
        Graph &graph = graph_of(*line, index);
        job.figures.push_back(line->timed(graph, [&] { is_replayed ? graph.replay(batch) : graph.run(batch); }));
        tell_statistics(job, graph);
      },
      is_urgent);
}

/**
 * runPlain(line, graph, rows, width, id, shrinks): [in use, most in use, held, limit] after a run of rows that are all
 * of this id; before all that waits
 */
napi_value run_plain(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto line = call.line(0);
  const size_t index = static_cast<size_t>(call.number(1));
  const int64_t rows = static_cast<int64_t>(call.number(2)), width = static_cast<int64_t>(call.number(3));
  const int32_t id = static_cast<int32_t>(call.number(4));
  const bool shrinks = call.truth(5);
  return call.promise(
      line,
      [line = line.get(), index, rows, width, id, shrinks](Job &job) {
        Graph &graph = graph_of(*line, index);
        line->timed(graph, [&] { graph.run_plain(rows, width, id, shrinks); });
        tell_statistics(job, graph);
      },
      true);
}

/** statistics(line, graph): [in use, most in use, held, limit], before all that waits */
napi_value statistics(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto line = call.line(0);
  const size_t index = static_cast<size_t>(call.number(1));
  return call.promise(
      line, [line = line.get(), index](Job &job) { tell_statistics(job, graph_of(*line, index)); }, true);
}

/** endTrace(line, graph): path of the trace */
napi_value end_trace(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto line = call.line(0);
  const size_t index = static_cast<size_t>(call.number(1));
  return call.promise(line, [line = line.get(), index](Job &job) { job.text = graph_of(*line, index).end_trace(); });
}

/**
 * close(line): after everything that was asked before, its graphs and its thread are gone; what is asked later is
 * refused
 */
napi_value close(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto line = call.line(0);
  return call.promise(line, [line = line.get()](Job &) { line->close(); });
}

/** cancel(line) */
napi_value cancel(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto line = call.line(0);
  if (!call.is_bad) line->cancel();
  return nullptr;
}

/** runningMs(line): 0 when idle */
napi_value running_ms(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto line = call.line(0);
  if (call.is_bad) return nullptr;
  napi_value value;
  napi_create_double(env, line->running_ms(), &value);
  return value;
}

} // namespace

NAPI_MODULE_INIT() {
  const napi_property_descriptor functions[] = {
#define SHOAL_EXPORT(NAME, FUNCTION) {NAME, nullptr, FUNCTION, nullptr, nullptr, nullptr, napi_enumerable, nullptr}
      SHOAL_EXPORT("load", load),          SHOAL_EXPORT("line", line),
      SHOAL_EXPORT("open", open),          SHOAL_EXPORT("run", run),
      SHOAL_EXPORT("runPlain", run_plain), SHOAL_EXPORT("statistics", statistics),
      SHOAL_EXPORT("endTrace", end_trace), SHOAL_EXPORT("close", close),
      SHOAL_EXPORT("cancel", cancel),      SHOAL_EXPORT("runningMs", running_ms),
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
  return exports;
}
