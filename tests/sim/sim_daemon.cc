#include "tests/sim/sim_daemon.h"

#include <array>

namespace phub::sim {

SimDaemon::SimDaemon(SimNetwork& network, Random& random, NodeId first_node,
                     std::uint32_t core_count)
    : first_node_(first_node) {
  std::vector<server::CoreHandle> handles;
  for (std::uint32_t core = 0; core < core_count; ++core) {
    transports_.push_back(std::make_unique<SimTransport>(network, 256));
    const std::array<transport::Transport*, 1> transports{transports_.back().get()};
    loops_.push_back(
        std::make_unique<server::CoreLoop>(CoreIndex{core}, network.clock(), transports));
    handles.push_back({&loops_.back()->queues(), &loops_.back()->counters(), {}});
  }
  control_ = std::make_unique<server::Control>(network.clock(), random, std::move(handles),
                                               server::ControlOptions{});
}

bool SimDaemon::RunCore(std::uint32_t core) { return loops_[core]->RunOnce(); }

void SimDaemon::RunControl() { control_->Poll(); }

std::uint64_t SimDaemon::Count(server::CoreCounter counter) const {
  std::uint64_t sum = 0;
  for (const auto& loop : loops_) sum += loop->counters().Get(counter);
  return sum;
}

}  // namespace phub::sim
