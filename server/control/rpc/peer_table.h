// Who is at the other end of a connection that gRPC only knows as a descriptor. Connections of the
// control socket are named "fd:17", upstreams of the front "unix-abstract:phubd-front-...", so the
// two kinds cannot be mixed up. A descriptor's number may be used again, so a connection of the
// control socket is believed only while the socket with that number is still the same one
// (SO_COOKIE). The names of upstreams are never used twice.
//
// Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/descriptor.h"
#include "common/tls/certificate.h"
#include "server/control/control_options.h"
#include "server/tenant/tenant.h"

namespace phub::server {

struct UpstreamPeer {
  std::string peer;  // the client's address, "10.0.0.5:40112"
  std::optional<CertificateFacts> certificate;
};

// An upstream: one end for gRPC, one for the front, and the name that gRPC will give to its peer.
struct UpstreamPair {
  Descriptor grpc;
  Descriptor front;
  std::string name;
};

class PeerTable {
 public:
  PeerTable();

  // To be called before gRPC gets the connection.
  void AddLocal(int number, const PeerProcess& process);
  std::optional<PeerProcess> FindLocal(std::string_view name) const;

  // Makes a pair of sockets with a new name. No value: out of descriptors.
  std::optional<UpstreamPair> MakeUpstream(const UpstreamPeer& peer);
  void RemoveUpstream(const std::string& name);
  std::optional<UpstreamPeer> FindUpstream(std::string_view name) const;
  static bool IsUpstream(std::string_view name);

 private:
  struct Local {
    std::uint64_t cookie = 0;
    PeerProcess process;
  };
  const std::uint64_t key_;  // others on this host cannot guess the names and take them
  mutable std::mutex mutex_;
  std::uint64_t made_ = 0;
  std::map<int, Local> locals_;
  std::map<std::string, UpstreamPeer, std::less<>> upstreams_;
};

}  // namespace phub::server
