// The groups of a job on this rank: adds their keys and removes them. A part of JobImpl, whose
// locks it uses. A group's calls_mutex is taken before them. It is held while a removal waits for
// other members, so that groups are independent of each other.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/session/group_impl.h"
#include "client/session/key_definition.h"
#include "client/session/rack_batches.h"
#include "phub/group.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

class JobImpl;

class JobGroups {
 public:
  explicit JobGroups(JobImpl& job) : job_(job) {}

  Result<std::shared_ptr<GroupImpl>> New(std::string_view name,
                                         std::span<const std::uint32_t> ranks,
                                         PriorityClass priority_class);
  // Those that this rank is a member of. All or, with an error, none.
  Result<std::vector<std::shared_ptr<GroupImpl>>> New(std::span<const GroupSpec> groups);
  Result<std::vector<std::shared_ptr<KeyImpl>>> AddKeys(GroupImpl& group,
                                                        std::span<const KeySpec> specs);
  Status Remove(const std::shared_ptr<GroupImpl>& group);

  // The daemon has given numbers to new keys. If a removed group had some of them, waits until the
  // engine does not know that group's keys any more. The group's own call, on another thread, may
  // not have returned yet. Does not wait for other ranks.
  void AwaitNumbers(std::span<const KeyLayout> layouts);

  // REQUIRES for both: JobImpl's mutex is held. Clear: this rank has left the job.
  void AppendKeys(std::vector<std::shared_ptr<KeyImpl>>& keys) const;
  void Clear();

 private:
  Status CheckSupported(const std::string& group) const;
  // The ranks of a group in ascending order, which this rank may not be one of.
  Result<std::vector<std::uint32_t>> CheckMembers(const std::string& group,
                                                  std::span<const std::uint32_t> ranks,
                                                  PriorityClass priority_class) const;
  Result<std::shared_ptr<GroupImpl>> Make(const std::string& group,
                                          std::vector<std::uint32_t> members,
                                          PriorityClass priority_class);
  Result<std::vector<KeyDefinition>> CheckSpecs(const GroupImpl& group,
                                                std::span<const KeySpec> specs) const;
  Result<std::vector<std::shared_ptr<KeyImpl>>> Enter(GroupImpl& group,
                                                      std::vector<KeyDefinition> definitions,
                                                      const AddedBatch& added);
  // Asks the daemon to share memory for the keys. Returns the index of its region.
  std::uint32_t RequestMemory(std::span<KeyDefinition> definitions, v1::AddKeysRequest& request);
  Status RemoveKeys(GroupImpl& group);
  Status RemoveFromEngine(const GroupImpl& group, std::span<const std::shared_ptr<KeyImpl>> keys);
  std::vector<std::shared_ptr<KeyImpl>> KeysOf(const GroupImpl& group) const;

  bool HaveNumbers(std::span<const KeyLayout> layouts) const;

  JobImpl& job_;
  std::mutex numbers_mutex_;
  std::condition_variable numbers_changed_;
  // Groups that this rank has asked to remove, and whose keys the engine still has.
  std::vector<const GroupImpl*> removing_;
  std::vector<std::shared_ptr<GroupImpl>> groups_;  // protected by JobImpl's mutex
};

}  // namespace phub::client
