// The parameters of a trained network in a file, and whether two such files are equal to the bit.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace digits {

// Format: the line "phub-digits parameters 1", then every tensor's floats as they lie in memory.
// An empty string, or what went wrong.
std::string SaveParameters(const std::string& path, const std::vector<std::vector<float>>& tensors);
std::optional<std::vector<std::vector<float>>> LoadParameters(const std::string& path,
                                                              std::string& error);

// Empty if the bits are equal, else where they differ first and how.
std::string FirstDifference(const std::vector<std::vector<float>>& a,
                            const std::vector<std::vector<float>>& b);

}  // namespace digits
