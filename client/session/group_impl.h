// A group of a job on this rank. Owned by the JobImpl and by callers.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/commands.h"
#include "client/session/key_impl.h"

namespace phub::client {

// Groups that were declared together.
using DeclaredGroups = std::vector<std::pair<std::string, std::vector<std::uint32_t>>>;

struct GroupImpl {
  GroupImpl(std::string name_in, std::vector<std::uint32_t> ranks_in, std::uint32_t index_in,
            PriorityClass priority_class_in)
      : name(std::move(name_in)),
        ranks(std::move(ranks_in)),
        index(index_in),
        priority_class(priority_class_in) {}

  const std::string name;
  const std::vector<std::uint32_t> ranks;          // ranks in the job, ascending
  const std::uint32_t index;                       // this rank's place in `ranks`
  const PriorityClass priority_class;              // of keys that state none
  std::shared_ptr<const DeclaredGroups> declared;  // null: this group alone

  std::mutex calls_mutex;  // held during calls that change the keys; before JobImpl's mutexes
  std::uint64_t id = 0;    // the daemon's, once the group has keys; 0: it has none
  std::vector<std::unique_ptr<KeyBatch>> batches;
  std::vector<std::uint32_t> regions;          // of memory that this rank shares with the daemon
  std::vector<std::shared_ptr<KeyImpl>> keys;  // protected by JobImpl's mutex, too
  bool removed = false;
};

}  // namespace phub::client
