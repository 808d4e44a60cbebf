// Checks a caller's key specs and memory, and converts specs to protobuf. Pure functions. Error
// messages name the key and say what is allowed.
#pragma once

#include <cstdint>
#include <string>

#include "client/session/key_definition.h"
#include "phub/client.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

// The rank that adds a key, in its job.
struct Membership {
  Rank rank{};
  std::uint32_t world_size = 1;
  bool restart = false;      // JobOptions::restart
  bool spans_racks = false;  // JobOptions::plan is set
  bool sums_fixed = false;   // JobOptions::sum
  std::uint32_t chunk_bytes = kChunkBytesMax;
};
// A key's definition, with the memory that the caller provides. bytes_max: total size of all chunks
// that the job's lanes can number.
Result<KeyDefinition> CheckKey(const KeySpec& spec, std::uint64_t bytes_max,
                               const Membership& member = {});
Status CheckPriorityClass(const std::string& place, PriorityClass priority_class);
Status CheckOperation(const std::string& place, Operation operation, numeric::ElementType type);
v1::KeySpec ToProto(const KeyDefinition& key);

// Checks memory for `what` ("gradients") of a key: element type, element count and alignment.
// `place` names the key: "key fc1.weight of job digits".
Status CheckElements(const std::string& place, const char* what, ConstElements memory,
                     numeric::ElementType type, std::uint64_t element_count);
Status CheckNoOverlap(const std::string& place, ConstElements gradients, ConstElements parameters);
// The same for a round of the key. The result of an element may arrive where it is sent from, if it
// has the same type: in the same memory (kAllReduce), or where a rank's own part is in the whole.
Status CheckNoOverlap(const std::string& place, const KeyDefinition& key, ConstElements gradients,
                      ConstElements parameters);

}  // namespace phub::client
