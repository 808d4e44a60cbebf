// A job whose gradients are summed by a real phub-aggregator: its workers and its core loop, each
// with its own UDP socket behind a LossyRelay, in the caller's thread. Their tcp lanes are calls.
// The optimizer is none: the parameters of an iteration are its sums, which are compared bit for
// bit to sums that are computed without any of it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/aggregation/parameter_blocks.h"
#include "common/aggregation/ports.h"
#include "common/base/clock.h"
#include "tests/process/aggregator_process.h"
#include "tests/process/lossy_relay.h"

namespace phub::process {

struct SumShape {
  std::string tenant = "a";
  std::uint32_t ranks = 3;
  std::vector<std::uint32_t> blocks = {5, 2, 7};  // per chunk
  aggregation::Geometry geometry{.positions = 2, .blocks = 7};
  std::uint32_t integers = 350;
  std::uint64_t iterations = 4;
  Trouble trouble;
  std::uint64_t seed = 1;
};

class SumJob {
 public:
  SumJob(const SumShape& shape, AggregatorProcess& aggregator);

  // Asks for a lease and opens the stream.
  void Open();
  // The aggregator is lost.
  void Close();
  // Everything that can be done now. Starts the job at the first call.
  void Step();
  // Every rank has all parameters.
  bool done() const { return received_ == shape_.iterations * shape_.blocks.size() * shape_.ranks; }
  // Chunks' iterations that are summed.
  std::uint64_t complete() const { return complete_; }
  // The part of them that the aggregator has summed.
  std::uint64_t summed() const { return summed_; }
  const std::vector<std::string>& problems() const { return problems_; }

  const phub_lease& lease() const { return lease_; }
  LossyRelay& relay(std::uint32_t rank) { return *workers_[rank]->relay; }
  std::uint64_t payloads_sent() const;
  std::uint64_t nacks_sent() const { return nacks_sent_; }
  std::uint64_t questions() const { return questions_; }  // about blocks of parameters
  // Datagrams that a worker or the core loop has refused.
  std::uint64_t bad_datagrams() const;

 private:
  struct Worker {
    aggregation::DatagramSocket socket = LocalSocket();
    std::unique_ptr<LossyRelay> relay;
    std::unique_ptr<aggregation::WorkerStream> stream;
    std::unique_ptr<aggregation::WorkerPort> port;
    std::vector<std::vector<std::uint8_t>> exponents;  // by chunk, then block: as assigned
    std::vector<std::int32_t> fixed;                   // what the last payload had
    aggregation::ParameterBlocks parameters;
  };
  struct Chunk {
    std::map<std::uint32_t, std::vector<float>> folded;  // by block
    std::uint64_t pushed = 0;                            // iterations that all ranks have pushed
  };
  // The sums of a chunk's last iteration are its parameters.
  struct Version {
    Iteration iteration{};
    std::vector<std::vector<float>> blocks{};  // if it was summed in a stream
  };

  std::vector<float> Gradient(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration,
                              std::uint32_t block) const;
  std::vector<float> Reference(std::uint32_t chunk, std::uint64_t iteration,
                               std::uint32_t block) const;
  void PushAll(std::uint32_t rank);
  void FromWorker(std::uint32_t rank, const aggregation::WorkerActions& actions);
  void FromCore(const aggregation::CoreActions& actions, std::span<const std::int32_t> integers,
                std::uint8_t exponent);
  void ToRank(std::uint32_t rank, const aggregation::CoreAction& action);
  void Complete(const aggregation::CoreAction& action);
  // Sends these blocks of the chunk's version, or all, to one worker or all.
  void SendVersion(ChunkIndex chunk, std::uint8_t worker, const aggregation::BlockSet* blocks);
  void TakeBlock(std::uint32_t rank, const phub_parameters& about,
                 std::span<const std::byte> bytes);
  void Receive(std::uint32_t rank, ChunkIndex chunk, Iteration iteration);
  void AskForBlocks(std::uint32_t rank);
  void Problem(std::string what);
  std::uint32_t RankCount() const { return shape_.ranks; }

  const SumShape shape_;
  AggregatorProcess& aggregator_;
  SystemClock clock_;
  std::vector<std::unique_ptr<Worker>> workers_;
  aggregation::DatagramSocket core_socket_ = LocalSocket();
  LossyRelay core_relay_;
  aggregation::CoreStream core_;
  aggregation::CorePort core_port_;
  phub_lease lease_{};
  std::vector<Chunk> chunks_;
  std::vector<Version> versions_;  // by chunk
  std::deque<ChunkIndex> ready_;
  std::deque<std::pair<std::uint32_t, ChunkIndex>> to_push_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> next_;  // (rank, chunk)
  bool started_ = false;
  std::uint64_t complete_ = 0;
  std::uint64_t summed_ = 0;
  std::uint64_t received_ = 0;  // by all ranks
  std::uint64_t questions_ = 0;
  std::uint64_t nacks_sent_ = 0;
  std::vector<std::string> problems_;
};

}  // namespace phub::process
