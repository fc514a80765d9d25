// What is used of ONNX Runtime's C API, each function by its slot in the runtime's function table. The npm package
// ships the library without its header; the table only ever grows at its end, so that a slot once given out stays (the
// runtime's own sources assert it), and asking for version 23 makes sure that all of these are there. Slots and
// signatures were read from the table of API 30 (crate ort-sys 2.0.0-rc.15, 2026-11; check_slots.py compares them
// again). Nothing here calls anything.
#pragma once
#include <cstddef>
#include <cstdint>

namespace shoal::ort {

/** The first that tells what an arena holds. */
constexpr uint32_t kApiVersion = 23;

struct OrtStatus;
struct OrtAllocator;
struct OrtEnv;
struct OrtSession;
struct OrtSessionOptions;
struct OrtRunOptions;
struct OrtValue;
struct OrtMemoryInfo;
struct OrtArenaCfg;
struct OrtKeyValuePairs;
struct OrtCudaOptions;

struct OrtApiBase {
  const void *const *(*get_api)(uint32_t version);
  const char *(*version)();
};

enum ElementType { kFloat = 1, kInt32 = 6 };
enum AllocatorType { kDeviceAllocator = 0, kArenaAllocator = 1 };
enum { kMemoryDefault = 0 };
enum { kOptimizeAll = 99, kLogFatal = 4 };

// slot, result, name, arguments
#define SHOAL_ORT_FUNCTIONS(F)                                                                                       \
  F(2, const char *, GetErrorMessage, (const OrtStatus *))                                                           \
  F(3, OrtStatus *, CreateEnv, (int level, const char *name, OrtEnv **))                                             \
  F(6, OrtStatus *, DisableTelemetryEvents, (const OrtEnv *))                                                        \
  F(7, OrtStatus *, CreateSession, (const OrtEnv *, const char *path, const OrtSessionOptions *, OrtSession **))     \
  F(9, OrtStatus *, Run,                                                                                             \
    (OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t, const char *const *, \
     size_t, OrtValue **))                                                                                           \
  F(10, OrtStatus *, CreateSessionOptions, (OrtSessionOptions **))                                                   \
  F(14, OrtStatus *, EnableProfiling, (OrtSessionOptions *, const char *prefix))                                     \
  F(17, OrtStatus *, DisableMemPattern, (OrtSessionOptions *))                                                       \
  F(22, OrtStatus *, SetSessionLogSeverityLevel, (OrtSessionOptions *, int))                                         \
  F(23, OrtStatus *, SetSessionGraphOptimizationLevel, (OrtSessionOptions *, int))                                   \
  F(24, OrtStatus *, SetIntraOpNumThreads, (OrtSessionOptions *, int))                                               \
  F(25, OrtStatus *, SetInterOpNumThreads, (OrtSessionOptions *, int))                                               \
  F(39, OrtStatus *, CreateRunOptions, (OrtRunOptions **))                                                           \
  F(46, OrtStatus *, RunOptionsSetTerminate, (OrtRunOptions *))                                                      \
  F(49, OrtStatus *, CreateTensorWithDataAsOrtValue,                                                                 \
    (const OrtMemoryInfo *, void *, size_t bytes, const int64_t *shape, size_t dims, int type, OrtValue **))         \
  F(68, OrtStatus *, CreateMemoryInfo,                                                                               \
    (const char *name, int allocator_type, int device, int memory_type, OrtMemoryInfo **))                           \
  F(75, OrtStatus *, AllocatorAlloc, (OrtAllocator *, size_t, void **))                                              \
  F(76, OrtStatus *, AllocatorFree, (OrtAllocator *, void *))                                                        \
  F(78, OrtStatus *, GetAllocatorWithDefaultOptions, (OrtAllocator **))                                              \
  F(93, void, ReleaseStatus, (OrtStatus *))                                                                          \
  F(94, void, ReleaseMemoryInfo, (OrtMemoryInfo *))                                                                  \
  F(95, void, ReleaseSession, (OrtSession *))                                                                        \
  F(96, void, ReleaseValue, (OrtValue *))                                                                            \
  F(97, void, ReleaseRunOptions, (OrtRunOptions *))                                                                  \
  F(100, void, ReleaseSessionOptions, (OrtSessionOptions *))                                                         \
  F(110, OrtStatus *, SessionEndProfiling, (OrtSession *, OrtAllocator *, char **path))                              \
  F(130, OrtStatus *, AddSessionConfigEntry, (OrtSessionOptions *, const char *key, const char *value))              \
  F(131, OrtStatus *, CreateAllocator, (const OrtSession *, const OrtMemoryInfo *, OrtAllocator **))                 \
  F(132, void, ReleaseAllocator, (OrtAllocator *))                                                                   \
  F(144, OrtStatus *, CreateAndRegisterAllocator, (OrtEnv *, const OrtMemoryInfo *, const OrtArenaCfg *))            \
  F(157, void, ReleaseArenaCfg, (OrtArenaCfg *))                                                                     \
  F(164, OrtStatus *, CreateArenaCfgV2, (const char *const *keys, const size_t *values, size_t, OrtArenaCfg **))     \
  F(165, OrtStatus *, AddRunConfigEntry, (OrtRunOptions *, const char *key, const char *value))                      \
  F(177, OrtStatus *, UnregisterAllocator, (OrtEnv *, const OrtMemoryInfo *))                                        \
  F(204, OrtStatus *, SessionOptionsAppendExecutionProvider_CUDA_V2, (OrtSessionOptions *, const OrtCudaOptions *))  \
  F(205, OrtStatus *, CreateCUDAProviderOptions, (OrtCudaOptions **))                                                \
  F(206, OrtStatus *, UpdateCUDAProviderOptions,                                                                     \
    (OrtCudaOptions *, const char *const *keys, const char *const *values, size_t))                                  \
  F(208, void, ReleaseCUDAProviderOptions, (OrtCudaOptions *))                                                       \
  F(297, const char *, GetKeyValue, (const OrtKeyValuePairs *, const char *key))                                     \
  F(300, void, ReleaseKeyValuePairs, (OrtKeyValuePairs *))                                                           \
  F(319, OrtStatus *, AllocatorGetStats, (const OrtAllocator *, OrtKeyValuePairs **))

struct OrtApi {
#define SHOAL_ORT_MEMBER(SLOT, RESULT, NAME, ARGUMENTS) RESULT(*NAME) ARGUMENTS = nullptr;
  SHOAL_ORT_FUNCTIONS(SHOAL_ORT_MEMBER)
#undef SHOAL_ORT_MEMBER
};

/** False when a slot is empty: then this is not the table it should be. */
inline bool read_table(const void *const *table, OrtApi *api) {
#define SHOAL_ORT_READ(SLOT, RESULT, NAME, ARGUMENTS) \
  if (table[SLOT] == nullptr) return false;           \
  api->NAME = reinterpret_cast<RESULT(*) ARGUMENTS>(const_cast<void *>(table[SLOT]));
  SHOAL_ORT_FUNCTIONS(SHOAL_ORT_READ)
#undef SHOAL_ORT_READ
  return true;
}

} // namespace shoal::ort
