#include "client/examples/digits/parameter_file.h"

#include <bit>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>

#include "client/examples/digits/model.h"

namespace digits {
namespace {

constexpr char kHeader[] = "phub-digits parameters 1";

}  // namespace

std::string SaveParameters(const std::string& path,
                           const std::vector<std::vector<float>>& tensors) {
  std::ofstream file(path, std::ios::binary);
  file << kHeader << '\n';
  for (const std::vector<float>& tensor : tensors)
    file.write(reinterpret_cast<const char*>(tensor.data()),
               static_cast<std::streamsize>(tensor.size() * sizeof(float)));
  file.close();
  return file ? "" : "cannot write " + path;
}

std::optional<std::vector<std::vector<float>>> LoadParameters(const std::string& path,
                                                              std::string& error) {
  std::ifstream file(path, std::ios::binary);
  std::string header;
  if (!std::getline(file, header) || header != kHeader) {
    error = path + ": not a file of phub-digits parameters";
    return std::nullopt;
  }
  std::vector<std::vector<float>> tensors;
  for (std::size_t t = 0; t < kTensorCount; ++t) {
    std::vector<float>& tensor = tensors.emplace_back(TensorSize(t));
    file.read(reinterpret_cast<char*>(tensor.data()),
              static_cast<std::streamsize>(tensor.size() * sizeof(float)));
  }
  if (!file || file.peek() != std::ifstream::traits_type::eof()) {
    error = path + ": the file has the wrong length";
    return std::nullopt;
  }
  return tensors;
}

std::string FirstDifference(const std::vector<std::vector<float>>& a,
                            const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return "the number of tensors differs";
  for (std::size_t t = 0; t < a.size(); ++t) {
    if (a[t].size() != b[t].size()) return TensorName(t) + ": the sizes differ";
    for (std::size_t i = 0; i < a[t].size(); ++i) {
      // Compare bits: -0 and +0 differ, and a NaN equals itself.
      const auto left = std::bit_cast<std::uint32_t>(a[t][i]);
      const auto right = std::bit_cast<std::uint32_t>(b[t][i]);
      if (left == right) continue;
      char text[160];
      std::snprintf(text, sizeof(text),
                    "[%zu]: %.9g (0x%08" PRIx32 ") against %.9g (0x%08" PRIx32 ")", i,
                    static_cast<double>(a[t][i]), left, static_cast<double>(b[t][i]), right);
      return TensorName(t) + text;
    }
  }
  return "";
}

}  // namespace digits
