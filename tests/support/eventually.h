// For tests: a condition that another thread or process makes true.
#pragma once

#include <chrono>
#include <thread>

namespace phub {

template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 60'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace phub
