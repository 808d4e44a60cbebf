// phubctl man-page: phubctl(1), generated from the command definitions.
#include "common/base/man_page.h"

#include <fmt/format.h>

#include "client/cli/cli.h"
#include "common/base/version.h"

namespace phub::client::cli {
namespace {

// "-o, --output FORMAT (PHUB_OUTPUT)"
std::string TagOf(const Argument& argument) {
  std::string tag = argument.PositionalName();
  for (const std::string& name : argument.Names()) tag += (tag.empty() ? "" : ", ") + name;
  if (!argument.Placeholder().empty()) tag += " " + argument.Placeholder();
  if (!argument.EnvironmentName().empty()) tag += fmt::format(" ({})", argument.EnvironmentName());
  return tag;
}

void WriteOptions(Subcommand command, ManPage& page) {
  for (const Argument& argument : command.Arguments()) {
    const std::string fallback = argument.DefaultText();
    page.Item(TagOf(argument),
              fmt::format("{}{}", argument.Description(),
                          fallback.empty() ? "" : fmt::format(" (default: {})", fallback)));
  }
}

void WriteCommands(Subcommand command, ManPage& page) {
  for (const Subcommand& child : command.Subcommands()) {
    if (child.IsHidden()) continue;
    page.Subsection(child.Path());
    page.Paragraph(child.Description());
    WriteOptions(child, page);
    if (!child.Footer().empty()) page.Literal(child.Footer());
    WriteCommands(child, page);
  }
}

int PrintManPage(Subcommand root) {
  ManPage page("phubctl", 1, fmt::format("phub {}", BuildVersion()),
               "inspect and administer phub daemons and their jobs");
  page.Section("SYNOPSIS");
  page.Literal("phubctl [OPTION...] COMMAND [ARGUMENT...]");
  page.Section("DESCRIPTION");
  page.Paragraph(
      "phubctl prints data to standard output and messages to standard error. Global options may "
      "come before or after the command. A name in parentheses is an environment variable that "
      "sets "
      "the option.");
  page.Section("OPTIONS");
  WriteOptions(root, page);
  page.Section("COMMANDS");
  WriteCommands(root, page);
  page.Section("EXAMPLES AND EXIT STATUS");
  page.Literal(root.Footer());
  page.Section("SEE ALSO");
  page.Paragraph("phubd(8)");
  fmt::print("{}", page.text());
  return kOk;
}

}  // namespace

void AddManPage(Subcommand parent, Command& command) {
  const Subcommand man_page = parent.AddSubcommand("man-page", "Print the manual page, for man(1)");
  man_page.Hide();  // for packagers
  man_page.OnNamed([&command, parent] { command = [parent] { return PrintManPage(parent); }; });
}

}  // namespace phub::client::cli
