// What phubctl's commands share: the options that every command has, exit codes, how a command is
// registered. One file per noun: audit.cc, completion.cc, context.cc, doctor.cc, health.cc, job.cc,
// job_changes.cc, man_page.cc, pki.cc, plan.cc, server.cc, stalls.cc, stats.cc, tenant.cc,
// token.cc, top.cc, version.cc.
//
// Standard output carries data only; everything else goes to standard error, so that
// `phubctl ... -o json | jq` always works. One thread.
#pragma once

#include <functional>
#include <string>

#include "client/cli/command_line.h"
#include "client/session/channel.h"
#include "common/base/clock.h"

namespace phub::client::cli {

enum ExitCode : int {
  kOk = 0,
  kFailure = 1,
  kUsage = 2,
  kNotFound = 3,
  kRefused = 4,      // who asks is not known, or may not
  kUnavailable = 5,  // nobody answers, or not in time
};

enum class Output : std::uint8_t { kTable, kWide, kJson };

struct Options {
  std::string endpoint;  // empty until ChooseDaemon() has found one
  std::string context;   // by name, in the file of contexts
  Credentials credentials;
  std::string tenant;  // empty: as the daemon decides (all, or "default")
  std::string output_text = "table";
  std::string timeout_text = "5s";

  // From the texts, once they were checked.
  Output output = Output::kTable;
  DurationNs timeout = 5 * kSecond;
};

// A command sets this when it is the one that was named; main() calls it then.
using Command = std::function<int()>;

void AddHealth(Subcommand parent, const Options& options, Command& command);
void AddVersion(Subcommand parent, const Options& options, Command& command);
void AddJob(Subcommand parent, const Options& options, Command& command);
void AddJobEvict(Subcommand job, const Options& options, Command& command);
void AddJobSave(Subcommand job, const Options& options, Command& command);
void AddServer(Subcommand parent, const Options& options, Command& command);
// Of all that `parent` has when the script, or the page, is asked for.
void AddCompletion(Subcommand parent, Command& command);
void AddManPage(Subcommand parent, Command& command);
void AddStalls(Subcommand job, const Options& options, Command& command);  // under `job`
void AddPlan(Subcommand parent, const Options& options, Command& command);
void AddAudit(Subcommand parent, const Options& options, Command& command);
void AddDoctor(Subcommand parent, const Options& options, Command& command);
void AddContext(Subcommand parent, const Options& options, Command& command);
void AddPki(Subcommand parent, Command& command);
void AddQuota(Subcommand parent, const Options& options, Command& command);
void AddTenant(Subcommand parent, const Options& options, Command& command);
void AddToken(Subcommand parent, const Options& options, Command& command);
void AddWhoAmI(Subcommand parent, const Options& options, Command& command);
void AddStats(Subcommand parent, const Options& options, Command& command);
void AddTop(Subcommand parent, const Options& options, Command& command);

}  // namespace phub::client::cli
