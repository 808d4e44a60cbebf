// Groups: ranks of a job that exchange keys of their own.
//
//   phub::Result<phub::Group> pair = job.NewGroup("pair", {{0, 2}});   // on ranks 0 and 2
//   phub::Result<phub::Key> key = pair->AddKey("sum", phub::f32, 1000);
//   key->PushPull().Wait();
//   pair->Remove();
//
// NewGroup() is called on every member, and calls no daemon: members meet when they add the first
// keys. The group's priority class is that of its keys and pools that state none.
//
// A group is a part of its job and uses its lanes. The groups of a job are independent of each
// other and of the job's keys. If a rank dies, the job ends, and so do its groups. In a job that
// spans racks, a group inside one rack is served by that rack's daemon alone. A group of several
// racks only sums and broadcasts: no pools and no other movements.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "phub/client.h"

namespace phub {

namespace client {  // not part of the API
struct GroupImpl;
}  // namespace client

// For Job::NewGroups(), which is like NewGroup() otherwise. Every member of any of the groups gives
// the same list; other ranks need not call. In a job that spans racks, groups of several racks get
// plans that are made together, to spread what they send over the links between racks. So declare
// groups that are used at the same time with one call, at most 64.
struct GroupSpec {
  std::string name;                  // groups of one name share no rank
  std::vector<std::uint32_t> ranks;  // in any order
  PriorityClass priority_class = PriorityClass::kData;
};

// A group that this rank is a member of. A cheap reference: copies refer to the same group. The
// functions of one group are called by one thread at a time.
class PHUB_API Group {
 public:
  ~Group();
  Group(const Group& other);
  Group& operator=(const Group& other);
  Group(Group&& other) noexcept;
  Group& operator=(Group&& other) noexcept;

  const std::string& name() const;
  std::span<const std::uint32_t> ranks() const;  // the members' ranks in the job, ascending
  std::uint32_t index() const;                   // this rank's place in ranks()

  // Like Job::AddKeys(), with these differences; Pool::Add() adds pools. Every member makes the
  // same calls in the same order; other ranks make none. Keys are collective, whether
  // KeyOptions::collective is set or not. Sums go in ascending rank, over racks in the order of the
  // group's plan, and means are divided by the number of members. Where a movement has parts, part
  // i belongs to ranks()[i], and roots are ranks of the job. Key::name() and errors say "NAME of
  // group GROUP".
  Result<std::vector<Key>> AddKeys(std::span<const KeySpec> specs);
  Result<Key> AddKey(std::string_view key, ElementType type, std::uint64_t element_count,
                     const KeyOptions& options = {});

  // Gives back what the job holds for the group: keys, memory, quota and names. Blocks until every
  // member has called it. No key may have a round in flight. If it returns an error and the job
  // still runs, the group can be used as before. Afterwards rounds of its keys are refused, and a
  // new group may have its name. Not over RDMA.
  Status Remove();

 private:
  friend class Job;
  Group(std::shared_ptr<client::JobImpl> job, std::shared_ptr<client::GroupImpl> group);
  std::shared_ptr<client::JobImpl> job_;
  std::shared_ptr<client::GroupImpl> impl_;
};

}  // namespace phub
