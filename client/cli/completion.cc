// phubctl completion bash|zsh: a script generated from the command definitions.
#include <fmt/format.h>

#include <memory>
#include <set>

#include "client/cli/cli.h"

namespace phub::client::cli {
namespace {

std::string OptionWords(Subcommand command) {
  std::string words;
  for (const Argument& argument : command.Arguments())
    for (const std::string& name : argument.Names()) words += " " + name;
  return words;
}

// The script's tables: paths of commands, words that may follow each, and options with a value.
struct Tables {
  std::string commands;  // patterns of a case, joined with |
  std::string follow;    // arms of a case
  std::set<std::string> with_value;
};

void Walk(Subcommand command, const std::string& global_words, Tables& tables) {
  for (const Argument& argument : command.Arguments()) {
    if (!argument.NeedsValue()) continue;
    for (const std::string& name : argument.Names()) tables.with_value.insert(name);
  }
  std::string words;
  for (const Subcommand& child : command.Subcommands()) {
    if (child.IsHidden()) continue;
    words += (words.empty() ? "" : " ") + child.Name();
    tables.commands += fmt::format("{}\"{}\"", tables.commands.empty() ? "" : "|", child.Path());
    Walk(child, global_words, tables);
  }
  const bool is_root = !command.Parent().has_value();
  tables.follow += fmt::format("    \"{}\") words=\"{}{}{}\" ;;\n", command.Path(), words,
                               OptionWords(command), is_root ? "" : global_words);
}

std::string Script(Subcommand root) {
  Tables tables;
  Walk(root, OptionWords(root), tables);
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

int PrintCompletion(Subcommand root, const std::string& shell) {
  if (shell == "zsh") fmt::print("#compdef phubctl\nautoload -U +X bashcompinit && bashcompinit\n");
  fmt::print("{}", Script(root));
  return kOk;
}

}  // namespace

void AddCompletion(Subcommand parent, Command& command) {
  const Subcommand completion =
      parent.AddSubcommand("completion", "Print a shell script that completes phubctl's commands");
  const auto shell = std::make_shared<std::string>();
  completion.AddOption("SHELL", *shell, "bash or zsh")
      .Required()
      .TypeName("")
      .OneOf({"bash", "zsh"});
  completion.SetFooter(
      "Examples:\n"
      "  source <(phubctl completion bash)\n"
      "  phubctl completion bash > /etc/bash_completion.d/phubctl");
  completion.OnNamed([&command, parent, shell] {
    command = [parent, shell] { return PrintCompletion(parent, *shell); };
  });
}

}  // namespace phub::client::cli
