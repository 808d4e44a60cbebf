#include "tests/process/identity_daemon.h"

#include <fmt/format.h>
#include <signal.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "common/base/check.h"

namespace phub::process {
namespace {

// Much longer than any call takes, also while strangers flood the port of a busy machine.
constexpr const char* kAnswerTimeout = "60s";

}  // namespace

IdentityDaemon::IdentityDaemon(Options options) : options_(std::move(options)) {
  if (options_.tls) {
    const Finished made = RunToEnd(kPhubctl, {"pki", "init", pki(), "--trust-domain", "rack.test"});
    PHUB_CHECK(made.exit == Exit::WithCode(0), "error={}", made.error);
    const Finished issued =
        RunToEnd(kPhubctl, {"pki", "issue", pki(), "server", "node", "--host", "127.0.0.1"});
    PHUB_CHECK(issued.exit == Exit::WithCode(0), "error={}", issued.error);
  }
  if (options_.prepare) options_.prepare(folder());
  Start();
}

bool IdentityDaemon::Start() {
  process_.reset();
  const std::string port_path = folder() + "/port";
  std::remove(port_path.c_str());
  std::vector<std::string> arguments = {"--listen",         "127.0.0.1:0",
                                        "--port-file",      port_path,
                                        "--cores",          "1",
                                        "--state-dir",      folder() + "/state",
                                        "--control-socket", folder() + "/control.sock"};
  if (options_.tls) {
    for (const auto& [flag, file] :
         {std::pair("--tls-certificate", "/server-node.crt"),
          std::pair("--tls-key", "/server-node.key"), std::pair("--tls-client-ca", "/ca.crt")}) {
      arguments.insert(arguments.end(), {flag, pki() + file});
    }
    arguments.insert(arguments.end(), {"--trust-domain", "rack.test"});
  }
  arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
  process_ = std::make_unique<Process>(Process::Start(kPhubd, arguments));
  if (!process_->WaitForOutput("serves on", kStartPatience)) return false;
  std::ifstream port_file(port_path);
  std::string port;
  port_file >> port;
  endpoint_ = fmt::format("127.0.0.1:{}", port);
  return true;
}

void IdentityDaemon::Kill() {
  process_->Signal(SIGKILL);
  PHUB_CHECK(process_->Wait(kStartPatience).has_value());
}

Finished IdentityDaemon::AskAsRoot(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {"-e", socket(), "--timeout", kAnswerTimeout});
  return RunToEnd(kPhubctl, arguments);
}

Finished IdentityDaemon::Ask(const std::string& token_file,
                             std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(),
                   {"-e", endpoint(), "--timeout", kAnswerTimeout, "--token-file", token_file});
  if (options_.tls) arguments.insert(arguments.begin(), {"--ca-file", pki() + "/ca.crt"});
  return RunToEnd(kPhubctl, arguments);
}

Finished IdentityDaemon::AskWithout(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {"-e", endpoint(), "--timeout", kAnswerTimeout});
  if (options_.tls) arguments.insert(arguments.begin(), {"--ca-file", pki() + "/ca.crt"});
  return RunToEnd(kPhubctl, arguments);
}

std::string IdentityDaemon::IssueToken(const std::string& name,
                                       std::vector<std::string> arguments) const {
  const std::string path = fmt::format("{}/{}.token", folder(), name);
  arguments.insert(arguments.begin(), {"token", "issue", "--file", path});
  const Finished issued = AskAsRoot(arguments);
  PHUB_CHECK(issued.exit == Exit::WithCode(0), "error={}", issued.error);
  return path;
}

std::string IdentityDaemon::IssueCertificate(const std::string& role,
                                             const std::string& name) const {
  std::vector<std::string> arguments = {"pki", "issue", pki(), role, name};
  if (role == "server") arguments.insert(arguments.end(), {"--host", "127.0.0.1"});
  const Finished issued = RunToEnd(kPhubctl, arguments);
  PHUB_CHECK(issued.exit == Exit::WithCode(0), "error={}", issued.error);
  return fmt::format("{}/{}-{}", pki(), role, name);
}

std::shared_ptr<grpc::Channel> IdentityDaemon::Channel(client::Credentials credentials) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto channel = client::MakeChannel(endpoint(), credentials, arguments);
  PHUB_CHECK(channel.ok(), "error={}", std::string(channel.status().message()));
  return *std::move(channel);
}

client::Credentials IdentityDaemon::WithToken(const std::string& token_file) const {
  client::Credentials credentials;
  credentials.token_file = token_file;
  if (options_.tls) credentials.ca_file = pki() + "/ca.crt";
  return credentials;
}

}  // namespace phub::process
