#include "client/session/resume_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace phub::client {
namespace {

// What a daemon answered, by key. A job may have tens of thousands of keys.
struct Answer {
  const DaemonVersions* daemon = nullptr;
  std::vector<const v1::KeyVersions*> keys;  // null: it does not know the key

  // Null if it has no chunks of the key.
  const v1::KeyVersions* Find(std::uint32_t index) const {
    const v1::KeyVersions* const key = index < keys.size() ? keys[index] : nullptr;
    return key != nullptr && key->chunk_count() > 0 ? key : nullptr;
  }
};

// One key, over all daemons that have chunks of it.
struct Progress {
  bool known = false;             // at least one daemon knows the key
  std::uint32_t known_count = 0;  // number of daemons that know it
  std::uint64_t first_iteration = 0;
  std::uint64_t reductions_min = std::numeric_limits<std::uint64_t>::max();
};

Status Nonsense(const DaemonVersions& daemon, const std::string& what) {
  return Status(StatusCode::kInternal,
                fmt::format("daemon {} answered GetVersions with {}", daemon.daemon, what));
}

Status CheckKey(const DaemonVersions& daemon, const v1::KeyVersions& key) {
  if (key.key_index() >= kKeysPerJobMax)
    return Nonsense(daemon, fmt::format("key {}", key.key_index()));
  if (key.chunk_count() == 0) return Status();
  if (key.applied_min() > key.applied_max() || key.reductions_min() > key.reductions_max() ||
      key.reductions_min() > key.applied_min() || key.reductions_max() > key.applied_max())
    return Nonsense(daemon, fmt::format("inconsistent versions of key {}", key.key_index()));
  return Status();
}

Status Collect(const DaemonVersions& daemon, std::vector<Progress>& keys, Answer& answer) {
  answer.daemon = &daemon;
  for (const v1::KeyVersions& versions : daemon.versions.keys()) {
    if (Status status = CheckKey(daemon, versions); !status.ok()) return status;
    const std::uint32_t index = versions.key_index();
    if (index >= keys.size()) keys.resize(index + 1);
    if (index >= answer.keys.size()) answer.keys.resize(index + 1);
    if (answer.keys[index] != nullptr) return Nonsense(daemon, fmt::format("key {} twice", index));
    answer.keys[index] = &versions;
    Progress& key = keys[index];
    if (key.known && key.first_iteration != versions.first_iteration())
      return Nonsense(daemon, fmt::format("first iteration {} of key {}; another daemon has {}",
                                          versions.first_iteration(), index, key.first_iteration));
    key.known = true;
    ++key.known_count;
    key.first_iteration = versions.first_iteration();
    if (versions.chunk_count() > 0)
      key.reductions_min = std::min(key.reductions_min, versions.reductions_min());
  }
  return Status();
}

bool AnyRound(const DaemonVersions& daemon) {
  return std::any_of(
      daemon.versions.keys().begin(), daemon.versions.keys().end(),
      [](const v1::KeyVersions& key) { return key.chunk_count() > 0 && key.applied_max() > 0; });
}

Result<KeyResume> ResumeKey(std::span<const Answer> answers, std::uint32_t index,
                            const Progress& progress, std::uint64_t iteration) {
  KeyResume resume{.first_iteration = progress.first_iteration};
  resume.reductions = iteration - std::min(iteration, progress.first_iteration);
  if (progress.known_count < answers.size()) return resume;  // some daemons do not have the key yet
  std::optional<std::uint64_t> version;
  for (const Answer& answer : answers) {
    const v1::KeyVersions* const key = answer.Find(index);
    if (key == nullptr) continue;
    // Any chunk is at most one round ahead: daemons keep only two versions.
    if (key->reductions_min() < resume.reductions || key->reductions_max() > resume.reductions + 1)
      return Nonsense(
          *answer.daemon,
          fmt::format("key {} after {} to {} reductions; it should be {} or {} (iteration "
                      "{} of the job)",
                      index, key->reductions_min(), key->reductions_max(), resume.reductions,
                      resume.reductions + 1, iteration));
    const std::uint64_t ahead = key->reductions_min() - resume.reductions;
    version = std::min(version.value_or(std::numeric_limits<std::uint64_t>::max()),
                       key->applied_min() - ahead);
  }
  resume.version = Iteration{version.value_or(0)};
  if (resume.version.value == 0) {
    resume.reductions = 0;
    return resume;
  }
  for (const Answer& answer : answers) {
    const v1::KeyVersions* const key = answer.Find(index);
    if (key == nullptr) continue;
    const bool current = key->applied_min() == resume.version.value;
    if (!current && key->applied_min() != resume.version.value + 1) continue;
    const std::uint32_t record = current ? key->record() : key->previous_record();
    if (record == 0) continue;
    resume.hyper_version = HyperVersion{record};
    resume.hyper_parameters = current ? key->hyper_parameters() : key->previous_hyper_parameters();
    break;
  }
  return resume;
}

}  // namespace

Result<ResumePlan> MakeResumePlan(std::span<const DaemonVersions> daemons) {
  const auto is_resumed = [](const DaemonVersions& daemon) { return daemon.resumed; };
  ResumePlan plan;
  if (std::none_of(daemons.begin(), daemons.end(), is_resumed)) return plan;
  const auto is_new = std::find_if_not(daemons.begin(), daemons.end(), is_resumed);
  if (is_new != daemons.end()) {
    for (const DaemonVersions& daemon : daemons)
      if (AnyRound(daemon))
        return Status(StatusCode::kAborted,
                      fmt::format("daemon {} has no state of this rank, although the job has had "
                                  "rounds at daemon {}: daemon {} was restarted and its part of "
                                  "the job is lost",
                                  is_new->daemon, daemon.daemon, is_new->daemon));
  } else {
    plan.resumed = true;
  }
  std::vector<Progress> keys;
  std::vector<Answer> answers(daemons.size());
  for (std::size_t i = 0; i < daemons.size(); ++i)
    if (Status status = Collect(daemons[i], keys, answers[i]); !status.ok()) return status;
  std::uint64_t iteration = std::numeric_limits<std::uint64_t>::max();
  for (Progress& key : keys) {
    if (!key.known) continue;
    // A daemon that does not have the key yet has had no round of it.
    if (key.known_count < daemons.size() ||
        key.reductions_min == std::numeric_limits<std::uint64_t>::max())
      key.reductions_min = 0;
    iteration = std::min(iteration, key.first_iteration + key.reductions_min);
  }
  plan.iteration = iteration == std::numeric_limits<std::uint64_t>::max() ? 0 : iteration;
  for (std::uint32_t index = 0; index < keys.size(); ++index) {
    Result<KeyResume> key = ResumeKey(answers, index, keys[index], plan.iteration);
    if (!key.ok()) return key.status();
    plan.keys.push_back(*std::move(key));
  }
  return plan;
}

}  // namespace phub::client
