// A phubd with identities: a state directory, a control socket, and TLS if requested.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/session/channel.h"
#include "tests/process/daemon_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {

class IdentityDaemon {
 public:
  struct Options {
    bool tls = false;  // with its own authority, made by phubctl
    std::vector<std::string> arguments = {};
    // Called once before the first start, with the daemon's folder; its state is in "state".
    std::function<void(const std::string& folder)> prepare = {};
  };
  IdentityDaemon() : IdentityDaemon(Options()) {}
  explicit IdentityDaemon(Options options);

  // Starts or restarts the daemon. Returns false if it does not serve; outputs() has the reason.
  bool Start();
  void Kill();  // with SIGKILL
  Process& process() { return *process_; }

  const std::string& folder() const { return folder_.path(); }
  const std::string& endpoint() const { return endpoint_; }  // "127.0.0.1:40123"
  std::string socket() const { return "unix:" + folder() + "/control.sock"; }
  std::string pki() const { return folder() + "/pki"; }

  // Run phubctl as root on the control socket, with the token in a file, and without credentials.
  Finished AskAsRoot(std::vector<std::string> arguments) const;
  Finished Ask(const std::string& token_file, std::vector<std::string> arguments) const;
  Finished AskWithout(std::vector<std::string> arguments) const;

  // Issues a token (`arguments` follow "token issue"). Returns the path of its file.
  std::string IssueToken(const std::string& name, std::vector<std::string> arguments) const;
  // Issues a certificate of this authority. Returns the path without ".crt" and ".key".
  std::string IssueCertificate(const std::string& role, const std::string& name) const;

  // A channel with its own connection.
  std::shared_ptr<grpc::Channel> Channel(client::Credentials credentials) const;
  client::Credentials WithToken(const std::string& token_file) const;

 private:
  const Options options_;
  TemporaryFolder folder_;
  std::string endpoint_;
  std::unique_ptr<Process> process_;
};

}  // namespace phub::process
