// Identifies the running kernel: two processes with the same id are on the same host.
#pragma once

#include <string>

namespace phub {

// /proc/sys/kernel/random/boot_id, "xxxxxxxx-xxxx-..."; "" if it cannot be read. Any thread.
// Containers on one host share the id, so equal ids do not imply equal namespaces.
std::string HostBootId();

}  // namespace phub
