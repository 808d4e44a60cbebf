#include "tests/sim/sum_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace phub::aggregation::search {

const char* ToString(Mistake mistake) {
  switch (mistake) {
    case Mistake::kNone: return "no mistake";
    case Mistake::kPublishedBitmaps: return "published bitmaps";
    case Mistake::kOlderPhaseAdded: return "older phase added";
    case Mistake::kDuplicateAdded: return "duplicate added";
    case Mistake::kSumSentOnce: return "sum sent once";
    case Mistake::kLeaseNotChecked: return "lease not checked";
    case Mistake::kSumOfAnyPhase: return "sum of any phase";
    case Mistake::kEmptySlotsContent: return "empty slots content";
    case Mistake::kRepeatedSumFolded: return "repeated sum folded";
    case Mistake::kAskedOnce: return "asked once";
    case Mistake::kRestartKeepsLease: return "restart keeps lease";
    case Mistake::kReplacementKeepsLease: return "replacement keeps lease";
    case Mistake::kPartialSumsKept: return "partial sums kept";
    case Mistake::kRanksDecideForTcpAlone: return "ranks decide for tcp alone";
    case Mistake::kAnnouncementsAnswered: return "announcements answered";
    case Mistake::kPositionsWait: return "positions wait";
    case Mistake::kVersionNotChecked: return "version not checked";
  }
  return "unknown";
}

bool IsCalm(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::kDeliver:
    case Event::Kind::kToCore:
    case Event::Kind::kFromCore:
    case Event::Kind::kAssign:
    case Event::Kind::kNack:
    case Event::Kind::kAsk:
    case Event::Kind::kNotice:
    case Event::Kind::kAddAtCore:
    case Event::Kind::kAddAtWorker:
    case Event::Kind::kGrant: return true;
    default: return false;
  }
}

std::string World::Message::Text() const {
  const std::string what = fmt::format("chunk {} iteration {}", chunk.value, iteration.value);
  switch (kind) {
    case Kind::kAnnounce: return fmt::format("announce {} for lease {}", what, lease.value);
    case Kind::kPush: return fmt::format("push {}", what);
    case Kind::kMissing: return fmt::format("ask for parameters of {}", what);
    case Kind::kMissingTcp: return fmt::format("ask for parameters of {} over tcp", what);
    case Kind::kStreamIs: return fmt::format("the stream is lease {}", lease.value);
    case Kind::kAssign: return fmt::format("{} has position {}", what, position.value);
    case Kind::kUseTcp: return fmt::format("push {} over tcp", what);
    case Kind::kParameters: return fmt::format("parameters of {}", what);
  }
  return "?";
}

World::Worker::Worker(const Shape& shape) : stream(shape.geometry) {
  for (std::uint32_t i = 0; i < shape.FirstChunks(); ++i) stream.AddChunk(shape.Blocks()[i]);
  program.gradient.resize(shape.chunks);
  program.iterations.resize(shape.chunks);
}

World::World(const Shape& shape)
    : shape_(shape),
      prompt_lanes_(shape.lost_lanes + shape.replacements + shape.restarts == 0),
      core_(shape.geometry, shape.workers) {
  StartJob();
  Grant();
  for (std::uint32_t worker = 0; worker < shape_.workers; ++worker) ReceiveFromCore(worker);
}

void World::Fail(const std::string& error) {
  if (error_.empty()) error_ = error;
}

void World::Log(const std::string& line) { *log_ += "  " + line + "\n"; }

// Numbers that add up to the expected sum only if every contribution is the right one.
std::uint32_t World::GradientOf(std::uint32_t worker, ChunkIndex chunk, std::uint64_t iteration,
                                std::uint32_t block) const {
  std::uint64_t value = job_;
  for (const std::uint64_t part : {std::uint64_t{workers_[worker].process}, std::uint64_t{worker},
                                   std::uint64_t{chunk.value}, iteration, std::uint64_t{block}})
    value = (value * 16 + part + 1) * 0x9e3779b97f4a7c15u;
  return static_cast<std::uint32_t>(value >> 32);
}

bool World::IsFinished() const {
  return std::ranges::all_of(workers_, [&](const Worker& worker) {
    return std::ranges::all_of(worker.program.iterations, [&](std::uint32_t iterations) {
      return iterations == shape_.iterations;
    });
  });
}

// --- Workers

void World::RunProgram(std::uint32_t index) {
  Worker& worker = workers_[index];
  Program& program = worker.program;
  while (worker.connected) {
    const std::uint32_t iteration = program.first + program.pushes / shape_.chunks;
    const std::uint32_t nth = program.pushes % shape_.chunks;
    const std::uint32_t chunk = index % 2 == 0 ? nth : shape_.chunks - 1 - nth;
    if (iteration >= shape_.iterations || program.iterations[chunk] != iteration) return;
    if (chunk >= shape_.FirstChunks() && worker.lives <= iteration) return;
    ++program.pushes;
    program.gradient[chunk] = iteration;
    WorkerActions actions;
    worker.stream.Push(ChunkIndex{chunk}, Iteration{iteration}, actions);
    Perform(index, actions);
  }
}

void World::Perform(std::uint32_t index, const WorkerActions& actions) {
  Worker& worker = workers_[index];
  for (const WorkerAction& action : actions) {
    Message message{.chunk = action.chunk, .iteration = action.iteration, .lease = action.lease};
    switch (action.kind) {
      case WorkerAction::Kind::kAnnounce: message.kind = Message::Kind::kAnnounce; break;
      case WorkerAction::Kind::kPushTcp:
        message.kind = Message::Kind::kPush;
        for (std::uint32_t block = 0; block < shape_.Blocks()[action.chunk.value]; ++block) {
          message.values[block] =
              GradientOf(index, action.chunk, worker.program.gradient[action.chunk.value], block);
        }
        break;
      case WorkerAction::Kind::kSendPayload: Send(index, action); continue;
    }
    worker.to_core.push_back(std::move(message));
  }
}

void World::ReceiveFromCore(std::uint32_t index) {
  Worker& worker = workers_[index];
  const Message message = worker.from_core.front();
  worker.from_core.erase(worker.from_core.begin());
  WorkerActions actions;
  bool good = true;
  std::array<bool, 2> taken{};
  for (std::uint32_t i = 0; i < worker.stream.chunk_count(); ++i)
    taken[i] = worker.stream.HasPosition(ChunkIndex{i});
  switch (message.kind) {
    case Message::Kind::kStreamIs:
      worker.connected = true;
      worker.stream.StreamIs(message.lease, actions);
      if (shape_.mistake == Mistake::kPositionsWait) {
        std::erase_if(actions, [&](const WorkerAction& action) {
          return action.kind == WorkerAction::Kind::kPushTcp && taken[action.chunk.value];
        });
      }
      break;
    case Message::Kind::kAssign:
      good = worker.stream.Assign(message.lease, message.position, message.chunk, message.iteration,
                                  actions);
      break;
    case Message::Kind::kUseTcp:
      good = worker.stream.UseTcp(message.chunk, message.iteration, actions);
      break;
    case Message::Kind::kParameters:
      // Such a reply would be written to memory that is the program's again.
      if (!worker.stream.IsOverTcp(message.chunk) ||
          worker.stream.IterationOf(message.chunk) != message.iteration) {
        Fail(fmt::format("worker {} does not expect a reply", index));
      }
      Complete(index, message.chunk, message.iteration);
      break;
    default: good = false;
  }
  if (log_ != nullptr) Log(fmt::format("worker {} <- tcp: {}", index, message.Text()));
  if (!good) Fail(fmt::format("worker {} rejects a message of the core loop", index));
  Perform(index, actions);
  RunProgram(index);
}

void World::Complete(std::uint32_t index, ChunkIndex chunk, Iteration iteration) {
  if (!workers_[index].stream.Parameters(chunk, iteration)) return;
  workers_[index].program.iterations[chunk.value] = static_cast<std::uint32_t>(iteration.value) + 1;
}

// --- The core loop

void World::ReceiveAtCore(std::uint32_t index) {
  Worker& worker = workers_[index];
  const Message message = worker.to_core.front();
  worker.to_core.erase(worker.to_core.begin());
  const bool pushes = message.kind == Message::Kind::kPush;
  if (log_ != nullptr) Log(fmt::format("core loop <- tcp of worker {}: {}", index, message.Text()));
  CoreActions actions;
  bool good = true;
  if (message.kind == Message::Kind::kMissing || message.kind == Message::Kind::kMissingTcp)
    return ReceiveQuestion(index, message);
  if (pushes) {
    if (message.iteration == core_.iteration(message.chunk)) {
      worker.owed |= 1u << message.chunk.value;
      std::copy_n(message.values.begin(), shape_.geometry.blocks,
                  pushed_[index].begin() + message.chunk.value * shape_.geometry.blocks);
    }
    good = core_.Push(Rank{index}, message.chunk, message.iteration, actions);
  } else {
    const std::vector<std::uint8_t> exponents(shape_.Blocks()[message.chunk.value]);
    good = core_.Announce(Rank{index}, message.lease, message.chunk, message.iteration, exponents,
                          actions);
  }
  if (!good) Fail(fmt::format("the core loop rejects a message of worker {}", index));
  if (!actions.empty() && actions.front().kind == CoreAction::Kind::kAnswer)
    return Answer(index, message);
  Perform(actions);
}

void World::ReceiveQuestion(std::uint32_t index, const Message& message) {
  const Iteration present = core_.iteration(message.chunk);
  if (message.iteration > present || message.iteration.value + 1 < present.value)
    return Fail(fmt::format("worker {} asks for another iteration", index));
  if (message.iteration == present || core_.lease() == kNoLease) return;
  if (message.kind == Message::Kind::kMissing)
    return SendParameters(index, message.chunk, message.iteration);
  Message answer = message;
  answer.kind = Message::Kind::kUseTcp;
  SendToRanks(Rank{index}, answer);
}

// The round is complete.
void World::Answer(std::uint32_t index, const Message& message) {
  if (message.kind == Message::Kind::kAnnounce && shape_.mistake != Mistake::kAnnouncementsAnswered)
    return SendParameters(index, message.chunk, message.iteration);
  Message reply = message;
  reply.kind = Message::Kind::kParameters;
  SendToRanks(Rank{index}, reply);
}

void World::Publish(const CoreAction& action, bool summed) {
  CheckComplete(action);
  for (std::uint32_t index = 0; index < shape_.workers; ++index) {
    const std::uint32_t bit = 1u << action.chunk.value;
    if (summed) SendParameters(index, action.chunk, action.iteration);
    if ((std::exchange(workers_[index].owed, workers_[index].owed & ~bit) & bit) == 0) continue;
    SendToRanks(
        Rank{index},
        {.kind = Message::Kind::kParameters, .chunk = action.chunk, .iteration = action.iteration});
  }
}

void World::SendToRanks(Rank rank, const Message& message) {
  for (std::uint32_t index = 0; index < shape_.workers; ++index) {
    if (rank == kEveryRank || rank.value == index) workers_[index].from_core.push_back(message);
  }
}

void World::Perform(const CoreActions& actions, bool summed) {
  for (const CoreAction& action : actions) {
    Message message{.chunk = action.chunk,
                    .iteration = action.iteration,
                    .lease = action.lease,
                    .position = action.position};
    const std::uint32_t first = action.chunk.value * shape_.geometry.blocks;
    switch (action.kind) {
      case CoreAction::Kind::kStreamIs: message.kind = Message::Kind::kStreamIs; break;
      case CoreAction::Kind::kAssign:
        message.kind = Message::Kind::kAssign;
        phases_[shape_.geometry.PlaceOf(action.position)] =
            shape_.geometry.PhaseOf(action.position);
        asked_[shape_.geometry.PlaceOf(action.position)] = false;
        break;
      case CoreAction::Kind::kUseTcp:
        if (shape_.mistake == Mistake::kRanksDecideForTcpAlone) continue;
        message.kind = Message::Kind::kUseTcp;
        break;
      case CoreAction::Kind::kAnswer: Fail("an answer to nobody"); continue;
      case CoreAction::Kind::kReady: continue;  // AppendEvents() asks CanAssign()
      case CoreAction::Kind::kFold: continue;   // DeliverToCore() has the sum
      case CoreAction::Kind::kFoldPushed:
        for (std::uint32_t block = 0; block < shape_.Blocks()[action.chunk.value]; ++block) {
          for (const auto& pushed : pushed_) accumulators_[first + block] += pushed[first + block];
        }
        continue;
      case CoreAction::Kind::kClear:
        if (shape_.mistake == Mistake::kPartialSumsKept) continue;
        for (std::uint32_t block = 0; block < shape_.Blocks()[action.chunk.value]; ++block)
          accumulators_[first + block] = 0;
        continue;
      case CoreAction::Kind::kComplete: Publish(action, summed); continue;
    }
    SendToRanks(action.rank, message);
  }
}

void World::CheckComplete(const CoreAction& action) {
  for (std::uint32_t block = 0; block < shape_.Blocks()[action.chunk.value]; ++block) {
    std::uint32_t expected = 0;
    for (std::uint32_t worker = 0; worker < shape_.workers; ++worker)
      expected += GradientOf(worker, action.chunk, action.iteration.value, block);
    std::uint32_t& sum = accumulators_[action.chunk.value * shape_.geometry.blocks + block];
    if (sum != expected) {
      Fail(fmt::format("wrong sum of chunk {} iteration {} block {}", action.chunk.value,
                       action.iteration.value, block));
    }
    sum = 0;
  }
}

// --- States

void World::AppendState(std::vector<std::uint64_t>& words) const {
  words.push_back(shape_.losses | (shape_.duplicates << 4) | (shape_.early_nacks << 8) |
                  (shape_.lost_lanes << 12) | (shape_.replacements << 16) |
                  (shape_.restarts << 20) | (shape_.endings << 24) |
                  (error_.empty() ? 0 : 1u << 28) | (std::uint64_t{shape_.give_ups} << 32));
  words.push_back((std::uint64_t{lives_} << 48) | (std::uint64_t{job_} << 32) | (leases_ << 8) |
                  static_cast<std::uint64_t>(control_));
  core_.AppendState(words);
  for (const Worker& worker : workers_) {
    worker.stream.AppendState(words);
    words.push_back((std::uint64_t{worker.process} << 48) | (std::uint64_t{worker.lives} << 56) |
                    (std::uint64_t{worker.program.first} << 40) |
                    (std::uint64_t{worker.program.pushes} << 8) | (worker.owed << 4) |
                    (worker.connected ? 1 : 0));
    for (const std::uint32_t iterations : worker.program.iterations) words.push_back(iterations);
    for (const auto* lane : {&worker.to_core, &worker.from_core}) {
      words.push_back(lane->size());
      for (const Message& message : *lane) {
        words.push_back((static_cast<std::uint64_t>(message.kind) << 56) |
                        (std::uint64_t{message.chunk.value} << 48) |
                        (message.iteration.value << 40) |
                        (std::uint64_t{message.lease.value} << 32) | message.position.value);
        words.insert(words.end(), message.values.begin(), message.values.end());
      }
    }
  }
  words.push_back(aggregator_.lease);
  for (std::size_t i = 0; i < aggregator_.slots.size(); ++i) {
    const phub_slot& slot = aggregator_.slots[i];
    words.push_back((std::uint64_t{slot.phase} << 32) | (slot.state << 8) | slot.workers);
    words.push_back((std::uint64_t{slot.payload_sum} << 32) | aggregator_.values[i]);
  }
  for (const Published& slot : aggregator_.published) {
    for (std::size_t set = 0; set < 2; ++set) {
      words.push_back((std::uint64_t{slot.bitmap[set]} << 32) | slot.left[set]);
      words.push_back(slot.value[set]);
    }
  }
  for (const auto* network : {&flying_, &late_}) {
    words.push_back(network->size());
    for (const Datagram& datagram : *network) {
      words.push_back((std::uint64_t{datagram.to} << 56) |
                      (std::uint64_t{datagram.packet.kind} << 48) |
                      (std::uint64_t{datagram.packet.worker} << 40) |
                      (std::uint64_t{datagram.packet.slot} << 32) | datagram.packet.phase);
      words.push_back((std::uint64_t{datagram.packet.lease} << 32) | datagram.value);
    }
  }
  if (shape_.mistake == Mistake::kAskedOnce)
    words.insert(words.end(), asked_.begin(), asked_.end());
  for (const std::uint32_t sum : accumulators_) words.push_back(sum);
  for (const auto& pushed : pushed_) words.insert(words.end(), pushed.begin(), pushed.end());
}

}  // namespace phub::aggregation::search
