// What the front gives up before it accepts a connection: other descriptors, core dumps, files,
// processes, privileges, and all system calls that it does not need.
#pragma once

namespace phub::server {

// Closes the descriptors from `first_unused` on. Returns whether the kernel filters the process's
// system calls; the rest always succeeds or does not matter.
bool Confine(int first_unused);

}  // namespace phub::server
