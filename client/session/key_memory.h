// Where the memory of a batch of keys comes from, as far as the caller did not bring it: shared
// memory where the batch has some, else pages of the process's own.
//
// This rank may have one region of its own per batch, which the daemon maps too: gradients lie in
// it, and parameters that are this rank's alone, in pieces aligned to a cache line. Other
// parameters may be one region of the daemon's that all workers of the host map read-only. Pure,
// but for taking pages; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "client/session/key_definition.h"
#include "phub/client.h"

namespace phub::client {

// Memory that this rank has in common with one daemon, for one batch of keys.
struct BatchMemory {
  std::span<std::byte> own;               // of at least PlanOwnMemory's size; empty: none
  std::span<const std::byte> parameters;  // read-only; empty: none
  std::shared_ptr<const void> owner;      // keeps both mapped
};

// Lays out the region of this rank's own: sets KeyDefinition::own_*_offset. Returns its bytes.
// parameters_shared: the daemon's parameters are there to be read; else they are this rank's own.
std::uint64_t PlanOwnMemory(std::span<KeyDefinition> keys, bool parameters_shared);

// Gives a key the memory it lacks. shared_offset: of its parameters in memory.parameters. Refuses
// what does not fit there (kInternal), and names the key when no memory is left.
Status TakeMemory(KeyDefinition& key, const BatchMemory& memory, std::uint64_t shared_offset);

}  // namespace phub::client
