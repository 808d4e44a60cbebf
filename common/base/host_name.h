// This host's name.
#pragma once

#include <string>

namespace phub {

// "unknown" if the kernel does not report one. For display only, never an address. Any thread.
std::string HostName();

}  // namespace phub
