// Calls to the daemons of other racks: channels to their control planes, with this daemon's own
// certificate. Any thread.
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

// How long a lane to another rack may take to dial: lanes are dialled one after the other.
inline constexpr DurationNs kPeerDialTimeoutMax = 3 * kSecond;

// Files of this daemon's own certificate and of who vouches for the others'; empty: no TLS.
struct PeerCredentials {
  std::string ca;
  std::string certificate;
  std::string key;
};

// The files are read again when they change. FAILED_PRECONDITION: one cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakePeerCredentials(
    const PeerCredentials& files);
// "host:port". Shares no connection with other channels, and finds a daemon that comes back at
// once.
std::shared_ptr<grpc::Channel> MakePeerChannel(
    const std::string& endpoint, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

// What `who`, another daemon that this one asked for somebody, has answered: OK, or the error that
// somebody is told, which names it.
absl::Status SaidByPeer(const std::string& who, const grpc::Status& status);

// The host of a rack's endpoint, without brackets.
std::string HostOfRack(const std::string& endpoint);

}  // namespace phub::server
