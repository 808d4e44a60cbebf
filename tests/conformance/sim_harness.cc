#include "common/base/check.h"
#include "tests/conformance/harness.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_transport.h"

namespace phub::conformance {
namespace {

class SimRawPeer final : public RawPeer {
 public:
  SimRawPeer(sim::SimNetwork& network, std::unique_ptr<sim::SimNetwork::Connection> end)
      : network_(network), end_(std::move(end)) {}

  void Write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
      const transport::IoResult io = end_->Writev({&part, 1});
      if (io.status == transport::IoStatus::kReset) return;
      bytes = bytes.subspan(io.bytes);
      PHUB_CHECK(io.bytes > 0 || network_.Step(), "the pipe is full and nothing moves");
    }
  }
  void Close() override { end_->Shutdown(); }
  void Reset() override { network_.Reset(*end_); }

 private:
  sim::SimNetwork& network_;
  std::unique_ptr<sim::SimNetwork::Connection> end_;
};

class SimHarness final : public Harness {
 public:
  SimHarness(std::uint64_t seed, const sim::SimNetworkOptions& options, const HarnessLimits& limits)
      : network_(seed, options),
        left_(network_, limits.connections_max),
        right_(network_, limits.connections_max) {}

  transport::Transport& left() override { return left_; }
  transport::Transport& right() override { return right_; }

  ConnectionPair Connect() override { return network_.Connect(0, 1); }

  std::unique_ptr<RawPeer> ConnectRaw(std::unique_ptr<transport::Connection>& connection) override {
    auto [ours, theirs] = network_.Connect(0, 2);
    connection = std::move(ours);
    return std::make_unique<SimRawPeer>(network_, std::move(theirs));
  }

  void Pump() override { network_.Step(); }

 private:
  sim::SimNetwork network_;
  sim::SimTransport left_;
  sim::SimTransport right_;
};

sim::SimNetworkOptions Options(const HarnessLimits& limits) {
  sim::SimNetworkOptions options;
  options.limits = {.send_queue = limits.send_queue, .received_lent = limits.received_lent};
  return options;
}

}  // namespace

std::unique_ptr<Harness> MakeCalmSimHarness(const HarnessLimits& limits) {
  return std::make_unique<SimHarness>(1, Options(limits), limits);
}

std::unique_ptr<Harness> MakeHostileSimHarness(const HarnessLimits& limits) {
  sim::SimNetworkOptions options = Options(limits);
  options.latency_jitter = 200 * kMicrosecond;
  options.bytes_per_second = 1'000'000'000;
  options.pipe_bytes = 30'000;
  options.split_read_chance = 300'000;
  options.partial_write_chance = 300'000;
  options.clog_chance = 20'000;
  return std::make_unique<SimHarness>(2, options, limits);
}

}  // namespace phub::conformance
