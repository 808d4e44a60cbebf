// libibverbs, which is loaded when it is first needed: hosts without RDMA devices need not have it,
// and the copy of the host knows the host's drivers.
#pragma once

#include <string>

namespace phub::transport {

// Why libibverbs cannot be used, for example because it is not installed; empty if it can be. Then
// ibv_get_device_list() finds no device. Any thread.
const std::string& VerbsLibraryProblem();

}  // namespace phub::transport
