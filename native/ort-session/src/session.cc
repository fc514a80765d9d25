#include "session.h"
#include <dlfcn.h>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <mutex>
#include "ort_api.h"

namespace shoal::ort {
namespace {

OrtApi api;
OrtEnv *env = nullptr;
std::mutex loading;

void check(OrtStatus *status) {
  if (status == nullptr) return;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  throw Error(message);
}

/** Owns what the runtime made, and gives it back by the runtime's own function. */
template <class T>
struct Owned {
  T *value = nullptr;
  void (*release)(T *);

  explicit Owned(void (*release)(T *)) : release(release) {}
  ~Owned() { reset(); }
  Owned(const Owned &) = delete;
  void reset() {
    if (value != nullptr) release(value);
    value = nullptr;
  }
  operator T *() const { return value; }
};

void describe_memory(Owned<OrtMemoryInfo> &info, const char *name, AllocatorType type) {
  check(api.CreateMemoryInfo(name, type, 0, kMemoryDefault, &info.value));
}

/**
 * The arena that graphs with a limit share. Registered again when another limit is asked for: graphs that are open keep
 * theirs.
 */
void register_cpu_arena(uint64_t bytes) {
  static uint64_t registered = 0;
  const std::lock_guard<std::mutex> lock(loading);
  if (registered == bytes) return;
  Owned<OrtMemoryInfo> info(api.ReleaseMemoryInfo);
  describe_memory(info, "Cpu", kArenaAllocator);
  if (registered != 0) {
    check(api.UnregisterAllocator(env, info));
    registered = 0;
  }
  const char *keys[] = {"max_mem", "arena_extend_strategy"};
  const size_t values[] = {static_cast<size_t>(bytes), 1 /* as requested */};
  Owned<OrtArenaCfg> config(api.ReleaseArenaCfg);
  check(api.CreateArenaCfgV2(keys, values, 2, &config.value));
  check(api.CreateAndRegisterAllocator(env, info, config));
  registered = bytes;
}

/**
 * CUDA's own library for programs, which the provider needs anyway; not linked, so that nothing of CUDA is needed
 * elsewhere.
 */
struct CudaRuntime {
  enum Direction { kToDevice = 1, kToHost = 2 };
  int (*create_stream)(void **, unsigned flags) = nullptr;
  int (*destroy_stream)(void *) = nullptr;
  int (*synchronize)(void *stream) = nullptr;
  int (*copy)(void *to, const void *from, size_t, int direction, void *stream) = nullptr;

  CudaRuntime() {
    void *library = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    find(library, "cudaStreamCreateWithFlags", create_stream);
    find(library, "cudaStreamDestroy", destroy_stream);
    find(library, "cudaStreamSynchronize", synchronize);
    find(library, "cudaMemcpyAsync", copy);
  }

  bool can_stream() const {
    return create_stream != nullptr && destroy_stream != nullptr && synchronize != nullptr && copy != nullptr;
  }

 private:
  template <class T>
  static void find(void *library, const char *name, T &function) {
    function = reinterpret_cast<T>(dlsym(library, name));
  }
};

const CudaRuntime &cuda_runtime() {
  static const CudaRuntime runtime;
  return runtime;
}

void check_cuda(int error, const char *what) {
  if (error != 0) throw Error("CUDA failure " + std::to_string(error) + ": " + what); // in the words of the provider
}

} // namespace

std::string load(const std::string &library) {
  const std::lock_guard<std::mutex> lock(loading);
  static std::string version;
  if (!version.empty()) return version;
  void *handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL); // never closed: it lives as long as the process
  if (handle == nullptr) throw Error(dlerror());
  const auto get_base = reinterpret_cast<const OrtApiBase *(*)()>(dlsym(handle, "OrtGetApiBase"));
  if (get_base == nullptr) throw Error(library + " has no OrtGetApiBase");
  const OrtApiBase *base = get_base();
  const void *const *table = base->get_api(kApiVersion);
  if (table == nullptr || !read_table(table, &api))
    throw Error(library + " is ONNX Runtime " + base->version() + ", whose C API is older than version " +
                std::to_string(kApiVersion));
  check(api.CreateEnv(kLogFatal, "shoal", &env)); // failed runs are reported by us, with what they meant
  check(api.DisableTelemetryEvents(env));
  return version = base->version();
}

namespace {

/** Buffers on the device whose addresses stay, for one shape. */
struct Recorded {
  OrtAllocator *arena;
  void *ids = nullptr, *lengths = nullptr, *embeddings = nullptr;
  Owned<OrtValue> ids_value{api.ReleaseValue}, lengths_value{api.ReleaseValue}, embeddings_value{api.ReleaseValue};

  explicit Recorded(OrtAllocator *arena) : arena(arena) {}
  ~Recorded() {
    for (void *buffer : {ids, lengths, embeddings})
      if (buffer != nullptr) api.ReleaseStatus(api.AllocatorFree(arena, buffer));
  }
};

} // namespace

struct Graph::State {
  Owned<OrtMemoryInfo> host{api.ReleaseMemoryInfo}, device{api.ReleaseMemoryInfo};
  Owned<OrtSession> session{api.ReleaseSession};
  Owned<OrtAllocator> arena{api.ReleaseAllocator};
  const char *shrinkage;
  std::mutex running_mutex;
  OrtRunOptions *running = nullptr;
  void *stream = nullptr;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Recorded>> recorded;

  void run(const OrtValue *ids, const OrtValue *lengths, OrtValue **embeddings,
           std::initializer_list<std::pair<const char *, const char *>> settings);
  void tell(OrtRunOptions *now) {
    const std::lock_guard<std::mutex> lock(running_mutex);
    running = now;
  }
};

void Graph::State::run(const OrtValue *ids, const OrtValue *lengths, OrtValue **embeddings,
                       std::initializer_list<std::pair<const char *, const char *>> settings) {
  Owned<OrtRunOptions> options(api.ReleaseRunOptions);
  check(api.CreateRunOptions(&options.value));
  for (const auto &[key, value] : settings) check(api.AddRunConfigEntry(options, key, value));
  const char *const input_names[] = {"input_ids", "lengths"}, *const output_names[] = {"embeddings"};
  const OrtValue *const inputs[] = {ids, lengths};
  tell(options);
  OrtStatus *status = api.Run(session, options, input_names, inputs, 2, output_names, 1, embeddings);
  tell(nullptr);
  check(status);
}

Graph::Graph(const GraphOptions &options) : state_(new State) {
  if (env == nullptr) throw Error("the runtime is not loaded");
  Owned<OrtSessionOptions> so(api.ReleaseSessionOptions);
  check(api.CreateSessionOptions(&so.value));
  check(api.SetIntraOpNumThreads(so, options.threads));
  check(api.SetInterOpNumThreads(so, 1));
  check(api.DisableMemPattern(so));
  check(api.SetSessionGraphOptimizationLevel(so, kOptimizeAll));
  check(api.SetSessionLogSeverityLevel(so, kLogFatal));
  check(api.AddSessionConfigEntry(so, "session.intra_op.allow_spinning", "0"));
  if (!options.trace.empty()) check(api.EnableProfiling(so, options.trace.c_str()));
  if (options.cpu_arena_bytes > 0) {
    register_cpu_arena(options.cpu_arena_bytes);
    check(api.AddSessionConfigEntry(so, "session.use_env_allocators", "1"));
  }
  if (options.is_cuda) {
    Owned<OrtCudaOptions> cuda(api.ReleaseCUDAProviderOptions);
    check(api.CreateCUDAProviderOptions(&cuda.value));
    std::vector<const char *> keys, values;
    std::string stream;
    if (options.owns_stream) {
      if (!cuda_runtime().can_stream()) throw Error("libcudart.so.13 is not found, and a stream of one's own needs it");
      check_cuda(cuda_runtime().create_stream(&state_->stream, 1 /* does not wait for the default stream */),
                 "no stream");
      stream = std::to_string(reinterpret_cast<uintptr_t>(state_->stream));
      keys.push_back("user_compute_stream"), values.push_back(stream.c_str());
    }
    for (const auto &[key, value] : options.provider_options)
      keys.push_back(key.c_str()), values.push_back(value.c_str());
    check(api.UpdateCUDAProviderOptions(cuda, keys.data(), values.data(), keys.size()));
    check(api.SessionOptionsAppendExecutionProvider_CUDA_V2(so, cuda));
  }
  check(api.CreateSession(env, options.path.c_str(), so, &state_->session.value));
  describe_memory(state_->host, "Cpu", kDeviceAllocator);
  describe_memory(state_->device, options.is_cuda ? "Cuda" : "Cpu", kArenaAllocator);
  state_->shrinkage = options.is_cuda ? "gpu:0" : "cpu:0";
  check(api.CreateAllocator(state_->session, state_->device, &state_->arena.value));
}

Graph::~Graph() {
  // in this order: buffers are the arena's, the arena is the session's, and the session may still wait for its stream
  state_->recorded.clear();
  state_->arena.reset();
  state_->session.reset();
  if (state_->stream != nullptr) cuda_runtime().destroy_stream(state_->stream);
}

namespace {

void wrap(Owned<OrtValue> &value, const OrtMemoryInfo *memory, void *data, ElementType type,
          std::initializer_list<int64_t> shape) {
  size_t bytes = 4; // of either type
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  check(api.CreateTensorWithDataAsOrtValue(memory, data, bytes, shape.begin(), shape.size(), type, &value.value));
}

} // namespace

void Graph::run(const Batch &batch) {
  // as memory of the host: what is called "CudaPinned" counts as the device's, kernels work on it in place, and the
  // copy out of it is refused (1.30, H200)
  const OrtMemoryInfo *memory = state_->host;
  Owned<OrtValue> ids(api.ReleaseValue), lengths(api.ReleaseValue), embeddings(api.ReleaseValue);
  wrap(ids, memory, batch.ids, kInt32, {batch.rows, batch.width});
  wrap(lengths, memory, batch.lengths, kInt32, {batch.rows});
  wrap(embeddings, memory, batch.embeddings, kFloat, {batch.rows, batch.dims});
  OrtValue *output = embeddings; // given, so that the runtime writes into it
  state_->run(ids, lengths, &output, {});
}

void Graph::replay(const Batch &batch) {
  if (state_->stream == nullptr) throw Error("a graph without a stream of its own replays nothing");
  const CudaRuntime &cuda = cuda_runtime();
  const size_t ids_bytes = static_cast<size_t>(batch.rows * batch.width) * 4,
               lengths_bytes = static_cast<size_t>(batch.rows) * 4,
               embeddings_bytes = static_cast<size_t>(batch.rows * batch.dims) * 4;
  std::unique_ptr<Recorded> &recorded = state_->recorded[{batch.rows, batch.width}];
  if (recorded == nullptr) {
    auto made = std::make_unique<Recorded>(state_->arena);
    check(api.AllocatorAlloc(state_->arena, ids_bytes, &made->ids));
    check(api.AllocatorAlloc(state_->arena, lengths_bytes, &made->lengths));
    check(api.AllocatorAlloc(state_->arena, embeddings_bytes, &made->embeddings));
    wrap(made->ids_value, state_->device, made->ids, kInt32, {batch.rows, batch.width});
    wrap(made->lengths_value, state_->device, made->lengths, kInt32, {batch.rows});
    wrap(made->embeddings_value, state_->device, made->embeddings, kFloat, {batch.rows, batch.dims});
    recorded = std::move(made);
  }
  check_cuda(cuda.copy(recorded->ids, batch.ids, ids_bytes, CudaRuntime::kToDevice, state_->stream),
             "ids were not copied");
  check_cuda(cuda.copy(recorded->lengths, batch.lengths, lengths_bytes, CudaRuntime::kToDevice, state_->stream),
             "lengths were not copied");
  const std::string number = std::to_string(batch.rows * 65536 + batch.width);
  OrtValue *output = recorded->embeddings_value;
  state_->run(recorded->ids_value, recorded->lengths_value, &output, {{"gpu_graph_id", number.c_str()}});
  check_cuda(cuda.copy(batch.embeddings, recorded->embeddings, embeddings_bytes, CudaRuntime::kToHost, state_->stream),
             "embeddings were not copied");
  check_cuda(cuda.synchronize(state_->stream), "the run did not end well");
}

void Graph::run_plain(int64_t rows, int64_t width, int32_t id, bool shrinks) {
  std::vector<int32_t> all(static_cast<size_t>(rows * width), id);
  int32_t length = static_cast<int32_t>(width);
  Owned<OrtValue> ids(api.ReleaseValue), lengths(api.ReleaseValue), embeddings(api.ReleaseValue);
  wrap(ids, state_->host, all.data(), kInt32, {rows, width});
  // one for all: where nothing is computed, masks for them would be left over in the arena
  wrap(lengths, state_->host, &length, kInt32, {1});
  if (shrinks)
    state_->run(ids, lengths, &embeddings.value, {{"memory.enable_memory_arena_shrinkage", state_->shrinkage}});
  else
    state_->run(ids, lengths, &embeddings.value, {});
}

void Graph::cancel() {
  const std::lock_guard<std::mutex> lock(state_->running_mutex);
  if (state_->running != nullptr) check(api.RunOptionsSetTerminate(state_->running));
}

ArenaStatistics Graph::statistics() const {
  Owned<OrtKeyValuePairs> pairs(api.ReleaseKeyValuePairs);
  check(api.AllocatorGetStats(state_->arena, &pairs.value));
  const auto figure = [&](const char *key) {
    const char *text = api.GetKeyValue(pairs, key);
    return text == nullptr ? 0.0 : std::strtod(text, nullptr);
  };
  return {figure("InUse"), figure("MaxInUse"), figure("TotalAllocated"), figure("Limit")};
}

std::string Graph::end_trace() {
  OrtAllocator *allocator = nullptr; // the runtime's, not ours to release
  check(api.GetAllocatorWithDefaultOptions(&allocator));
  char *path = nullptr;
  check(api.SessionEndProfiling(state_->session, allocator, &path));
  const std::string found = path;
  check(api.AllocatorFree(allocator, path));
  return found;
}

} // namespace shoal::ort
