// What calls that add keys share (job_keys.cc).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/layout.h"
#include "client/session/daemon_link.h"
#include "client/session/key_definition.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

// Daemons receive messages of up to 4 MiB; besides keys, AddKeys has some numbers.
inline constexpr std::uint64_t kWholeBatchBytesMax = (4 << 20) - 256;

// The oldest daemons would take such a key for an ordinary one. Sets key.why_no_broadcasts.
Status CheckSupported(KeyDefinition& key, const DaemonLinks& links);

// The daemon's placement of a batch, for the layout. Refers to both arguments.
std::vector<KeyPlacementView> ViewsOf(std::span<const KeyDefinition> definitions,
                                      const v1::AddKeysResponse& response);

}  // namespace phub::client
