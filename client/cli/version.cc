// phubctl version: the versions of phubctl and of the daemon.
#include "common/base/version.h"

#include <fmt/format.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "common/base/printable.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

std::string Range(std::uint32_t min, std::uint32_t max) {
  return min == max ? fmt::format("{}", min) : fmt::format("{} to {}", min, max);
}

int PrintVersion(const Options& options) {
  v1::ServerInfo server;
  const grpc::Status status =
      Call(options, &v1::Admin::Stub::GetServer, v1::GetServerRequest(), server);
  if (options.output == Output::kJson) {
    fmt::print("{{\"client\": {{\"version\": \"{}\", \"commit\": \"{}\"}},\n\"server\": {}}}\n",
               BuildVersion(), BuildCommit(),
               status.ok() ? ToJson(server, /*compact=*/false) : "null");
  } else {
    fmt::print("phubctl  {} ({})\n", BuildVersion(), BuildCommit());
    if (status.ok()) {
      fmt::print("phubd    {} ({}) at {}: {} for {}, {} job(s), {} core loop(s), {}\n",
                 Printable(server.version()), Printable(server.commit()), Target(options.endpoint),
                 Printable(server.state()), HumanDuration(server.uptime_ns()), server.job_count(),
                 server.core_count(), Printable(server.simd_target()));
      fmt::print("         supports protocol {}, lanes {}\n",
                 Range(server.protocol_version_min(), server.protocol_version_max()),
                 Range(server.lane_version_min(), server.lane_version_max()));
    }
  }
  return status.ok() ? static_cast<int>(kOk) : Report(status, options);
}

}  // namespace

void AddVersion(Subcommand parent, const Options& options, Command& command) {
  const Subcommand version =
      parent.AddSubcommand("version", "Show the versions of phubctl and of the daemon");
  version.SetFooter("phubctl --version prints only its own version and needs no daemon.");
  version.OnNamed([&] { command = [&] { return PrintVersion(options); }; });
}

}  // namespace phub::client::cli
