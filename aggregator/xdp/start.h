// Starts the program in the kernel as phub-aggregator needs it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregator/kernel_slots.h"

namespace phub::aggregator {

// Loads the program and attaches it to each interface. kInvalidArgument: an option is wrong.
absl::StatusOr<std::unique_ptr<KernelSlots>> StartXdp(const std::vector<std::string>& interfaces,
                                                      const phub_endpoint& own,
                                                      std::uint64_t pool_bytes);

}  // namespace phub::aggregator
