// The kernels as a Node addon, in plain N-API: one binary for every Node from 18 on. What is exported is declared and checked in
// libs/similarity/src/native-addon.ts; here shapes are trusted and only types are looked at. Work runs on libuv's threads;
// arrays are the caller's, are held until the work is done, and results are written into them.
#include <node_api.h>
#include <cerrno>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include "../include/similarity.h"
#include "mapped_file.h"

namespace {

struct Job {
  napi_async_work work = nullptr;
  napi_deferred deferred = nullptr;
  napi_ref held = nullptr;
  std::function<void()> run;
  std::string failure;
};

constexpr size_t MOST_ARGUMENTS = 16;

/** The arguments of one call; the first one that is not what it should be throws in JavaScript and makes `is_bad`. */
class Call {
 public:
  bool is_bad = false;

  Call(napi_env env, napi_callback_info info) : env_(env) { napi_get_cb_info(env, info, &count_, values_, nullptr, nullptr); }

  double number(size_t i) {
    double value = 0;
    if (i >= count_ || napi_get_value_double(env_, values_[i], &value) != napi_ok) refuse(i, "a number");
    return value;
  }

  /** Null for null and undefined. */
  template <class T>
  T *array(size_t i) {
    napi_valuetype type = napi_undefined;
    if (i < count_) napi_typeof(env_, values_[i], &type);
    if (type == napi_null || type == napi_undefined) return nullptr;
    bool is_array = false;
    void *data = nullptr;
    napi_is_typedarray(env_, values_[i], &is_array);
    if (!is_array || napi_get_typedarray_info(env_, values_[i], nullptr, nullptr, &data, nullptr, nullptr) != napi_ok) refuse(i, "a typed array");
    return static_cast<T *>(data);
  }

  std::string text(size_t i) {
    size_t length = 0;
    if (i >= count_ || napi_get_value_string_utf8(env_, values_[i], nullptr, 0, &length) != napi_ok) return refuse(i, "a string"), "";
    std::string value(length, '\0');
    napi_get_value_string_utf8(env_, values_[i], &value[0], length + 1, &length);
    return value;
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

  /** A promise of undefined that `run` fulfils on another thread. */
  napi_value promise(std::function<void()> run) {
    if (is_bad) return nullptr;
    Job *job = new Job;
    job->run = std::move(run);
    napi_value promise, name, held;
    napi_create_promise(env_, &job->deferred, &promise);
    napi_create_array_with_length(env_, count_, &held);
    for (size_t i = 0; i < count_; i++) napi_set_element(env_, held, static_cast<uint32_t>(i), values_[i]);
    napi_create_reference(env_, held, 1, &job->held);
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
    } catch (const std::exception &error) {
      job->failure = error.what();
    }
  }

  static void complete(napi_env env, napi_status status, void *data) {
    Job *job = static_cast<Job *>(data);
    napi_value value, message;
    napi_get_undefined(env, &value);
    if (status == napi_ok && job->failure.empty()) {
      napi_resolve_deferred(env, job->deferred, value);
    } else {
      napi_create_string_utf8(env, status == napi_ok ? job->failure.c_str() : "cancelled", NAPI_AUTO_LENGTH, &message);
      napi_create_error(env, nullptr, message, &value);
      napi_reject_deferred(env, job->deferred, value);
    }
    napi_delete_reference(env, job->held);
    napi_delete_async_work(env, job->work);
    delete job;
  }

  void refuse(size_t i, const char *wanted) {
    if (!is_bad) napi_throw_type_error(env_, nullptr, ("argument " + std::to_string(i) + " is not " + wanted).c_str());
    is_bad = true;
  }

  napi_env env_;
  size_t count_ = MOST_ARGUMENTS;
  napi_value values_[MOST_ARGUMENTS];
};

/** isas(): names of the instruction sets, best first. */
napi_value isas(napi_env env, napi_callback_info) {
  napi_value names, name;
  napi_create_array(env, &names);
  for (int i = 0; i < shoal_isa_count(); i++) {
    napi_create_string_utf8(env, shoal_isa_name(i), NAPI_AUTO_LENGTH, &name);
    napi_set_element(env, names, static_cast<uint32_t>(i), name);
  }
  return names;
}

/** What top-k, matrix and re-scoring begin with: isa, threads, …rows, queries, count, metric. Their own arguments follow from 12 on. */
struct Comparison {
  int isa, threads;
  shoal_rows rows;
  const float *queries;
  uint64_t count;
  enum shoal_metric metric;

  explicit Comparison(Call &call)
      : isa(static_cast<int>(call.number(0))), threads(static_cast<int>(call.number(1))), rows(call.rows(2)), queries(call.array<float>(9)),
        count(static_cast<uint64_t>(call.number(10))), metric(static_cast<enum shoal_metric>(call.number(11))) {}
};

/** lengths(isa, threads, …rows, lengths) */
napi_value lengths(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const int isa = static_cast<int>(call.number(0)), threads = static_cast<int>(call.number(1));
  const shoal_rows rows = call.rows(2);
  double *out = call.array<double>(9);
  return call.promise([=] { shoal_lengths(isa, threads, &rows, out); });
}

/** topK(isa, threads, …rows, queries, count, metric, k, found and best, scores, stop) */
napi_value top_k(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Comparison c(call);
  const uint32_t k = static_cast<uint32_t>(call.number(12));
  // One array: how many were found of each query, then their rows.
  uint32_t *found = call.array<uint32_t>(13), *best = found + c.count;
  double *scores = call.array<double>(14);
  const uint8_t *stop = call.array<uint8_t>(15);
  return call.promise([=] { shoal_topk(c.isa, c.threads, c.queries, c.count, &c.rows, c.metric, k, best, scores, found, stop); });
}

/** matrix(isa, threads, …rows, queries, count, metric, scores, stop) */
napi_value matrix(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Comparison c(call);
  float *scores = call.array<float>(12);
  const uint8_t *stop = call.array<uint8_t>(13);
  return call.promise([=] { shoal_matrix(c.isa, c.threads, c.queries, c.count, &c.rows, c.metric, scores, stop); });
}

/** rescore(isa, threads, …rows, queries, count, metric, begin, candidates, scores, stop) */
napi_value rescore(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const Comparison c(call);
  const uint32_t *begin = call.array<uint32_t>(12), *candidates = call.array<uint32_t>(13);
  double *scores = call.array<double>(14);
  const uint8_t *stop = call.array<uint8_t>(15);
  return call.promise([=] { shoal_rescore(c.isa, c.threads, c.queries, c.count, &c.rows, c.metric, begin, candidates, scores, stop); });
}

/** spread(isa, threads, nodes, begin, source, weight, lanes, steps, decay, threshold, activation, scratch, stop) */
napi_value spread(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const int isa = static_cast<int>(call.number(0)), threads = static_cast<int>(call.number(1));
  const shoal_graph graph{static_cast<uint64_t>(call.number(2)), call.array<uint32_t>(3), call.array<uint32_t>(4), call.array<float>(5)};
  const uint32_t lanes = static_cast<uint32_t>(call.number(6)), steps = static_cast<uint32_t>(call.number(7));
  const float decay = static_cast<float>(call.number(8)), threshold = static_cast<float>(call.number(9));
  float *activation = call.array<float>(10), *scratch = call.array<float>(11);
  const uint8_t *stop = call.array<uint8_t>(12);
  return call.promise([=] { shoal_spread(isa, threads, &graph, lanes, steps, decay, threshold, activation, scratch, stop); });
}

/** peak(isa, threads, out): GFLOP/s of multiply-adds into out[0]. */
napi_value peak(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const int isa = static_cast<int>(call.number(0)), threads = static_cast<int>(call.number(1));
  double *out = call.array<double>(2);
  return call.promise([=] { *out = shoal_peak(isa, threads); });
}

/** mapFile(path): its bytes as an ArrayBuffer; they are given back to the system when nobody holds it any more. */
napi_value map_file(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const std::string path = call.text(0);
  if (call.is_bad) return nullptr;
  size_t size = 0;
  char *data = shoal::map_file(path.c_str(), &size);
  if (data == nullptr) return napi_throw_error(env, errno == ENOENT ? "ENOENT" : "EMAP", (path + " cannot be mapped: " + std::strerror(errno)).c_str()), nullptr;
  napi_value buffer = nullptr;
  const auto unmap = [](napi_env, void *mapped, void *) { shoal::unmap_file(static_cast<char *>(mapped)); };
  if (napi_create_external_arraybuffer(env, data, size, unmap, nullptr, &buffer) == napi_ok) return buffer;
  shoal::unmap_file(data);
  return napi_throw_error(env, "EMAP", "this runtime takes no memory from outside"), nullptr;
}

/** isCut(bytes): whether the mapped file that these bytes are in was cut, and read behind its end. */
napi_value is_cut(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const char *data = call.array<char>(0);
  if (call.is_bad) return nullptr;
  napi_value answer;
  napi_get_boolean(env, data != nullptr && shoal::is_cut(data), &answer);
  return answer;
}

}  // namespace

NAPI_MODULE_INIT() {
  const napi_property_descriptor functions[] = {
#define SHOAL_EXPORT(NAME, FUNCTION) {NAME, nullptr, FUNCTION, nullptr, nullptr, nullptr, napi_enumerable, nullptr}
      SHOAL_EXPORT("isas", isas), SHOAL_EXPORT("lengths", lengths), SHOAL_EXPORT("topK", top_k), SHOAL_EXPORT("matrix", matrix), SHOAL_EXPORT("rescore", rescore),
      SHOAL_EXPORT("spread", spread), SHOAL_EXPORT("peak", peak), SHOAL_EXPORT("mapFile", map_file), SHOAL_EXPORT("isCut", is_cut),
  };
  napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
  return exports;
}
