#include "server/addresses.h"

#include <string_view>

#include "common/base/check.h"

namespace phub::server {
namespace {

constexpr const char* kDefaultControlSocket = "/run/phub/control.sock";

bool IsWildcard(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

}  // namespace

HostAndPort Address(const std::string& text) {
  const auto address = ParseHostAndPort(text);
  PHUB_CHECK(address.ok(), "address={}", text);  // the setting's kind has checked it
  return *address;
}

HostAndPort DataAddress(const Settings& settings) {
  if (!settings.data_listen.empty()) return Address(settings.data_listen);
  return {Address(settings.listen).host, 0};
}

std::string ControlSocketPath(const Settings& settings) {
  if (!settings.control_socket.empty()) return settings.control_socket;
  return settings.state_dir.empty() ? "" : kDefaultControlSocket;
}

std::string LaneHost(const Settings& settings) {
  const std::string data_host = DataAddress(settings).host;
  if (IsWildcard(data_host) || data_host == Address(settings.listen).host) return "";
  return data_host;
}

}  // namespace phub::server
