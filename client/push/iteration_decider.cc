#include "client/push/iteration_decider.h"

#include <bit>
#include <cmath>

#include "common/base/check.h"

namespace phub::client {

IterationDecider::IterationDecider(const EngineConfig& config, EngineCounters& counters)
    : config_(config), counters_(counters) {}

void IterationDecider::AddKeys(const KeyBatch& batch) {
  if (!config_.apply_iteration) return;
  for (const KeyPlan& plan : batch.keys) {
    if (plan.collective) continue;
    for (const ChunkPlace& place : plan.layout.chunks) {
      chunks_.push_back({.lane = place.lane, .chunk = place.chunk.value});
      if (place.lane >= is_awaited_.size()) is_awaited_.resize(place.lane + 1);
      is_awaited_[place.lane] = true;
    }
  }
}

void IterationDecider::OnSummed(std::span<Lane> lanes) {
  ++counters_.sums_told;
  PHUB_CHECK(summed_count_ < chunks_.size(), "chunks={}", chunks_.size());
  if (++summed_count_ == chunks_.size()) Decide(lanes);
}

void IterationDecider::Decide(std::span<Lane> lanes) {
  double squared_norm = 0.0;
  std::uint8_t flags = 0;
  for (const Place& place : chunks_) {
    LaneChunk& chunk = lanes[place.lane].chunks[place.chunk];
    chunk.sum = LaneChunk::Sum::kDecided;
    squared_norm += chunk.squared_norm;
    flags |= chunk.summed_flags;
  }
  const double norm = std::sqrt(squared_norm);
  const bool finite = (flags & wire::kFlagNonFinite) == 0 && std::isfinite(norm);
  skip_ = (flags & wire::kFlagSkip) != 0 || (config_.skip_nonfinite && !finite);
  const bool clips = !skip_ && finite && config_.clip_norm > 0.0 && norm > config_.clip_norm;
  const double scale = clips ? config_.clip_norm / norm : 1.0;
  summed_count_ = 0;
  for (std::size_t i = 0; i < is_awaited_.size(); ++i) {
    if (!is_awaited_[i]) continue;
    ++lanes[i].decisions;
    lanes[i].decision_due = true;
  }
  decided_.fetch_add(1, std::memory_order_relaxed);
  if (skip_) skipped_.fetch_add(1, std::memory_order_relaxed);
  last_skipped_.store(skip_, std::memory_order_relaxed);
  norm_.store(norm, std::memory_order_relaxed);
  scale_.store(scale, std::memory_order_relaxed);
}

bool IterationDecider::Send(Lane& lane, transport::Transport& transport) {
  if (!lane.decision_due) return false;
  transport::SendRequest request;
  request.header.kind = wire::MessageKind::kDecision;
  request.header.incarnation = config_.incarnation;
  request.header.membership_epoch = config_.membership_epoch;
  request.header.iteration = Iteration{lane.decisions};
  if (skip_) request.header.flags = wire::kFlagSkip;
  request.header.value_bits = std::bit_cast<std::uint64_t>(scale_.load(std::memory_order_relaxed));
  request.connections = {&lane.connection, 1};
  if (transport.Post({&request, 1}) == 0) return false;
  lane.decision_due = false;
  ++counters_.decisions_sent;
  return true;
}

IterationDecider::Outcome IterationDecider::outcome() const {
  return {.decided = decided_.load(std::memory_order_relaxed),
          .skipped = skipped_.load(std::memory_order_relaxed),
          .last_skipped = last_skipped_.load(std::memory_order_relaxed),
          .norm = norm_.load(std::memory_order_relaxed),
          .scale = scale_.load(std::memory_order_relaxed)};
}

}  // namespace phub::client
