#include "server/config/config.h"

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/status_text.h"
#include "common/base/version.h"
#include "server/config/rack_settings.h"
#include "server/config/setting_table.h"

namespace phub::server {
namespace {

std::vector<Assignment> Defaults() {
  std::vector<Assignment> defaults;
  const auto settings = AllSettings();
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const auto value = ReadText(settings[i].kind, settings[i].fallback);
    PHUB_CHECK(value.ok(), "setting={} fallback={} error={}", settings[i].name,
               settings[i].fallback, MessageOf(value.status()));
    defaults.push_back({i, SettingSource::kDefault, "default", "the default", *value});
  }
  return defaults;
}

// Called from the weakest source to the strongest.
void Overlay(const Assignments& source, Config& config) {
  for (const Assignment& assignment : source.found)
    config.effective[assignment.setting_index] = assignment;
  config.problems.insert(config.problems.end(), source.problems.begin(), source.problems.end());
}

const Assignment& EffectiveOf(const Config& config, std::string_view name) {
  const std::size_t index = FindSetting(name);
  PHUB_CHECK(index < config.effective.size(), "setting={}", name);
  return config.effective[index];
}

void CheckExposure(std::string_view name, const std::string& text, Config& config) {
  const Settings& settings = config.settings;
  if (text.empty() || settings.insecure) return;
  if (!settings.tls_certificate.empty() && !settings.state_dir.empty()) return;
  const auto address = ParseHostAndPort(text);
  PHUB_CHECK(address.ok(), "setting={} value={}", name, text);
  if (IsLoopback(address->host)) return;
  const Assignment& assignment = EffectiveOf(config, name);
  const char* const missing = !settings.state_dir.empty() ? "calls would not be encrypted"
                              : !settings.tls_certificate.empty()
                                  ? "phub would not ask who calls"
                                  : "calls would not be encrypted, nor asked who calls";
  config.problems.push_back(fmt::format(
      "{}: {} = \"{}\" can be reached from other hosts, and {}: whoever reaches the port could use "
      "and read every job. Set tls_certificate, tls_key (phubctl pki makes them) and state_dir, "
      "listen on 127.0.0.1, or accept the risk with --insecure (insecure = true in the file, "
      "PHUB_INSECURE=true)",
      assignment.place, name, text, missing));
}

void CheckTls(Config& config) {
  const Settings& settings = config.settings;
  const auto needs = [&](std::string_view name, const std::string& value, std::string_view other,
                         const std::string& needed) {
    if (value.empty() || !needed.empty()) return;
    config.problems.push_back(fmt::format("{}: {} needs {}, which is not set",
                                          EffectiveOf(config, name).place, name, other));
  };
  needs("tls_certificate", settings.tls_certificate, "tls_key", settings.tls_key);
  needs("tls_key", settings.tls_key, "tls_certificate", settings.tls_certificate);
  needs("tls_client_ca", settings.tls_client_ca, "tls_certificate", settings.tls_certificate);
  // Without state there is no tenant that a certificate could name.
  needs("tls_client_ca", settings.tls_client_ca, "state_dir", settings.state_dir);
  constexpr std::string_view kOfADomain = "abcdefghijklmnopqrstuvwxyz0123456789.-_";
  if (settings.trust_domain.empty() ||
      settings.trust_domain.find_first_not_of(kOfADomain) != std::string::npos) {
    config.problems.push_back(
        fmt::format("{}: trust_domain = \"{}\" is not a name of a-z, 0-9, '.', '-' and '_'",
                    EffectiveOf(config, "trust_domain").place, settings.trust_domain));
  }
}

// The metrics port only tells: to open it is another decision than to open the control plane.
void CheckMetricsExposure(Config& config) {
  const Settings& settings = config.settings;
  if (settings.metrics_listen.empty() || settings.metrics_open) return;
  const auto address = ParseHostAndPort(settings.metrics_listen);
  PHUB_CHECK(address.ok(), "metrics_listen={}", settings.metrics_listen);
  if (IsLoopback(address->host)) return;
  config.problems.push_back(fmt::format(
      "{}: metrics_listen = \"{}\" can be reached from other hosts, and whoever reaches it can "
      "read the names of tenants and jobs. Listen on 127.0.0.1, or allow it with --metrics-open "
      "(metrics_open = true in the file, PHUB_METRICS_OPEN=true)",
      EffectiveOf(config, "metrics_listen").place, settings.metrics_listen));
}

void CheckTogether(Config& config) {
  const Settings& settings = config.settings;
  CheckExposure("listen", settings.listen, config);
  CheckExposure("data_listen", settings.data_listen, config);
  CheckMetricsExposure(config);
  CheckTls(config);
  if (const auto place = FindRackPlace(settings); !place.ok()) {
    const Assignment& self = EffectiveOf(config, "self");
    const Assignment& daemons = EffectiveOf(config, "daemons");
    const Assignment& culprit = settings.self.empty() ? daemons : self;
    config.problems.push_back(fmt::format("{}: {}", culprit.place, MessageOf(place.status())));
  }
  if (const auto place = FindPlaceAmongRacks(settings); !place.ok()) {
    const char* const culprit = !settings.rack_self.empty() ? "rack_self"
                                : settings.racks.empty()    ? "topology"
                                                            : "racks";
    config.problems.push_back(
        fmt::format("{}: {}", EffectiveOf(config, culprit).place, MessageOf(place.status())));
  }
  if (!settings.racks.empty() && !settings.state_dir.empty() && settings.tls_client_ca.empty()) {
    config.problems.push_back(fmt::format(
        "{}: racks with a state_dir need tls_client_ca: the daemons of other racks show a "
        "certificate of server/<name> (phubctl pki makes them)",
        EffectiveOf(config, "racks").place));
  }
  if (settings.staging_bytes_per_lane < settings.chunk_bytes) {
    const Assignment& staging = EffectiveOf(config, "staging_bytes_per_lane");
    const Assignment& chunk = EffectiveOf(config, "chunk_bytes");
    const Assignment& culprit = staging.source >= chunk.source ? staging : chunk;
    config.problems.push_back(fmt::format(
        "{}: staging_bytes_per_lane ({}, from {}) holds no chunk of chunk_bytes ({}, from "
        "{}); make it at least as large",
        culprit.place, ExactBytes(settings.staging_bytes_per_lane), staging.place,
        ExactBytes(settings.chunk_bytes), chunk.place));
  }
}

// Words of `text` in lines of at most 100 columns, each after `indent` spaces.
std::string Wrapped(std::string_view text, std::string_view indent) {
  constexpr std::size_t kColumns = 100;
  std::string wrapped(indent);
  std::size_t column = indent.size();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const bool is_first = column == indent.size();
    if (!is_first && column + 1 + word.size() > kColumns) {
      wrapped += '\n';
      wrapped += indent;
      column = indent.size();
    } else if (!is_first) {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += word.size();
    begin = end + 1;
  }
  return wrapped + '\n';
}

}  // namespace

Config LoadConfig(std::span<const char* const> arguments,
                  std::span<const std::string> environment) {
  Config config;
  config.effective = Defaults();
  const CommandLine command_line = ReadCommandLine(arguments);
  config.action = command_line.action;
  if (config.action == Action::kHelp || config.action == Action::kVersion) return config;
  const Environment variables = ReadEnvironment(environment);
  const std::string& path =
      command_line.config_path.empty() ? variables.config_path : command_line.config_path;
  if (!path.empty()) Overlay(ReadConfigFile(path), config);
  Overlay(variables.assignments, config);
  Overlay(command_line.assignments, config);
  for (std::size_t i = 0; i < config.effective.size(); ++i)
    AllSettings()[i].assign(config.settings, config.effective[i].value);
  // Values that are wrong alone were left out above: judging the rest together would mislead.
  if (config.problems.empty()) CheckTogether(config);
  return config;
}

std::string DumpConfig(const Config& config) {
  std::string text = fmt::format(
      "# The configuration in effect, of {}. Feed it back with --config FILE.\n", VersionText());
  for (const Assignment& assignment : config.effective) {
    const Setting& setting = AllSettings()[assignment.setting_index];
    const std::string line =
        fmt::format("{} = {}", setting.name, ToToml(setting.kind, assignment.value));
    text += fmt::format("\n{}{:<40}  # from: {}\n", Wrapped(setting.help, "# "), line,
                        assignment.place);
  }
  return text;
}

std::string HelpText() {
  std::string text =
      "phubd: the parameter server daemon of phub. Training jobs connect with libphub, operators\n"
      "with phubctl.\n\n"
      "Usage: phubd [--config FILE] [SETTING...]\n\n"
      "Examples:\n"
      "  phubd                                        serve this host on 127.0.0.1:7700\n"
      "  phubd --listen 127.0.0.1:0 --port-file port  any free port, written to the file \"port\"\n"
      "  phubd --cores 2-5 --memory-max 32GiB         four pinned core loops\n"
      "  phubd --dump-config > phubd.toml             a file to start from, with every default\n"
      "  phubd --config phubd.toml --check-config     is it right? prints ok, or what is wrong\n\n"
      "  -h, --help      this text\n"
      "  --version       version and commit\n"
      "  -c, --config FILE  read settings from a TOML file (also: PHUB_CONFIG)\n"
      "  --check-config  check the settings and leave: 0 and \"ok\", or 2 and every problem\n"
      "  --dump-config   print the settings in effect as TOML, with where each came from\n\n"
      "Settings. Each is a flag (--data-listen), a variable (PHUB_DATA_LISTEN) and a key of the "
      "file\n(data_listen); a flag wins over a variable, a variable over the file, the file over "
      "the default.\n";
  for (const Setting& setting : AllSettings()) {
    const bool is_switch = setting.kind.form == SettingKind::Form::kSwitch;
    text += fmt::format("\n  {}{}  (default: {})\n", setting.Flag(),
                        is_switch ? std::string() : fmt::format(" <{}>", Allowed(setting.kind)),
                        setting.fallback.empty() ? "none" : setting.fallback);
    text += Wrapped(setting.help, "      ");
  }
  text +=
      "\nSIGTERM and SIGINT drain: no new jobs, running jobs may end for drain_timeout, then "
      "phubd\n"
      "leaves with 0. A second signal ends it at once, with 1.\n\n"
      "Exit codes: 0 ok; 1 failure (a port in use, say); 2 wrong flags or settings.\n";
  return text;
}

std::string VersionText() { return fmt::format("phubd {} ({})", BuildVersion(), BuildCommit()); }

}  // namespace phub::server
