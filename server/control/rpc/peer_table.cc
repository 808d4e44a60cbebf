#include "server/control/rpc/peer_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <charconv>
#include <cstddef>
#include <utility>

#include "common/base/check.h"
#include "server/front/accepted_socket.h"

namespace phub::server {
namespace {

constexpr std::string_view kLocalScheme = "fd:";
constexpr std::string_view kUpstreamScheme = "unix-abstract:";

std::uint64_t RandomKey() {
  std::uint64_t key = 0;
  PHUB_CHECK(getrandom(&key, sizeof key, 0) == sizeof key);
  return key;
}

// Gives the socket an address in the kernel's table of names; gRPC names the other end after it.
bool Name(int socket, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  PHUB_CHECK(name.size() < sizeof address.sun_path);
  name.copy(address.sun_path + 1, name.size());  // an abstract name begins with a zero byte
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0;
}

}  // namespace

PeerTable::PeerTable() : key_(RandomKey()) {}

void PeerTable::AddLocal(int number, const PeerProcess& process) {
  const std::lock_guard lock(mutex_);
  std::erase_if(locals_,
                [](const auto& each) { return CookieOf(each.first) != each.second.cookie; });
  locals_[number] = {CookieOf(number), process};
}

std::optional<PeerProcess> PeerTable::FindLocal(std::string_view name) const {
  if (!name.starts_with(kLocalScheme)) return std::nullopt;
  name.remove_prefix(kLocalScheme.size());
  int number = -1;
  if (std::from_chars(name.data(), name.data() + name.size(), number).ec != std::errc()) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  const auto found = locals_.find(number);
  if (found == locals_.end() || CookieOf(number) != found->second.cookie) return std::nullopt;
  return found->second.process;
}

std::optional<UpstreamPair> PeerTable::MakeUpstream(const UpstreamPeer& peer) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return {};
  UpstreamPair pair{Descriptor(ends[0]), Descriptor(ends[1]), {}};
  const std::lock_guard lock(mutex_);
  const std::string name = fmt::format("phubd-front-{:016x}-{}", key_, ++made_);
  if (!Name(pair.front.get(), name)) return std::nullopt;
  pair.name = std::string(kUpstreamScheme) + name;
  upstreams_[pair.name] = peer;
  return pair;
}

void PeerTable::RemoveUpstream(const std::string& name) {
  const std::lock_guard lock(mutex_);
  upstreams_.erase(name);
}

std::optional<UpstreamPeer> PeerTable::FindUpstream(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = upstreams_.find(name);
  if (found == upstreams_.end()) return std::nullopt;
  return found->second;
}

bool PeerTable::IsUpstream(std::string_view name) { return name.starts_with(kUpstreamScheme); }

}  // namespace phub::server
