#include "threads.h"
#include <dlfcn.h>
#include <condition_variable>
#include <memory>
#include <thread>
#include <vector>

namespace shoal {
namespace {

/** A thread that waits for work, for as long as the process lives. */
struct Helper {
  enum State { FREE, CALLED, AT_WORK };
  std::mutex lock;
  std::condition_variable called, done;
  State state = FREE;
  void (*run)(void *) = nullptr;
  void *context = nullptr;

  void work() {
    for (std::unique_lock<std::mutex> guard(lock);;) {
      called.wait(guard, [&] { return state == CALLED; });
      state = AT_WORK;
      guard.unlock();
      run(context);
      guard.lock();
      state = FREE;
      done.notify_one();
    }
  }

  void call(void (*to_run)(void *), void *with) {
    {
      const std::lock_guard<std::mutex> guard(lock);
      run = to_run, context = with, state = CALLED;
    }
    called.notify_one();
  }

  /** After this it knows nothing of the work any more. */
  void dismiss() {
    std::unique_lock<std::mutex> guard(lock);
    done.wait(guard, [&] { return state != AT_WORK; });
    state = FREE;
  }
};

/** Helpers that nobody has called; never taken apart, since they outlive what a process takes apart at its end. */
struct Crew {
  std::mutex lock;
  std::vector<Helper *> free;
};

Crew &crew() {
  static Crew *const all = [] {
    // Whoever unloads this library, as Node does when a worker thread ends, would take the code away from under threads
    // that wait in it.
    Dl_info library;
    if (dladdr(reinterpret_cast<void *>(&side_by_side), &library) != 0)
      dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    return new Crew;
  }();
  return *all;
}

Helper *new_helper() {
  auto made = std::make_unique<Helper>();
  std::thread([helper = made.get()] { helper->work(); }).detach();
  return made.release();
}

} // namespace

void side_by_side(int others, void (*run)(void *context), void *context) {
  if (others <= 0) return run(context);
  std::vector<Helper *> mine;
  try {
    mine.reserve(static_cast<size_t>(others));
    {
      Crew &all = crew();
      const std::lock_guard<std::mutex> guard(all.lock);
      while (mine.size() < static_cast<size_t>(others) && !all.free.empty())
        mine.push_back(all.free.back()), all.free.pop_back();
    }
    for (Helper *const helper : mine) helper->call(run, context);
    while (mine.size() < static_cast<size_t>(others)) {
      mine.push_back(new_helper());
      mine.back()->call(run, context);
    }
  } catch (...) {
    // as many threads as the system, or its memory, gives
  }
  run(context);
  for (Helper *const helper : mine) helper->dismiss();
  Crew &all = crew();
  const std::lock_guard<std::mutex> guard(all.lock);
  try {
    all.free.insert(all.free.end(), mine.begin(), mine.end());
  } catch (...) {
    // they wait for nobody
  }
}

} // namespace shoal
