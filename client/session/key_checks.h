// What callers may ask for, and what of it goes to the daemons. Pure functions; the messages name
// the key and say what is allowed.
#pragma once

#include <cstdint>
#include <string>

#include "client/session/key_definition.h"
#include "phub/client.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

// A key's definition, with the memory that the caller brings. bytes_max: what the chunks that the
// lanes of the job can number hold together.
Result<KeyDefinition> CheckKey(const KeySpec& spec, std::uint64_t bytes_max);
v1::KeySpec ToProto(const KeyDefinition& key);

// Memory for `what` ("gradients") of a key: the type and number of elements that it has to have.
// `place` names the key: "key fc1.weight of job digits".
Status CheckElements(const std::string& place, const char* what, ConstElements memory,
                     numeric::ElementType type, std::uint64_t element_count);
Status CheckNoOverlap(const std::string& place, ConstElements gradients, ConstElements parameters);

}  // namespace phub::client
