// phubctl: what operators ask a phub daemon.
#include <fmt/format.h>
#include <openssl/crypto.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/cli/cli.h"
#include "client/cli/contexts.h"
#include "common/base/status_text.h"
#include "common/base/suggest.h"
#include "common/base/units.h"
#include "common/base/version.h"

namespace phub::client::cli {
namespace {

// Secrets are named by their files: what is on a command line, everybody on the host may read.
void AddCredentials(CLI::App& app, Credentials& credentials) {
  const auto add = [&](const char* name, std::string& path, const char* variable,
                       const char* help) {
    app.add_option(name, path, help)->envname(variable)->type_name("FILE");
  };
  add("--token-file", credentials.token_file, "PHUB_TOKEN_FILE", "Your token, mode 0600");
  add("--ca-file", credentials.ca_file, "PHUB_CA_FILE", "TLS: who certifies the daemon (PEM)");
  add("--certificate", credentials.certificate, "PHUB_CERTIFICATE", "Your certificate (PEM)");
  add("--key", credentials.key, "PHUB_KEY", "Its key (PEM), mode 0600");
  app.add_option("--server-name", credentials.server_name,
                 "The daemon's name in its certificate, if not the endpoint's host")
      ->envname("PHUB_SERVER_NAME")
      ->type_name("NAME");
  app.add_flag("--plaintext-token", credentials.plaintext_token,
               "Send the token to another host without TLS");
}

void AddGlobalOptions(CLI::App& app, Options& options) {
  app.add_option("-e,--endpoint", options.endpoint,
                 "The daemon: host:port or unix:PATH; else the context's, this host's control\n"
                 "socket, or 127.0.0.1:7700")
      ->envname("PHUB_ENDPOINT")
      ->type_name("ENDPOINT");
  app.add_option("--context", options.context, "The daemon by name: see `phubctl context`")
      ->envname("PHUB_CONTEXT")
      ->type_name("NAME");
  AddCredentials(app, options.credentials);
  app.add_option("-o,--output", options.output_text, "table, wide (more columns) or json")
      ->envname("PHUB_OUTPUT")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"table", "wide", "json"}))
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_text, "How long one answer may take")
      ->envname("PHUB_TIMEOUT")
      ->type_name("DURATION")
      ->check([](const std::string& text) {
        const auto timeout = ParseDuration(text);
        if (timeout && *timeout > 0) return std::string();
        return fmt::format("\"{}\" is not a duration, like \"5s\" or \"500ms\"", text);
      })
      ->capture_default_str();
  app.add_option("--tenant", options.tenant, "The tenant that is meant: its jobs, its tokens")
      ->envname("PHUB_TENANT")
      ->type_name("TENANT");
}

// Global options may stand after any command, and every command's help says where they are.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_footer(const CLI::App* app) const override {
    std::string footer = CLI::Formatter::make_footer(app);
    if (app->get_parent() == nullptr) return footer;
    return footer +
           "\nOptions of every command (-e, --context, --tenant, -o, ...): phubctl --help\n";
  }
};

void AllowExtras(CLI::App& app) {
  app.allow_extras();  // reported by us, with a suggestion
  app.fallthrough();   // global options may come after the command
  for (CLI::App* subcommand : app.get_subcommands(nullptr)) AllowExtras(*subcommand);
}

// The command that was named, as deep as it was understood.
const CLI::App* Deepest(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().back();
  return app;
}

std::string CommandPath(const CLI::App* app) {
  std::string path = app->get_name();
  for (app = app->get_parent(); app != nullptr; app = app->get_parent())
    path = fmt::format("{} {}", app->get_name(), path);
  return path;
}

int UsageError(const std::string& message, const CLI::App* app) {
  fmt::print(stderr, "phubctl: {}\nSee: {} --help\n", message, CommandPath(app));
  return kUsage;
}

int ReportExtra(const std::string& extra, const CLI::App* app) {
  const bool is_option = extra.rfind('-', 0) == 0;
  std::vector<std::string> names;
  if (is_option) {
    for (const CLI::App* level = app; level != nullptr; level = level->get_parent())
      for (const CLI::Option* option : level->get_options())
        for (const std::string& name : option->get_lnames())
          names.push_back(fmt::format("--{}", name));
  } else {
    for (const CLI::App* subcommand : app->get_subcommands(nullptr))
      names.push_back(subcommand->get_name());
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  const bool has_commands = !is_option && !names.empty();
  const char* what = is_option      ? "unknown option"
                     : has_commands ? "unknown command"
                                    : "unexpected argument";
  const std::string word = extra.substr(0, is_option ? extra.find('=') : std::string::npos);
  return UsageError(fmt::format("{} \"{}\"{}", what, word, DidYouMean(word, known)), app);
}

void AddCommands(CLI::App& app, Options& options, Command& command) {
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
  AddTop(app, options, command);
  AddPlan(app, options, command);
  AddDoctor(app, options, command);
  AddCompletion(app, command);
  AddManPage(app, command);
}

int Main(int argument_count, char** arguments) {
  Options options;
  Command command;
  CLI::App app("phubctl asks a phub daemon how it and its jobs are.", "phubctl");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", fmt::format("phubctl {} ({})", BuildVersion(), BuildCommit()));
  AddCommands(app, options, command);
  app.footer(
      "Examples:\n"
      "  phubctl health                                  is it there?\n"
      "  phubctl job list                                what runs\n"
      "  phubctl job stalls digits --watch               what a job waits for, live\n"
      "  phubctl top                                     who does how much, live\n"
      "  phubctl server list                             the rack's daemons\n"
      "  phubctl -e rack7:7700 job get digits -o json    for programs; data on standard output "
      "only\n"
      "  phubctl tenant create acme --memory 16GiB       who may use it, and how much\n"
      "\nExit codes: 0 ok; 1 failure; 2 wrong usage; 3 not found; 4 not allowed; 5 the daemon "
      "does\n"
      "not answer, or not within --timeout.");
  AllowExtras(app);

  try {
    app.parse(argument_count, arguments);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return UsageError(error.what(), Deepest(&app));
  }
  const CLI::App* named = Deepest(&app);
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  if (!extras.empty()) return ReportExtra(extras.front(), named);
  if (!command) {
    const CLI::App* parent = named->get_parent();
    fmt::print(stderr, "{}\n", named->help(parent == nullptr ? "" : CommandPath(parent)));
    return UsageError("a command is missing", named);
  }
  options.output = options.output_text == "json"   ? Output::kJson
                   : options.output_text == "wide" ? Output::kWide
                                                   : Output::kTable;
  options.timeout = ParseDuration(options.timeout_text).value_or(options.timeout);
  // gRPC's own lines are not for operators: what went wrong comes back as a status.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // What a context says is for calls; the contexts themselves are made of what is given.
  const CLI::App* noun = named;
  while (noun->get_parent() != nullptr && noun->get_parent() != &app) noun = noun->get_parent();
  constexpr std::array<std::string_view, 5> kWithoutDaemon = {"context", "pki", "plan", "doctor",
                                                              "completion"};
  if (std::find(kWithoutDaemon.begin(), kWithoutDaemon.end(), noun->get_name()) ==
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
  // gRPC's threads may outlive main: OpenSSL must not be taken down under them.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  return phub::client::cli::Main(argument_count, arguments);
}
