// phubctl man-page: phubctl(1), made from the commands themselves, so that it knows what they know.
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
               "asks a phub daemon how it and its jobs are");
  page.Section("SYNOPSIS");
  page.Literal("phubctl [OPTION...] COMMAND [ARGUMENT...]");
  page.Section("DESCRIPTION");
  page.Paragraph(
      "Data goes to standard output, everything else to standard error. Options may come before or "
      "after the command; those with a variable in parentheses can be set there, too.");
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
  const Subcommand man_page = parent.AddSubcommand("man-page", "The manual page, for man(1)");
  man_page.Hide();  // for packagers: not among the commands that people are shown
  man_page.OnNamed([&command, parent] { command = [parent] { return PrintManPage(parent); }; });
}

}  // namespace phub::client::cli
