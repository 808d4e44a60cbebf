#include "server/config/config.h"

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/status_text.h"
#include "server/config/control_store_setting.h"
#include "server/config/data_tls.h"
#include "server/config/place_setting.h"
#include "server/config/sum_settings.h"
#include "server/config/rack_settings.h"
#include "server/config/setting_table.h"
#include "server/config/view_settings.h"

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

// Call it for the sources in order of increasing precedence.
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
  if (!settings.tls_certificate.empty() && HasIdentities(settings)) return;
  if (!IsBeyondLoopback(text)) return;
  const Assignment& assignment = EffectiveOf(config, name);
  const char* const missing = HasIdentities(settings) ? "calls would not be encrypted"
                              : !settings.tls_certificate.empty()
                                  ? "callers would not be authenticated"
                                  : "calls would be neither encrypted nor authenticated";
  config.problems.push_back(fmt::format(
      "{}: {} = \"{}\" can be reached from other hosts, and {}. Anyone who reaches the port could "
      "use and read every job. Set tls_certificate, tls_key (phubctl pki creates them) and "
      "state_dir, listen on 127.0.0.1, or accept the risk with --insecure (insecure = true in the "
      "file, PHUB_INSECURE=true)",
      assignment.place, name, text, missing));
}

// gRPC does not limit what strangers cost it.
void CheckFront(Config& config) {
  const Settings& settings = config.settings;
  if (settings.front || !IsBeyondLoopback(settings.listen)) return;
  config.problems.push_back(fmt::format(
      "{}: front = false needs a loopback address, but listen = \"{}\" can be reached from other "
      "hosts, and gRPC does not limit what their connections cost. Listen on 127.0.0.1, or remove "
      "front = false",
      EffectiveOf(config, "front").place, settings.listen));
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
  // Without a control store that lasts there are no tenants that a certificate could name.
  needs("tls_client_ca", settings.tls_client_ca, "state_dir or control_store",
        settings.state_dir + settings.control_store);
  constexpr std::string_view kOfADomain = "abcdefghijklmnopqrstuvwxyz0123456789.-_";
  if (settings.trust_domain.empty() ||
      settings.trust_domain.find_first_not_of(kOfADomain) != std::string::npos) {
    config.problems.push_back(
        fmt::format("{}: trust_domain = \"{}\" is not valid; use only a-z, 0-9, '.', '-' and '_'",
                    EffectiveOf(config, "trust_domain").place, settings.trust_domain));
  }
}

// The metrics port is read-only, so opening it needs less than opening the control plane.
void CheckMetricsExposure(Config& config) {
  const Settings& settings = config.settings;
  if (settings.metrics_listen.empty() || settings.metrics_open) return;
  if (!IsBeyondLoopback(settings.metrics_listen)) return;
  config.problems.push_back(fmt::format(
      "{}: metrics_listen = \"{}\" can be reached from other hosts. Anyone who reaches the port "
      "could read the names of tenants and jobs. Listen on 127.0.0.1, or allow it with "
      "--metrics-open (metrics_open = true in the file, PHUB_METRICS_OPEN=true)",
      EffectiveOf(config, "metrics_listen").place, settings.metrics_listen));
}

// The page has no TLS, and its callers with identities send a token.
void CheckPageExposure(Config& config) {
  const Settings& settings = config.settings;
  if (settings.page_listen.empty() || !IsBeyondLoopback(settings.page_listen)) return;
  const std::string place = EffectiveOf(config, "page_listen").place;
  if (HasIdentities(settings)) {
    config.problems.push_back(fmt::format(
        "{}: page_listen = \"{}\" is not a loopback address. With state_dir the page needs a "
        "token, "
        "and the port has no TLS. Listen on 127.0.0.1, and reach it through ssh -L or a proxy with "
        "TLS",
        place, settings.page_listen));
  } else if (!settings.page_open) {
    config.problems.push_back(fmt::format(
        "{}: page_listen = \"{}\" can be reached from other hosts. Anyone who reaches the port "
        "could "
        "read the names of tenants and jobs. Listen on 127.0.0.1, or allow it with --page-open "
        "(page_open = true in the file, PHUB_PAGE_OPEN=true)",
        place, settings.page_listen));
  }
}

void CheckTogether(Config& config) {
  if (const absl::Status store = ResolveControlStore(config.settings); !store.ok()) {
    config.problems.push_back(
        fmt::format("{}: {}", EffectiveOf(config, "control_store").place, MessageOf(store)));
    return;
  }
  const Settings& settings = config.settings;
  if (const absl::Status place = CheckPlace(settings); !place.ok()) {
    const char* const culprit = settings.place.empty() ? "advertise" : "place";
    config.problems.push_back(
        fmt::format("{}: {}", EffectiveOf(config, culprit).place, MessageOf(place)));
  }
  if (const absl::Status racks = CheckNoRackSettings(settings); !racks.ok()) {
    config.problems.push_back(
        fmt::format("{}: {}", EffectiveOf(config, "place").place, MessageOf(racks)));
    return;
  }
  CheckExposure("listen", settings.listen, config);
  CheckExposure("data_listen", settings.data_listen, config);
  CheckMetricsExposure(config);
  CheckPageExposure(config);
  CheckFront(config);
  CheckTls(config);
  if (const DataTls data = DataTlsOf(settings); !data.problem.empty()) {
    config.problems.push_back(
        fmt::format("{}: {}", EffectiveOf(config, "data_tls").place, data.problem));
  }
  if (const auto place = FindRackPlace(settings); !place.ok()) {
    const Assignment& self = EffectiveOf(config, "self");
    const Assignment& daemons = EffectiveOf(config, "daemons");
    const Assignment& culprit = settings.self.empty() ? daemons : self;
    config.problems.push_back(fmt::format("{}: {}", culprit.place, MessageOf(place.status())));
  }
  if (const auto place = FindPlaceAmongRacks(settings); !place.ok()) {
    const char* const culprit = !settings.rack_self.empty()     ? "rack_self"
                                : !settings.aggregators.empty() ? "aggregators"
                                : !settings.racks.empty()       ? "racks"
                                : !settings.topology.empty()    ? "topology"
                                                                : "role";
    config.problems.push_back(
        fmt::format("{}: {}", EffectiveOf(config, culprit).place, MessageOf(place.status())));
  }
  const bool has_identity = HasIdentities(settings) || !settings.tls_certificate.empty();
  if (!settings.racks.empty() && has_identity && settings.tls_client_ca.empty()) {
    config.problems.push_back(fmt::format(
        "{}: racks needs state_dir, tls_certificate and tls_client_ca together as soon as one of "
        "them is set. Daemons of different racks authenticate with certificates of server/<name> "
        "(phubctl pki creates them)",
        EffectiveOf(config, "racks").place));
  }
  if (const absl::Status sums = CheckSumAggregators(settings); !sums.ok()) {
    config.problems.push_back(
        fmt::format("{}: {}", EffectiveOf(config, "sum_aggregator").place, MessageOf(sums)));
  }
  if (settings.staging_bytes_per_lane < settings.chunk_bytes) {
    const Assignment& staging = EffectiveOf(config, "staging_bytes_per_lane");
    const Assignment& chunk = EffectiveOf(config, "chunk_bytes");
    const Assignment& culprit = staging.source >= chunk.source ? staging : chunk;
    config.problems.push_back(fmt::format(
        "{}: staging_bytes_per_lane ({}, from {}) is smaller than chunk_bytes ({}, from {}); make "
        "it at least as large",
        culprit.place, ExactBytes(settings.staging_bytes_per_lane), staging.place,
        ExactBytes(settings.chunk_bytes), chunk.place));
  }
}

}  // namespace

Config LoadConfig(std::span<const char* const> arguments,
                  std::span<const std::string> environment) {
  Config config;
  config.effective = Defaults();
  const CommandLine command_line = ReadCommandLine(arguments);
  config.action = command_line.action;
  if (config.action == Action::kHelp || config.action == Action::kVersion ||
      config.action == Action::kManPage) {
    return config;
  }
  const Environment variables = ReadEnvironment(environment);
  const std::string& path =
      command_line.config_path.empty() ? variables.config_path : command_line.config_path;
  if (!path.empty()) Overlay(ReadConfigFile(path), config);
  Overlay(variables.assignments, config);
  Overlay(command_line.assignments, config);
  for (std::size_t i = 0; i < config.effective.size(); ++i)
    AllSettings()[i].assign(config.settings, config.effective[i].value);
  // Invalid values were left out above, so checking the others together could mislead.
  if (config.problems.empty()) CheckTogether(config);
  return config;
}

}  // namespace phub::server
