// How much of a tenant's quotas a daemon of a cluster asks for. Every daemon holds a grant; the sum
// of the grants is at most the quota. Pure functions; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/tenant/tenant.h"

namespace phub::server {

struct Usage {
  std::uint64_t memory_bytes = 0;
  std::uint64_t jobs = 0;
  std::uint64_t workers = 0;
  std::uint64_t keys = 0;
  friend bool operator==(const Usage&, const Usage&) = default;
};

enum class Resource : std::uint8_t { kJobs, kWorkers, kKeys, kMemory };
// The quotas that apply to the sum of all daemons of a cluster.
inline constexpr std::array kGrantedResources = {Resource::kJobs, Resource::kWorkers,
                                                 Resource::kKeys, Resource::kMemory};
const char* ToString(Resource resource);
std::uint64_t& At(Usage& usage, Resource resource);
std::uint64_t At(const Usage& usage, Resource resource);
std::optional<std::uint64_t> LimitOf(const Quota& quota, Resource resource);
// "3 jobs", "1.5 GiB memory".
std::string Describe(std::uint64_t amount, Resource resource);
// "3 jobs, 12 workers, 5 keys, 1.5 GiB memory".
std::string Describe(const Usage& usage);

struct GrantQuestion {
  Quota quota;
  Usage others;                // the sum of the other daemons' grants
  bool others_want = false;    // one of them needs more than is left
  Usage held;                  // this daemon's present grant
  Usage charged;               // what this daemon's jobs use of it
  std::vector<Usage> waiting;  // reservations that the present grant does not cover, oldest first
};

struct GrantPlan {
  // Covers what the jobs use, even if that is above the quota, and the waiting reservations that
  // fit. Has a part for the next ones unless the quota is short; then everything else is given
  // back.
  Usage grant;
  std::vector<std::vector<Resource>> lacking;  // [waiting]; empty: it fits
  bool is_short = false;                       // one of them does not
};
GrantPlan PlanGrant(const GrantQuestion& question);

}  // namespace phub::server
