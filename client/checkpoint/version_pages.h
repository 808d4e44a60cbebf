// The versions of a job's keys arrive in pages, so that no answer grows with the number of keys.
// Daemons without pages answer with all keys at once.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

inline constexpr std::uint32_t kKeysPerPage = 4096;  // the daemon may send fewer

// Appends a page to the pages before it. all.next_key() is then the key to request next; 0: `all`
// is complete. ABORTED: the pages are of different runs of the job. INTERNAL: they are not in
// order.
absl::Status AddPage(const v1::GetVersionsResponse& page, v1::GetVersionsResponse& all);
// The same for the list of a loaded checkpoint's keys: all.next().
absl::Status AddPage(const v1::LoadedState& page, v1::LoadedState& all);

}  // namespace phub::client
