// Which running kernel this is: two processes with the same id are on the same host.
#pragma once

#include <string>

namespace phub {

// /proc/sys/kernel/random/boot_id, "xxxxxxxx-xxxx-..."; "" where it cannot be read. Any thread.
// Containers of one host share it, so it says nothing about namespaces.
std::string HostBootId();

}  // namespace phub
