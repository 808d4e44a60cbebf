// How many file descriptors the daemon may have. Called once, before its threads start.
#pragma once

namespace phub::server {

// Shared memory takes descriptors: one for every lane and batch of keys, and workers' own. Raises
// the soft limit to the hard one; a failure is logged.
void RaiseDescriptorLimit();

}  // namespace phub::server
