// Describes the commands of phubctl and their options: names, variables for values, and checks.
// Only command_line.cc includes the parser (CLI11), since its headers take longer to compile than
// most commands.
//   Subcommand get = job.AddSubcommand("get", "One job");
//   get.AddOption("NAME", query->name, "Name of the job").Required().TypeName("");
//   get.OnNamed([&, query] { command = [&, query] { return GetJob(options, *query); }; });
// Subcommand and Argument are handles that can be copied. They are valid as long as their
// CommandLine. The variables that options write to must live as long. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace phub::client::cli {

// An option ("-o,--output"), a flag or a positional argument ("NAME") of one command.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  Argument Required() const;
  Argument TypeName(const std::string& name) const;  // placeholder of the value in help
  Argument Environment(const std::string& variable) const;
  Argument ShowDefault() const;  // the variable's present value
  Argument ValueMayBeLeftOut(const std::string& instead) const;
  Argument OneOf(const std::vector<std::string>& values) const;
  Argument InRange(int least, int most) const;
  // `check` returns what is wrong with a value; empty if the value is valid.
  Argument Check(const std::function<std::string(const std::string&)>& check) const;
  Argument Transform(const std::function<std::string(std::string)>& transform) const;
  Argument Excludes(const std::string& other) const;  // `other` must already exist

  // For the manual page and the shell's completion.
  std::vector<std::string> Names() const;  // "-o", "--output"; empty: a positional argument
  std::string PositionalName() const;      // empty: an option or flag
  std::string Placeholder() const;         // the value's, in help; empty: takes no value
  std::string EnvironmentName() const;
  std::string DefaultText() const;
  std::string Description() const;
  bool NeedsValue() const;

 private:
  CLI::Option* option_;
};

// A command. A default-constructed one names no command; use it only after an assignment.
class Subcommand {
 public:
  Subcommand() = default;
  explicit Subcommand(CLI::App* app) : app_(app) {}

  Subcommand AddSubcommand(const std::string& name, const std::string& description) const;
  Argument AddOption(const std::string& names, std::string& value, const std::string& help) const;
  Argument AddOption(const std::string& names, std::vector<std::string>& values,
                     const std::string& help) const;
  Argument AddOption(const std::string& names, int& value, const std::string& help) const;
  Argument AddOption(const std::string& names, std::uint32_t& value, const std::string& help) const;
  Argument AddOption(const std::string& names, std::uint64_t& value, const std::string& help) const;
  Argument AddFlag(const std::string& names, bool& value, const std::string& help) const;
  void SetFooter(const std::string& text) const;
  void OnNamed(const std::function<void()>& call) const;  // called after all values were set
  void Hide() const;                                      // hides it in help; see IsHidden()

  std::string Name() const;
  std::string Path() const;  // "phubctl job get"
  std::string Description() const;
  std::string Footer() const;
  std::string Help() const;
  bool IsHidden() const;
  std::vector<Argument> Arguments() const;
  std::vector<Subcommand> Subcommands() const;
  std::optional<Subcommand> Parent() const;

 private:
  CLI::App* app_ = nullptr;
};

// The result of parsing. At most one of these is set: `exit_code` (help or the version was
// requested and printed), `error`, `extras` (unknown words).
struct Parsed {
  Subcommand named;  // the innermost command that was recognized
  std::optional<int> exit_code;
  std::string error;
  std::vector<std::string> extras;
};

class CommandLine {
 public:
  // `help_footer`: the end of every command's help, except the program's own.
  CommandLine(const std::string& name, const std::string& description, const std::string& version,
              const std::string& help_footer);
  ~CommandLine();

  Subcommand root() const;
  // Call once, after all commands were added. Global options may follow any command.
  Parsed Parse(int argument_count, char** arguments);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace phub::client::cli
