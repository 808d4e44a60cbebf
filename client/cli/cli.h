// Shared by phubctl's commands: global options, exit codes, and how a command is registered. One
// file per noun.
//
// Standard output carries only data; messages go to standard error. So `phubctl ... -o json | jq`
// always works. One thread.
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
  kRefused = 4,      // the caller is unknown or lacks permission
  kUnavailable = 5,  // no answer, or not in time
};

enum class Output : std::uint8_t { kTable, kWide, kJson };

struct Options {
  std::string endpoint;  // empty until ChooseDaemon() has found one
  std::string context;   // name of a context in the contexts file
  Credentials credentials;
  std::string tenant;  // empty: the daemon decides (all, or "default")
  std::string output_text = "table";
  std::string timeout_text = "5s";

  // Parsed from the texts above after they were checked.
  Output output = Output::kTable;
  DurationNs timeout = 5 * kSecond;
};

// The command named on the command line sets this; main() then calls it.
using Command = std::function<int()>;

void AddHealth(Subcommand parent, const Options& options, Command& command);
void AddVersion(Subcommand parent, const Options& options, Command& command);
void AddJob(Subcommand parent, const Options& options, Command& command);
void AddJobEvict(Subcommand job, const Options& options, Command& command);
void AddJobSave(Subcommand job, const Options& options, Command& command);
void AddServer(Subcommand parent, const Options& options, Command& command);
// The output covers all commands that `parent` has when the command runs.
void AddCompletion(Subcommand parent, Command& command);
void AddManPage(Subcommand parent, Command& command);
void AddStalls(Subcommand job, const Options& options, Command& command);  // under `job`
void AddDump(Subcommand job, const Options& options, Command& command);    // under `job`
void AddTrace(Subcommand job, const Options& options, Command& command);   // under `job`
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
void AddStore(Subcommand parent, const Options& options, Command& command);
void AddView(Subcommand parent, const Options& options, Command& command);
void AddTop(Subcommand parent, const Options& options, Command& command);

}  // namespace phub::client::cli
