// A phubd with identities: a state directory, a control socket, and TLS if it is asked for.
#pragma once

#include <grpcpp/grpcpp.h>

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
    bool tls = false;  // with an authority of its own, made by phubctl
    std::vector<std::string> arguments = {};
  };
  IdentityDaemon() : IdentityDaemon(Options()) {}
  explicit IdentityDaemon(Options options);

  // Starts it (again). False if it does not serve; outputs() tells why.
  bool Start();
  void Kill();  // -9
  Process& process() { return *process_; }

  const std::string& folder() const { return folder_.path(); }
  const std::string& endpoint() const { return endpoint_; }  // "127.0.0.1:40123"
  std::string socket() const { return "unix:" + folder() + "/control.sock"; }
  std::string pki() const { return folder() + "/pki"; }

  // phubctl as root on the control socket; as whoever has the token of that file; as nobody.
  Finished AskAsRoot(std::vector<std::string> arguments) const;
  Finished Ask(const std::string& token_file, std::vector<std::string> arguments) const;
  Finished AskWithout(std::vector<std::string> arguments) const;

  // Makes a token (phubctl's arguments after "token issue") and gives the file's path.
  std::string IssueToken(const std::string& name, std::vector<std::string> arguments) const;
  // A certificate of this authority: the path without ".crt" and ".key".
  std::string IssueCertificate(const std::string& role, const std::string& name) const;

  // A channel of its own.
  std::shared_ptr<grpc::Channel> Channel(client::Credentials credentials) const;
  client::Credentials WithToken(const std::string& token_file) const;

 private:
  const Options options_;
  TemporaryFolder folder_;
  std::string endpoint_;
  std::unique_ptr<Process> process_;
};

}  // namespace phub::process
