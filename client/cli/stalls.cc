// phubctl job stalls: keys and barriers that wait for ranks, for how long, and when the ranks were
// last seen.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "client/cli/cli.h"
#include "client/cli/job_name.h"
#include "client/cli/output.h"
#include "client/cli/rack.h"
#include "client/cli/rpc.h"
#include "client/cli/stall_list.h"
#include "common/base/rank_list.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

constexpr std::size_t kRanksNamed = 16;  // in one cell

struct StallsQuery {
  std::string job;
  std::string longer_than_text = "0s";
  std::string watch_text;
};

std::string LastSeen(const v1::StalledRank& rank) {
  if (rank.state() == "awaited") return "has not joined yet";
  if (rank.state() == "left") return "has left the job";
  const std::string seen = fmt::format("heartbeat {} ago, lane {}",
                                       HumanDuration(rank.last_heartbeat_age_ns()), rank.lane());
  if (rank.state() != "lost") return seen;
  return fmt::format("{}; lost, {} left", seen, HumanDuration(rank.awaited_for_ns()));
}

// "rank 2", "ranks 0, 1 and 30 others"
template <typename Ranks>
std::string Listed(const Ranks& ranks) {
  return ListedRanks(std::vector<std::uint32_t>(ranks.begin(), ranks.end()), kRanksNamed);
}

void AddBarrier(const v1::StalledBarrier& barrier, Table& table) {
  table.Add({fmt::format("barrier {}", barrier.number()), "-",
             barrier.missing().empty() ? "other racks" : Listed(barrier.missing()),
             HumanDuration(barrier.since_ns()),
             fmt::format("{} {} called it", Listed(barrier.waiting()),
                         barrier.waiting_size() == 1 ? "has" : "have")});
}

std::string StallsTable(const v1::ListStallsResponse& response) {
  Table table({{"KEY"},
               {"ITERATION", Table::Align::kRight},
               {"WAITING FOR"},
               {"SINCE", Table::Align::kRight},
               {"LAST SEEN"}});
  for (const v1::Stall& stall : response.stalls()) {
    if (stall.waits_for_racks())
      table.Add({stall.key(), fmt::format("{}", stall.iteration()), "other racks",
                 HumanDuration(stall.since_ns()), "ask a daemon of those racks (--endpoint)"});
    for (const v1::StalledRank& rank : stall.waiting_for()) {
      const std::string who = rank.host().empty()
                                  ? fmt::format("rank {}", rank.rank())
                                  : fmt::format("rank {} ({})", rank.rank(), rank.host());
      table.Add({stall.key(), fmt::format("{}", stall.iteration()), who,
                 HumanDuration(stall.since_ns()), LastSeen(rank)});
    }
  }
  if (response.has_barrier()) AddBarrier(response.barrier(), table);
  return table.Text();
}

// "phubctl: rank 3 (node5) in another rack is lost; the job waits at most 12 s more for it"
std::string LostElsewhereText(const v1::StalledRank& rank) {
  return fmt::format(
      "phubctl: rank {} ({}) in another rack is lost; the job waits at most {} more "
      "for it\n",
      rank.rank(), rank.host(), HumanDuration(rank.awaited_for_ns()));
}

// Asks every daemon of the rack, because each has only its own part of every key. The rounds of a
// daemon that does not answer are missing, which a warning says.
grpc::Status AskForStalls(const Options& options, const v1::ListStallsRequest& request,
                          v1::ListStallsResponse& all) {
  std::vector<RackMember> daemons;
  if (grpc::Status status = AskRack(options, daemons); !status.ok()) return status;
  grpc::Status first_error;
  std::size_t answers = 0;
  for (const RackMember& daemon : daemons) {
    v1::ListStallsResponse part;
    const grpc::Status status =
        daemon.status.ok() ? Call(daemon.options, &v1::Admin::Stub::ListStalls, request, part)
                           : daemon.status;
    if (status.ok()) {
      MergeStalls(part, all);
      ++answers;
      continue;
    }
    if (first_error.ok()) first_error = status;
    if (daemons.size() > 1) {
      PrintWarning(fmt::format("the rounds of daemon {} are not listed: {}",
                               daemon.options.endpoint, status.error_message()));
    }
  }
  return answers == 0 ? first_error : grpc::Status::OK;
}

int Stalls(const Options& options, const StallsQuery& query) {
  JobName job;
  if (grpc::Status status = FindJob(options, query.job, job); !status.ok()) {
    return Report(status, options);
  }
  v1::ListStallsRequest request;
  request.set_tenant(job.tenant);
  request.set_job(job.name);
  request.set_waiting_for_ns_min(ParseDuration(query.longer_than_text).value_or(0));
  return ShowResponse<v1::ListStallsResponse>(
      options, query.watch_text,
      [&](v1::ListStallsResponse& all) { return AskForStalls(options, request, all); },
      [&](const v1::ListStallsResponse& response) {
        for (const v1::StalledRank& rank : response.lost_elsewhere()) {
          fmt::print(stderr, "{}", LostElsewhereText(rank));
        }
        if (response.stalls().empty() && !response.has_barrier()) {
          fmt::print(stderr, "phubctl: no round or barrier of job {} is waiting for a rank\n",
                     query.job);
        }
        return StallsTable(response);
      });
}

}  // namespace

void AddStalls(Subcommand job, const Options& options, Command& command) {
  const Subcommand stalls =
      job.AddSubcommand("stalls", "List keys and barriers that wait for ranks, and for how long");
  const auto query = std::make_shared<StallsQuery>();
  stalls.AddOption("NAME", query->job, "Name of the job, or TENANT/NAME").Required().TypeName("");
  stalls
      .AddOption("--longer-than", query->longer_than_text,
                 "List only rounds that have waited longer than this (default: 0s)")
      .TypeName("DURATION")
      .Check([](const std::string& text) {
        if (ParseDuration(text)) return std::string();
        return fmt::format("\"{}\" is not a duration such as \"500ms\"", text);
      });
  AddWatch(stalls, query->watch_text);
  stalls.SetFooter(
      "A running job always has rounds in flight. A round that stays in the list is stalled.\n"
      "All daemons of the rack are asked, because each has a part of every key.\n"
      "\nExample:\n"
      "  phubctl job stalls digits --longer-than 500ms\n"
      "  KEY         ITERATION  WAITING FOR     SINCE  LAST SEEN\n"
      "  fc1.weight        412  rank 2 (node5)  1.3 s  heartbeat 1.3 s ago, lane tcp 10.0.0.5");
  stalls.OnNamed([&, query] { command = [&, query] { return Stalls(options, *query); }; });
}

}  // namespace phub::client::cli
