// What `phubd --check-config` checks about paths: whether phubd could use them as it does when it
// starts. Nothing remains of the checks. Any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace phub::server {

// Whether files can be created in the directory. Creates one for an instant, since permissions
// alone do not show it (read-only file systems, /proc).
absl::Status CheckFolderIsWritable(const std::string& folder);

// state_dir: an existing directory of phubd, or a place where phubd can create one. running: the
// phubd that may use it now.
absl::Status CheckStatePath(const std::string& path, std::optional<pid_t> running);
// control_socket. The same for running.
absl::Status CheckSocketPath(const std::string& path, std::optional<pid_t> running);
// A file that phubd writes under another name first (port_file).
absl::Status CheckFilePath(const std::string& path);

}  // namespace phub::server
