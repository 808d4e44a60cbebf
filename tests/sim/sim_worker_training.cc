// A worker's training: rounds of its script, each checked against the oracle.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/optimizer/message_fields.h"
#include "common/simd/encode.h"
#include "tests/sim/sim_worker_calls.h"
#include "tests/sim/sim_worker_key.h"

namespace phub::sim {

using client::Command;

void SimWorker::Submit(const Command& command) {
  if (!waiting_.empty() || !engine_->Submit(command)) waiting_.push_back(command);
}

bool SimWorker::Run() {
  if (engine_ == nullptr || done()) return false;
  std::size_t submitted = 0;
  while (submitted < waiting_.size() && engine_->Submit(waiting_[submitted])) ++submitted;
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(submitted));
  bool worked = engine_->RunOnce() || submitted > 0;
  if (state_ == State::kTraining) worked |= Train();
  return worked;
}

bool SimWorker::Train() {
  bool worked = false;
  bool all_done = true;
  // Starts at a random key, so that ranks push in different orders.
  const std::size_t start = random_.Below(keys_.size());
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    Key& key = *keys_[(start + i) % keys_.size()];
    if (key.arrived) {
      CheckRound(key);
      worked = true;
    }
    if (!key.active && key.completed < script_.iterations && MayStart(key)) {
      StartRound(key);
      worked = true;
    }
    all_done &= !key.active && key.completed == script_.iterations;
  }
  if (removing_) return worked;
  if (removals_done_ < script_.removals) {
    if (MayRemoveKeys()) RemoveLastBatch();
  } else if (all_done) {
    if (RemoveNextGroup()) return worked;
    if (engine_->job_iteration() != IterationsOf(script_)) {
      mistake_ = fmt::format("{} rank {} is at iteration {}, not {}", script_.name, rank_,
                             engine_->job_iteration(), IterationsOf(script_));
    }
    LeaveInOrder();
  }
  return worked;
}

// All rounds of the last batch are complete and checked here.
bool SimWorker::MayRemoveKeys() const {
  return std::ranges::all_of(keys_, [&](const auto& key) {
    return script_.keys[key->index].batch + 1 < next_batch_ ||
           (!key->active && !key->arrived && key->completed == script_.iterations);
  });
}

// The other keys go on meanwhile.
void SimWorker::RemoveLastBatch() {
  removing_ = true;
  const std::uint32_t batch = next_batch_ - 1;
  v1::RemoveKeysRequest request;
  request.set_sequence(removals_done_);
  request.set_first_batch(batch);
  request.set_batches(next_batch_);
  CallAll<v1::RemoveKeysResponse>(
      "remove keys",
      [&](Link& link, auto done) {
        v1::RemoveKeysRequest mine = request;
        mine.set_session_id(link.joined.session_id());
        link.channel->Call<rpc::RemoveKeys>(mine, /*timeout=*/0, std::move(done));
      },
      [](Link&, const v1::RemoveKeysResponse&) {}, [this, batch] { OnKeysRemoved(batch); });
}

void SimWorker::OnKeysRemoved(std::uint32_t batch) {
  for (const auto& link : links_) {
    if (link->regions == nullptr) continue;
    link->regions->RemoveLast(link->regions->count() - link->regions_before[batch]);
  }
  batch_memory_.resize(std::min<std::size_t>(batch_memory_.size(), batch));
  const std::vector<client::KeyPlan>& plans = batches_.back()->keys;
  for (auto plan = plans.rbegin(); plan != plans.rend(); ++plan) layout_->RemoveLast(plan->layout);
  Command remove;
  remove.kind = Command::Kind::kRemoveKeys;
  remove.key = plans.front().layout.key;
  Submit(remove);
  for (; keys_.size() > remove.key.value; keys_.pop_back())
    removed_keys_.push_back(std::move(keys_.back()));
  removed_batches_.push_back(std::move(batches_.back()));
  batches_.pop_back();
  next_batch_ = batch;
  ++removals_done_;
  AddNextBatch();
}

bool SimWorker::MayStart(const Key& key) const {
  // It would train something that is not in its script.
  if (IsCulprit(Fate::kKeysDiffer)) return false;
  if (!script_.lockstep) return true;
  return std::all_of(keys_.begin(), keys_.end(),
                     [&](const auto& other) { return other->completed >= key.completed; });
}

void SimWorker::StartRound(Key& key) {
  const KeyScript& script = script_.keys[key.index];
  const std::uint64_t iteration = key.completed + 1;
  RoundScript round = script.rounds[iteration - 1];
  if (key.index == 0 && iteration == script_.culprit_iteration) {
    if (IsCulprit(Fate::kHyperParametersDiffer)) round.hyper_parameters.learning_rate += 1.0f;
    if (IsCulprit(Fate::kRootsDiffer)) round.root = rank_;
    if (IsCulprit(Fate::kLaneBreaks)) {
      for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
        if (lanes_[lane].attached) {
          BreakLane(lane);
          break;
        }
      }
    }
  }
  Command hyper;
  hyper.kind = Command::Kind::kSetHyperParameters;
  hyper.key = key.number;
  hyper.hyper_parameters = round.hyper_parameters;
  if (!script.pooled) Submit(hyper);

  Command push;
  push.kind = Command::Kind::kPush;
  push.key = key.number;
  push.ticket = ++key.ticket;
  push.operation = round.operation;
  push.payload_type = round.type;
  push.pool = round.pool;
  push.parameters = reinterpret_cast<std::byte*>(key.parameters);
  push.parameters_shared = key.parameters_shared;
  push.skip = script_.IsIn(TroubleScript::Kind::kAsks, key.index, iteration, rank_);
  const bool assigns = round.operation == wire::RoundOperation::kAssign;
  const bool moves = round.operation == wire::RoundOperation::kPoolMove;
  if (assigns || moves) push.root = Rank{round.root};
  if ((!assigns && !moves) || round.root == rank_) {
    const std::vector<float> whole =
        assigns ? BroadcastOf(script_, key.index, iteration)
                : GradientOf(script_, key.index, iteration, rank_, key.Parameters());
    std::vector<float> values = Pick(whole, key.pushed);
    // The result arrives here, and what the round does not cover stays as it was.
    if (script.pooled && key.gradients == key.parameters) values.resize(round.pool.elements);
    if (script.encoding.none() || assigns) {
      std::copy(values.begin(), values.end(), key.gradients);
    } else {
      EncodeInto(key, values, iteration);
    }
    push.gradients = reinterpret_cast<const std::byte*>(key.gradients);
    if (moves) push.parameters = nullptr;
  }
  Submit(push);
  key.active = true;
  if (random_.Chance(script_.cancel_chance, 1'000'000)) {
    Command cancel;
    cancel.kind = Command::Kind::kCancel;
    cancel.key = key.number;
    cancel.ticket = key.ticket;
    Submit(cancel);
  }
}

// As libphub does, without error feedback.
void SimWorker::EncodeInto(Key& key, const std::vector<float>& values, std::uint64_t iteration) {
  const numeric::GradientEncoding& encoding = script_.keys[key.index].encoding;
  const std::size_t in_chunk = script_.chunk_bytes / sizeof(float);
  simd::EncodeScratch scratch;
  for (std::size_t first = 0, chunk = 0; first < values.size(); first += in_chunk, ++chunk) {
    simd::Encode(encoding, values.data() + first, /*residual=*/nullptr,
                 std::min(in_chunk, values.size() - first),
                 numeric::SeedOf(key.index, iteration, chunk),
                 reinterpret_cast<std::byte*>(key.gradients) +
                     chunk * numeric::EncodedStride(encoding, in_chunk),
                 scratch);
  }
  ++encoded_rounds_;
}

// A new process replaces one that died. First it receives the parameters.
void SimWorker::Resume(Key& key, const client::KeyResume& resume) {
  Command pull;
  pull.kind = Command::Kind::kResume;
  pull.key = key.number;
  pull.ticket = ++key.ticket;
  pull.version = resume.version;
  pull.reductions = resume.reductions;
  pull.first_iteration = resume.first_iteration;
  pull.hyper_version = resume.hyper_version;
  if (resume.hyper_version.value > 0) {
    pull.hyper_parameters = optimizer::FromMessage(resume.hyper_parameters);
  }
  pull.parameters_shared = key.parameters_shared;
  pull.parameters = reinterpret_cast<std::byte*>(key.parameters);
  Submit(pull);
  key.active = true;
  ++keys_resumed_;
}

void SimWorker::CheckRound(Key& key) {
  key.arrived = false;
  key.active = false;
  collective_rounds_ += script_.keys[key.index].collective ? 1 : 0;
  if (const std::uint32_t group = script_.keys[key.index].group; group != kNoGroup) {
    ++group_rounds_;
    if (RacksOf(script_, group).size() > 1) ++group_rounds_across_;
  }
  const RoundScript& round = script_.keys[key.index].rounds[key.completed - 1];
  pooled_rounds_ += round.operation == wire::RoundOperation::kPool ? 1 : 0;
  if (round.operation == wire::RoundOperation::kPoolMove) {
    ++pooled_moves_;
    // The root keeps what it sent.
    if (round.root == rank_ && key.gradients != key.parameters)
      std::copy_n(key.gradients, round.pool.elements, key.parameters);
  }
  if (key.was_skipped != script_.keys[key.index].rounds[key.completed - 1].skipped) {
    mistake_ = fmt::format("{} rank {} {} iteration {}: skipped={}", script_.name, rank_,
                           script_.keys[key.index].name, key.completed, key.was_skipped);
    return;
  }
  const std::vector<float>& whole = script_.keys[key.index].expected[key.completed];
  const std::vector<float> expected = Pick(whole, key.received);
  if (expected.empty()) return;
  if (std::memcmp(expected.data(), key.parameters, expected.size() * sizeof(float)) == 0) {
    return;
  }
  std::size_t at = 0;
  while (std::bit_cast<std::uint32_t>(expected[at]) ==
         std::bit_cast<std::uint32_t>(key.parameters[at])) {
    ++at;
  }
  mistake_ = fmt::format("{} rank {} {} iteration {} element {}: {} instead of {}", script_.name,
                         rank_, script_.keys[key.index].name, key.completed, at, key.parameters[at],
                         expected[at]);
}

std::string SimWorker::Describe() const {
  std::string text =
      fmt::format("{} rank {} state {}", script_.name, rank_, static_cast<int>(state_));
  for (const auto& key : keys_) {
    text += fmt::format(" {}@{}{}", script_.keys[key->index].name, key->completed,
                        key->active ? "+" : "");
  }
  return text + (verdict_.empty() ? "" : " verdict: " + verdict_);
}

std::uint64_t SimWorker::ParameterHash() const {
  std::uint64_t hash = 1469598103934665603u;
  for (const auto& key : keys_) {
    for (const float value : key->Parameters()) {
      hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 1099511628211u;
    }
  }
  return hash;
}

}  // namespace phub::sim
