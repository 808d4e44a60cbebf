// The contexts file: names for daemons, each with credentials. Mode 0600, TOML:
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
  std::string current;                                            // empty: no current context
  std::map<std::string, std::map<std::string, std::string>> all;  // name -> setting -> value
};

// PHUB_CONTEXTS, or phub/contexts.toml under XDG_CONFIG_HOME or ~/.config.
std::string ContextsPath();
// Empty if there is no file. FAILED_PRECONDITION: other users can access the file.
// INVALID_ARGUMENT: the message says what is wrong with it.
absl::StatusOr<Contexts> ReadContexts(const std::string& path);
absl::Status WriteContexts(const std::string& path, const Contexts& contexts);

// Sets the endpoint and credentials that the options leave open. The first of these that applies:
// 1. options and environment variables;
// 2. --context or PHUB_CONTEXT;
// 3. if no endpoint was given, the current context;
// 4. the control socket, if this user may open it;
// 5. 127.0.0.1:7700.
// A context's credentials are never sent to an explicit endpoint unless the context is named.
absl::Status ChooseDaemon(Options& options);

}  // namespace phub::client::cli
