// Messages between daemons about groups that have members in several racks: which racks they
// concern, and whether they are sound. Under control's lock.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/printable.h"
#include "phub/v1/session.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/job.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {

inline constexpr std::uint32_t kWideGroupsMax = 1u << 16;  // per job

inline std::vector<std::uint32_t> RanksIn(const v1::GroupSpec& spec) {
  return {spec.ranks().begin(), spec.ranks().end()};
}

// The racks with members, a bit for each.
inline std::uint64_t RacksOf(const Job& job, const v1::GroupSpec& spec) {
  std::uint64_t racks = 0;
  for (const std::uint32_t rank : spec.ranks())
    racks |= exchange::RackBit(RackIndex{rank / job.config.ranks_per_rack});
  return racks;
}

// A message between daemons is validated like one of a worker. `rank` is a member.
inline bool IsWellFormed(const Job& job, const v1::GroupSpec& spec, std::uint32_t rank) {
  std::uint32_t next = 0;
  for (const std::uint32_t each : spec.ranks()) {
    if (each < next || each >= job.config.ranks_of_job) return false;
    next = each + 1;
  }
  return IsName(spec.name()) && std::ranges::find(spec.ranks(), rank) != spec.ranks().end() &&
         std::popcount(RacksOf(job, spec)) > 1;
}

// The group's name decides the order of core loops that breaks ties, as the job's does.
inline std::vector<PlacementBin> BinsOfGroup(const Job& job, const std::string& group) {
  return BinsForJob(static_cast<std::uint32_t>(job.bins.size()),
                    fmt::format("{}/{}", job.name(), group));
}

// Whether to handle a message. One that is not due only counts.
inline bool Accept(Context& context, RackIndex from, bool is_due) {
  const bool accepted = is_due && from.value < context.options.racks.size();
  if (!accepted) context.counters.Add(ControlCounter::peers_refused_place);
  return accepted;
}

// Racks disagree about the keys of a group.
inline void FailOverGroup(Ending& ending, Job& job, const std::string& what) {
  ending.Fail(job, ending.MakeFault(job, "keys_mismatch", what));
}

}  // namespace phub::server
