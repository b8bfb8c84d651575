// Runs work(0) here, and work(1), ..., work(count - 1) each on a thread of its own. A thread that starts only after all
// that was begun has ended does nothing, and is not waited for: on a busy machine that would take longer than the work.
// So each work must claim its parts from what is left. The first failure is thrown here.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace stillhash {

template <class Work>
void on_threads(int64_t count, const Work& work) {
  if (count == 1) return work(0);
  struct State {  // outlives this call, where a thread is late
    std::mutex mutex;
    std::condition_variable ended;
    int64_t running = 0;
    bool closed = false;
    std::exception_ptr failure;
  };
  const auto state = std::make_shared<State>();
  const auto run = [state, &work](int64_t w) {  // `work` exists until the state is closed and none is running
    {
      const std::lock_guard<std::mutex> lock(state->mutex);
      if (state->closed) return;
      ++state->running;
    }
    std::exception_ptr failure;
    try {
      work(w);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(state->mutex);
    if (failure && !state->failure) state->failure = failure;
    if (--state->running == 0) state->ended.notify_all();
  };
  try {
    for (int64_t w = 1; w < count; ++w) std::thread(run, w).detach();
  } catch (const std::system_error&) {  // no more threads: those there are do it all
  } catch (const std::bad_alloc&) {     // no memory for one: the same
  }
  run(0);
  std::unique_lock<std::mutex> lock(state->mutex);
  state->closed = true;
  state->ended.wait(lock, [&] { return state->running == 0; });
  if (state->failure) std::rethrow_exception(state->failure);
}

}  // namespace stillhash
