// gRPC channels to a daemon, with TLS and the caller's credentials. For libphub and phubctl.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace phub::client {

// The caller's identity and the authority that it trusts. Paths of files; all may be empty.
struct Credentials {
  std::string token_file = {};   // mode 0600; read at every call, so that it can be renewed
  std::string ca_file = {};      // PEM; authority that issued the daemon's certificate. Enables TLS
  std::string certificate = {};  // PEM; the caller's certificate. Enables TLS
  std::string key;               // PEM, mode 0600; its private key
  std::string server_name = {};  // name in the daemon's certificate; empty: the endpoint's host
  bool plaintext_token = false;  // allows sending the token to another host without TLS

  bool tls() const { return !ca_file.empty() || !certificate.empty(); }
};

// OK if this process has room for gRPC's threads and descriptors, without which gRPC aborts or
// never answers. Call it before the first channel. Any thread.
absl::Status CheckRoomForGrpc();

// OK if a channel can be made. The error says what is wrong with the files and what to do. Any
// thread.
absl::Status CheckCredentials(const Credentials& credentials, const std::string& target);

// target: "host:port" or "unix:/path". `arguments`: further channel arguments. Fails like
// CheckCredentials() and ResolvedTarget(). Resolves the name and reads the TLS files now, so it may
// block. Any thread.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& target,
                                                           const Credentials& credentials,
                                                           grpc::ChannelArguments arguments);

}  // namespace phub::client
