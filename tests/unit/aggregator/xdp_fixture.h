// Programs of the aggregator in the kernel, loaded for a test or the reason why that is not
// allowed.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/engine.h"
#include "aggregator/xdp/program.h"
#include "tests/unit/aggregator/xdp_trace.h"

namespace phub::aggregator {

inline constexpr Limits kLimits{64 << 20, 64 << 20};
inline const phub_endpoint kOwn = TraceEndpoint(200, 7701);

inline std::vector<std::byte> ReadObject(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

class XdpTest : public ::testing::Test {
 protected:
  std::unique_ptr<XdpProgram> Load(std::span<const std::byte> object) {
    auto program = XdpProgram::Load(object, kOwn, 1 << 20);
    if (program.ok()) return *std::move(program);
    denied_ = absl::IsPermissionDenied(program.status());
    EXPECT_TRUE(denied_) << program.status();
    why_ = std::string(program.status().message());
    return nullptr;
  }
  bool denied_ = false;
  std::string why_;
};

#define LOAD_OR_SKIP(object)         \
  const auto program = Load(object); \
  if (denied_) GTEST_SKIP() << why_; \
  ASSERT_NE(program, nullptr)

}  // namespace phub::aggregator
