// Where the memory of a batch of keys comes from, as far as the caller did not bring it: shared
// memory where the batch has some, else pages of the process's own.
//
// This rank may have one region of its own per batch, which the daemon maps too: gradients lie in
// it, and parameters that are this rank's alone, in pieces aligned to a cache line. Other parameters
// may be one region of the daemon's that all workers of the host map read-only. Pure, but for
// taking pages; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "client/session/key_definition.h"
#include "phub/client.h"

namespace phub::client {

// Memory that this rank has in common with the daemon of these bins, for one batch of keys.
struct BatchMemory {
  std::span<std::byte> own;               // what was asked for with shared_bytes; empty: none
  std::span<const std::byte> parameters;  // shared_parameters_bytes, read-only; empty: none
  std::size_t daemon = 0;                 // whose answer says where in `parameters` the keys are
  std::uint32_t first_bin = 0;
  std::uint32_t bin_count = 0;
  std::shared_ptr<const void> owner;  // keeps both mapped
};

// Lays out the region of this rank's own: sets KeyDefinition::own_*_offset. Returns its bytes.
std::uint64_t PlanOwnMemory(std::span<KeyDefinition> keys, bool restart);

// Gives a key the memory it lacks. shared_offset: of its parameters in `memory.parameters`, or
// kNowhere. kResourceExhausted names the key.
Status TakeMemory(KeyDefinition& key, const BatchMemory& memory, std::uint64_t shared_offset);

}  // namespace phub::client
