// Runs work(0) here and work(1), ..., work(count - 1) each on a thread of its own; the first failure is thrown here.
#pragma once
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace stillhash {

template <class Work>
void on_threads(int64_t count, const Work& work) {
  if (count == 1) return work(0);
  std::vector<std::exception_ptr> failures(count);
  const auto run = [&](int64_t w) {
    try {
      work(w);
    } catch (...) {
      failures[w] = std::current_exception();
    }
  };
  std::vector<std::thread> pool;
  for (int64_t w = 1; w < count; ++w) pool.emplace_back(run, w);
  run(0);
  for (std::thread& thread : pool) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace stillhash
