// Asks one daemon to have the ways between all configured racks measured. One thread; it starts and
// joins those that pairs at once need.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "client/cli/cli.h"
#include "common/plan/measured.h"
#include "phub/v1/probe.pb.h"

namespace phub::client::cli {

struct ProbeSettings {
  DurationNs duration = 500 * kMillisecond;  // of one probe
  std::uint64_t bytes = 0;                   // of one probe at most; 0: as the daemon says
  std::uint32_t repeat = 2;                  // probes of each pair; the best counts
};

using RackPair = std::pair<std::uint32_t, std::uint32_t>;

// Every pair of `count` racks once, in rounds of pairs without a rack in common: the circle method
// of tournaments. One after the other, so nobody is probed twice in a row where that is possible.
std::vector<std::vector<RackPair>> Tournament(std::uint32_t count);

class RackProber {
 public:
  RackProber(const Options& options, const ProbeSettings& settings)
      : options_(options), settings_(settings) {}

  grpc::Status GetRacks(v1::RacksInfo& racks);
  // Pair by pair, so that no probe meets another one.
  grpc::Status Measure(std::uint32_t count, plan::Measured& measured);
  // Of every two groups, with as many pairs at once as there are.
  grpc::Status MeasureBetween(const plan::RankGroups& groups, const plan::Measured& measured,
                              plan::SquareMatrix& between);

 private:
  grpc::Status Connect();
  grpc::Status Probe(RackPair pair, DurationNs duration, v1::ProbePairResponse& response);
  grpc::Status ProbeTogether(const std::vector<RackPair>& pairs, double& out, double& back);

  const Options& options_;
  const ProbeSettings settings_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace phub::client::cli
