#include "server/service_manager.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace phub::server {
namespace {

std::string TakeVariable(const char* name) {
  const char* const value = std::getenv(name);
  const std::string taken = value == nullptr ? "" : value;
  unsetenv(name);
  return taken;
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  ServiceManager manager;
  manager.address_ = TakeVariable("NOTIFY_SOCKET");
  const std::string watchdog_pid = TakeVariable("WATCHDOG_PID");
  const std::string watchdog_us = TakeVariable("WATCHDOG_USEC");
  if (manager.address_.empty() || (manager.address_[0] != '/' && manager.address_[0] != '@') ||
      manager.address_.size() >= sizeof sockaddr_un{}.sun_path) {
    manager.address_.clear();
    return manager;
  }
  manager.socket_ = Descriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const bool is_ours = watchdog_pid.empty() || watchdog_pid == fmt::format("{}", getpid());
  if (is_ours) {
    manager.keep_alive_interval_ = std::atoll(watchdog_us.c_str()) * kMicrosecond / 2;
  }
  return manager;
}

void ServiceManager::Starting(std::string_view status, DurationNs grace) {
  Send(fmt::format("STATUS={}\nEXTEND_TIMEOUT_USEC={}", status, grace / kMicrosecond));
}

void ServiceManager::Ready(std::string_view status) {
  Send(fmt::format("READY=1\nSTATUS={}", status));
}

void ServiceManager::Reloading(TimeNs now) {
  Send(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", now / kMicrosecond));
}

void ServiceManager::Stopping(std::string_view status, DurationNs grace) {
  Send(fmt::format("STOPPING=1\nSTATUS={}\nEXTEND_TIMEOUT_USEC={}", status, grace / kMicrosecond));
}

void ServiceManager::KeepAlive() { Send("WATCHDOG=1"); }

void ServiceManager::Send(const std::string& message) const {
  if (address_.empty() || !socket_) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, address_.data(), address_.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // abstract
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  [[maybe_unused]] const ssize_t sent =
      sendto(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
             reinterpret_cast<const sockaddr*>(&address), bytes);
}

}  // namespace phub::server
