// Whether a tenant of a cluster can be deleted, from what the daemons answer. Every running daemon
// must have answered, because a daemon starts jobs without asking others; and none may have jobs of
// the tenant. What a daemon holds of the quotas without using it is no reason against it. Pure; any
// thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tenant/grant_plan.h"

namespace phub::server {

// A running daemon, or one that may run: its lease has not ended.
struct RemovalAnswer {
  std::string daemon;  // "b (10.0.0.2:7700 on host node2)"
  bool given = false;  // it starts no job of the tenant from now on
  Usage used;          // what the tenant's jobs used then
};

// True: delete it. False: daemons have not answered yet. FAILED_PRECONDITION names the daemons that
// use something, or, if there is no more time, those that have not answered.
absl::StatusOr<bool> PlanRemoval(const std::string& tenant,
                                 const std::vector<RemovalAnswer>& answers, bool has_time);

}  // namespace phub::server
