// phubctl job dump: what the ranks of a job are doing, and who waits for whom.
#include <fmt/format.h>

#include <memory>

#include "client/cli/cli.h"
#include "client/cli/dump_text.h"
#include "client/cli/job_name.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

constexpr DurationNs kWaitMax = 30 * kSecond;  // as in the daemon

struct DumpQuery {
  std::string job;
  std::string wait_text = "2s";
};

int Dump(const Options& options, const DumpQuery& query) {
  JobName job;
  if (grpc::Status status = FindJob(options, query.job, job); !status.ok()) {
    return Report(status, options);
  }
  v1::DumpJobRequest request;
  request.set_tenant(job.tenant);
  request.set_job(job.name);
  request.set_wait_ns(ParseDuration(query.wait_text).value_or(0));
  Options patient = options;  // the daemon answers when the ranks have answered
  patient.timeout += request.wait_ns();
  return ShowAnswer(patient, /*watch_text=*/"", &v1::Admin::Stub::DumpJob, request,
                    [&](const v1::JobDump& dump) {
                      return DumpText(dump, /*all_rounds=*/options.output == Output::kWide);
                    });
}

}  // namespace

void AddDump(Subcommand job, const Options& options, Command& command) {
  const Subcommand dump =
      job.AddSubcommand("dump", "Show what each rank of a job is doing, and who waits for whom");
  const auto query = std::make_shared<DumpQuery>();
  dump.AddOption("NAME", query->job, "Name of the job, or TENANT/NAME").Required().TypeName("");
  dump.AddOption("--wait", query->wait_text, "How long ranks may take to answer (default: 2s)")
      .TypeName("DURATION")
      .Check([](const std::string& text) {
        const auto wait = ParseDuration(text);
        if (wait && *wait > 0 && *wait <= kWaitMax) return std::string();
        return fmt::format("\"{}\" is not a duration of at most 30s, such as \"500ms\"", text);
      });
  dump.SetFooter(
      "The daemon asks every rank, and each rank answers from a thread of libphub, also\n"
      "while the program waits. A rank that does not answer is shown with the reason: its\n"
      "process is stopped or dead, or its libphub is older than this command. Programs may\n"
      "add a record of their own; phub.torch adds its last collectives. `-o wide` shows\n"
      "every round, `-o json` everything.\n"
      "\n"
      "If the job spans racks, the output has only the ranks of the rack of the daemon that\n"
      "answers. If a rack has several daemons, the rounds at the top are those of the\n"
      "daemon that answers.\n"
      "\n"
      "Example:\n"
      "  phubctl job dump digits\n"
      "  job default/digits: 3 ranks\n"
      "\n"
      "  WHO WAITS FOR WHOM\n"
      "    ranks 0, 1 wait for rank 2 in key fc1.weight, iteration 412, for 3.2 s\n"
      "    rank 2 (node5, pid 4711) did not answer within 2.0 s; its last heartbeat was 3.1 s ago");
  dump.OnNamed([&, query] { command = [&, query] { return Dump(options, *query); }; });
}

}  // namespace phub::client::cli
