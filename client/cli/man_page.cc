// phubctl man-page: phubctl(1), made from the commands themselves, so that it knows what they know.
#include "common/base/man_page.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "client/cli/cli.h"
#include "common/base/version.h"

namespace phub::client::cli {
namespace {

// "-o, --output FORMAT (PHUB_OUTPUT)"
std::string TagOf(const CLI::Option& option) {
  std::string tag = option.get_positional() ? option.get_name(/*positional=*/true) : "";
  for (const std::string& name : option.get_snames()) tag += (tag.empty() ? "-" : ", -") + name;
  for (const std::string& name : option.get_lnames()) tag += (tag.empty() ? "--" : ", --") + name;
  if (option.nonpositional() && !option.get_type_name().empty() && option.get_expected_max() > 0)
    tag += " " + option.get_type_name();
  if (!option.get_envname().empty()) tag += fmt::format(" ({})", option.get_envname());
  return tag;
}

void WriteOptions(const CLI::App& app, ManPage& page) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string fallback = option->get_default_str();
    page.Item(TagOf(*option),
              fmt::format("{}{}", option->get_description(),
                          fallback.empty() ? "" : fmt::format(" (default: {})", fallback)));
  }
}

void WriteCommands(const CLI::App& app, const std::string& path, ManPage& page) {
  for (const CLI::App* child : app.get_subcommands(nullptr)) {
    if (child->get_group().empty()) continue;  // hidden
    const std::string child_path = fmt::format("{} {}", path, child->get_name());
    page.Subsection(child_path);
    page.Paragraph(child->get_description());
    WriteOptions(*child, page);
    if (!child->get_footer().empty()) page.Literal(child->get_footer());
    WriteCommands(*child, child_path, page);
  }
}

int PrintManPage(const CLI::App& root) {
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
  WriteCommands(root, root.get_name(), page);
  page.Section("EXAMPLES AND EXIT STATUS");
  page.Literal(root.get_footer());
  page.Section("SEE ALSO");
  page.Paragraph("phubd(8)");
  fmt::print("{}", page.text());
  return kOk;
}

}  // namespace

void AddManPage(CLI::App& parent, Command& command) {
  CLI::App* man_page = parent.add_subcommand("man-page", "The manual page, for man(1)");
  man_page->group("");  // for packagers: not among the commands that people are shown
  man_page->callback([&] { command = [&] { return PrintManPage(parent); }; });
}

}  // namespace phub::client::cli
