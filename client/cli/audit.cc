// phubctl audit tail: administrative changes and their authors.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <thread>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "common/base/printable.h"
#include "common/base/standard_streams.h"
#include "phub/v1/tenants.grpc.pb.h"

namespace phub::client::cli {
namespace {

constexpr auto kFollowInterval = std::chrono::milliseconds(500);

struct Tail {
  std::uint32_t count = 20;
  bool follow = false;
};

// One line per entry, for grep.
std::string Line(const v1::AuditRecord& entry) {
  std::string line = fmt::format("{}  {}  {}", entry.sequence(), DateText(entry.at_ns()),
                                 Printable(entry.action()));
  if (!entry.subject().empty()) line += " " + Printable(entry.subject());
  if (!entry.detail().empty()) line += fmt::format(" ({})", Printable(entry.detail()));
  line += fmt::format("  by {}", Printable(entry.actor()));
  if (!entry.peer().empty()) line += " from " + Printable(entry.peer());
  if (entry.outcome() != "ok") line += ": " + Printable(entry.outcome());
  return line + "\n";
}

void Print(const Options& options, const Tail& tail, const v1::ListAuditResponse& response) {
  if (options.output == Output::kJson && !tail.follow) {
    fmt::print("{}", ToJson(response, /*compact=*/false));
  } else {
    for (const v1::AuditRecord& entry : response.entries()) {
      fmt::print("{}",
                 options.output == Output::kJson ? ToJson(entry, /*compact=*/true) : Line(entry));
    }
  }
  FlushOutput();
}

int ShowTail(const Options& options, const Tail& tail) {
  v1::ListAuditRequest request;
  request.set_count_max(tail.count);
  request.set_newest(true);
  for (;;) {
    v1::ListAuditResponse response;
    const grpc::Status status = Call(options, &v1::Tenants::Stub::ListAudit, request, response);
    if (!status.ok()) return Report(status, options);
    Print(options, tail, response);
    if (!tail.follow) return kOk;
    if (response.entries_size() > 0) {
      request.set_after(response.entries(response.entries_size() - 1).sequence());
    }
    request.set_newest(false);  // from now on return all new entries
    std::this_thread::sleep_for(kFollowInterval);
  }
}

}  // namespace

void AddAudit(Subcommand parent, const Options& options, Command& command) {
  const Subcommand audit = parent.AddSubcommand("audit", "Show the log of administrative changes");
  const Subcommand tail = audit.AddSubcommand("tail", "Show the last entries, oldest first");
  const auto request = std::make_shared<Tail>();
  tail.AddOption("-n,--lines", request->count, "Number of entries")
      .TypeName("COUNT")
      .InRange(1, 1000)
      .ShowDefault();
  tail.AddFlag("-f,--follow", request->follow, "Keep printing new entries until interrupted");
  tail.OnNamed([&, request] { command = [&, request] { return ShowTail(options, *request); }; });
}

}  // namespace phub::client::cli
