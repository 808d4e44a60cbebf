// Raises the limit of file descriptors. Called once, before any thread starts.
#pragma once

namespace phub::server {

// Shared memory needs descriptors: two for every lane, one for every batch of keys, and one for
// each region of a worker. Raises the soft limit to the hard limit; a failure is logged.
void RaiseDescriptorLimit();

}  // namespace phub::server
