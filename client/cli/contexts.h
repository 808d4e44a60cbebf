// The file of contexts: daemons by name, with who one is there. Mode 0600, TOML:
//
//   current = "rack7"
//   [contexts.rack7]
//   endpoint = "rack7:7700"
//   token_file = "/home/ada/.phub/rack7.token"
//   ca_file = "/home/ada/.phub/ca.crt"
//
// One thread.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/cli.h"

namespace phub::client::cli {

struct Contexts {
  std::string current;                                            // empty: none
  std::map<std::string, std::map<std::string, std::string>> all;  // name -> setting -> value
};

// PHUB_CONTEXTS, or phub/contexts.toml under XDG_CONFIG_HOME or ~/.config.
std::string ContextsPath();
// None if there is no file. FAILED_PRECONDITION: others have rights to it; INVALID_ARGUMENT: what
// is wrong with it.
absl::StatusOr<Contexts> ReadContexts(const std::string& path);
absl::Status WriteContexts(const std::string& path, const Contexts& contexts);

// Where the options left it open: the endpoint, and who calls. In this order: what was given;
// --context or PHUB_CONTEXT; else, if no endpoint was given, the current context; else the control
// socket, if this user may open it; else 127.0.0.1:7700. What is of a context never goes to an
// endpoint that was given without naming the context.
absl::Status ChooseDaemon(Options& options);

}  // namespace phub::client::cli
