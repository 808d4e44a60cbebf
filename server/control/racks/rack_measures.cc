// The measurements of a job's exchange with other racks, and the simulator's predictions for them.
#include <algorithm>

#include "common/base/check.h"
#include "common/plan/forest_json.h"
#include "common/plan/simulator.h"
#include "common/plan/verifier.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {
namespace {

using exchange::RackTree;

// Limits the cost of a prediction: an administrator waits for it, and it runs under control's lock.
constexpr std::size_t kTransfersMax = 4096;
constexpr std::uint64_t kPredictedPiecesMax = 16;
constexpr std::int64_t kPsPerNs = 1000;

bool HasSpan(const RackTree& tree, ExchangeSpan span) {
  switch (span) {
    case ExchangeSpan::kSums: return !tree.reduce_children.empty();
    case ExchangeSpan::kResult: return tree.reduce_parent.has_value();
    case ExchangeSpan::kWhole:
    case ExchangeSpan::kCount: break;
  }
  return true;
}

// Adds the span of one stage of one tree, or (place 0) of all trees. Adds nothing if there are no
// keys.
void AddSpan(const RackRun& run, std::size_t place, ExchangeSpan span, v1::ExchangeInfo& info) {
  v1::ExchangeSpan described;
  for (std::size_t core = 0; core < run.exchange->shards.size(); ++core) {
    const SpanMeter& meter = run.exchange->shards[core]->metrics.trees[place][span];
    described.set_bytes(described.bytes() + meter.exchange_bytes());
    const std::uint64_t exchanges = meter.exchanges();
    if (exchanges == 0) continue;
    const auto recent = static_cast<std::int64_t>(meter.recent_ns());
    if (described.exchanges() > 0 && recent <= described.recent_ns()) continue;
    described.set_recent_ns(recent);
    described.set_mean_ns(static_cast<std::int64_t>(meter.busy_ns() / exchanges));
    described.set_exchanges(exchanges);
    described.set_core(static_cast<std::uint32_t>(core));
  }
  if (described.bytes() == 0) return;
  described.set_stage(kExchangeSpanNames[static_cast<std::size_t>(span)]);
  described.set_tree(static_cast<std::int32_t>(place) - 1);
  if (place > 0) described.set_home(run.exchange->plan.trees[place - 1].home.value);
  *info.add_spans() = std::move(described);
}

void AddLink(const RackRun& run, std::uint32_t rack, v1::ExchangeInfo& info) {
  v1::ExchangeLink& link = *info.add_links();
  link.set_rack(rack);
  link.set_endpoint(info.racks(static_cast<int>(rack)));
  link.set_self(rack == run.exchange->plan.self.value);
  for (const PeerLanePlace& lane : run.racks[rack].lanes) {
    if (!lane.description.empty()) link.add_lanes(lane.description);
  }
  for (const auto& shard : run.exchange->shards) {
    const LinkMetrics& metrics = shard->metrics.links[rack];
    const auto add = [&link](auto set, std::uint64_t before, const SingleWriterNumber& number) {
      (link.*set)(before + number.Get());
    };
    using L = v1::ExchangeLink;
    add(&L::set_sums_last, link.sums_last(), metrics.sums_last);
    add(&L::set_sums_awaited_ns, link.sums_awaited_ns(), metrics.sums_awaited_ns);
    add(&L::set_partials_sent, link.partials_sent(), metrics.partials_sent);
    add(&L::set_partial_bytes_sent, link.partial_bytes_sent(), metrics.partial_bytes_sent);
    add(&L::set_results_sent, link.results_sent(), metrics.results_sent);
    add(&L::set_result_bytes_sent, link.result_bytes_sent(), metrics.result_bytes_sent);
    add(&L::set_partials_received, link.partials_received(), metrics.partials_received);
    add(&L::set_partial_bytes_received, link.partial_bytes_received(),
        metrics.partial_bytes_received);
    add(&L::set_results_received, link.results_received(), metrics.results_received);
    add(&L::set_result_bytes_received, link.result_bytes_received(), metrics.result_bytes_received);
    add(&L::set_result_wait_ns, link.result_wait_ns(), metrics.result_wait_ns);
    add(&L::set_messages_taken, link.messages_taken(), metrics.messages_taken);
    add(&L::set_message_wait_ns, link.message_wait_ns(), metrics.message_wait_ns);
  }
}

void AddMemory(const RackRun& run, v1::ExchangeInfo& info) {
  for (std::size_t work = 0; work < kMemoryWorkCount; ++work) {
    MemoryBytes sum;
    for (const auto& shard : run.exchange->shards) {
      const MemoryBytes bytes = shard->metrics.memory.Of(static_cast<MemoryWork>(work));
      sum.read += bytes.read;
      sum.written += bytes.written;
    }
    v1::ExchangeMemory& described = *info.add_memory();
    described.set_work(kMemoryWorkNames[work]);
    described.set_read_bytes(sum.read);
    described.set_written_bytes(sum.written);
  }
}

// When the stages at one rack begin and end during one exchange.
struct PredictedTimes {
  std::int64_t sums_end = 0, result_begin = INT64_MAX, result_end = 0;  // ps
  std::int64_t first_sum = INT64_MAX;  // when the first child's sum has arrived

  // An aggregator has no sum of its own. The stage of sums begins when the first child's sum
  // arrives.
  std::int64_t Of(ExchangeSpan span, bool aggregates) const {
    if (span == ExchangeSpan::kSums && aggregates) return sums_end - std::min(sums_end, first_sum);
    if (span == ExchangeSpan::kSums) return sums_end;
    if (span == ExchangeSpan::kWhole) return std::max(sums_end, result_end);
    return result_end - std::min(result_end, result_begin);
  }
};

// [0]: all trees; [1 + tree].
std::vector<PredictedTimes> TimesAt(plan::NodeIndex node, const plan::Forest& forest,
                                    const plan::SimulationResult& simulated) {
  std::vector<PredictedTimes> times(1 + forest.trees.size());
  for (const plan::TransferTimes& transfer : simulated.timeline) {
    const plan::Tree& tree = forest.trees[transfer.tree];
    const plan::Edge& edge = (transfer.reduces ? tree.reduce : tree.gather)[transfer.edge];
    for (const std::size_t place : {std::size_t{0}, std::size_t{1} + transfer.tree}) {
      PredictedTimes& at = times[place];
      if (transfer.reduces && edge.to == node) {
        at.sums_end = std::max(at.sums_end, transfer.arrived_ps);
        at.first_sum = std::min(at.first_sum, transfer.arrived_ps);
      }
      if (transfer.reduces && edge.from == node) {
        at.result_begin = std::min(at.result_begin, transfer.started_ps);
      }
      if (!transfer.reduces && edge.to == node) {
        at.result_end = std::max(at.result_end, transfer.arrived_ps);
      }
    }
  }
  return times;
}

// Data move through the plan chunk by chunk. Returns the number of pieces to simulate, limited so
// that the simulation stays short.
std::uint32_t PiecesOf(const plan::Forest& forest, std::uint64_t bytes, std::uint64_t chunk_bytes) {
  const std::uint64_t chunks = bytes / std::max<std::uint64_t>(1, chunk_bytes);
  const std::uint64_t pieces = std::min(kPredictedPiecesMax, chunks / forest.trees.size());
  const std::uint64_t affordable =
      kTransfersMax / std::max<std::size_t>(1, plan::EdgeCount(forest));
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, std::min(pieces, affordable)));
}

}  // namespace

void DescribeMeasures(const RackRun& run, v1::ExchangeInfo& info) {
  if (run.exchange->shards.empty()) return info.MergeFrom(run.measured);
  for (const auto& shard : run.exchange->shards) {
    info.set_exchange_bytes(info.exchange_bytes() + shard->metrics.exchange_bytes.Get());
  }
  for (std::size_t place = 0; place <= run.exchange->plan.trees.size(); ++place) {
    for (const ExchangeSpan span :
         {ExchangeSpan::kWhole, ExchangeSpan::kSums, ExchangeSpan::kResult}) {
      if (place == 0 || HasSpan(run.exchange->plan.trees[place - 1], span))
        AddSpan(run, place, span, info);
    }
  }
  const std::uint64_t shown = run.exchange->plan.neighbors | run.group_neighbors |
                              exchange::RackBit(run.exchange->plan.self);
  for (std::uint32_t rack = 0; rack < run.exchange->plan.rack_count; ++rack) {
    if ((shown >> rack & 1) != 0) AddLink(run, rack, info);
  }
  AddMemory(run, info);
}

// A core loop that adds keys counts their bytes first, so a span may appear after the bytes were
// counted. No span disappears.
std::shared_ptr<Prediction> StartPrediction(const RackRun& run, const v1::ExchangeInfo& info) {
  if (info.exchange_bytes() == 0) return nullptr;
  if (run.predicted.exchange_bytes() == info.exchange_bytes() &&
      run.predicted.spans_size() == info.spans_size()) {
    return nullptr;
  }
  auto prediction = std::make_shared<Prediction>();
  prediction->topology = run.topology;
  prediction->exchange = run.exchange;
  prediction->plan = run.described.plan();
  prediction->chunk_bytes = run.described.options().chunk_bytes();
  prediction->info.set_exchange_bytes(info.exchange_bytes());
  *prediction->info.mutable_spans() = info.spans();
  return prediction;
}

void Simulate(Prediction& prediction) {
  const plan::Topology& topology = *prediction.topology;
  const exchange::RackPlan& own = prediction.exchange->plan;
  v1::ExchangeInfo& info = prediction.info;
  const auto forest = plan::ParseForestJson(topology, prediction.plan);
  PHUB_CHECK(forest.ok(), "the plan was parsed when the job was opened");
  if (plan::EdgeCount(*forest) > kTransfersMax) return;
  plan::SimulationOptions options;
  options.size_bytes = static_cast<std::int64_t>(info.exchange_bytes());
  options.pieces = PiecesOf(*forest, info.exchange_bytes(), prediction.chunk_bytes);
  options.keep_timeline = true;
  const auto simulated = plan::Simulate(topology, *forest, options);
  if (!simulated.ok()) return;
  info.set_predicted_exchange_ns(simulated->time_ps / kPsPerNs);
  const plan::NodeIndex node = exchange::NodeOf(topology, own.self);
  const std::vector<PredictedTimes> times = TimesAt(node, *forest, *simulated);
  for (v1::ExchangeSpan& span : *info.mutable_spans()) {
    const auto name = std::find(kExchangeSpanNames.begin(), kExchangeSpanNames.end(), span.stage());
    const auto stage = static_cast<ExchangeSpan>(name - kExchangeSpanNames.begin());
    const PredictedTimes& at = times[static_cast<std::size_t>(span.tree() + 1)];
    span.set_predicted_ns(at.Of(stage, own.aggregates) / kPsPerNs);
  }
}

void AddPrediction(const v1::ExchangeInfo& predicted, v1::ExchangeInfo& info) {
  info.set_predicted_exchange_ns(predicted.predicted_exchange_ns());
  for (int i = 0; i < std::min(info.spans_size(), predicted.spans_size()); ++i) {
    info.mutable_spans(i)->set_predicted_ns(predicted.spans(i).predicted_ns());
  }
}

}  // namespace phub::server
