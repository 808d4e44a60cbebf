#include "common/plan/flow_simulator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

std::vector<double> Bandwidths(const Topology& topology) {
  std::vector<double> result;
  for (std::uint32_t i = 0; i < topology.links().size(); ++i)
    result.push_back(topology.BytesPerSecond(LinkIndex{i}));
  return result;
}

// Rounds the end of a transfer to a grid, so that equal transfers end together despite the rounding
// of their rates. With few flows the error is below a millionth of the remaining time. With many
// flows each update of rates is expensive and must cover many ends: the error is then up to a
// hundredth, or a thirtieth, of the transfer's duration.
std::int64_t RoundedEnd(std::int64_t now_ps, std::int64_t left_ps, std::int64_t passed_ps,
                        std::size_t flow_count) {
  constexpr std::size_t kExactFlowsMax = 1u << 12, kHundredthFlowsMax = 1u << 17;
  const bool is_exact = flow_count <= kExactFlowsMax;
  const auto duration = static_cast<std::uint64_t>(is_exact ? left_ps : left_ps + passed_ps);
  const int bits = is_exact ? 20 : flow_count <= kHundredthFlowsMax ? 6 : 5;
  const auto grid = static_cast<std::int64_t>(std::bit_floor(duration | 1u) >> bits);
  if (grid < 2) return now_ps + left_ps;
  return std::max((now_ps + left_ps + grid / 2) / grid * grid, now_ps);
}

std::int64_t Picoseconds(double bytes, double bytes_per_s) {
  return static_cast<std::int64_t>(std::ceil(bytes / bytes_per_s * kPicosecondsPerSecond));
}

}  // namespace

FlowSimulator::FlowSimulator(const Topology& topology, const Forest& forest,
                             const SimulationOptions& options)
    : topology_(topology),
      forest_(forest),
      options_(options),
      graph_(topology, forest),
      busy_until_ps_(topology.nodes().size(), 0),
      gate_count_(graph_.gates.size() * options.pieces, 0),
      transfers_(graph_.edges.size() * options.pieces),
      shares_(Bandwidths(topology), forest.paths) {
  for (const Tree& tree : forest.trees)
    tree_bytes_.push_back(static_cast<double>(options.size_bytes) *
                          static_cast<double>(tree.share) / static_cast<double>(forest.share_unit) /
                          options.pieces);
  for (const Path& path : forest.paths) {
    std::int64_t& latency = path_latency_ps_.emplace_back(0);
    for (const LinkIndex link : path) latency += topology.link(link).latency_ns * 1000;
  }
  if (options.keep_timeline) timeline_.resize(transfers_.size());
}

absl::StatusOr<SimulationResult> FlowSimulator::Run() {
  BuildSchedule();
  for (SendQueue& queue : queues_) NextWave(queue);
  for (std::uint32_t i = 0; i < transfers_.size(); ++i)
    if (EdgeOf(i).gate_in == SimulationGraph::kNoGate) MakeReady(i);
  UpdateRates();
  while (!events_.empty()) {
    now_ps_ = events_.top().time_ps;
    while (!events_.empty() && events_.top().time_ps == now_ps_) {
      const Event event = events_.top();
      events_.pop();
      ++event_count_;
      Handle(event);
    }
    UpdateRates();
    if (options_.work_max > 0 && Work() > options_.work_max)
      return absl::ResourceExhaustedError("the simulation exceeds its limit of work");
  }
  if (arrived_count_ != transfers_.size())
    return absl::InvalidArgumentError(
        fmt::format("{} of {} transfers never start: the plan has a deadlock",
                    transfers_.size() - arrived_count_, transfers_.size()));
  return TakeResult();
}

void FlowSimulator::BuildSchedule() {
  schedule_.resize(transfers_.size());
  std::iota(schedule_.begin(), schedule_.end(), 0u);
  std::sort(schedule_.begin(), schedule_.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (EdgeOf(a).queue != EdgeOf(b).queue) return EdgeOf(a).queue < EdgeOf(b).queue;
    return WaveOf(a) != WaveOf(b) ? WaveOf(a) < WaveOf(b) : a < b;
  });
  queues_.resize(graph_.queue_count);
  for (std::uint32_t place = 0; place < schedule_.size(); ++place) {
    transfers_[schedule_[place]].place = place;
    SendQueue& queue = queues_[EdgeOf(schedule_[place]).queue];
    if (queue.end == 0) queue.first = queue.last = place;
    queue.end = place + 1;
  }
}

// Advances to the next wave and starts its transfers that are ready.
void FlowSimulator::NextWave(SendQueue& queue) {
  queue.first = queue.last;
  if (queue.first == queue.end) return;
  const std::uint32_t wave = WaveOf(schedule_[queue.first]);
  while (queue.last < queue.end && WaveOf(schedule_[queue.last]) == wave) ++queue.last;
  queue.unsent = queue.last - queue.first;
  for (std::uint32_t place = queue.first; place < queue.last; ++place)
    if (transfers_[schedule_[place]].is_ready) starting_.push_back(schedule_[place]);
}

void FlowSimulator::MakeReady(std::uint32_t transfer) {
  transfers_[transfer].is_ready = true;
  const SendQueue& queue = queues_[EdgeOf(transfer).queue];
  const std::uint32_t place = transfers_[transfer].place;
  if (place >= queue.first && place < queue.last) starting_.push_back(transfer);
}

void FlowSimulator::StartBundles() {
  std::sort(starting_.begin(), starting_.end(), [&](std::uint32_t a, std::uint32_t b) {
    const GraphEdge &first = EdgeOf(a), &second = EdgeOf(b);
    if (first.path != second.path) return first.path < second.path;
    return BytesOf(first) != BytesOf(second) ? BytesOf(first) < BytesOf(second) : a < b;
  });
  for (std::size_t begin = 0, end = 0; begin < starting_.size(); begin = end) {
    const GraphEdge& edge = EdgeOf(starting_[begin]);
    const auto belongs = [&](std::uint32_t transfer) {
      return EdgeOf(transfer).path == edge.path && BytesOf(EdgeOf(transfer)) == BytesOf(edge);
    };
    while (end < starting_.size() && belongs(starting_[end])) ++end;
    for (std::size_t i = begin; i < end; ++i)
      transfers_[starting_[i]].next_in_bundle = i + 1 < end ? starting_[i + 1] : kNone;
    const FairShare::Flow flow = shares_.Add(edge.path, static_cast<std::uint32_t>(end - begin));
    if (flow >= bundles_.size()) bundles_.resize(flow + 1);
    const std::uint32_t version = bundles_[flow].version + 1;
    constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
    bundles_[flow] = {BytesOf(edge), now_ps_, now_ps_, kNever, kNever, version, starting_[begin]};
  }
  if (!timeline_.empty())
    for (const std::uint32_t i : starting_)
      timeline_[i] = {
          EdgeOf(i).tree, EdgeOf(i).index, PieceOf(i), EdgeOf(i).reduces, now_ps_, 0, 0};
  starting_.clear();
}

void FlowSimulator::Handle(const Event& event) {
  switch (event.kind) {
    case Kind::kSent: OnEndOfBundle(event); break;
    case Kind::kArrived: OnArrived(event.id); break;
    case Kind::kSummed: CountAtGate(EdgeOf(event.id).gate_out, PieceOf(event.id)); break;
    case Kind::kOptimized: OpenGate(event.id / options_.pieces, event.id % options_.pieces); break;
  }
}

void FlowSimulator::OnEndOfBundle(const Event& event) {
  Bundle& bundle = bundles_[event.id];
  if (event.version != bundle.version) return;
  if (bundle.ends_ps > now_ps_) {
    bundle.queued_ps = bundle.ends_ps;
    events_.push({bundle.ends_ps, Kind::kSent, event.id, event.version});
    return;
  }
  ++bundle.version;
  shares_.Remove(event.id);
  for (std::uint32_t i = bundle.first_transfer; i != kNone; i = transfers_[i].next_in_bundle)
    OnSent(i);
}

void FlowSimulator::OnSent(std::uint32_t transfer) {
  const GraphEdge& edge = EdgeOf(transfer);
  SendQueue& queue = queues_[edge.queue];
  if (--queue.unsent == 0) NextWave(queue);
  const std::int64_t arrives = now_ps_ + path_latency_ps_[edge.path.value];
  events_.push({arrives, Kind::kArrived, transfer, 0});
  if (!timeline_.empty()) {
    timeline_[transfer].sent_ps = now_ps_;
    timeline_[transfer].arrived_ps = arrives;
  }
}

void FlowSimulator::OnArrived(std::uint32_t transfer) {
  const GraphEdge& edge = EdgeOf(transfer);
  ++arrived_count_;
  finished_ps_ = std::max(finished_ps_, now_ps_);
  if (edge.reduces && options_.sum_bytes_per_s > 0) {
    const std::int64_t done = Work(edge.to, BytesOf(edge), options_.sum_bytes_per_s);
    events_.push({done, Kind::kSummed, transfer, 0});
    return;
  }
  CountAtGate(edge.gate_out, PieceOf(transfer));
}

void FlowSimulator::CountAtGate(std::uint32_t gate, std::uint32_t piece) {
  const std::uint32_t index = gate * options_.pieces + piece;
  if (++gate_count_[index] < graph_.gates[gate].waits_for) return;
  finished_ps_ = std::max(finished_ps_, now_ps_);
  if (!graph_.gates[gate].is_home || options_.optimizer_bytes_per_s <= 0) {
    OpenGate(gate, piece);
    return;
  }
  // Every home has a gather edge, and any edge behind the gate gives the home and the share.
  const GraphEdge& edge = graph_.edges[graph_.opened[graph_.gates[gate].first_edge]];
  const std::int64_t done = Work(edge.from, BytesOf(edge), options_.optimizer_bytes_per_s);
  events_.push({done, Kind::kOptimized, index, 0});
}

void FlowSimulator::OpenGate(std::uint32_t gate, std::uint32_t piece) {
  const Gate& opened = graph_.gates[gate];
  for (std::uint32_t i = 0; i < opened.edge_count; ++i)
    MakeReady(graph_.opened[opened.first_edge + i] * options_.pieces + piece);
}

std::int64_t FlowSimulator::Work(NodeIndex node, double bytes, double bytes_per_s) {
  std::int64_t& busy = busy_until_ps_[node.value];
  busy = std::max(busy, now_ps_) + Picoseconds(bytes, bytes_per_s);
  return busy;
}

void FlowSimulator::UpdateRates() {
  StartBundles();
  for (const FairShare::Change& change : shares_.Update()) {
    Bundle& bundle = bundles_[change.flow];
    const double passed = static_cast<double>(now_ps_ - bundle.updated_ps) / kPicosecondsPerSecond;
    bundle.bytes_left = std::max(bundle.bytes_left - change.rate_before * passed, 0.0);
    bundle.updated_ps = now_ps_;
    const std::int64_t left_ps = Picoseconds(bundle.bytes_left, shares_.rate(change.flow));
    bundle.ends_ps =
        RoundedEnd(now_ps_, left_ps, now_ps_ - bundle.started_ps, shares_.flow_count());
    if (bundle.ends_ps >= bundle.queued_ps) continue;
    bundle.queued_ps = bundle.ends_ps;
    events_.push({bundle.ends_ps, Kind::kSent, change.flow, ++bundle.version});
  }
}

SimulationResult FlowSimulator::TakeResult() {
  SimulationResult result;
  result.time_ps = finished_ps_;
  result.work = Work();
  result.timeline = std::move(timeline_);
  return result;
}

}  // namespace phub::plan
