#include "server/store_view.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <system_error>
#include <utility>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/base/status_text.h"
#include "common/view/view_file.h"
#include "server/config/control_store_setting.h"
#include "server/open_store.h"

namespace phub::server {
namespace {

constexpr DurationNs kPatience = 5 * kSecond;

absl::StatusOr<std::optional<std::int64_t>> ParseExpected(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  return absl::InvalidArgumentError(fmt::format("\"{}\" is not the number of a view", text));
}

}  // namespace

absl::Status DeclareViewIn(const std::string& store, Settings settings, const std::string& file,
                           const std::string& expect, const AuditNote& note) {
  auto view = view::ReadViewFile(file);
  if (!view.ok()) return view.status();
  const auto expected = ParseExpected(expect);
  if (!expected.ok()) return expected.status();
  settings.control_store = store;
  settings.control_store_stale_max = kPatience;
  settings.quota_grace = kPatience;
  settings.daemon_id = "phubctl";  // it takes no place, so that nobody sees this
  if (absl::Status resolved = ResolveControlStore(settings); !resolved.ok()) return resolved;
  if (EtcdEndpointsOf(settings).empty())
    return absl::InvalidArgumentError("only a cluster in etcd has a view; write etcd:URL,...");
  const auto options = EtcdOptions(settings);
  if (!options.ok()) return options.status();
  SystemRandom random;
  const SystemClock clock;
  const TimeNs end = clock.Now() + kPatience;
  auto opened = etcd::EtcdStore::Open(*options, random, [&] { return clock.Now() >= end; });
  if (absl::IsCancelled(opened.status()))
    return absl::UnavailableError(fmt::format("{} does not answer", store));
  if (!opened.ok()) return opened.status();
  const absl::Status declared = (*opened)->membership()->Declare(*view, *expected, note);
  if (declared.ok()) fmt::print("{}\n", Describe(*view));
  return declared;
}

}  // namespace phub::server
