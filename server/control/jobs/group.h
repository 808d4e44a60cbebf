// A group: some ranks of a job, with keys of its own (keys/group_keys.h). Data; owned by the Job;
// under control's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/control/answers.h"
#include "server/control/jobs/batch_record.h"
#include "server/core/exchange/rack_plan.h"
#include "server/core/key_removal.h"
#include "server/core/members.h"
#include "server/metrics/shard_metrics.h"
#include "server/placement/placement.h"

namespace phub::server {

// The members' calls to remove their group. Like RemovalRun, for a group.
struct GroupRemoval {
  enum class State : std::uint8_t {
    kGathering,  // not every member of this rack has called
    kCalled,     // groups of several racks: members of other racks have not
    kAgreed,     // waits while another removal is being unlinked
    kUnlinking,
    kUnlinkedHere,  // groups of several racks: other racks are not as far
    kUnlinked,      // waits until no batch is being built
    kFreeing,
  };
  State state = State::kGathering;
  Rank first{};                                         // the member that called first
  std::vector<Answer<v1::RemoveKeysResponse>> answers;  // [member]; empty: it has not called
  std::size_t called_count = 0;
  KeyRemoval removal;  // for the core loops
  std::size_t cores_left = 0;
  DoneFlag memory_free;                               // null: it is
  std::vector<std::shared_ptr<const void>> unwanted;  // memory that members shared
  std::vector<std::uint64_t> of_members;              // [member]: bytes of it, charged to the job
};

// How the racks of a group exchange. The same in all of them.
struct GroupExchange {
  std::uint32_t number = 0;  // among the job's groups of several racks, from 1
  std::uint64_t racks = 0;   // a bit per rack that takes part: those with members, and aggregators
  std::uint64_t racks_with_members = 0;
  std::shared_ptr<const exchange::RackPlan> plan;
  std::vector<exchange::TreeChooser> choosers;  // [core]
  std::vector<PlacementBin> bins;  // the group's loads alone, since racks have different groups
  std::uint32_t batches_told = 0;  // that this rack has reported
};

struct Group {
  std::string name;      // a label: other groups of the job may have it, if they share no rank
  std::uint64_t id = 0;  // from 1, in the order in which the job's groups were made
  Rank first{};          // the member that made it
  std::vector<std::uint32_t> ranks;                   // its members, numbered over the whole job
  std::shared_ptr<const Members> members;             // those in this rack, numbered there
  std::shared_ptr<GroupExchange> exchange;            // null: all members are in this rack
  std::vector<std::uint32_t> next_batch;              // [member]
  std::vector<std::shared_ptr<BatchRecord>> batches;  // handed out if they have tickets
  // Used only by the build of a batch.
  std::shared_ptr<std::set<std::string>> key_names = std::make_shared<std::set<std::string>>();
  std::vector<std::unique_ptr<WorkMetrics>> work;  // [core], written by that core loop
  std::unique_ptr<GroupRemoval> removal;           // null: no member has called

  // Whether ranks may have that batch.
  bool Has(std::uint32_t batch) const { return batch < batches.size() && !batches[batch]->held; }
};

}  // namespace phub::server
