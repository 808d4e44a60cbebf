#include "client/cli/exchange_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>

#include "client/cli/topology_text.h"
#include "common/base/printable.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

using Align = Table::Align;

bool IsAggregator(const v1::ExchangeInfo& exchange, std::uint32_t rack) {
  const auto& all = exchange.aggregators();
  return std::find(all.begin(), all.end(), rack) != all.end();
}

// "3", "3 racks and 1 aggregator"
std::string RacksText(const v1::ExchangeInfo& exchange) {
  const int aggregators = exchange.aggregators_size();
  const int racks = exchange.racks_size() - aggregators;
  if (aggregators == 0) return fmt::format("{}", racks);
  return fmt::format("{} racks and {} aggregator{}", racks, aggregators,
                     aggregators == 1 ? "" : "s");
}

// "-": not known yet.
std::string TimeText(std::int64_t ns, bool known) { return known ? HumanDuration(ns) : "-"; }

const char* StageText(const std::string& stage) {
  if (stage == "sums") return "  children's sums";
  if (stage == "result") return "  parent's result";
  return "exchange";
}

std::string SpansTable(const v1::ExchangeInfo& exchange, bool wide) {
  Table table({{"STAGE"},
               {"TREE", Align::kRight},
               {"HOME"},
               {"BYTES", Align::kRight},
               {"PREDICTED", Align::kRight},
               {"RECENT", Align::kRight},
               {"MEAN", Align::kRight},
               {"EXCHANGES", Align::kRight}});
  for (const v1::ExchangeSpan& span : exchange.spans()) {
    const bool one_tree = span.tree() >= 0;
    if (one_tree && !wide) continue;
    const bool measured = span.exchanges() > 0;
    table.Add({StageText(span.stage()), one_tree ? fmt::format("{}", span.tree()) : "all",
               one_tree ? fmt::format("rack {}", span.home()) : "-", HumanBytes(span.bytes()),
               TimeText(span.predicted_ns(), exchange.predicted_exchange_ns() > 0),
               TimeText(span.recent_ns(), measured), TimeText(span.mean_ns(), measured),
               fmt::format("{}", span.exchanges())});
  }
  return table.Text();
}

// The transports of the lanes: the first word of each description.
std::string LanesText(const v1::ExchangeLink& link) {
  std::set<std::string> kinds;
  for (const std::string& lane : link.lanes()) kinds.insert(lane.substr(0, lane.find(' ')));
  return kinds.empty() ? "-" : Printable(fmt::format("{}", fmt::join(kinds, ", ")));
}

std::string LinksTable(const v1::ExchangeInfo& exchange) {
  std::uint64_t sums = 0;
  for (const v1::ExchangeLink& link : exchange.links()) sums += link.sums_last();
  Table table({{"RACK", Align::kRight},
               {"DAEMON"},
               {"LANES"},
               {"SENT", Align::kRight},
               {"RECEIVED", Align::kRight},
               {"LAST", Align::kRight},
               {"WAITED FOR", Align::kRight},
               {"RESULT AFTER", Align::kRight},
               {"IN QUEUE", Align::kRight}});
  for (const v1::ExchangeLink& link : exchange.links()) {
    const std::string last =
        sums == 0 ? "-" : fmt::format("{} %", (100 * link.sums_last() + sums / 2) / sums);
    const std::string waited = MeanText(link.sums_awaited_ns(), link.sums_last());
    if (link.self()) {
      table.Add(
          {fmt::format("{}", link.rack()), "this one", "-", "-", "-", last, waited, "-", "-"});
      continue;
    }
    table.Add({fmt::format("{}", link.rack()), Printable(link.endpoint()), LanesText(link),
               HumanBytes(link.partial_bytes_sent() + link.result_bytes_sent()),
               HumanBytes(link.partial_bytes_received() + link.result_bytes_received()), last,
               waited, MeanText(link.result_wait_ns(), link.results_received()),
               MeanText(link.message_wait_ns(), link.messages_taken())});
  }
  return table.Text();
}

// Partial sums (up the trees) and results (down the trees) in separate columns.
std::string PayloadTable(const v1::ExchangeInfo& exchange) {
  Table table({{"RACK", Align::kRight},
               {"SUMS SENT", Align::kRight},
               {"BYTES", Align::kRight},
               {"RECEIVED", Align::kRight},
               {"BYTES", Align::kRight},
               {"RESULTS SENT", Align::kRight},
               {"BYTES", Align::kRight},
               {"RECEIVED", Align::kRight},
               {"BYTES", Align::kRight}});
  for (const v1::ExchangeLink& link : exchange.links()) {
    if (link.self()) continue;
    table.Add({fmt::format("{}", link.rack()), fmt::format("{}", link.partials_sent()),
               HumanBytes(link.partial_bytes_sent()), fmt::format("{}", link.partials_received()),
               HumanBytes(link.partial_bytes_received()), fmt::format("{}", link.results_sent()),
               HumanBytes(link.result_bytes_sent()), fmt::format("{}", link.results_received()),
               HumanBytes(link.result_bytes_received())});
  }
  return table.Text();
}

// The daemon's memory that exchanges touch, next to the bytes on the lanes to other racks.
std::string MemoryTable(const v1::ExchangeInfo& exchange) {
  std::uint64_t uplink = 0;
  for (const v1::ExchangeLink& link : exchange.links()) {
    uplink += link.partial_bytes_sent() + link.result_bytes_sent() + link.partial_bytes_received() +
              link.result_bytes_received();
  }
  Table table({{"MEMORY"},
               {"READ", Align::kRight},
               {"WRITTEN", Align::kRight},
               {"PER UPLINK BYTE", Align::kRight}});
  std::uint64_t read = 0, written = 0;
  const auto add = [&](const std::string& work, std::uint64_t bytes_read,
                       std::uint64_t bytes_written) {
    const double bytes = static_cast<double>(bytes_read + bytes_written);
    table.Add({work, HumanBytes(bytes_read), HumanBytes(bytes_written),
               uplink == 0 ? "-" : fmt::format("{:.3f}", bytes / static_cast<double>(uplink))});
  };
  for (const v1::ExchangeMemory& memory : exchange.memory()) {
    add(memory.work(), memory.read_bytes(), memory.written_bytes());
    read += memory.read_bytes();
    written += memory.written_bytes();
  }
  add("all", read, written);
  return table.Text();
}

}  // namespace

void AddExchange(const v1::ExchangeInfo& exchange, Table& facts) {
  const bool is_aggregator = IsAggregator(exchange, exchange.rack());
  facts.Add({is_aggregator ? "aggregator" : "rack",
             fmt::format("{} of {}, {}", exchange.rack(), RacksText(exchange), exchange.state())});
  facts.Add({"ranks here", is_aggregator ? fmt::format("none of {}", exchange.rank_count())
                                         : fmt::format("from rank {} of {}", exchange.first_rank(),
                                                       exchange.rank_count())});
  facts.Add({"plan", fmt::format("{} (requested: {}), {} trees on {}",
                                 Printable(exchange.planner()), Printable(exchange.asked()),
                                 exchange.trees(), Printable(exchange.topology()))});
  if (exchange.measured_unix_ns() != 0) {
    facts.Add({"topology", fmt::format("probed {} ago: {}", AgeText(exchange.measured_unix_ns()),
                                       BriefTopologyText(exchange.measured_topology()))});
  }
  if (exchange.predicted_seconds() > 0) {
    facts.Add(
        {"predicted",
         fmt::format("{} for {}",
                     HumanDuration(static_cast<std::int64_t>(exchange.predicted_seconds() * 1e9)),
                     HumanBytes(exchange.reference_bytes()))});
  }
  if (exchange.predicted_exchange_ns() > 0) {
    facts.Add({"predicted",
               fmt::format("{} for this job's {}", HumanDuration(exchange.predicted_exchange_ns()),
                           HumanBytes(exchange.exchange_bytes()))});
  }
}

std::string ExchangeTables(const v1::ExchangeInfo& exchange, bool wide) {
  if (exchange.spans().empty()) return "";
  std::string text = fmt::format("{}\n{}", SpansTable(exchange, wide), LinksTable(exchange));
  if (wide) text += "\n" + PayloadTable(exchange) + "\n" + MemoryTable(exchange);
  return text;
}

}  // namespace phub::client::cli
