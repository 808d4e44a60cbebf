// Texts about phubd's settings: the help, the manual page and the dump of the values in effect.
#include <fmt/format.h>

#include "common/base/man_page.h"
#include "common/base/version.h"
#include "server/config/config.h"
#include "server/config/setting_table.h"

namespace phub::server {
namespace {

struct Flag {
  std::string_view name;
  std::string_view help;
};
constexpr Flag kFlags[] = {
    {"-h, --help", "print this help"},
    {"--version", "print version and commit"},
    {"--man-page", "print the manual page, for man(1)"},
    {"-c, --config FILE", "read settings from a TOML file (also: PHUB_CONFIG)"},
    {"--check-config",
     "check that phubd would start here with these settings, and exit: 0 if so; 1 with every "
     "reason "
     "if not; 2 if a setting is not valid"},
    {"--dump-config", "print the settings in effect as TOML, with the source of each"},
};
constexpr std::string_view kExamples =
    "  phubd                                        serve this host on 127.0.0.1:7700\n"
    "  phubd --listen 127.0.0.1:0 --port-file port  use any free port, write it to \"port\"\n"
    "  phubd --cores 2-5 --memory-max 32GiB         run four pinned core loops\n"
    "  phubd --dump-config > phubd.toml             write a file with every default\n"
    "  phubd --config phubd.toml --check-config     check a file: print ok, or every problem\n";
constexpr std::string_view kAboutSettings =
    "Set each one with a flag (--data-listen), an environment variable (PHUB_DATA_LISTEN) or a key "
    "in the file (data_listen). A flag overrides a variable, a variable overrides the file, and "
    "the file overrides the default.";
constexpr std::string_view kSignals =
    "SIGTERM and SIGINT drain phubd: it accepts no new jobs, gives running jobs drain_timeout to "
    "end, and exits with 0. A second signal ends it at once with 1. SIGHUP reads the settings "
    "again: log_level and drain_timeout change at once. Other changed settings need a restart, "
    "which the log reports. An invalid file changes nothing.";

// Wraps `text` to lines of at most 100 columns, each after `indent`.
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

std::string DumpConfig(const Config& config) {
  std::string text = fmt::format(
      "# The configuration in effect of {}. Use it with --config FILE.\n", VersionText());
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
      "Examples:\n";
  text += kExamples;
  text += '\n';
  for (const Flag& flag : kFlags) text += fmt::format("  {:<18}  {}\n", flag.name, flag.help);
  text += fmt::format("\n{}", Wrapped(fmt::format("Settings. {}", kAboutSettings), ""));
  for (const Setting& setting : AllSettings()) {
    const bool is_switch = setting.kind.form == SettingKind::Form::kSwitch;
    text += fmt::format("\n  {}{}  (default: {})\n", setting.Flag(),
                        is_switch ? std::string() : fmt::format(" <{}>", Allowed(setting.kind)),
                        setting.fallback.empty() ? "none" : setting.fallback);
    text += Wrapped(setting.help, "      ");
  }
  text += fmt::format("\n{}", Wrapped(kSignals, ""));
  text +=
      "\nExit codes: 0 success; 1 failure, such as a port in use; 2 invalid flags or settings.\n";
  return text;
}

std::string ManPageText() {
  ManPage page("phubd", 8, fmt::format("phub {}", BuildVersion()), "parameter server daemon");
  page.Section("SYNOPSIS");
  page.Literal("phubd [--config FILE] [SETTING...]");
  page.Section("DESCRIPTION");
  page.Paragraph(
      "phubd sums the gradients of training jobs, runs their optimizers and sends the new "
      "parameters to every worker. Training programs connect with libphub, operators with "
      "phubctl(1).");
  page.Section("OPTIONS");
  for (const Flag& flag : kFlags) page.Item(flag.name, flag.help);
  page.Section("SETTINGS");
  page.Paragraph(kAboutSettings);
  for (const Setting& setting : AllSettings()) {
    page.Item(fmt::format("{}, {}", setting.name, setting.Flag()),
              fmt::format("{}\nAllowed: {}. Default: {}.", setting.help, Allowed(setting.kind),
                          setting.fallback.empty() ? "none" : setting.fallback));
  }
  page.Section("SIGNALS");
  page.Paragraph(kSignals);
  page.Section("EXIT STATUS");
  page.Paragraph("0 success; 1 failure, such as a port in use; 2 invalid flags or settings.");
  page.Section("FILES");
  page.Item("/etc/phub/phubd.toml", "The settings of the packaged service, phubd.service.");
  page.Section("EXAMPLES");
  page.Literal(kExamples);
  page.Section("SEE ALSO");
  page.Paragraph("phubctl(1), systemctl(1)");
  return page.text();
}

std::string VersionText() { return fmt::format("phubd {} ({})", BuildVersion(), BuildCommit()); }

}  // namespace phub::server
