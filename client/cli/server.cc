// phubctl server list, drain, undrain: the daemons of a rack.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/wrappers.pb.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "client/cli/cli.h"
#include "client/cli/cluster_list.h"
#include "client/cli/output.h"
#include "client/cli/rack.h"
#include "client/cli/rpc.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

using Align = Table::Align;

constexpr auto kDrainPoll = std::chrono::milliseconds(200);

struct DrainRequest {
  std::string deadline_text = "0s";
  bool wait = false;
  bool yes = false;
};

std::string JsonString(const std::string& text) {
  google::protobuf::StringValue value;
  value.set_value(text);
  return ToJson(value, /*compact=*/true);
}

std::string WithoutNewline(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string DaemonsJson(const std::vector<RackMember>& daemons) {
  std::string text = "{\n \"daemons\": [";
  for (std::size_t i = 0; i < daemons.size(); ++i) {
    const RackMember& daemon = daemons[i];
    text += fmt::format(
        "{}\n  {{\"endpoint\": {}, \"error\": {}, \"server\": {}}}", i == 0 ? "" : ",",
        WithoutNewline(JsonString(daemon.options.endpoint)),
        WithoutNewline(JsonString(daemon.status.error_message())),
        daemon.status.ok() ? WithoutNewline(ToJson(daemon.server, /*compact=*/true)) : "null");
  }
  return text + "\n ]\n}\n";
}

}  // namespace

std::string StateText(const v1::ServerInfo& server) {
  if (server.state() != "draining") return server.state();
  if (server.drain_deadline_ns() == 0) return "draining: deadline passed";
  return fmt::format("draining: {} left", HumanDuration(server.drain_deadline_ns()));
}

namespace {

// "-": the port is off, or the daemon is older than phubctl.
template <typename Addresses>
std::string AddressesText(const Addresses& addresses) {
  return addresses.empty() ? "-" : fmt::format("{}", fmt::join(addresses, ","));
}

std::string DaemonsTable(const std::vector<RackMember>& daemons) {
  Table table({{"ENDPOINT"},
               {"STATE"},
               {"VERSION"},
               {"JOBS", Align::kRight},
               {"MEMORY"},
               {"CORES", Align::kRight},
               {"CONTROL PORT"},
               {"DATA PORT"},
               {"METRICS PORT"}});
  for (const RackMember& daemon : daemons) {
    const v1::ServerInfo& server = daemon.server;
    if (!daemon.status.ok()) {
      table.Add({daemon.options.endpoint, "does not answer", "-", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    table.Add({daemon.options.endpoint, StateText(server), server.version(),
               fmt::format("{}", server.job_count()),
               fmt::format("{} of {}", HumanBytes(server.memory_bytes()),
                           HumanBytes(server.memory_bytes_max())),
               fmt::format("{}", server.core_count()), AddressesText(server.listen()),
               AddressesText(server.data_listen()), AddressesText(server.metrics_listen())});
  }
  return table.Text();
}

int ListServers(const Options& options, const std::string& watch_text) {
  return Show(WatchInterval(watch_text), [&]() -> Shown {
    if (const std::optional<ClusterList> cluster = ListCluster(options)) {
      fmt::print("{}", cluster->text);
      return {cluster->complete ? kOk : kFailure, ""};
    }
    std::vector<RackMember> daemons;
    const grpc::Status status = AskRack(options, daemons);
    if (!status.ok()) return {Report(status, options), ""};
    for (const RackMember& daemon : daemons) {
      if (!daemon.status.ok()) Report(daemon.status, daemon.options);
    }
    const bool all = std::all_of(daemons.begin(), daemons.end(),
                                 [](const RackMember& daemon) { return daemon.status.ok(); });
    const std::string text =
        options.output == Output::kJson ? DaemonsJson(daemons) : DaemonsTable(daemons);
    // Print the table even if some daemons do not answer: it shows which.
    fmt::print("{}", text);
    return {all ? kOk : kFailure, ""};
  });
}

int PrintServer(const Options& options, const v1::ServerInfo& server) {
  if (options.output == Output::kJson) {
    fmt::print("{}", ToJson(server, /*compact=*/false));
  } else {
    fmt::print("{}: {}, {} job(s)\n", Target(options.endpoint), StateText(server),
               server.job_count());
  }
  return kOk;
}

int Drain(const Options& options, const DrainRequest& drain) {
  v1::DrainServerRequest request;
  request.set_deadline_ns(ParseDuration(drain.deadline_text).value_or(0));
  v1::ServerInfo server;
  grpc::Status status = Call(options, &v1::Admin::Stub::GetServer, v1::GetServerRequest(), server);
  if (!status.ok()) return Report(status, options);
  const std::string deadline =
      request.deadline_ns() > 0 ? HumanDuration(request.deadline_ns()) : "its drain_timeout";
  if (server.job_count() > 0 &&
      !Confirmed(drain.yes, fmt::format("Drain {} and end its {} job(s) that are not done within "
                                        "{}?",
                                        Target(options.endpoint), server.job_count(), deadline))) {
    return kUsage;
  }
  status = Call(options, &v1::Admin::Stub::DrainServer, request, server);
  if (status.ok()) PrintWarning(server.warning());
  std::uint32_t said = UINT32_MAX;
  while (status.ok() && drain.wait && server.job_count() > 0) {
    if (server.state() != "draining") {
      fmt::print(stderr, "phubctl: {} was undrained while this command waited\n",
                 Target(options.endpoint));
      PrintServer(options, server);
      return kFailure;
    }
    if (server.job_count() != said) {
      said = server.job_count();
      fmt::print(stderr, "phubctl: waiting for {} job(s) to end\n", said);
    }
    std::this_thread::sleep_for(kDrainPoll);
    status = Call(options, &v1::Admin::Stub::GetServer, v1::GetServerRequest(), server);
  }
  return status.ok() ? PrintServer(options, server) : Report(status, options);
}

int Undrain(const Options& options) {
  v1::ServerInfo server;
  const grpc::Status status =
      Call(options, &v1::Admin::Stub::UndrainServer, v1::UndrainServerRequest(), server);
  if (status.ok()) PrintWarning(server.warning());
  return status.ok() ? PrintServer(options, server) : Report(status, options);
}

}  // namespace

grpc::Status AskRack(const Options& options, std::vector<RackMember>& daemons) {
  RackMember asked;
  asked.options = options;
  asked.status = Call(options, &v1::Admin::Stub::GetServer, v1::GetServerRequest(), asked.server);
  if (!asked.status.ok()) return asked.status;
  daemons.clear();
  const v1::Rack rack = asked.server.rack();
  for (int i = 0; i < rack.daemons_size(); ++i) {
    RackMember daemon;
    daemon.options = options;
    if (static_cast<std::uint32_t>(i) == rack.self()) {
      daemon = asked;  // keep the endpoint that the user gave
    } else {
      daemon.options.endpoint = rack.daemons(i).endpoint();
      daemon.status =
          Call(daemon.options, &v1::Admin::Stub::GetServer, v1::GetServerRequest(), daemon.server);
    }
    daemons.push_back(std::move(daemon));
  }
  if (daemons.empty()) daemons.push_back(std::move(asked));
  return grpc::Status::OK;
}

void AddServer(Subcommand parent, const Options& options, Command& command) {
  const Subcommand server = parent.AddSubcommand("server", "List and drain daemons");
  server.SetFooter(
      "Examples:\n"
      "  phubctl server list\n"
      "  phubctl -e rack7:7700 server drain --deadline 10m --wait --yes && systemctl restart "
      "phubd");

  const Subcommand list =
      server.AddSubcommand("list", "List every daemon of the rack or cluster with its state");
  list.SetFooter(
      "If the cluster has a view (phubctl view), the list has all its places. States: \"not\n"
      "claimed\": no daemon has ever been there; \"gone\": its daemon has stopped, or is cut off\n"
      "from etcd; \"alive\": it keeps its lease in etcd, but does not accept your credentials.\n"
      "Exit codes: 0 all daemons answer, 1 a daemon does not answer or a place is empty, 5 the\n"
      "daemon at --endpoint does not answer.");
  const auto watch_text = std::make_shared<std::string>();
  AddWatch(list, *watch_text);
  list.OnNamed(
      [&, watch_text] { command = [&, watch_text] { return ListServers(options, *watch_text); }; });

  const Subcommand drain =
      server.AddSubcommand("drain", "Refuse new jobs, and end running ones at a deadline");
  drain.SetFooter(
      "Workers are notified at once. Jobs that still run at the deadline end with an error that\n"
      "gives the reason. `phubctl server undrain` makes the daemon accept jobs again.");
  const auto request = std::make_shared<DrainRequest>();
  drain
      .AddOption("--deadline", request->deadline_text,
                 "Time until running jobs are ended (default: the daemon's drain_timeout)")
      .TypeName("DURATION")
      .Check([](const std::string& text) {
        const auto deadline = ParseDuration(text);
        if (deadline && *deadline > 0) return std::string();
        return fmt::format("\"{}\" is not a duration such as \"30s\" or \"10m\"", text);
      });
  drain.AddFlag("--wait", request->wait, "Wait until all jobs have ended");
  drain.AddFlag("--yes", request->yes, "Do not ask for confirmation if jobs are running");
  drain.OnNamed([&, request] { command = [&, request] { return Drain(options, *request); }; });

  const Subcommand undrain = server.AddSubcommand("undrain", "Accept new jobs again");
  undrain.OnNamed([&] { command = [&] { return Undrain(options); }; });
}

}  // namespace phub::client::cli
