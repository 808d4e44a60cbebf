// phubctl completion bash|zsh: a script made from the commands themselves, so that it knows what
// they know.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <set>

#include "client/cli/cli.h"

namespace phub::client::cli {
namespace {

std::vector<std::string> Names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string OptionWords(const CLI::App& app) {
  std::string words;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : Names(*option)) words += " " + name;
  return words;
}

// What the script asks about: which paths are commands, what may follow each, which options take a
// value.
struct Tables {
  std::string commands;  // patterns of a case, joined with |
  std::string follow;    // arms of a case
  std::set<std::string> with_value;
};

void Walk(const CLI::App& app, const std::string& path, const std::string& global_words,
          Tables& tables) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_expected_min() == 0) continue;
    for (const std::string& name : Names(*option)) tables.with_value.insert(name);
  }
  std::string words;
  for (const CLI::App* child : app.get_subcommands(nullptr)) {
    if (child->get_group().empty()) continue;  // hidden
    const std::string child_path = path + " " + child->get_name();
    words += (words.empty() ? "" : " ") + child->get_name();
    tables.commands += fmt::format("{}\"{}\"", tables.commands.empty() ? "" : "|", child_path);
    Walk(*child, child_path, global_words, tables);
  }
  const bool is_root = app.get_parent() == nullptr;
  tables.follow += fmt::format("    \"{}\") words=\"{}{}{}\" ;;\n", path, words, OptionWords(app),
                               is_root ? "" : global_words);
}

std::string Script(const CLI::App& root) {
  Tables tables;
  Walk(root, root.get_name(), OptionWords(root), tables);
  std::string with_value;
  for (const std::string& name : tables.with_value)
    with_value += (with_value.empty() ? "" : "|") + name;
  return fmt::format(
      "_phubctl() {{\n"
      "  local path=\"phubctl\" words=\"\" i\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$path ${{COMP_WORDS[i]}}\" in\n"
      "      {}) path=\"$path ${{COMP_WORDS[i]}}\" ;;\n"
      "    esac\n"
      "  done\n"
      "  case \"${{COMP_WORDS[COMP_CWORD-1]}}\" in\n"
      "    {}) return 0 ;;\n"
      "  esac\n"
      "  case \"$path\" in\n"
      "{}"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"${{COMP_WORDS[COMP_CWORD]}}\"))\n"
      "}}\n"
      "complete -o default -F _phubctl phubctl\n",
      tables.commands, with_value, tables.follow);
}

int PrintCompletion(const CLI::App& root, const std::string& shell) {
  if (shell == "zsh") fmt::print("#compdef phubctl\nautoload -U +X bashcompinit && bashcompinit\n");
  fmt::print("{}", Script(root));
  return kOk;
}

}  // namespace

void AddCompletion(CLI::App& parent, Command& command) {
  CLI::App* completion =
      parent.add_subcommand("completion", "A script that completes phubctl's commands in a shell");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("SHELL", *shell, "bash or zsh")
      ->required()
      ->type_name("")
      ->check(CLI::IsMember({"bash", "zsh"}));
  completion->footer(
      "Examples:\n"
      "  source <(phubctl completion bash)\n"
      "  phubctl completion bash > /etc/bash_completion.d/phubctl");
  completion->callback(
      [&, shell] { command = [&, shell] { return PrintCompletion(parent, *shell); }; });
}

}  // namespace phub::client::cli
