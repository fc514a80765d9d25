// Parts of one piece of work side by side. Threads are started for each call: 20 to 40 µs each, so callers ask for more than
// one only where the work is worth it.
#pragma once
#include <thread>
#include <vector>

namespace shoal {

/** Calls work(part) for 0 ≤ part < parts, the last one on this thread. */
template <class Work>
void in_parallel(int parts, const Work &work) {
  std::vector<std::thread> others;
  for (int part = 0; part + 1 < parts; part++) others.emplace_back([&work, part] { work(part); });
  work(parts - 1);
  for (auto &thread : others) thread.join();
}

}  // namespace shoal
