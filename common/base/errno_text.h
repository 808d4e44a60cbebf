// The system's description of an errno, without strerror's shared buffer. Any thread.
#pragma once

#include <string>
#include <system_error>

namespace phub {

inline std::string ErrnoText(int error) { return std::generic_category().message(error); }

}  // namespace phub
