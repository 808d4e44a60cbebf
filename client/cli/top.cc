// phubctl top: the rack, its tenants and its jobs, live.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <thread>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "client/cli/terminal.h"
#include "client/cli/top_frame.h"
#include "client/cli/top_sample.h"
#include "common/base/standard_streams.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

constexpr const char* kKeysText =
    "  q        quit\n"
    "  s        change the order of the jobs\n"
    "  n m b t  order by name, memory, bytes (traffic), time\n"
    "  x        order by state: stalled jobs first\n"
    "  space    update now\n"
    "  ?        show or hide this help\n"
    "\nStalled jobs are shown in reverse. The straggler of a job\n"
    "is the rank that its rounds waited for longest: the share\n"
    "of rounds in which it was last, and its mean delay. EACH\n"
    "is the time of an iteration.\n";

struct TopQuery {
  std::string interval_text = "2s";
  std::string order_text = "name";
  bool once = false;
};

TopOrder OrderOf(const std::string& text) {
  const auto* const found = std::find(std::begin(kTopOrderNames), std::end(kTopOrderNames), text);
  return static_cast<TopOrder>(std::distance(std::begin(kTopOrderNames), found));
}

class TopView {
 public:
  TopView(const Options& options, DurationNs interval, TopOrder order)
      : options_(options), interval_(interval), order_(order) {}

  Shown Next() {
    if (sample_.taken_at == 0) {  // rates need two samples
      if (const grpc::Status status = TakeTopSample(options_, clock_, sample_); !status.ok())
        return {Report(status, options_), ""};
      std::this_thread::sleep_for(std::chrono::nanoseconds(interval_));
    }
    before_ = std::move(sample_);
    if (const grpc::Status status = TakeTopSample(options_, clock_, sample_); !status.ok())
      return {Report(status, options_), ""};
    return {kOk, Text()};
  }

  // At a terminal: reacts to keys between updates, until the user quits.
  int RunWithKeys(const KeyReader& keys) {
    for (;;) {
      const Shown shown = Next();
      if (shown.exit_code != kOk) return shown.exit_code;
      const TimeNs until = clock_.Now() + interval_;
      for (DurationNs left = interval_; left > 0; left = until - clock_.Now()) {
        fmt::print("\x1b[H\x1b[J{}\n{}", Title(), is_help_shown_ ? kKeysText : Text());
        if (!FlushOutput()) return kFailure;
        const char key = keys.Wait(left);
        if (key == 0 || key == ' ') break;
        if (key == 'q' || key == 'Q') return kOk;
        React(key);
      }
    }
  }

 private:
  std::string Text() const {
    const TopFrame frame(before_, sample_);
    const std::size_t columns = TerminalColumns();
    return options_.output == Output::kJson
               ? frame.JsonText(order_)
               : frame.Text(columns, order_, /*highlight=*/columns > 0);
  }
  std::string Title() const {
    return fmt::format("phubctl top  every {}  by {} (s)  ? help  q quit\n",
                       HumanDuration(interval_), kTopOrderNames[static_cast<std::size_t>(order_)]);
  }
  void React(char key) {
    switch (key) {
      case '?':
      case 'h': is_help_shown_ = !is_help_shown_; break;
      case 's': order_ = NextOrder(order_); break;
      case 'n': order_ = TopOrder::kName; break;
      case 'm': order_ = TopOrder::kMemory; break;
      case 'b': order_ = TopOrder::kTraffic; break;
      case 't': order_ = TopOrder::kTime; break;
      case 'x': order_ = TopOrder::kState; break;
      default: break;
    }
  }

  const Options& options_;
  const DurationNs interval_;
  TopOrder order_;
  bool is_help_shown_ = false;
  SystemClock clock_;
  TopSample before_;
  TopSample sample_;
};

int Top(const Options& options, const TopQuery& query) {
  const DurationNs interval = ParseDuration(query.interval_text).value_or(kSecond);
  TopView view(options, interval, OrderOf(query.order_text));
  if (!query.once && options.output != Output::kJson) {
    if (const KeyReader keys; keys.active()) return view.RunWithKeys(keys);
  }
  return Show(query.once ? 0 : interval, [&view] { return view.Next(); });
}

}  // namespace

void AddTop(Subcommand parent, const Options& options, Command& command) {
  const Subcommand top =
      parent.AddSubcommand("top", "Show the load of a rack, its tenants and jobs, live");
  const auto query = std::make_shared<TopQuery>();
  top.AddOption("--interval", query->interval_text,
                "Time between updates; rates are averaged over it")
      .TypeName("DURATION")
      .ShowDefault()
      .Check([](const std::string& text) {
        const auto interval = ParseDuration(text);
        if (interval && *interval >= 100 * kMillisecond) return std::string();
        return fmt::format("\"{}\" is not an interval of at least 100ms, such as \"2s\"", text);
      });
  top.AddOption(
         "--sort", query->order_text,
         "Order of the jobs: name, memory, traffic, time (of an iteration) or state (stalled\n"
         "jobs first)")
      .TypeName("ORDER")
      .OneOf({"name", "memory", "traffic", "time", "state"})
      .ShowDefault();
  top.AddFlag("--once", query->once, "Show one interval and exit");
  top.SetFooter(
      "IN counts gradients, OUT counts replies with parameters. The straggler of a job is the "
      "rank\n"
      "that its rounds waited for longest. STRAGGLER shows the share of rounds in which it was\n"
      "last, and its mean delay in them. HOST is its host. CORES BUSY shows for each core loop\n"
      "the share of time in which it had work. A table leaves columns out until it fits the\n"
      "terminal.\n"
      "\nKeys: q quits, s changes the order of the jobs, ? shows all keys.\n"
      "\nExamples:\n"
      "  phubctl top\n"
      "  phubctl top --once --interval 10s -o json | jq '.jobs[] | {job, straggler}'");
  top.OnNamed([&, query] { command = [&, query] { return Top(options, *query); }; });
}

}  // namespace phub::client::cli
