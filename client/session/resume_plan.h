// Where a process goes on that takes the place of a rank that died (JobOptions::restart): the
// iteration to compute again, and the version of every key that it starts from.
//
// The iteration B is the least that any chunk of any key has completed: the dead rank had the
// replies of all chunks for it, since it pushed an iteration only after all replies of the last
// one; and no chunk is further than B + 1, since that takes this rank's next push. Whatever daemons
// said at different times, that holds, so that they need not be asked at one instant. Of each key
// the daemons keep the versions of B and of B + 1.
//
// A rank may find itself resumed at some daemons and new at others: the process before it died
// while it was joining (its reservation lapsed where it was not committed). Then it had pushed
// nothing, so no chunk anywhere has had a round, and the rank starts as a new one. If a chunk has
// had one all the same, some daemon has lost what it held, and the job cannot go on.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/wire/message.h"
#include "phub/status.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

struct KeyResume {
  std::uint64_t first_iteration = 0;  // the job's when the key was added
  // The round after which the key was at the boundary; 0: none yet, so it is as in a first run.
  Iteration version{};
  std::uint64_t reductions = 0;  // of the rounds up to `version`
  HyperVersion hyper_version{};  // named by that round, with its values; 0: none was
  v1::HyperParameters hyper_parameters = {};
};

struct ResumePlan {
  bool resumed = false;
  std::uint64_t iteration = 0;
  std::vector<KeyResume> keys;  // [key index]: keys that the job has already
};

// What one daemon says.
struct DaemonVersions {
  std::string daemon;  // its name
  bool resumed = false;
  v1::GetVersionsResponse versions;
};

// kAborted: the job cannot go on; kInternal: what a daemon says makes no sense. Both name daemons.
Result<ResumePlan> MakeResumePlan(std::span<const DaemonVersions> daemons);

}  // namespace phub::client
