// What control asks of a shard's rounds and versions. The core loop fills it (commands.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/optimizer/hyper_parameters.h"
#include "common/wire/message.h"

namespace phub::server {

// Rounds that wait for ranks, in chunk order. `dropped` counts chunks that found no room.
struct StallReport {
  // A round of a key.
  struct Round {
    KeyIndex key{};
    Iteration iteration{};
    TimeNs since = 0;  // when the round's first gradient arrived
  };
  struct Entry {
    KeyIndex key{};
    Iteration iteration{};
    TimeNs since = 0;  // when the round's first gradient arrived
    std::uint32_t chunks_waiting = 0;
    bool pooled = false;                 // if it is a round of a pooled key:
    std::uint32_t pool_operation = 0;    // what its ranks state
    std::vector<std::uint64_t> missing;  // bit per rank; sized by control
  };
  // A version of a key's hyper-parameters.
  struct Record {
    KeyIndex key{};
    HyperVersion version{};
  };
  std::optional<Round> asked;  // set by control: report this one even if no rank has pushed it yet
  std::optional<Record> record;  // set by control: report its values
  // Those of `record`, or of the key's first version if it is not known. None: the shard has no
  // chunk of the key.
  std::optional<wire::HyperParameters> values;
  std::vector<Entry> entries;  // sized by control
  std::uint32_t count = 0;
  std::uint32_t dropped = 0;
  std::optional<Round>
      across;  // the oldest that every rank here has pushed and other racks have not
};

// The versions of each key's chunks. Filled by the core loop.
struct VersionReport {
  struct Entry {
    std::uint32_t chunk_count = 0;  // 0: the other fields are not valid
    Iteration applied_min{}, applied_max{};
    std::uint64_t reductions_min = 0, reductions_max = 0;
    // The versions that the rounds of applied_min and of the version before it named; 0: none.
    HyperVersion hyper_version{}, previous_hyper_version{};
    wire::HyperParameters hyper_parameters{}, previous_hyper_parameters{};
  };
  KeyIndex first{};
  std::vector<Entry> keys;      // of `first` and the keys after it; sized by control
  std::uint32_t key_count = 0;  // keys that the shard has now; may be more than `keys` has room for
};

}  // namespace phub::server
