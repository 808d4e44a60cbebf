// Channels to the control planes of other racks' daemons, with this daemon's own certificate. Any
// thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace grpc {
class Channel;
class ChannelCredentials;
class Status;
}  // namespace grpc

namespace phub::server {

// Timeout for dialling one lane to another rack; lanes are dialled one after the other.
inline constexpr DurationNs kPeerDialTimeoutMax = 3 * kSecond;

// This daemon's own certificate and key, and the CA that signs those of other daemons; empty: no
// TLS.
struct PeerCredentials {
  std::string ca;
  std::string certificate;
  std::string key;
};

// The files are reloaded when they change. FAILED_PRECONDITION: a file cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakePeerCredentials(
    const PeerCredentials& files);
// endpoint: "host:port". The channel shares no connection with other channels, and quickly
// reconnects to a daemon that has restarted.
std::shared_ptr<grpc::Channel> MakePeerChannel(
    const std::string& endpoint, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

// Converts the answer of another daemon, `who`, that this daemon asked on behalf of a caller: OK,
// or an error for the caller that names that daemon.
absl::Status SaidByPeer(const std::string& who, const grpc::Status& status);

// The host of a rack's endpoint, without brackets.
std::string HostOfRack(const std::string& endpoint);

}  // namespace phub::server
