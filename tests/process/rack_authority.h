// Identities and TLS for racks: the test's own authority, a certificate that all daemons share, and
// a tenant. This process acts for the tenant, and so do children started with Environment().
#pragma once

#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/process/daemon_process.h"
#include "tests/process/rack_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {

class RackAuthority {
 public:
  RackAuthority() {
    MakeFiles(pki());
    for (const auto& [name, file] : files()) setenv(name, file.c_str(), 1);
  }
  ~RackAuthority() {
    for (const auto& [name, file] : files()) unsetenv(name);
  }
  RackAuthority(const RackAuthority&) = delete;
  RackAuthority& operator=(const RackAuthority&) = delete;

  // Arguments for phubd.
  std::vector<std::string> DaemonArguments() const {
    return {"--tls-certificate", pki() + "/server-node.crt",
            "--tls-key",         pki() + "/server-node.key",
            "--tls-client-ca",   pki() + "/ca.crt",
            "--trust-domain",    "rack.test",
            "--data-tls",        "on",
            "--state-dir",       folder_.path() + "/state" + kDaemonNumber,
            "--control-socket",  folder_.path() + "/control" + kDaemonNumber};
  }
  // The environment of other programs.
  std::vector<std::string> Environment() const {
    std::vector<std::string> environment;
    for (const auto& [name, file] : files()) environment.push_back(std::string(name) + "=" + file);
    return environment;
  }
  // Replaces the files with those of a new authority. Once daemons have noticed, certificates of
  // the previous authority are no longer valid.
  void Renew() const {
    const std::string renewed = folder_.path() + "/renewed";
    MakeFiles(renewed);
    for (const char* name :
         {"ca.crt", "server-node.crt", "server-node.key", "tenant-acme.crt", "tenant-acme.key"}) {
      std::filesystem::rename(fmt::format("{}/{}", renewed, name),
                              fmt::format("{}/{}", pki(), name));
    }
  }
  // The socket of one daemon, on which root has all permissions.
  std::string ControlSocket(std::size_t daemon) const {
    return fmt::format("unix:{}/control{}", folder_.path(), daemon);
  }
  // Creates the tenant on daemons that were started with these arguments and serve.
  void MakeTenant(const RackProcess& racks) const {
    for (std::size_t i = 0; i < racks.size(); ++i) {
      Run({"-e", ControlSocket(i), "tenant", "create", "acme"});
    }
  }

 private:
  static void MakeFiles(const std::string& folder) {
    Run({"pki", "init", folder, "--trust-domain", "rack.test"});
    Run({"pki", "issue", folder, "server", "node", "--host", "127.0.0.1"});
    Run({"pki", "issue", folder, "tenant", "acme"});
  }
  std::string pki() const { return folder_.path() + "/pki"; }
  std::vector<std::pair<const char*, std::string>> files() const {
    return {{"PHUB_CA_FILE", pki() + "/ca.crt"},
            {"PHUB_CERTIFICATE", pki() + "/tenant-acme.crt"},
            {"PHUB_KEY", pki() + "/tenant-acme.key"}};
  }
  static void Run(const std::vector<std::string>& arguments) {
    const Finished end = RunToEnd(kPhubctl, arguments);
    PHUB_CHECK(end.exit == Exit::WithCode(0), "error={}", end.error);
  }

  const TemporaryFolder folder_;
};

}  // namespace phub::process
