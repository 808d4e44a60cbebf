// phubctl context set, use, list, delete.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "client/cli/cli.h"
#include "client/cli/contexts.h"
#include "client/cli/output.h"

namespace phub::client::cli {
namespace {

// Reads, changes and writes the contexts. Writes only if `change` returns kOk.
int Edit(const std::function<int(Contexts&)>& change) {
  const std::string path = ContextsPath();
  absl::StatusOr<Contexts> contexts = ReadContexts(path);
  if (!contexts.ok()) return ReportError(contexts.status());
  if (const int code = change(*contexts); code != kOk) return code;
  const absl::Status written = WriteContexts(path, *contexts);
  return written.ok() ? static_cast<int>(kOk) : ReportError(written);
}

int MissingContext(const std::string& name) {
  return ReportError(absl::NotFoundError(
      fmt::format("no context {}; list them with `phubctl context list`", name)));
}

int SetContext(const Options& options, const std::string& name) {
  return Edit([&](Contexts& contexts) {
    if (options.endpoint.empty() && !contexts.all.contains(name)) {
      fmt::print(stderr, "phubctl: a new context needs --endpoint\n");
      return static_cast<int>(kUsage);
    }
    auto& context = contexts.all[name];
    const auto set = [&](const char* setting, const std::string& value) {
      if (!value.empty()) context[setting] = value;
    };
    // Store absolute paths: a context is used from any directory.
    const auto set_file = [&](const char* setting, const std::string& path) {
      std::error_code gone;  // set if the working directory does not exist
      const std::filesystem::path absolute = std::filesystem::absolute(path, gone);
      if (!path.empty()) context[setting] = gone ? path : absolute.lexically_normal().string();
    };
    set("endpoint", options.endpoint);
    set("tenant", options.tenant);
    set_file("token_file", options.credentials.token_file);
    set_file("ca_file", options.credentials.ca_file);
    set_file("certificate", options.credentials.certificate);
    set_file("key", options.credentials.key);
    set("server_name", options.credentials.server_name);
    if (contexts.current.empty()) contexts.current = name;
    return static_cast<int>(kOk);
  });
}

int UseContext(const std::string& name) {
  return Edit([&](Contexts& contexts) {
    if (!contexts.all.contains(name)) return MissingContext(name);
    contexts.current = name;
    return static_cast<int>(kOk);
  });
}

int DeleteContext(const std::string& name, bool yes) {
  if (!Confirmed(yes, fmt::format("Delete context {}?", name))) return kUsage;
  return Edit([&](Contexts& contexts) {
    if (contexts.all.erase(name) == 0) return MissingContext(name);
    if (contexts.current == name) contexts.current.clear();
    return static_cast<int>(kOk);
  });
}

int ListContexts() {
  const absl::StatusOr<Contexts> contexts = ReadContexts(ContextsPath());
  if (!contexts.ok()) return ReportError(contexts.status());
  Table table({{"CURRENT"}, {"CONTEXT"}, {"ENDPOINT"}, {"TENANT"}, {"IDENTITY"}});
  for (const auto& [name, settings] : contexts->all) {
    const auto value = [&](const char* setting) {
      const auto found = settings.find(setting);
      return found == settings.end() ? std::string("-") : found->second;
    };
    table.Add({name == contexts->current ? "*" : "", name, value("endpoint"), value("tenant"),
               settings.contains("token_file") ? value("token_file") : value("certificate")});
  }
  fmt::print("{}", table.Text());
  return kOk;
}

}  // namespace

void AddContext(Subcommand parent, const Options& options, Command& command) {
  const Subcommand context =
      parent.AddSubcommand("context", "Manage named daemons and your credentials for them");
  context.SetFooter(
      "Examples:\n"
      "  phubctl context set rack7 -e rack7:7700 --token-file ~/.phub/token --ca-file ca.crt\n"
      "  phubctl context use rack7\n"
      "Contexts are stored in the file PHUB_CONTEXTS, or ~/.config/phub/contexts.toml. Only you\n"
      "can read it.");
  const auto name = std::make_shared<std::string>();
  const auto add = [&](const char* verb, const char* help) {
    const Subcommand app = context.AddSubcommand(verb, help);
    app.AddOption("NAME", *name, "Name of the context").Required().TypeName("");
    return app;
  };
  add("set", "Create or change a context from the given options").OnNamed([&, name] {
    command = [&, name] { return SetContext(options, *name); };
  });
  add("use", "Make a context the current one (the default)").OnNamed([&command, name] {
    command = [name] { return UseContext(*name); };
  });
  const Subcommand remove = add("delete", "Delete a context");
  const auto yes = std::make_shared<bool>(false);
  remove.AddFlag("--yes", *yes, "Do not ask for confirmation");
  remove.OnNamed(
      [&command, name, yes] { command = [name, yes] { return DeleteContext(*name, *yes); }; });
  context.AddSubcommand("list", "List all contexts").OnNamed([&command] {
    command = [] { return ListContexts(); };
  });
}

}  // namespace phub::client::cli
