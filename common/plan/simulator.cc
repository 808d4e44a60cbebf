#include "common/plan/simulator.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/flow_simulator.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

std::vector<double> LinkBytes(const Topology& topology, const Forest& forest,
                              std::int64_t size_bytes) {
  std::vector<double> bytes(topology.links().size(), 0);
  for (const Tree& tree : forest.trees) {
    const double share = static_cast<double>(size_bytes) * static_cast<double>(tree.share) /
                         static_cast<double>(forest.share_unit);
    for (const auto* edges : {&tree.reduce, &tree.gather})
      for (const Edge& edge : *edges)
        for (const LinkIndex link : forest.paths[edge.path.value]) bytes[link.value] += share;
  }
  return bytes;
}

// Rejects options and forests whose time, even without any parallelism, could exceed 63 bits of
// picoseconds.
absl::Status CheckOptions(const Topology& topology, const Forest& forest,
                          const SimulationOptions& options) {
  if (options.size_bytes < 1 || options.size_bytes > kSizeBytesMax)
    return absl::InvalidArgumentError(fmt::format(
        "the size is {} bytes; it must be from 1 to {} bytes", options.size_bytes, kSizeBytesMax));
  if (options.pieces < 1 || options.pieces > kPiecesMax)
    return absl::InvalidArgumentError(fmt::format(
        "the number of pieces is {}; it must be from 1 to {}", options.pieces, kPiecesMax));
  if (options.mode == SimulationMode::kFlow && EdgeCount(forest) * options.pieces > kTransfersMax)
    return absl::InvalidArgumentError(
        fmt::format("{} edges in {} pieces exceed the limit of {} transfers", EdgeCount(forest),
                    options.pieces, kTransfersMax));
  const auto is_rate = [](double rate) { return rate >= 0 && rate < 1e18; };
  if (!is_rate(options.sum_bytes_per_s) || !is_rate(options.optimizer_bytes_per_s))
    return absl::InvalidArgumentError(
        "the rates of summing and optimizing must be from 0 to 10^18 bytes per second");
  double seconds = 0;
  const std::vector<double> bytes = LinkBytes(topology, forest, options.size_bytes);
  for (std::uint32_t i = 0; i < bytes.size(); ++i)
    seconds += bytes[i] / topology.BytesPerSecond(LinkIndex{i}) +
               static_cast<double>(topology.link(LinkIndex{i}).latency_ns) * 1e-9;
  for (const double rate : {options.sum_bytes_per_s, options.optimizer_bytes_per_s})
    if (rate > 0)
      seconds += static_cast<double>(options.size_bytes) *
                 static_cast<double>(topology.nodes().size()) / rate;
  if (!(seconds * static_cast<double>(StepCount(forest) + options.pieces) < 4e6))
    return absl::InvalidArgumentError(
        "the simulated time could exceed 46 days: reduce the size, or check the bandwidths");
  return absl::OkStatus();
}

// The loads of each wave in turn: a window of `pieces` steps slides over the forest.
class Lockstep {
 public:
  Lockstep(const Topology& topology, const Forest& forest, const SimulationOptions& options)
      : topology_(topology), forest_(forest), options_(options), steps_(StepCount(forest)) {
    const double unit =
        static_cast<double>(options.size_bytes) / static_cast<double>(forest.share_unit);
    for (const Tree& tree : forest.trees) AddTree(tree, unit * static_cast<double>(tree.share));
  }

  std::int64_t Run(std::uint32_t pieces) const {
    std::vector<double> seconds(topology_.links().size() + topology_.nodes().size(), 0);
    std::int64_t time_ps = 0;
    for (std::size_t wave = 0; wave < steps_.size() + pieces - 1; ++wave) {
      if (wave < steps_.size())
        for (const auto& [item, busy] : steps_[wave].busy) seconds[item] += busy;
      if (wave >= pieces)
        for (const auto& [item, busy] : steps_[wave - pieces].busy)
          seconds[item] = std::max(seconds[item] - busy, 0.0);
      std::int64_t latency_ps = 0;
      const std::size_t first = wave + 1 < pieces ? 0 : wave + 1 - pieces;
      for (std::size_t step = first; step <= std::min(wave, steps_.size() - 1); ++step)
        latency_ps = std::max(latency_ps, steps_[step].latency_ps);
      const double busiest = *std::max_element(seconds.begin(), seconds.end());
      // Sliding accumulates rounding errors, far below a picosecond.
      time_ps += latency_ps + static_cast<std::int64_t>(
                                  std::ceil(busiest / pieces * kPicosecondsPerSecond - 1e-3));
    }
    return time_ps;
  }

 private:
  struct Step {
    std::vector<std::pair<std::size_t, double>> busy;  // link, or link count + node; seconds
    std::int64_t latency_ps = 0;
  };

  void AddTree(const Tree& tree, double bytes) {
    const std::size_t links = topology_.links().size();
    std::uint32_t last_reduce = 0;
    for (const bool reduces : {true, false}) {
      for (const Edge& edge : reduces ? tree.reduce : tree.gather) {
        Step& step = steps_[edge.step];
        std::int64_t latency_ps = 0;
        for (const LinkIndex link : forest_.paths[edge.path.value]) {
          step.busy.emplace_back(link.value, bytes / topology_.BytesPerSecond(link));
          latency_ps += topology_.link(link).latency_ns * 1000;
        }
        step.latency_ps = std::max(step.latency_ps, latency_ps);
        if (!reduces) continue;
        last_reduce = std::max(last_reduce, edge.step);
        if (options_.sum_bytes_per_s > 0)
          step.busy.emplace_back(links + edge.to.value, bytes / options_.sum_bytes_per_s);
      }
    }
    if (options_.optimizer_bytes_per_s > 0)
      steps_[last_reduce].busy.emplace_back(links + tree.home.value,
                                            bytes / options_.optimizer_bytes_per_s);
  }

  const Topology& topology_;
  const Forest& forest_;
  const SimulationOptions& options_;
  std::vector<Step> steps_;
};

}  // namespace

absl::StatusOr<SimulationResult> Simulate(const Topology& topology, const Forest& forest,
                                          const SimulationOptions& options) {
  if (absl::Status status = CheckOptions(topology, forest, options); !status.ok()) return status;
  SimulationResult result;
  if (options.mode == SimulationMode::kLockstep) {
    result.time_ps = Lockstep(topology, forest, options).Run(options.pieces);
  } else {
    absl::StatusOr<SimulationResult> flow = FlowSimulator(topology, forest, options).Run();
    if (!flow.ok()) return flow.status();
    result = *std::move(flow);
  }
  const std::vector<double> bytes = LinkBytes(topology, forest, options.size_bytes);
  // Ends of transfers are rounded, possibly down. The time must not be below the time that the
  // busiest link needs for its bytes.
  for (std::uint32_t i = 0; i < bytes.size(); ++i) {
    const double busy = bytes[i] / topology.BytesPerSecond(LinkIndex{i}) * kPicosecondsPerSecond;
    result.time_ps = std::max(result.time_ps, static_cast<std::int64_t>(std::ceil(busy)));
  }
  for (std::uint32_t i = 0; i < bytes.size(); ++i) {
    const double could = topology.BytesPerSecond(LinkIndex{i}) * result.seconds();
    result.link_use.push_back(could > 0 ? bytes[i] / could : 0);
  }
  return result;
}

absl::StatusOr<std::vector<double>> LockstepSeconds(const Topology& topology, const Forest& forest,
                                                    const SimulationOptions& options,
                                                    std::span<const std::uint32_t> pieces) {
  SimulationOptions checked = options;
  checked.mode = SimulationMode::kLockstep;
  for (const std::uint32_t count : pieces) {
    checked.pieces = count;
    if (absl::Status status = CheckOptions(topology, forest, checked); !status.ok()) return status;
  }
  const Lockstep lockstep(topology, forest, options);
  std::vector<double> seconds;
  for (const std::uint32_t count : pieces)
    seconds.push_back(static_cast<double>(lockstep.Run(count)) / kPicosecondsPerSecond);
  return seconds;
}

std::string ChromeTrace(const Topology& topology, const Forest& forest,
                        const SimulationResult& result) {
  fmt::memory_buffer out;
  const auto end = [&] { return std::back_inserter(out); };
  fmt::format_to(end(), "{{\"displayTimeUnit\": \"ns\", \"traceEvents\": [");
  const char* separator = "\n";
  const auto add_name = [&](const char* what, std::uint32_t process, std::uint32_t thread,
                            const std::string& name) {
    fmt::format_to(end(),
                   "{}{{\"ph\": \"M\", \"name\": \"{}\", \"pid\": {}, \"tid\": {}, \"args\": "
                   "{{\"name\": \"{}\"}}}}",
                   separator, what, process, thread, name);
    separator = ",\n";
  };
  // Node names come from files: drop characters that JSON would have to escape.
  const auto plain = [](std::string name) {
    std::erase_if(name,
                  [](char c) { return c == '"' || c == '\\' || (c >= 0 && c < 32) || c < 0; });
    return name;
  };
  for (std::uint32_t i = 0; i < topology.nodes().size(); ++i)
    add_name("process_name", i, 0, plain(topology.node(NodeIndex{i}).name));
  for (std::uint32_t i = 0; i < topology.links().size(); ++i)
    add_name("thread_name", topology.link(LinkIndex{i}).from.value, i + 1,
             plain(topology.LinkName(LinkIndex{i})));
  for (const TransferTimes& times : result.timeline) {
    const Tree& tree = forest.trees[times.tree];
    const Edge& edge = (times.reduces ? tree.reduce : tree.gather)[times.edge];
    fmt::format_to(
        end(),
        ",\n{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": \"tree {} {} {} to {}\", \"pid\": {}, "
        "\"tid\": {}, \"ts\": {:.6f}, \"dur\": {:.6f}, \"args\": {{\"home\": \"{}\", \"step\": {}, "
        "\"piece\": {}, \"arrives_us\": {:.6f}}}}}",
        times.reduces ? "reduce" : "gather", times.tree, times.reduces ? "sum" : "result",
        plain(topology.node(edge.from).name), plain(topology.node(edge.to).name), edge.from.value,
        forest.paths[edge.path.value].front().value + 1,
        static_cast<double>(times.started_ps) * 1e-6,
        static_cast<double>(times.sent_ps - times.started_ps) * 1e-6,
        plain(topology.node(tree.home).name), edge.step, times.piece,
        static_cast<double>(times.arrived_ps) * 1e-6);
  }
  fmt::format_to(end(), "\n]}}\n");
  return fmt::to_string(out);
}

}  // namespace phub::plan
