// Parts of one piece of work side by side. Threads are started for each call: 20 to 40 µs each, so callers ask for more than
// one only where the work is worth it.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace shoal {

/**
 * Calls work(next) on each thread, the last one on this; next(&block) gives out the numbers 0 ≤ block < blocks once each, rising
 * for every thread, until there are no more. Given out and not divided: a thread that the system holds up delays only its block.
 * What a thread throws (memory that is not there) is thrown here once all of them have ended.
 */
template <class Work>
void in_blocks(int threads, uint64_t blocks, const Work &work) {
  std::atomic<uint64_t> given{0};
  std::exception_ptr failure;
  std::mutex failing;
  const auto next = [&given, blocks](uint64_t *block) { return (*block = given.fetch_add(1, std::memory_order_relaxed)) < blocks; };
  const auto run = [&] {
    try {
      work(next);
    } catch (...) {
      given = blocks; // nobody begins another block
      const std::lock_guard<std::mutex> guard(failing);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(static_cast<size_t>(std::min<uint64_t>(threads, blocks))); // a vector that fails to grow would take down the threads in it
    for (int i = 1; i < threads && static_cast<uint64_t>(i) < blocks; i++) others.emplace_back(run);
  } catch (...) {
    // as many threads as the system, or its memory, gives
  }
  run();
  for (auto &thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace shoal
