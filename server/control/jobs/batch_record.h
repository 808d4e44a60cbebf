// A batch of keys, as the first rank to add it defined it. Data; owned by the Job or by its Group;
// under control's lock.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/priority_levels.h"
#include "server/control/core_link.h"
#include "server/control/jobs/batch_parameters.h"
#include "server/control/jobs/key_table.h"
#include "server/control/jobs/memory_listener.h"
#include "server/control/jobs/prefaulter.h"
#include "server/core/exchange/shard_exchange.h"
#include "server/core/job_shard.h"
#include "server/placement/number_space.h"
#include "server/placement/placement.h"

namespace phub::server {

// Chunks of a core loop.
struct NumberRange {
  BinIndex bin{};
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct BatchRecord {
  Rank first{};
  std::uint32_t first_key = 0;
  std::shared_ptr<KeyList> keys;
  std::vector<Ticket> tickets;  // [core]; empty until the core loops get the batch
  std::shared_ptr<const v1::AddKeysResponse> placements;
  std::vector<std::uint32_t> own_chunks;         // [key of the batch]: chunks in this daemon
  std::size_t units = 0;                         // of work to copy the placements
  std::vector<std::shared_ptr<KeyBatch>> parts;  // [core]; freed when the job is released
  // [core]; groups of several racks. Those of the job's keys are in JobExchange.
  std::vector<std::shared_ptr<exchange::ExchangeBatch>> exchange_parts;
  std::array<bool, kPriorityLevels> has_level{};  // of its keys' priority classes; only of a group
  bool held = false;  // other racks may still refuse it: neither core loops nor ranks get it
  ParameterLayout layout;
  BatchParameters parameters;   // the memory that the parts point into
  PagesFlag pages;              // of parts and parameters; null: they have pages
  std::vector<DoneFlag> known;  // set when devices have registered the memory
  // For its removal.
  std::uint64_t bytes = 0;            // that admission charged for it
  std::uint64_t parameter_bytes = 0;  // of its keys
  bool only_here = false;             // its keys are charged here, and in no other rack
  // What it added to each of Job::bins, and the numbers of its chunks; empty unless all keys are
  // collective.
  std::vector<std::uint64_t> loads;
  std::vector<NumberRange> chunks;
};

}  // namespace phub::server
