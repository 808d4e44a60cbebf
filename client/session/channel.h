// gRPC channels to a daemon: TLS, and who calls. For libphub and phubctl.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace phub::client {

// Who calls, and whom he trusts. Paths of files; all may be empty.
struct Credentials {
  std::string token_file = {};   // mode 0600; read again at every call, so that it can be renewed
  std::string ca_file = {};      // PEM: whose certificate the daemon must show. With it: TLS
  std::string certificate = {};  // PEM, and `key`, PEM, mode 0600: the caller's own. With them: TLS
  std::string key;
  std::string server_name = {};  // as the daemon's certificate names it; empty: the endpoint's host
  bool plaintext_token = false;  // a token may travel to another host without TLS

  bool tls() const { return !ca_file.empty() || !certificate.empty(); }
};

// What is wrong with the files, and what to do; OK if a channel can be made. Any thread.
absl::Status CheckCredentials(const Credentials& credentials, const std::string& target);

// target: "host:port" or "unix:/path". `arguments`: what else the channel is to have. Fails as
// CheckCredentials() does. Files of TLS are read now. Any thread.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& target,
                                                           const Credentials& credentials,
                                                           grpc::ChannelArguments arguments);

}  // namespace phub::client
