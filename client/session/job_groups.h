// The groups of a job on this rank: adds their keys and removes them. A part of JobImpl, whose
// locks it uses. A group's calls_mutex is taken before them. It is held while a removal waits for
// other members, so that groups are independent of each other.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/session/group_impl.h"
#include "client/session/key_definition.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

class JobImpl;

class JobGroups {
 public:
  explicit JobGroups(JobImpl& job) : job_(job) {}

  Result<std::shared_ptr<GroupImpl>> New(std::string_view name,
                                         std::span<const std::uint32_t> ranks);
  Result<std::vector<std::shared_ptr<KeyImpl>>> AddKeys(GroupImpl& group,
                                                        std::span<const KeySpec> specs);
  Status Remove(const std::shared_ptr<GroupImpl>& group);

  // REQUIRES for both: JobImpl's mutex is held. Clear: this rank has left the job.
  void AppendKeys(std::vector<std::shared_ptr<KeyImpl>>& keys) const;
  void Clear();

 private:
  Status CheckSupported(const std::string& group) const;
  Result<std::vector<KeyDefinition>> CheckSpecs(const GroupImpl& group,
                                                std::span<const KeySpec> specs) const;
  Result<std::vector<std::shared_ptr<KeyImpl>>> Enter(GroupImpl& group,
                                                      std::vector<KeyDefinition> definitions,
                                                      const v1::AddKeysResponse& response);
  Status RemoveKeys(GroupImpl& group);
  std::vector<std::shared_ptr<KeyImpl>> KeysOf(const GroupImpl& group) const;

  JobImpl& job_;
  std::vector<std::shared_ptr<GroupImpl>> groups_;  // protected by JobImpl's mutex
};

}  // namespace phub::client
