// The memory layout of the parameters of a batch of keys. Data; keys/batch_layout.h makes it.
//
// Keys follow one another, each at a multiple of 64 bytes. The parameters of a key have the type
// that workers receive, and its versions follow one another. There are two kinds of memory:
//   shared    workers of this host may map it read-only. Only for keys whose chunks are all on this
//             daemon.
//   ordinary  for all other keys. Only the pages of this daemon's own chunks are backed.
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

// The range of the rack's bins that are core loops of this daemon.
struct OwnBins {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  bool Has(BinIndex bin) const { return bin.value >= first && bin.value - first < count; }
};

struct ParameterLayout {
  struct KeyPlace {
    bool shared = false;
    std::uint64_t offset = 0;         // of version 0, from the start of its memory
    std::uint64_t version_bytes = 0;  // from one version to the next. 0: no chunk on this daemon
  };
  std::vector<KeyPlace> keys;
  std::uint64_t shared_bytes = 0;
  std::uint64_t ordinary_bytes = 0;  // address space
  std::uint64_t memory_bytes = 0;    // backed memory of both kinds, which admission charges
};

struct BatchParameters {
  LentMemory shared;                             // empty: no key is shared
  std::shared_ptr<const MappedMemory> ordinary;  // null: all keys are shared
  std::vector<std::span<std::byte>> own;         // the ranges of both kinds that need pages
};

}  // namespace phub::server
