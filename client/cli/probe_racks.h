// Asks one daemon to have the ways between all configured racks measured. One thread, beside those
// of plan::Survey.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "client/cli/cli.h"
#include "common/plan/survey.h"
#include "phub/v1/probe.pb.h"

namespace phub::client::cli {

struct ProbeSettings {
  DurationNs duration = 500 * kMillisecond;  // of one probe
  std::uint64_t bytes = 0;                   // of one probe at most; 0: as the daemon says
  std::uint32_t repeat = 2;                  // probes of each pair; the best counts
};

class RackProber {
 public:
  RackProber(const Options& options, const ProbeSettings& settings)
      : options_(options), settings_(settings) {}

  grpc::Status GetRacks(v1::RacksInfo& racks);
  grpc::Status Survey(std::uint32_t count, plan::Surveyed& surveyed);
  // Where the racks' `topology` is "probe": new jobs are planned for it.
  grpc::Status Apply(const std::string& topology, v1::RacksInfo& racks);

 private:
  grpc::Status Connect();
  absl::StatusOr<plan::PairMeasure> Probe(plan::RankPair pair, DurationNs duration);

  const Options& options_;
  const ProbeSettings settings_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace phub::client::cli
