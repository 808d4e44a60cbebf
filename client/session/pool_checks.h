// Checks of what callers give to pools and pooled keys. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>

#include "client/session/key_definition.h"
#include "common/base/reduction.h"
#include "common/wire/message.h"
#include "phub/types.h"

namespace phub::client {

// The reduction of an operation of a pool, which may be longer than its capacity.
Result<numeric::Reduction> CheckPoolOperation(const std::string& place, ConstElements gradients,
                                              ConstElements parameters, Operation operation);
// The round of a pooled key that reduces this memory.
Result<wire::PoolRound> CheckPoolRound(const std::string& place, const KeyDefinition& key,
                                       ConstElements gradients, ConstElements parameters,
                                       Operation operation);
// What a pool broadcasts, from a rank that uses the key.
Status CheckPoolBroadcast(const std::string& place, const KeyDefinition& key, ConstElements values,
                          std::uint32_t root);
// The same for one round.
Status CheckBroadcastRound(const std::string& place, const KeyDefinition& key, ConstElements values,
                           std::uint32_t root);

}  // namespace phub::client
