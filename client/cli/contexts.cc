#include "client/cli/contexts.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "common/base/secret_file.h"
#include "common/base/suggest.h"

namespace phub::client::cli {
namespace {

constexpr const char* kControlSocket = "/run/phub/control.sock";
constexpr const char* kLoopback = "127.0.0.1:7700";

struct Field {
  const char* name;
  std::string& (*of)(Options&);
};
constexpr Field kFields[] = {
    {"endpoint", [](Options& options) -> std::string& { return options.endpoint; }},
    {"tenant", [](Options& options) -> std::string& { return options.tenant; }},
    {"token_file", [](Options& o) -> std::string& { return o.credentials.token_file; }},
    {"ca_file", [](Options& o) -> std::string& { return o.credentials.ca_file; }},
    {"certificate", [](Options& o) -> std::string& { return o.credentials.certificate; }},
    {"key", [](Options& o) -> std::string& { return o.credentials.key; }},
    {"server_name", [](Options& o) -> std::string& { return o.credentials.server_name; }},
};

absl::Status Wrong(const std::string& path, const toml::node& node, const std::string& what) {
  return absl::InvalidArgumentError(fmt::format("{}:{}: {}", path, node.source().begin.line, what));
}

absl::Status ReadContext(const std::string& path, const std::string& name, const toml::node& node,
                         Contexts& contexts) {
  if (!node.is_table()) return Wrong(path, node, fmt::format("context {} must be a table", name));
  std::vector<std::string_view> known;
  for (const Field& field : kFields) known.push_back(field.name);
  auto& context = contexts.all[name];
  for (const auto& [key, value] : *node.as_table()) {
    const std::string setting(key.str());
    if (std::find(known.begin(), known.end(), setting) == known.end()) {
      return Wrong(path, value,
                   fmt::format("unknown setting \"{}\" in context {}{}", setting, name,
                               DidYouMean(setting, known)));
    }
    if (!value.is_string()) return Wrong(path, value, fmt::format("{} must be a string", setting));
    context[setting] = value.as_string()->get();
  }
  return absl::OkStatus();
}

absl::Status ReadTable(const std::string& path, const toml::table& table, Contexts& contexts) {
  for (const auto& [key, node] : table) {
    if (key.str() == "current" && node.is_string()) {
      contexts.current = node.as_string()->get();
    } else if (key.str() == "contexts" && node.is_table()) {
      for (const auto& [name, context] : *node.as_table()) {
        absl::Status status = ReadContext(path, std::string(name.str()), context, contexts);
        if (!status.ok()) return status;
      }
    } else {
      return Wrong(path, node,
                   fmt::format("unexpected \"{}\"; allowed are current = \"NAME\" and "
                               "[contexts.NAME]",
                               std::string(key.str())));
    }
  }
  return absl::OkStatus();
}

bool MayOpen(const char* socket) { return access(socket, R_OK | W_OK) == 0; }

}  // namespace

std::string ContextsPath() {
  if (const char* path = std::getenv("PHUB_CONTEXTS"); path != nullptr && *path != '\0')
    return path;
  if (const char* base = std::getenv("XDG_CONFIG_HOME"); base != nullptr && *base != '\0') {
    return fmt::format("{}/phub/contexts.toml", base);
  }
  const char* home = std::getenv("HOME");
  return fmt::format("{}/.config/phub/contexts.toml", home == nullptr ? "" : home);
}

absl::StatusOr<Contexts> ReadContexts(const std::string& path) {
  Contexts contexts;
  const absl::StatusOr<std::string> text = ReadSecretFile(path);
  if (absl::IsNotFound(text.status())) return contexts;
  if (!text.ok()) return text.status();
  try {
    const toml::table table = toml::parse(*text, std::string_view(path));
    if (absl::Status status = ReadTable(path, table, contexts); !status.ok()) return status;
  } catch (const toml::parse_error& error) {  // Debian builds toml++ with exceptions
    return absl::InvalidArgumentError(fmt::format("{}:{}: invalid TOML: {}", path,
                                                  error.source().begin.line, error.description()));
  }
  return contexts;
}

absl::Status WriteContexts(const std::string& path, const Contexts& contexts) {
  toml::table all;
  for (const auto& [name, settings] : contexts.all) {
    toml::table context;
    for (const auto& [setting, value] : settings) context.insert(setting, value);
    all.insert(name, std::move(context));
  }
  toml::table table;
  if (!contexts.current.empty()) table.insert("current", contexts.current);
  table.insert("contexts", std::move(all));
  std::ostringstream text;
  text << table << "\n";
  std::error_code error;
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && std::filesystem::create_directories(folder, error)) {
    chmod(folder.c_str(), 0700);
  }
  // If the file is a link, such as into a repository of settings, the link remains.
  const auto file = std::filesystem::canonical(path, error);
  return WriteFileDurably(error ? path : file.string(), text.str(), kSecretFileMode,
                          /*replace=*/true);
}

absl::Status ChooseDaemon(Options& options) {
  const bool endpoint_given = !options.endpoint.empty();
  std::string name = options.context;
  if (!name.empty() || !endpoint_given) {
    const absl::StatusOr<Contexts> contexts = ReadContexts(ContextsPath());
    if (!contexts.ok()) return contexts.status();
    if (name.empty()) name = contexts->current;
    if (!name.empty()) {
      const auto found = contexts->all.find(name);
      if (found == contexts->all.end()) {
        return absl::NotFoundError(fmt::format(
            "no context {} in {}; list them with `phubctl context list`", name, ContextsPath()));
      }
      for (const Field& field : kFields) {
        const auto value = found->second.find(field.name);
        std::string& option = field.of(options);
        if (option.empty() && value != found->second.end()) option = value->second;
      }
    }
  }
  if (options.endpoint.empty()) {
    options.endpoint = MayOpen(kControlSocket) ? fmt::format("unix:{}", kControlSocket) : kLoopback;
  }
  return absl::OkStatus();
}

}  // namespace phub::client::cli
