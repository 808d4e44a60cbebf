#include "server/etcd/daemon_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "common/base/host_name.h"
#include "common/base/secret_file.h"
#include "common/base/status_text.h"

namespace phub::server::etcd {
namespace {

constexpr std::size_t kIdBytesMax = 63;
constexpr std::size_t kHostBytesMax = 50;

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

}  // namespace

bool IsDaemonId(std::string_view id) {
  return !id.empty() && id.size() <= kIdBytesMax && std::ranges::all_of(id, IsPlain);
}

absl::StatusOr<std::string> FindDaemonId(const std::string& token_key_path, Random& random) {
  const std::string path = token_key_path + ".daemon";
  absl::StatusOr<std::string> text = ReadSecretFile(path);
  if (absl::IsNotFound(text.status())) {
    std::string host = HostName().substr(0, kHostBytesMax);
    std::ranges::replace_if(
        host, [](char c) { return !IsPlain(c); }, '-');
    text = fmt::format("{}-{:08x}", host, random.Next() & 0xffffffff);
    const absl::Status written = WriteFileDurably(path, *text, kSecretFileMode, /*replace=*/false);
    if (!written.ok()) {
      return absl::FailedPreconditionError(fmt::format(
          "phubd cannot keep its id in {}: {}. Set daemon_id", path, MessageOf(written)));
    }
  }
  if (!text.ok()) return text;
  while (!text->empty() && text->back() == '\n') text->pop_back();
  if (IsDaemonId(*text)) return text;
  return absl::DataLossError(
      fmt::format("{} does not have a daemon's id; set daemon_id, or remove the file", path));
}

}  // namespace phub::server::etcd
