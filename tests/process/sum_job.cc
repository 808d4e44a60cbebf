#include "tests/process/sum_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/aggregation/endpoint_text.h"
#include "common/aggregation/fixed_point.h"
#include "common/base/check.h"

namespace phub::process {
namespace {

using aggregation::CoreAction;
using aggregation::CoreActions;
using aggregation::WorkerAction;
using aggregation::WorkerActions;

constexpr std::size_t kProblemsMax = 20;

phub_lease LeaseOf(const v1::GrantLeaseRequest& request, const v1::GrantLeaseResponse& response) {
  phub_lease lease{};
  lease.number = response.number();
  lease.slot_count = request.slot_count();
  lease.worker_count = static_cast<std::uint32_t>(request.workers_size());
  lease.count_max = request.count_max();
  PHUB_CHECK(response.key().size() == sizeof lease.key.words);
  std::memcpy(lease.key.words, response.key().data(), sizeof lease.key.words);
  return lease;
}

}  // namespace

SumJob::SumJob(const SumShape& shape, AggregatorProcess& aggregator)
    : shape_(shape),
      aggregator_(aggregator),
      core_relay_(shape.trouble, shape.seed * 1000),
      core_(shape.geometry, shape.ranks),
      core_port_(shape.geometry, core_, core_socket_),
      chunks_(shape.blocks.size()),
      versions_(shape.blocks.size()) {
  for (const std::uint32_t blocks : shape.blocks) core_.AddChunk(blocks, Iteration{0});
  core_relay_.Connect(core_socket_.endpoint(), aggregator_.endpoint());
  for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    auto& worker = *workers_.emplace_back(std::make_unique<Worker>());
    worker.relay = std::make_unique<LossyRelay>(shape.trouble, shape.seed * 1000 + rank + 1);
    worker.relay->Connect(worker.socket.endpoint(), aggregator_.endpoint());
    worker.stream = std::make_unique<aggregation::WorkerStream>(shape.geometry);
    for (const std::uint32_t blocks : shape.blocks) worker.stream->AddChunk(blocks);
    worker.exponents.resize(shape.blocks.size());
    const auto payload_of = [this, rank, &worker](ChunkIndex chunk, Iteration iteration,
                                                  std::uint32_t block) {
      const std::vector<float> values = Gradient(rank, chunk.value, iteration.value, block);
      const std::uint8_t exponent = worker.exponents[chunk.value][block];
      worker.fixed.resize(values.size());
      aggregation::ToFixed(values, exponent, RankCount(), worker.fixed);
      return aggregation::WorkerPort::Payload{worker.fixed, exponent};
    };
    const auto on_block = [this, rank](const phub_parameters& about,
                                       std::span<const std::byte> bytes) {
      TakeBlock(rank, about, bytes);
    };
    worker.parameters.Resize(static_cast<std::uint32_t>(shape.blocks.size()));
    worker.port = std::make_unique<aggregation::WorkerPort>(shape.geometry, *worker.stream,
                                                            worker.socket, payload_of, on_block);
  }
}

std::vector<float> SumJob::Gradient(std::uint32_t rank, std::uint32_t chunk,
                                    std::uint64_t iteration, std::uint32_t block) const {
  SeededRandom random(shape_.seed + 1'000'003 * (rank + 101 * (chunk + 101 * iteration)) + block);
  const bool is_last = block + 1 == shape_.blocks[chunk];
  std::vector<float> values(is_last ? shape_.integers / 2 + 1 : shape_.integers);
  const int exponent = static_cast<int>(random.Below(20)) - 10;  // each rank has its own
  for (float& value : values) {
    const auto fraction = static_cast<double>(random.Below(1u << 24)) / (1u << 23) - 1;
    value = static_cast<float>(std::ldexp(fraction, exponent));
  }
  return values;
}

std::vector<float> SumJob::Reference(std::uint32_t chunk, std::uint64_t iteration,
                                     std::uint32_t block) const {
  std::uint8_t exponent = 0;
  for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank)
    exponent = std::max(exponent, aggregation::ExponentOf(Gradient(rank, chunk, iteration, block)));
  std::vector<std::int32_t> sum;
  for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    const std::vector<float> values = Gradient(rank, chunk, iteration, block);
    std::vector<std::int32_t> fixed(values.size());
    aggregation::ToFixed(values, exponent, shape_.ranks, fixed);
    sum.resize(values.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += fixed[i];
  }
  std::vector<float> result(sum.size());
  aggregation::FromFixed(sum, exponent, shape_.ranks, result);
  return result;
}

void SumJob::Problem(std::string what) {
  if (problems_.size() < kProblemsMax) problems_.push_back(std::move(what));
}

void SumJob::Open() {
  v1::GrantLeaseRequest request;
  request.set_tenant(shape_.tenant);
  request.set_job("sums");
  request.set_slot_count(shape_.geometry.positions * shape_.geometry.blocks);
  request.set_count_max(shape_.integers);
  request.set_keep_alive_ms(600'000);
  request.set_core_loop(aggregation::TextOf(core_relay_.peer_as_seen()));
  for (const auto& worker : workers_)
    request.add_workers(aggregation::TextOf(worker->relay->peer_as_seen()));
  v1::GrantLeaseResponse response;
  const grpc::Status status = aggregator_.Grant(request, response);
  if (!status.ok()) return Problem("no lease: " + status.error_message());
  lease_ = LeaseOf(request, response);
  // Each sees the aggregator behind its own relay.
  phub_lease seen = lease_;
  seen.core_loop = core_socket_.endpoint();
  for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    seen.aggregator = workers_[rank]->relay->aggregator_as_seen();
    workers_[rank]->port->Open(seen, static_cast<std::uint8_t>(rank));
  }
  seen.aggregator = core_relay_.aggregator_as_seen();
  core_port_.Open(seen);
  CoreActions actions;
  core_.Open(aggregation::LeaseNumber{lease_.number}, actions);
  FromCore(actions, {}, 0);
}

void SumJob::Close() {
  CoreActions actions;
  core_.Close(actions);
  ready_.clear();
  FromCore(actions, {}, 0);
}

void SumJob::FromWorker(std::uint32_t rank, const WorkerActions& actions) {
  WorkerActions over_tcp;
  workers_[rank]->port->Perform(actions, over_tcp);
  for (const WorkerAction& action : over_tcp) {
    CoreActions answers;
    bool possible = true;
    if (action.kind == WorkerAction::Kind::kAnnounce) {
      std::vector<std::uint8_t> exponents;
      for (std::uint32_t block = 0; block < shape_.blocks[action.chunk.value]; ++block) {
        exponents.push_back(aggregation::ExponentOf(
            Gradient(rank, action.chunk.value, action.iteration.value, block)));
      }
      possible = core_.Announce(Rank{rank}, action.lease, action.chunk, action.iteration, exponents,
                                answers);
    } else {
      workers_[rank]->parameters.Forget(action.chunk);
      possible = core_.Push(Rank{rank}, action.chunk, action.iteration, answers);
    }
    if (!possible) Problem(fmt::format("the core loop says that rank {} is at fault", rank));
    FromCore(answers, {}, 0);
  }
}

void SumJob::ToRank(std::uint32_t rank, const CoreAction& action) {
  aggregation::WorkerStream& stream = *workers_[rank]->stream;
  WorkerActions actions;
  bool possible = true;
  switch (action.kind) {
    case CoreAction::Kind::kStreamIs: stream.StreamIs(action.lease, actions); break;
    case CoreAction::Kind::kAssign: {
      const auto exponents = core_.Exponents(action.chunk);
      workers_[rank]->exponents[action.chunk.value].assign(exponents.begin(), exponents.end());
      possible =
          stream.Assign(action.lease, action.position, action.chunk, action.iteration, actions);
      workers_[rank]->parameters.Await(action.chunk, shape_.blocks[action.chunk.value],
                                       clock_.Now());
      break;
    }
    case CoreAction::Kind::kUseTcp:
      possible = stream.UseTcp(action.chunk, action.iteration, actions);
      break;
    default: PHUB_CHECK(false, "kind={}", static_cast<int>(action.kind));
  }
  if (!possible) Problem(fmt::format("rank {} refuses a message of the core loop", rank));
  FromWorker(rank, actions);
}

void SumJob::FromCore(const CoreActions& actions, std::span<const std::int32_t> integers,
                      std::uint8_t exponent) {
  for (const CoreAction& action : actions) {
    Chunk& chunk = chunks_[action.chunk.value];
    switch (action.kind) {
      case CoreAction::Kind::kStreamIs:
      case CoreAction::Kind::kAssign:
      case CoreAction::Kind::kUseTcp:
        for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
          if (action.rank == aggregation::kEveryRank || action.rank == Rank{rank})
            ToRank(rank, action);
        }
        break;
      case CoreAction::Kind::kReady: ready_.push_back(action.chunk); break;
      case CoreAction::Kind::kFold: {
        std::vector<float> values(integers.size());
        aggregation::FromFixed(integers, exponent, shape_.ranks, values);
        if (!chunk.folded.emplace(action.block, std::move(values)).second)
          Problem(fmt::format("block {} is folded twice", action.block));
        break;
      }
      case CoreAction::Kind::kFoldPushed: ++chunk.pushed; break;
      case CoreAction::Kind::kClear: chunk.folded.clear(); break;
      case CoreAction::Kind::kComplete: Complete(action); break;
      // To a push of what was summed. The message is a call, and calls are not lost.
      case CoreAction::Kind::kAnswer:
        Receive(action.rank.value, action.chunk, action.iteration);
        break;
    }
  }
}

void SumJob::Complete(const CoreAction& action) {
  Chunk& chunk = chunks_[action.chunk.value];
  const std::string name =
      fmt::format("chunk {}, iteration {}", action.chunk.value, action.iteration.value);
  const bool by_stream = chunk.pushed == 0;
  for (std::uint32_t block = 0; by_stream && block < shape_.blocks[action.chunk.value]; ++block) {
    const std::vector<float> expected =
        Reference(action.chunk.value, action.iteration.value, block);
    const std::vector<float>& actual = chunk.folded[block];
    if (actual.size() != expected.size() ||
        std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(float)) != 0)
      Problem(fmt::format("wrong sum of {}, block {}", name, block));
  }
  if (!by_stream && !chunk.folded.empty()) Problem(name + " has folded blocks and pushes");
  Version& version = versions_[action.chunk.value];
  version = {.iteration = action.iteration};
  ++complete_;
  if (by_stream) {
    ++summed_;
    for (auto& [block, values] : chunk.folded) version.blocks.push_back(std::move(values));
    SendVersion(action.chunk, PHUB_EVERY_WORKER, nullptr);
  }
  chunk = {};
  for (std::uint32_t rank = 0; rank < shape_.ranks && !by_stream; ++rank)
    Receive(rank, action.chunk, action.iteration);
}

void SumJob::SendVersion(ChunkIndex chunk, std::uint8_t worker,
                         const aggregation::BlockSet* blocks) {
  const Version& version = versions_[chunk.value];
  for (std::uint32_t block = 0; block < version.blocks.size(); ++block) {
    if (blocks != nullptr && ((*blocks)[block / 8] >> block % 8 & 1) == 0) continue;
    const phub_parameters about = {.version = static_cast<__u32>(version.iteration.value),
                                   .chunk = static_cast<__u16>(chunk.value),
                                   .block = static_cast<__u16>(block)};
    core_port_.SendParameters(about, std::as_bytes(std::span(version.blocks[block])), worker);
  }
  core_port_.Flush();
}

// As the engine does, but the block is compared and not copied.
void SumJob::TakeBlock(std::uint32_t rank, const phub_parameters& about,
                       std::span<const std::byte> bytes) {
  Worker& worker = *workers_[rank];
  const ChunkIndex chunk{about.chunk};
  if (about.chunk >= shape_.blocks.size())
    return Problem(fmt::format("rank {} gets a block of chunk {}", rank, about.chunk));
  const Iteration iteration = worker.stream->IterationOf(chunk);
  if (static_cast<std::uint32_t>(iteration.value) != about.version) return;
  if (worker.parameters.IsAwaited(chunk)) {
    const std::vector<float> expected = Reference(about.chunk, iteration.value, about.block);
    if (bytes.size() != expected.size() * sizeof(float) ||
        std::memcmp(bytes.data(), expected.data(), bytes.size()) != 0)
      Problem(fmt::format("rank {} gets wrong parameters of chunk {}", rank, about.chunk));
  }
  if (worker.parameters.Arrive(chunk, about.block, clock_.Now()) ==
      aggregation::ParameterBlocks::Arrival::kLast)
    Receive(rank, chunk, iteration);
}

void SumJob::Receive(std::uint32_t rank, ChunkIndex chunk, Iteration iteration) {
  if (!workers_[rank]->stream->Parameters(chunk, iteration)) {
    return Problem(fmt::format("rank {} did not wait for chunk {}, iteration {}", rank, chunk.value,
                               iteration.value));
  }
  ++received_;
  if (iteration.value + 1 < shape_.iterations) to_push_.emplace_back(rank, chunk);
}

void SumJob::AskForBlocks(std::uint32_t rank) {
  Worker& worker = *workers_[rank];
  WorkerActions actions;
  worker.parameters.Due(clock_.Now(), [&](const aggregation::ParameterBlocks::Question& question) {
    ++questions_;
    const Iteration iteration = worker.stream->IterationOf(question.chunk);
    if (core_.lease() == aggregation::kNoLease || core_.iteration(question.chunk) <= iteration)
      return;
    if (!question.over_tcp)
      return SendVersion(question.chunk, static_cast<std::uint8_t>(rank), &question.missing);
    if (!worker.stream->UseTcp(question.chunk, iteration, actions)) Problem("UseTcp");
  });
  FromWorker(rank, actions);
}

void SumJob::PushAll(std::uint32_t rank) {
  // Ranks have their chunks ready in different orders.
  for (std::uint32_t i = 0; i < shape_.blocks.size(); ++i) {
    const auto chunk = static_cast<std::uint32_t>((i + rank) % shape_.blocks.size());
    to_push_.emplace_back(rank, ChunkIndex{chunk});
  }
}

void SumJob::Step() {
  if (!std::exchange(started_, true)) {
    for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) PushAll(rank);
  }
  while (!to_push_.empty()) {
    const auto [rank, chunk] = to_push_.front();
    to_push_.pop_front();
    WorkerActions actions;
    workers_[rank]->stream->Push(chunk, Iteration{next_[{rank, chunk.value}]++}, actions);
    FromWorker(rank, actions);
  }
  while (!ready_.empty() && core_.CanAssign(ready_.front())) {
    const ChunkIndex chunk = ready_.front();
    ready_.pop_front();
    CoreActions actions;
    core_.Assign(chunk, actions);
    core_port_.NoteAssigned(actions.back().position, clock_.Now());
    FromCore(actions, {}, 0);
  }
  for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    Worker* const worker = workers_[rank].get();
    worker->relay->Pump();
    worker->port->Receive();
    AskForBlocks(rank);
    if (worker->port->refused() != 0) Problem("REFUSED");
  }
  core_relay_.Pump();
  core_port_.Receive(clock_.Now(),
                     [&](const CoreActions& actions, std::span<const std::int32_t> integers,
                         std::uint8_t exponent) { FromCore(actions, integers, exponent); });
  if (core_.lease() != aggregation::kNoLease) nacks_sent_ += core_port_.AskAgain(clock_.Now());
}

std::uint64_t SumJob::payloads_sent() const {
  std::uint64_t sum = 0;
  for (const auto& worker : workers_) sum += worker->port->payloads_sent();
  return sum;
}

std::uint64_t SumJob::bad_datagrams() const {
  const auto bad = [](const aggregation::CheckCounts& checks) {
    std::uint64_t sum = 0;
    for (std::size_t i = 1; i < checks.size(); ++i) sum += checks[i];
    return sum;
  };
  std::uint64_t sum = core_port_.refused();
  for (const auto& worker : workers_) sum += bad(worker->port->checks());
  return sum;
}

}  // namespace phub::process
