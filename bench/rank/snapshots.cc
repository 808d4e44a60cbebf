#include "bench/rank/snapshots.h"

#include <chrono>
#include <fstream>
#include <thread>
#include <utility>

#include "bench/rank/arguments.h"

namespace phub::bench {

Snapshots::Snapshots(std::string folder, std::uint32_t rank, std::uint32_t world)
    : folder_(std::move(folder)), rank_(rank), line_(folder_ + "/snapshot-line", world) {}

void Snapshots::Take() {
  AwaitAll();
  if (rank_ == 0) {
    std::ofstream(folder_ + "/snapshot-ask") << "read\n" << std::flush;
    std::ifstream answer(folder_ + "/snapshot-done");
    std::string line;
    if (!std::getline(answer, line)) Fail("the harness does not answer");
  }
  AwaitAll();
}

void Snapshots::AwaitAll() {
  line_.Arrive();
  while (!line_.all_there()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace phub::bench
