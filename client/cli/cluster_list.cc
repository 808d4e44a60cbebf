#include "client/cli/cluster_list.h"

#include <fmt/format.h>
#include <google/protobuf/wrappers.pb.h>

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "common/base/printable.h"
#include "common/base/units.h"
#include "phub/v1/cluster.grpc.pb.h"

namespace phub::client::cli {
namespace {

using Align = Table::Align;

constexpr std::size_t kAskedAtOnce = 16;

struct Entry {
  v1::ClusterPlace place;
  bool asked = false;
  Options options = {};  // with the daemon's endpoint
  grpc::Status status = grpc::Status::OK;
  v1::ServerInfo server = {};
};

// The daemon answers, or refuses the caller.
bool IsThere(const Entry& entry) {
  return entry.asked && (entry.status.ok() || ExitCodeOf(entry.status) == kRefused);
}

std::string StateOf(const Entry& entry) {
  if (entry.place.daemon().empty()) return "not claimed";
  if (!entry.place.claimed()) return "gone";
  if (entry.status.ok()) return StateText(entry.server);
  return IsThere(entry) ? "alive" : "does not answer";
}

void AskAll(std::vector<Entry>& entries) {
  std::vector<Entry*> due;
  for (Entry& entry : entries) {
    if (entry.asked) due.push_back(&entry);
  }
  for (std::size_t begin = 0; begin < due.size(); begin += kAskedAtOnce) {
    std::vector<std::future<void>> calls;
    for (std::size_t i = begin; i < std::min(begin + kAskedAtOnce, due.size()); ++i) {
      calls.push_back(std::async(std::launch::async, [entry = due[i]] {
        entry->status = Call(entry->options, &v1::Admin::Stub::GetServer, v1::GetServerRequest(),
                             entry->server);
      }));
    }
    for (std::future<void>& call : calls) call.get();
  }
}

// "3", "3 (declared: 4)"
std::string ViewText(const Entry& entry, std::int64_t declared) {
  const std::int64_t used = entry.server.view();
  if (!entry.asked || !entry.status.ok()) return "-";
  if (used == 0) return "none";
  return used == declared ? fmt::format("{}", used)
                          : fmt::format("{} (declared: {})", used, declared);
}

std::string ClusterTable(const v1::ClusterInfo& cluster, const std::vector<Entry>& entries) {
  Table table({{"PLACE"},
               {"DAEMON"},
               {"ENDPOINT"},
               {"STATE"},
               {"VIEW"},
               {"VERSION"},
               {"JOBS", Align::kRight},
               {"MEMORY"},
               {"CORES", Align::kRight}});
  for (const Entry& entry : entries) {
    const v1::ServerInfo& server = entry.server;
    const auto shown = [](const std::string& text) {
      return text.empty() ? std::string("-") : Printable(text);
    };
    std::vector<std::string> cells = {
        Printable(entry.place.place()) + (entry.place.in_view() ? "" : " (not in the view)"),
        shown(entry.place.daemon()),
        shown(entry.place.endpoint()),
        StateOf(entry),
        ViewText(entry, cluster.view().number()),
        shown(entry.place.version())};
    if (entry.asked && entry.status.ok()) {
      cells.insert(cells.end(), {fmt::format("{}", server.job_count()),
                                 fmt::format("{} of {}", HumanBytes(server.memory_bytes()),
                                             HumanBytes(server.memory_bytes_max())),
                                 fmt::format("{}", server.core_count())});
    } else {
      cells.insert(cells.end(), {"-", "-", "-"});
    }
    table.Add(std::move(cells));
  }
  return table.Text();
}

std::string Json(const google::protobuf::Message& message) {
  std::string text = ToJson(message, /*compact=*/true);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string JsonString(const std::string& text) {
  google::protobuf::StringValue value;
  value.set_value(text);
  return Json(value);
}

// As without a cluster, with the view and the places.
std::string ClusterJson(const v1::ClusterInfo& cluster, const std::vector<Entry>& entries) {
  std::string text = fmt::format("{{\n \"view\": {},\n \"daemons\": [", Json(cluster.view()));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    text += fmt::format(
        "{}\n  {{\"endpoint\": {}, \"state\": {}, \"place\": {}, \"error\": {}, \"server\": {}}}",
        i == 0 ? "" : ",", JsonString(entry.place.endpoint()), JsonString(StateOf(entry)),
        Json(entry.place), JsonString(entry.status.error_message()),
        entry.asked && entry.status.ok() ? Json(entry.server) : "null");
  }
  return text + "\n ]\n}\n";
}

void ReportProblems(const v1::ClusterInfo& cluster, const std::vector<Entry>& entries) {
  if (!cluster.problem().empty()) fmt::print(stderr, "phubctl: {}\n", Printable(cluster.problem()));
  std::size_t refusals = 0;
  for (const Entry& entry : entries) {
    if (!entry.asked || entry.status.ok()) continue;
    if (!IsThere(entry)) Report(entry.status, entry.options);
    if (IsThere(entry) && ++refusals == 1) {
      fmt::print(stderr, "phubctl: the daemon of {} ({}) does not tell its state: {}\n",
                 Printable(entry.place.place()), Printable(entry.place.endpoint()),
                 Printable(entry.status.error_message()));
    }
  }
  if (refusals > 1)
    fmt::print(stderr, "phubctl: {} more daemon(s) do not tell theirs\n", refusals - 1);
}

}  // namespace

std::optional<ClusterList> ListCluster(const Options& options) {
  v1::ClusterInfo cluster;
  const grpc::Status status =
      Call(options, &v1::Membership::Stub::GetCluster, v1::GetClusterRequest(), cluster);
  // An older daemon does not know this call, and GetServer reports all other problems.
  if (!status.ok()) return std::nullopt;
  if (cluster.view().number() == 0 && cluster.problem().empty()) return std::nullopt;
  std::vector<Entry> entries;
  for (const v1::ClusterPlace& place : cluster.places()) {
    Entry entry{.place = place, .asked = place.claimed(), .options = options};
    // Keep the endpoint that the user gave.
    if (place.place() != cluster.place()) entry.options.endpoint = place.endpoint();
    entries.push_back(std::move(entry));
  }
  AskAll(entries);
  ReportProblems(cluster, entries);
  ClusterList list;
  list.text = options.output == Output::kJson ? ClusterJson(cluster, entries)
                                              : ClusterTable(cluster, entries);
  list.complete = cluster.problem().empty() && std::all_of(entries.begin(), entries.end(), IsThere);
  return list;
}

}  // namespace phub::client::cli
