// The parameters of a batch of keys: where each key's lie, in which memory, and what that takes.
//
// Keys lie one after another, each at a multiple of 64 bytes, in the type that workers get, one
// version behind the other. Keys that are all this daemon's may lie in memory that workers of this
// host map read-only; the others in ordinary memory, of which only the pages of this daemon's own
// chunks are taken. Data; keys/batch_layout.h makes it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/mapped_memory.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "phub/v1/session.pb.h"
#include "server/control/jobs/lent_memory.h"
#include "server/placement/placement.h"

namespace phub::server {

using KeySpecs = google::protobuf::RepeatedPtrField<v1::KeySpec>;

// The core loops of one daemon among the rack's bins.
struct OwnBins {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  bool Has(BinIndex bin) const { return bin.value >= first && bin.value - first < count; }
};

struct ParameterLayout {
  struct KeyPlace {
    bool shared = false;
    std::uint64_t offset = 0;         // of version 0, in the memory of its kind
    std::uint64_t version_bytes = 0;  // from one version to the next. 0: no chunk is here
  };
  std::vector<KeyPlace> keys;
  std::uint64_t shared_bytes = 0;
  std::uint64_t ordinary_bytes = 0;  // of address space
  std::uint64_t memory_bytes = 0;    // that both take: what admission charges
};

struct BatchParameters {
  LentMemory shared;                             // empty: nothing is shared
  std::shared_ptr<const MappedMemory> ordinary;  // null: all is
  std::vector<std::span<std::byte>> own;         // of both: what is to have pages
};

}  // namespace phub::server
