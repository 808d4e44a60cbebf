// Asks one daemon to have the links between all configured racks measured. One thread, in addition
// to those of plan::Survey.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "client/cli/cli.h"
#include "common/plan/survey.h"
#include "phub/v1/probe.pb.h"

namespace phub::client::cli {

struct ProbeSettings {
  DurationNs duration = 500 * kMillisecond;  // of one probe
  std::uint64_t bytes = 0;                   // limit of one probe; 0: the daemon's default
  std::uint32_t repeat = 2;                  // probes per pair; the best result counts
};

class RackProber {
 public:
  RackProber(const Options& options, const ProbeSettings& settings)
      : options_(options), settings_(settings) {}

  grpc::Status GetRacks(v1::RacksInfo& racks);
  grpc::Status Survey(std::uint32_t count, plan::Surveyed& surveyed);
  // For racks with `topology` = "probe": new jobs are planned for `topology`.
  grpc::Status Apply(const std::string& topology, v1::RacksInfo& racks);

 private:
  grpc::Status Connect();
  absl::StatusOr<plan::PairMeasure> Probe(plan::RankPair pair, DurationNs duration);

  const Options& options_;
  const ProbeSettings settings_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace phub::client::cli
