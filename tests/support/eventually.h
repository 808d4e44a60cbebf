// For tests: a condition that another thread or process makes true.
#pragma once

#include <chrono>
#include <thread>

namespace phub {

// False: it is not true after a minute.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace phub
