// Threads that run the same work at the same time, each pinned to its own core, and the time that
// the work takes. Only one thread at a time may call Run().
#pragma once

#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace phub::bench {

struct Timing {
  double wall_s = 0.0;  // from the first thread's start to the last thread's end
  double cpu_s = 0.0;   // the CPU time of all threads together
};

class Crew {
 public:
  using Work = std::function<void(std::uint32_t thread)>;

  // Fails if the machine has fewer cores.
  static absl::StatusOr<std::unique_ptr<Crew>> Create(std::uint32_t threads);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  Timing Run(const Work& work);

 private:
  struct Span {
    std::int64_t start_ns = 0;
    std::int64_t end_ns = 0;
    std::int64_t cpu_ns = 0;
  };
  explicit Crew(const std::vector<std::uint32_t>& cores);
  void Serve(std::uint32_t thread, std::uint32_t core);

  std::barrier<> start_;
  std::barrier<> end_;
  const Work* work_ = nullptr;  // null tells the threads to exit
  std::vector<Span> spans_;
  std::vector<std::jthread> threads_;
};

}  // namespace phub::bench
