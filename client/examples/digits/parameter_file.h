// Files with the parameters of a trained network, and a bitwise comparison of two of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace digits {

// Format: the line "phub-digits parameters 1", then every tensor's floats as in memory. Returns an
// empty string, or the error.
std::string SaveParameters(const std::string& path, const std::vector<std::vector<float>>& tensors);
std::optional<std::vector<std::vector<float>>> LoadParameters(const std::string& path,
                                                              std::string& error);

// Empty if the bits are equal. Otherwise describes the first difference.
std::string FirstDifference(const std::vector<std::vector<float>>& a,
                            const std::vector<std::vector<float>>& b);

}  // namespace digits
