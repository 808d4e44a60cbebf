#include "client/cli/dump_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "common/base/printable.h"
#include "common/base/rank_list.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

constexpr std::size_t kRanksNamed = 16;  // in one sentence
constexpr std::size_t kWaitsShown = 16;
constexpr int kRoundsShown = 8;  // of one rank

using Ranks = std::set<std::uint32_t>;  // ascending

std::string PluralOf(std::size_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string Listed(const Ranks& ranks) {
  return ListedRanks(std::vector<std::uint32_t>(ranks.begin(), ranks.end()), kRanksNamed);
}

std::string ListedOrElsewhere(const Ranks& missing) {
  return missing.empty() ? "ranks of other racks" : Listed(missing);
}

std::string RoundText(const std::string& key, std::uint64_t iteration) {
  return fmt::format("key {}, iteration {}", Printable(key), iteration);
}

// "rank 2 (node5, pid 4711)"
std::string NameOf(const v1::RankDump& rank) {
  if (rank.host().empty()) return fmt::format("rank {}", rank.rank());
  return fmt::format("rank {} ({}, pid {})", rank.rank(), Printable(rank.host()), rank.pid());
}

// What a rank is doing, in one line.
std::string StateOf(const v1::RankDump& rank) {
  if (!rank.answered()) {
    std::string text = Printable(rank.problem());
    if (rank.state() == "live" && rank.last_heartbeat_age_ns() > 0)
      text += fmt::format("; its last heartbeat was {} ago",
                          HumanDuration(rank.last_heartbeat_age_ns()));
    return text;
  }
  const v1::RankRecord& record = rank.record();
  std::vector<std::string> parts;
  if (!record.headline().empty()) parts.push_back(Printable(record.headline()));
  if (record.calls_size() > 0)
    parts.push_back(fmt::format("waits in {} for {}", Printable(record.calls(0).name()),
                                HumanDuration(record.calls(0).waiting_ns())));
  if (record.rounds_size() > 0)
    parts.push_back(fmt::format("waits in {}, the oldest {}, for {}",
                                PluralOf(record.round_count(), "round"),
                                RoundText(record.rounds(0).key(), record.rounds(0).iteration()),
                                HumanDuration(record.rounds(0).waiting_ns())));
  if (record.calls_size() == 0 && record.rounds_size() == 0)
    parts.push_back("has no round in flight and waits in no call: it computes, or waits elsewhere");
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

// Rounds that wait for the same ranks.
struct Wait {
  Ranks missing;
  Ranks waiting;
  std::string program;  // what the program of a waiting rank says; may be empty
  std::string oldest;
  std::int64_t since_ns = 0;
  std::size_t rounds = 0;
};

bool Waits(const v1::RankDump& rank, const v1::Stall& stall) {
  return std::ranges::any_of(rank.record().rounds(), [&](const v1::OpenRound& round) {
    return round.key() == stall.key() && round.iteration() == stall.iteration();
  });
}

std::vector<Wait> WaitsOf(const v1::JobDump& dump) {
  std::vector<Wait> waits;  // the oldest first, like the stalls
  std::map<Ranks, std::size_t> places;
  for (const v1::Stall& stall : dump.stalls()) {
    Ranks missing;
    for (const v1::StalledRank& rank : stall.waiting_for()) missing.insert(rank.rank());
    const auto [place, added] = places.try_emplace(missing, waits.size());
    if (added)
      waits.push_back({.missing = missing,
                       .waiting = {},
                       .program = {},
                       .oldest = RoundText(stall.key(), stall.iteration()),
                       .since_ns = stall.since_ns()});
    Wait& wait = waits[place->second];
    ++wait.rounds;
    for (const v1::RankDump& rank : dump.ranks()) {
      if (missing.contains(rank.rank()) || !Waits(rank, stall)) continue;
      wait.waiting.insert(rank.rank());
      if (wait.program.empty() && !rank.record().headline().empty())
        wait.program =
            fmt::format("; rank {} {}", rank.rank(), Printable(rank.record().headline()));
    }
  }
  return waits;
}

// "ranks 0, 1 wait for rank 2 in 3 rounds, the oldest key fc1.weight, iteration 412, for 3.2 s"
std::string WaitText(const Wait& wait) {
  const std::string who = wait.waiting.empty() ? "the ranks that have pushed wait"
                                               : fmt::format("{} wait{}", Listed(wait.waiting),
                                                             wait.waiting.size() == 1 ? "s" : "");
  const std::string where = wait.rounds == 1
                                ? wait.oldest
                                : fmt::format("{} rounds, the oldest {}", wait.rounds, wait.oldest);
  return fmt::format("{} for {} in {}, for {}{}", who, ListedOrElsewhere(wait.missing), where,
                     HumanDuration(wait.since_ns), wait.program);
}

// Older daemons do not say it.
std::string AgeText(const v1::StalledBarrier& barrier) {
  if (barrier.since_ns() == 0) return "";
  return fmt::format(", for {}", HumanDuration(barrier.since_ns()));
}

std::string SummaryText(const v1::JobDump& dump) {
  std::string text = "WHO WAITS FOR WHOM\n";
  const std::vector<Wait> waits = WaitsOf(dump);
  Ranks blamed;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    if (i < kWaitsShown) text += fmt::format("  {}\n", WaitText(waits[i]));
    blamed.insert(waits[i].missing.begin(), waits[i].missing.end());
  }
  if (waits.size() > kWaitsShown)
    text += fmt::format("  and {} more groups of rounds\n", waits.size() - kWaitsShown);
  if (dump.has_barrier()) {
    const Ranks waiting(dump.barrier().waiting().begin(), dump.barrier().waiting().end());
    const Ranks missing(dump.barrier().missing().begin(), dump.barrier().missing().end());
    text += fmt::format("  {} wait{} for {} in barrier {}{}\n", Listed(waiting),
                        waiting.size() == 1 ? "s" : "", ListedOrElsewhere(missing),
                        dump.barrier().number(), AgeText(dump.barrier()));
    blamed.insert(missing.begin(), missing.end());
  }
  for (const v1::StalledRank& rank : dump.lost_elsewhere())
    text += fmt::format("  the job waits at most {} more for rank {} ({}) of another rack\n",
                        HumanDuration(rank.awaited_for_ns()), rank.rank(), Printable(rank.host()));
  if (waits.empty() && !dump.has_barrier() && dump.lost_elsewhere().empty())
    text += "  no rank waits for another one\n";
  if (!dump.stalls_problem().empty())
    text += fmt::format("  rounds are not known: {}\n", Printable(dump.stalls_problem()));
  std::size_t shown = 0;
  for (const v1::RankDump& rank : dump.ranks()) {
    if (!blamed.contains(rank.rank()) || shown++ >= kRanksNamed) continue;
    text += fmt::format("  {} {}\n", NameOf(rank), StateOf(rank));
  }
  return text;
}

// Lines of a rank's text, marked so that they cannot pass for lines of phubctl.
std::string Quoted(const std::string& text) {
  std::string quoted;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    quoted += fmt::format("  | {}\n", Printable(std::string_view(text).substr(at, end - at)));
    at = end + 1;
  }
  return quoted;
}

std::string RankText(const v1::RankDump& rank, bool all_rounds) {
  std::string text = fmt::format("{}: {}\n", NameOf(rank), StateOf(rank));
  const v1::RankRecord& record = rank.record();
  for (const v1::OpenCall& call : record.calls())
    text += fmt::format("  call {}, for {}\n", Printable(call.name()),
                        HumanDuration(call.waiting_ns()));
  int rounds = 0;
  for (const v1::OpenRound& round : record.rounds()) {
    if (!all_rounds && rounds == kRoundsShown) break;
    ++rounds;
    text += fmt::format("  round {} ({}), for {}\n", RoundText(round.key(), round.iteration()),
                        Printable(round.operation()), HumanDuration(round.waiting_ns()));
  }
  const auto listed = static_cast<std::uint32_t>(rounds);
  if (record.round_count() > listed)
    text += fmt::format("  and {} more\n", PluralOf(record.round_count() - listed, "round"));
  text += Quoted(record.text());
  if (!record.note().empty()) text += fmt::format("  note: {}\n", Printable(record.note()));
  if (rank.answered() && !rank.problem().empty())
    text += fmt::format("  note: {}\n", Printable(rank.problem()));
  return text;
}

// The number of the job's ranks that this daemon's rack has.
std::string ScopeText(const v1::JobDump& dump) {
  if (dump.racks_size() == 0) return PluralOf(static_cast<std::size_t>(dump.ranks_size()), "rank");
  return fmt::format(
      "only the {} of rack {}, of {} in {} racks; ask a daemon of each other rack, too",
      PluralOf(static_cast<std::size_t>(dump.ranks_size()), "rank"), dump.rack(), dump.world_size(),
      dump.racks_size());
}

}  // namespace

std::string DumpText(const v1::JobDump& dump, bool all_rounds) {
  std::string text = fmt::format("job {}/{}: {}\n\n", Printable(dump.tenant()),
                                 Printable(dump.job()), ScopeText(dump));
  text += SummaryText(dump);
  text += "\nRANKS\n";
  for (const v1::RankDump& rank : dump.ranks()) text += RankText(rank, all_rounds);
  return text;
}

}  // namespace phub::client::cli
