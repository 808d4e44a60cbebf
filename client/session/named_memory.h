// Names for memory that this process can only read, such as parameters that workers share. A write
// to it ends the process with SIGSEGV, as always, but a line on standard error first says which
// memory it was and why.
//
// The handler of SIGSEGV is installed with the first name, and puts the previous one back when it
// runs. So other handlers (Python's faulthandler) and core dumps work as before. Threads: any.
#pragma once

#include <cstddef>
#include <string_view>

namespace phub::client {

// Names longer than 119 bytes are shortened. An empty name removes the names in this memory.
// False: there are 2^16 names already.
bool NameMemory(const void* data, std::size_t bytes, std::string_view name);

}  // namespace phub::client
