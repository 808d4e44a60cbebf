#include "client/cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <utility>

namespace phub::client::cli {
namespace {

// Global options may follow any command. Every command's help says where they are described.
class HelpFormatter final : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string footer) : footer_(std::move(footer)) {}

  std::string make_footer(const CLI::App* app) const override {
    const std::string own = CLI::Formatter::make_footer(app);
    return app->get_parent() == nullptr ? own : own + footer_;
  }

 private:
  std::string footer_;
};

void AllowExtras(CLI::App& app) {
  app.allow_extras();  // phubctl reports them itself, with a suggestion
  app.fallthrough();   // global options may come after the command
  for (CLI::App* subcommand : app.get_subcommands(nullptr)) AllowExtras(*subcommand);
}

// The innermost command that was recognized.
CLI::App* Deepest(CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().back();
  return app;
}

}  // namespace

Argument Argument::Required() const { return Argument(option_->required()); }

Argument Argument::TypeName(const std::string& name) const {
  return Argument(option_->type_name(name));
}

Argument Argument::Environment(const std::string& variable) const {
  return Argument(option_->envname(variable));
}

Argument Argument::ShowDefault() const { return Argument(option_->capture_default_str()); }

Argument Argument::ValueMayBeLeftOut(const std::string& instead) const {
  return Argument(option_->expected(0, 1)->default_str(instead));
}

Argument Argument::OneOf(const std::vector<std::string>& values) const {
  return Argument(option_->check(CLI::IsMember(values)));
}

Argument Argument::InRange(int least, int most) const {
  return Argument(option_->check(CLI::Range(least, most)));
}

Argument Argument::Check(const std::function<std::string(const std::string&)>& check) const {
  return Argument(option_->check(check));
}

Argument Argument::Transform(const std::function<std::string(std::string)>& transform) const {
  return Argument(option_->transform(transform));
}

Argument Argument::Excludes(const std::string& other) const {
  return Argument(option_->excludes(other));
}

std::vector<std::string> Argument::Names() const {
  std::vector<std::string> names;
  for (const std::string& name : option_->get_snames()) names.push_back("-" + name);
  for (const std::string& name : option_->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string Argument::PositionalName() const {
  return option_->get_positional() ? option_->get_name(/*positional=*/true) : std::string();
}

std::string Argument::Placeholder() const {
  return option_->nonpositional() && option_->get_expected_max() > 0 ? option_->get_type_name()
                                                                     : std::string();
}

std::string Argument::EnvironmentName() const { return option_->get_envname(); }
std::string Argument::DefaultText() const { return option_->get_default_str(); }
std::string Argument::Description() const { return option_->get_description(); }
bool Argument::NeedsValue() const { return option_->get_expected_min() > 0; }

Subcommand Subcommand::AddSubcommand(const std::string& name,
                                     const std::string& description) const {
  return Subcommand(app_->add_subcommand(name, description));
}

Argument Subcommand::AddOption(const std::string& names, std::string& value,
                               const std::string& help) const {
  return Argument(app_->add_option(names, value, help));
}

Argument Subcommand::AddOption(const std::string& names, std::vector<std::string>& values,
                               const std::string& help) const {
  return Argument(app_->add_option(names, values, help));
}

Argument Subcommand::AddOption(const std::string& names, int& value,
                               const std::string& help) const {
  return Argument(app_->add_option(names, value, help));
}

Argument Subcommand::AddOption(const std::string& names, std::uint32_t& value,
                               const std::string& help) const {
  return Argument(app_->add_option(names, value, help));
}

Argument Subcommand::AddOption(const std::string& names, std::uint64_t& value,
                               const std::string& help) const {
  return Argument(app_->add_option(names, value, help));
}

Argument Subcommand::AddFlag(const std::string& names, bool& value, const std::string& help) const {
  return Argument(app_->add_flag(names, value, help));
}

void Subcommand::SetFooter(const std::string& text) const { app_->footer(text); }
void Subcommand::OnNamed(const std::function<void()>& call) const { app_->callback(call); }
void Subcommand::Hide() const { app_->group(""); }

std::string Subcommand::Name() const { return app_->get_name(); }

std::string Subcommand::Path() const {
  std::string path = app_->get_name();
  for (const CLI::App* app = app_->get_parent(); app != nullptr; app = app->get_parent())
    path = fmt::format("{} {}", app->get_name(), path);
  return path;
}

std::string Subcommand::Description() const { return app_->get_description(); }
std::string Subcommand::Footer() const { return app_->get_footer(); }

std::string Subcommand::Help() const {
  const std::optional<Subcommand> parent = Parent();
  return app_->help(parent ? parent->Path() : std::string());
}

bool Subcommand::IsHidden() const { return app_->get_group().empty(); }

std::vector<Argument> Subcommand::Arguments() const {
  std::vector<Argument> arguments;
  for (CLI::Option* option : app_->get_options()) arguments.emplace_back(option);
  return arguments;
}

std::vector<Subcommand> Subcommand::Subcommands() const {
  std::vector<Subcommand> subcommands;
  for (CLI::App* app : app_->get_subcommands(nullptr)) subcommands.emplace_back(app);
  return subcommands;
}

std::optional<Subcommand> Subcommand::Parent() const {
  CLI::App* parent = app_->get_parent();
  if (parent == nullptr) return std::nullopt;
  return Subcommand(parent);
}

CommandLine::CommandLine(const std::string& name, const std::string& description,
                         const std::string& version, const std::string& help_footer)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->formatter(std::make_shared<HelpFormatter>(help_footer));
  app_->set_version_flag("--version", version);
}

CommandLine::~CommandLine() = default;

Subcommand CommandLine::root() const { return Subcommand(app_.get()); }

Parsed CommandLine::Parse(int argument_count, char** arguments) {
  AllowExtras(*app_);
  Parsed parsed;
  try {
    app_->parse(argument_count, arguments);
    parsed.extras = app_->remaining(/*recurse=*/true);
    std::erase(parsed.extras, "--");       // only ends the options
  } catch (const CLI::Success& success) {  // --help, --version
    parsed.exit_code = app_->exit(success);
  } catch (const CLI::ParseError& error) {
    parsed.error = error.what();
  }
  parsed.named = Subcommand(Deepest(app_.get()));
  return parsed;
}

}  // namespace phub::client::cli
