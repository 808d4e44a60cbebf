#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>

#include "common/base/status_text.h"
#include "common/base/suggest.h"
#include "server/config/config_sources.h"
#include "server/config/setting_table.h"

namespace phub::server {
namespace {

constexpr const char* kSeeHelp = "phubd --help lists all flags";

std::vector<std::string> KnownFlags() {
  std::vector<std::string> flags = {"--help",   "--version",      "--man-page",
                                    "--config", "--check-config", "--dump-config"};
  for (const Setting& setting : AllSettings()) flags.push_back(setting.Flag());
  return flags;
}

std::string DescribeExtra(const std::string& argument) {
  if (argument.rfind('-', 0) != 0) {
    return fmt::format("unexpected argument \"{}\": phubd accepts only flags; {}", argument,
                       kSeeHelp);
  }
  const std::vector<std::string> flags = KnownFlags();
  const std::vector<std::string_view> known(flags.begin(), flags.end());
  const std::string name = argument.substr(0, argument.find('='));
  const std::string hint = DidYouMean(name, known);
  return fmt::format("unknown flag \"{}\"{}", name,
                     hint.empty() ? fmt::format("; {}", kSeeHelp) : hint);
}

void ReadFlag(std::size_t index, const std::string& text, Assignments& assignments) {
  const Setting& setting = AllSettings()[index];
  const auto value = ReadText(setting.kind, text);
  if (!value.ok()) {
    assignments.problems.push_back(
        fmt::format("{}: \"{}\" {}", setting.Flag(), text, MessageOf(value.status())));
    return;
  }
  assignments.found.push_back({index, SettingSource::kFlag, setting.Flag(),
                               fmt::format("{}={}", setting.Flag(), text), *value});
}

}  // namespace

CommandLine ReadCommandLine(std::span<const char* const> arguments) {
  CommandLine result;
  CLI::App app("phubd");
  app.set_help_flag();  // HelpText() prints the help, from the table of settings
  app.allow_extras();
  bool help = false, version = false, man_page = false, check = false, dump = false;
  app.add_flag("-h,--help", help);
  app.add_flag("--version", version);
  app.add_flag("--man-page", man_page);
  app.add_flag("--check-config", check);
  app.add_flag("--dump-config", dump);
  app.add_option("-c,--config", result.config_path);
  const auto settings = AllSettings();
  std::deque<std::string> texts(settings.size());  // CLI11 keeps references
  std::vector<CLI::Option*> options;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const bool is_switch = settings[i].kind.form == SettingKind::Form::kSwitch;
    options.push_back(is_switch ? app.add_flag(settings[i].Flag(), texts[i])
                                : app.add_option(settings[i].Flag(), texts[i]));
  }
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::ParseError& error) {
    result.assignments.problems.push_back(fmt::format("{}; {}", error.what(), kSeeHelp));
  }
  if (help)
    result.action = Action::kHelp;
  else if (version)
    result.action = Action::kVersion;
  else if (man_page)
    result.action = Action::kManPage;
  else if (check)
    result.action = Action::kCheckConfig;
  else if (dump)
    result.action = Action::kDumpConfig;
  if (!result.assignments.problems.empty()) return result;
  for (const std::string& extra : app.remaining()) {
    // The value of an unknown flag is left over too; report only the flag.
    if (extra.rfind('-', 0) != 0 && !result.assignments.problems.empty()) continue;
    result.assignments.problems.push_back(DescribeExtra(extra));
  }
  for (std::size_t i = 0; i < settings.size(); ++i)
    if (options[i]->count() > 0) ReadFlag(i, texts[i], result.assignments);
  return result;
}

}  // namespace phub::server
