// phubctl: inspects and administers phub daemons.
#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/cli.h"
#include "client/cli/contexts.h"
#include "common/base/standard_streams.h"
#include "common/base/status_text.h"
#include "common/base/suggest.h"
#include "common/base/units.h"
#include "common/base/version.h"

namespace phub::client::cli {
namespace {

// Secrets are passed as files, since every user of the host can read command lines.
void AddCredentials(Subcommand app, Credentials& credentials) {
  const auto add = [&](const char* name, std::string& path, const char* variable,
                       const char* help) {
    app.AddOption(name, path, help).Environment(variable).TypeName("FILE");
  };
  add("--token-file", credentials.token_file, "PHUB_TOKEN_FILE", "Your token (mode 0600)");
  add("--ca-file", credentials.ca_file, "PHUB_CA_FILE",
      "Certificate of the daemon's authority (PEM); enables TLS");
  add("--certificate", credentials.certificate, "PHUB_CERTIFICATE", "Your certificate (PEM)");
  add("--key", credentials.key, "PHUB_KEY", "Private key of your certificate (PEM, mode 0600)");
  app.AddOption("--server-name", credentials.server_name,
                "Name in the daemon's certificate (default: the endpoint's host)")
      .Environment("PHUB_SERVER_NAME")
      .TypeName("NAME");
  app.AddFlag("--plaintext-token", credentials.plaintext_token,
              "Allow sending the token to another host without TLS");
}

void AddGlobalOptions(Subcommand app, Options& options) {
  app.AddOption(
         "-e,--endpoint", options.endpoint,
         "Daemon to call: host:port or unix:PATH (default: from the context, or this host's\n"
         "control socket, or 127.0.0.1:7700)")
      .Environment("PHUB_ENDPOINT")
      .TypeName("ENDPOINT");
  app.AddOption("--context", options.context, "Named daemon to call; see `phubctl context`")
      .Environment("PHUB_CONTEXT")
      .TypeName("NAME");
  AddCredentials(app, options.credentials);
  app.AddOption("-o,--output", options.output_text, "Format: table, wide (more columns) or json")
      .Environment("PHUB_OUTPUT")
      .TypeName("FORMAT")
      .OneOf({"table", "wide", "json"})
      .ShowDefault();
  app.AddOption("--timeout", options.timeout_text, "Timeout of one call")
      .Environment("PHUB_TIMEOUT")
      .TypeName("DURATION")
      .Check([](const std::string& text) {
        const auto timeout = ParseDuration(text);
        if (timeout && *timeout > 0) return std::string();
        return fmt::format("\"{}\" is not a duration such as \"5s\" or \"500ms\"", text);
      })
      .ShowDefault();
  app.AddOption("--tenant", options.tenant, "Tenant of the jobs and tokens")
      .Environment("PHUB_TENANT")
      .TypeName("TENANT");
}

int UsageError(const std::string& message, Subcommand command) {
  fmt::print(stderr, "phubctl: {}\nSee: {} --help\n", message, command.Path());
  return kUsage;
}

int ReportExtra(const std::string& extra, Subcommand command) {
  const bool is_option = extra.rfind('-', 0) == 0;
  std::vector<std::string> names;
  if (is_option) {
    for (std::optional<Subcommand> level = command; level; level = level->Parent())
      for (const Argument& argument : level->Arguments())
        for (const std::string& name : argument.Names())
          if (name.starts_with("--")) names.push_back(name);
  } else {
    for (const Subcommand& subcommand : command.Subcommands()) names.push_back(subcommand.Name());
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  const bool has_commands = !is_option && !names.empty();
  const char* what = is_option      ? "unknown option"
                     : has_commands ? "unknown command"
                                    : "unexpected argument";
  const std::string word = extra.substr(0, is_option ? extra.find('=') : std::string::npos);
  return UsageError(fmt::format("{} \"{}\"{}", what, word, DidYouMean(word, known)), command);
}

void AddCommands(Subcommand app, Options& options, Command& command) {
  AddGlobalOptions(app, options);
  AddHealth(app, options, command);
  AddVersion(app, options, command);
  AddServer(app, options, command);
  AddJob(app, options, command);
  AddStats(app, options, command);
  AddTenant(app, options, command);
  AddToken(app, options, command);
  AddQuota(app, options, command);
  AddAudit(app, options, command);
  AddWhoAmI(app, options, command);
  AddContext(app, options, command);
  AddPki(app, command);
  AddStore(app, options, command);
  AddView(app, options, command);
  AddTop(app, options, command);
  AddPlan(app, options, command);
  AddDoctor(app, options, command);
  AddCompletion(app, command);
  AddManPage(app, command);
}

int Main(int argument_count, char** arguments) {
  Options options;
  Command command;
  CommandLine line("phubctl", "phubctl inspects and administers phub daemons and their jobs.",
                   fmt::format("phubctl {} ({})", BuildVersion(), BuildCommit()),
                   "\nFor global options (-e, --context, --tenant, -o, ...) see phubctl --help\n");
  const Subcommand app = line.root();
  AddCommands(app, options, command);
  app.SetFooter(
      "Examples:\n"
      "  phubctl health                                  check that the daemon is serving\n"
      "  phubctl job list                                list jobs\n"
      "  phubctl job stalls digits --watch               show which ranks a job waits for, live\n"
      "  phubctl top                                     show load and stragglers, live\n"
      "  phubctl server list                             list the rack's daemons\n"
      "  phubctl -e rack7:7700 job get digits -o json    show a job as JSON, for programs\n"
      "  phubctl tenant create acme --memory 16GiB       create a tenant with a quota\n"
      "\nExit codes: 0 ok; 1 failure; 2 wrong usage; 3 not found; 4 not allowed; 5 the daemon\n"
      "cannot be reached, or did not answer within --timeout.");
  const Parsed parsed = line.Parse(argument_count, arguments);
  const Subcommand named = parsed.named;
  if (parsed.exit_code) return *parsed.exit_code;
  if (!parsed.error.empty()) return UsageError(parsed.error, named);
  if (!parsed.extras.empty()) return ReportExtra(parsed.extras.front(), named);
  if (!command) {
    fmt::print(stderr, "{}\n", named.Help());
    return UsageError("a command is missing", named);
  }
  options.output = options.output_text == "json"   ? Output::kJson
                   : options.output_text == "wide" ? Output::kWide
                                                   : Output::kTable;
  options.timeout = ParseDuration(options.timeout_text).value_or(options.timeout);
  // Suppress gRPC's log lines: errors are returned as a status.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // These commands call no daemon or must see only the given options, like `context`. `plan probe`
  // calls ChooseDaemon() itself.
  Subcommand noun = named;
  for (auto parent = noun.Parent(); parent && parent->Parent(); parent = noun.Parent())
    noun = *parent;
  constexpr std::array<std::string_view, 6> kWithoutDaemon = {"context", "pki",   "plan",
                                                              "doctor",  "store", "completion"};
  if (std::find(kWithoutDaemon.begin(), kWithoutDaemon.end(), noun.Name()) ==
      kWithoutDaemon.end()) {
    if (absl::Status status = ChooseDaemon(options); !status.ok()) {
      fmt::print(stderr, "phubctl: {}\n", MessageOf(status));
      return absl::IsNotFound(status) ? kNotFound : kUsage;
    }
  }
  return command();
}

}  // namespace
}  // namespace phub::client::cli

int main(int argument_count, char** arguments) {
  phub::OpenStandardStreams();
  // gRPC's threads may outlive main(), so OpenSSL must not clean up at exit.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  return phub::RunWithOutput("phubctl",
                             [&] { return phub::client::cli::Main(argument_count, arguments); });
}
