// Whether phubd could use the control store of a state_dir, tried on a copy: a token.key that does
// not belong to control.db, a store of a newer phubd, damage.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace phub::server {

// The copy is in state_dir, only for the duration of the call, and can be read by its owner alone.
// OK if there is no store yet, or if there is no space for a copy. REQUIRES: no phubd uses the
// store. Any thread.
absl::Status CheckStore(const std::string& state_dir);

}  // namespace phub::server
