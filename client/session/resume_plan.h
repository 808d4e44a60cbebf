// Computes where a process resumes that replaces a dead rank (JobOptions::restart): the iteration
// to compute again, and the version of every key to start from.
//
// This iteration B is the lowest that any chunk of any key has completed. The dead rank had the
// replies of all chunks for B, since it pushed an iteration only after all replies of the previous
// one. No chunk is beyond B + 1, since that needs this rank's next push. Both hold even if the
// daemons answer at different times. The daemons keep the versions of B and B + 1 of each key.
//
// A rank may be resumed at some daemons and new at others: the old process died while joining,
// and its uncommitted reservations expired. It had then pushed nothing, no chunk has had a round,
// and the rank starts as a new one. If any chunk has had a round, a daemon has lost its state, and
// the job must end.
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
  std::uint64_t first_iteration = 0;  // the job's iteration when the key was added
  // The round after which the key was at the boundary; 0: no round yet, as in a first run.
  Iteration version{};
  std::uint64_t reductions = 0;  // among the rounds up to `version`
  HyperVersion hyper_version{};  // named by that round, with its values; 0: none
  v1::HyperParameters hyper_parameters = {};
};

struct ResumePlan {
  bool resumed = false;
  std::uint64_t iteration = 0;
  std::vector<KeyResume> keys;  // [key index]: keys that the job already has
};

// One daemon's answer.
struct DaemonVersions {
  std::string daemon;  // the daemon's name
  bool resumed = false;
  v1::GetVersionsResponse versions;
};

// kAborted: the job must end; kInternal: a daemon's answer is inconsistent. Both name the daemons.
Result<ResumePlan> MakeResumePlan(std::span<const DaemonVersions> daemons);

}  // namespace phub::client
