#include "server/tenant/tenant.h"

#include <array>

namespace phub::server {
namespace {

constexpr std::array<const char*, kRoleCount> kRoleNames = {"none", "tenant", "operator", "admin",
                                                            "server"};

}  // namespace

const char* ToString(Role role) { return kRoleNames[static_cast<std::size_t>(role)]; }

std::optional<Role> ParseRole(const std::string& text) {
  for (std::size_t i = 1; i < kRoleNames.size(); ++i) {
    if (text == kRoleNames[i]) return static_cast<Role>(i);
  }
  return std::nullopt;
}

}  // namespace phub::server
