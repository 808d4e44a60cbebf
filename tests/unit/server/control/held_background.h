// Control's other thread, for tests: keeps the work until the test runs it.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "server/control/background.h"

namespace phub::server {

class HeldBackground final : public Background {
 public:
  void Run(const std::string& /*tenant*/, std::function<void()> work,
           std::function<void()> then) override {
    pieces.emplace_back(std::move(work), std::move(then));
  }
  bool RunOne() {
    if (pieces.empty()) return false;
    const auto [work, then] = std::move(pieces.front());
    pieces.pop_front();
    work();
    then();
    return true;
  }
  std::deque<std::pair<std::function<void()>, std::function<void()>>> pieces;
};

}  // namespace phub::server
