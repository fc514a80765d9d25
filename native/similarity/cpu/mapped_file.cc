#include "mapped_file.h"
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace shoal {
namespace {

/** Read by the signal handler, so without locks: an entry is in use while `data` is not null. */
struct Mapping {
  std::atomic<char *> data{nullptr};
  std::atomic<size_t> size{0};
  std::atomic<bool> is_cut{false};
  int file = -1; // stays open, to be asked for its size
};
constexpr int MOST = 4096;
Mapping mappings[MOST];
/** None lies behind this one. */
std::atomic<int> used{0};
constexpr size_t MOST_LOOKED_AT = 1 << 23;
struct sigaction before;

Mapping *mapping_of(const char *address) {
  for (Mapping *mapping = mappings; mapping != mappings + used.load(); mapping++) {
    const char *data = mapping->data.load();
    if (data != nullptr && address >= data && address < data + mapping->size.load()) return mapping;
  }
  return nullptr;
}

void on_bus_error(int signal, siginfo_t *info, void *context) {
  char *address = static_cast<char *>(info->si_addr);
  Mapping *mapping = mapping_of(address);
  if (mapping != nullptr) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    char *data = mapping->data.load(), *from = data + (address - data) / page * page;
    const size_t rest = static_cast<size_t>(data + mapping->size.load() - from);
    if (mmap(from, rest, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
      mapping->is_cut.store(true);
      return;
    }
  }
  // Not ours: what would have happened without us.
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr)
    return before.sa_sigaction(signal, info, context);
  sigaction(signal, &before, nullptr);
  raise(signal);
}

} // namespace

char *map_file(const char *path, size_t *size) {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
  });
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat facts{};
  void *data = MAP_FAILED;
  if (fstat(file, &facts) == 0 && facts.st_size > 0)
    data = mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) {
    const int failure = errno;
    close(file);
    errno = failure;
    return nullptr;
  }
  static std::mutex adding;
  const std::lock_guard<std::mutex> guard(adding);
  for (Mapping &mapping : mappings) {
    if (mapping.data.load() != nullptr) continue;
    mapping.size = static_cast<size_t>(facts.st_size);
    mapping.is_cut = false;
    mapping.file = file;
    mapping.data = static_cast<char *>(data);
    used = std::max(used.load(), static_cast<int>(&mapping - mappings) + 1);
    *size = mapping.size;
    return static_cast<char *>(data);
  }
  munmap(data, static_cast<size_t>(facts.st_size));
  close(file);
  errno = EMFILE;
  return nullptr;
}

void unmap_file(char *data) {
  Mapping *mapping = mapping_of(data);
  if (mapping == nullptr) return;
  munmap(data, mapping->size);
  close(mapping->file);
  mapping->data = nullptr;
}

bool is_in_memory(const char *data, size_t size) {
  if (size == 0 || mapping_of(data) == nullptr) return true;
  if (size > MOST_LOOKED_AT) return false;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char *from = const_cast<char *>(data) - reinterpret_cast<uintptr_t>(data) % page;
  const size_t pages = (static_cast<size_t>(data + size - from) + page - 1) / page;
  std::vector<unsigned char> is_there(pages);
#ifdef __APPLE__
  char *answer = reinterpret_cast<char *>(is_there.data());
#else
  unsigned char *answer = is_there.data();
#endif
  return mincore(from, static_cast<size_t>(data + size - from), answer) == 0 &&
         std::all_of(is_there.begin(), is_there.end(), [](unsigned char facts) { return (facts & 1) != 0; });
}

bool is_cut(const char *data) {
  const Mapping *mapping = mapping_of(data);
  if (mapping == nullptr) return false;
  // What was cut off its last page reads as zeros without a signal: only the file's size tells.
  struct stat facts{};
  return mapping->is_cut || (fstat(mapping->file, &facts) == 0 && static_cast<size_t>(facts.st_size) < mapping->size);
}

} // namespace shoal
