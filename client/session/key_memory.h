// Provides memory for a batch of keys where the caller gave none: shared memory if the batch has
// some, otherwise private pages of the process.
//
// Per batch, this rank may have one region that the daemon maps, too. It holds gradients and this
// rank's private parameters, in pieces aligned to a cache line, or to a page if they are large.
// Other parameters may be in one region of the daemon that all workers of the host map read-only.
// Pure, except for the allocation of pages; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "client/session/key_definition.h"
#include "phub/client.h"

namespace phub::client {

// Memory that this rank shares with one daemon, for one batch of keys.
struct BatchMemory {
  std::span<std::byte> own;               // at least PlanOwnMemory() bytes; empty: none
  std::span<const std::byte> parameters;  // read-only; empty: none
  std::shared_ptr<const void> owner;      // keeps both mapped
};

// Lays out this rank's own region: sets KeyDefinition::own_*_offset. Returns its size in bytes.
// parameters_shared: this rank can read the daemon's parameters. Otherwise they are in this region.
std::uint64_t PlanOwnMemory(std::span<KeyDefinition> keys, bool parameters_shared);

// Sets the missing memory of a key. shared_offset: offset of its parameters in memory.parameters.
// kInternal: the parameters do not fit there. kResourceExhausted: no memory is left.
Status TakeMemory(KeyDefinition& key, const BatchMemory& memory, std::uint64_t shared_offset);

}  // namespace phub::client
