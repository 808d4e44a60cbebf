// Removing keys: checks them, has the daemons remove them on every rank, and drops them here.
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "client/session/job_impl.h"
#include "client/session/marked_keys.h"

namespace phub::client {
namespace {

Status CheckSupported(const std::string& job, const DaemonLinks& links, const LaneWays& ways) {
  for (const std::unique_ptr<DaemonLink>& link : links)
    if (!link->joined.removes_keys())
      return Status(StatusCode::kFailedPrecondition,
                    fmt::format("daemon {} has version {}, which does not support RemoveKeys: "
                                "upgrade it",
                                link->endpoint.ToString(), link->joined.daemon_version()));
  if (ways.registers_memory())
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("job {} cannot remove keys: the memory of its keys is registered "
                              "with this host's RDMA devices until the job ends; require another "
                              "transport",
                              job));
  return Status();
}

// The batch that begins with the keys. present: all keys of the job.
Result<std::uint32_t> FindBatchToRemove(const std::string& job,
                                        std::span<const std::shared_ptr<KeyImpl>> present,
                                        std::span<const std::unique_ptr<KeyBatch>> batches,
                                        std::span<const std::shared_ptr<KeyImpl>> keys) {
  const auto refuse = [](std::string why) {
    return Status(StatusCode::kFailedPrecondition, std::move(why));
  };
  std::vector<bool> given(present.size(), false);
  auto first = static_cast<std::uint32_t>(present.size());
  for (const std::shared_ptr<KeyImpl>& key : keys) {
    const std::uint32_t index = key->index.value;
    const std::string& name = key->definition.name;
    if (index >= present.size() || present[index] != key)
      return refuse(fmt::format("key {} is not a key of job {}, or was removed", name, job));
    if (given[index])
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("key {} of job {} is given twice", name, job));
    if (!key->definition.collective)
      return refuse(
          fmt::format("key {} of job {} is not collective: keys that belong to "
                      "iterations and checkpoints cannot be removed",
                      name, job));
    given[index] = true;
    first = std::min(first, index);
  }
  for (std::uint32_t i = first; i < given.size(); ++i)
    if (!given[i])
      return refuse(
          fmt::format("key {} of job {} cannot be removed without key {}, which was "
                      "added after it: keys are removed in the reverse order",
                      present[first]->definition.name, job, present[i]->definition.name));
  for (std::uint32_t batch = 0; batch < batches.size(); ++batch) {
    if (batches[batch]->keys.empty()) continue;
    const std::uint32_t begin = batches[batch]->keys.front().layout.key.value;
    if (begin == first) return batch;
    if (begin > first) break;
  }
  return refuse(
      fmt::format("key {} of job {} cannot be removed without key {}: keys that one call "
                  "has added are removed together",
                  present[first]->definition.name, job, present[first - 1]->definition.name));
}

}  // namespace

Status JobImpl::RemoveKeys(std::span<const std::shared_ptr<KeyImpl>> keys) {
  const std::lock_guard calls(calls_mutex_);
  if (Status verdict = status(); !verdict.ok()) return verdict;
  if (Status status = CheckSupported(name(), calls_.links(), *ways_); !status.ok()) return status;
  if (keys.empty()) return Status();
  const Result<std::uint32_t> first_batch = FindBatchToRemove(name(), Keys(), batches_, keys);
  if (!first_batch.ok()) return first_batch.status();
  MarkedKeys marked;
  for (const std::shared_ptr<KeyImpl>& key : keys)
    if (Status status = marked.Mark(*key); !status.ok()) return status;
  bool is_split = false;
  if (Status status = rack_batches_.Remove(*first_batch, is_split); !status.ok()) {
    if (is_split) Fail(status);
    if (status.code() == StatusCode::kCancelled) marked.Keep();
    return status;
  }
  marked.Keep();
  const KeyIndex first_key = batches_[*first_batch]->keys.front().layout.key;
  Submit({.kind = Command::Kind::kRemoveKeys, .key = first_key});
  // If the job ends meanwhile, its keys stay until this rank leaves.
  for (const std::shared_ptr<KeyImpl>& key : keys)
    if (!key->AwaitRemoved()) return status();
  for (; batches_.size() > *first_batch; batches_.pop_back()) {
    const std::vector<KeyPlan>& plans = batches_.back()->keys;
    for (auto plan = plans.rbegin(); plan != plans.rend(); ++plan)
      layout_->RemoveLast(plan->layout);
  }
  // The caller has references to them: none is destroyed with the lock.
  const std::lock_guard lock(mutex_);
  keys_.resize(first_key.value);
  return Status();
}

}  // namespace phub::client
