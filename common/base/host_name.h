// What this host calls itself.
#pragma once

#include <string>

namespace phub {

// "unknown" where the kernel does not say. For people: never an address. Any thread.
std::string HostName();

}  // namespace phub
