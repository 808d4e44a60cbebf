#include "server/etcd/watch_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/base/units.h"

namespace phub::server::etcd {
namespace {

constexpr std::int64_t kPage = 1000;  // records per request; etcd's messages are at most 4 MiB
constexpr DurationNs kProbePeriod = kSecond;
constexpr DurationNs kRetry = 200 * kMillisecond;
// A stream that has not delivered a change for this time after it was made is replaced.
constexpr DurationNs kBehindMax = kSecond;

}  // namespace

absl::StatusOr<std::vector<Item>> ReadAll(Client& client, const std::string& prefix,
                                          std::int64_t& revision) {
  std::vector<Item> items;
  pb::RangeRequest request;
  request.set_key(prefix + std::string(kWatchedBegin));
  request.set_range_end(prefix + std::string(kWatchedEnd));
  request.set_limit(kPage);
  for (;;) {
    auto page = client.Range(request);
    if (!page.ok()) return page.status();
    if (request.revision() == 0) request.set_revision(page->header().revision());
    for (pb::KeyValue& pair : *page->mutable_kvs()) {
      items.push_back({pair.key().substr(prefix.size()), pair.mod_revision(),
                       std::move(*pair.mutable_value())});
    }
    if (!page->more() || page->kvs().empty()) break;
    request.set_key(prefix + items.back().key + '\0');
  }
  revision = request.revision();
  return items;
}

WatchLoop::WatchLoop(Client& client, Mirror& mirror, std::string prefix, DurationNs stale_max)
    : client_(client),
      mirror_(mirror),
      prefix_(std::move(prefix)),
      stale_max_(stale_max),
      fresh_at_(clock_.Now()) {}

absl::Status WatchLoop::Start() {
  newest_ = mirror_.revision();
  watch_thread_ = std::make_unique<WorkThread>("store-watch");
  if (!watch_thread_->started().ok()) return watch_thread_->started();
  probe_thread_ = std::make_unique<WorkThread>("store-probe");
  if (!probe_thread_->started().ok()) return probe_thread_->started();
  watch_thread_->Post([this] { Watch(); });
  probe_thread_->Post([this] { Probe(); });
  return absl::OkStatus();
}

void WatchLoop::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (stream_ != nullptr) stream_->Cancel();
  }
  stopping_.notify_all();
  if (watch_thread_ != nullptr) watch_thread_->Finish();
  if (probe_thread_ != nullptr) probe_thread_->Finish();
}

bool WatchLoop::Pause(DurationNs duration) {
  std::unique_lock lock(mutex_);
  stopping_.wait_for(lock, std::chrono::nanoseconds(duration), [this] { return stopped_; });
  return !stopped_;
}

void WatchLoop::Watch() {
  bool current = true;  // the store has just read everything
  for (;;) {
    if (!current) current = Read();
    if (current) Follow();
    // Changes may have been missed unless the next stream begins where this one has ended, and a
    // compaction or a restored backup may prevent that. Reading everything is always right.
    current = false;
    if (!Pause(kRetry)) return;
  }
}

bool WatchLoop::Read() {
  std::int64_t revision = 0;
  const std::int64_t newest = NewestRevision();
  const auto items = ReadAll(client_, prefix_, revision);
  if (!items.ok()) return false;
  bool has_cluster = false;
  for (const Item& item : *items) has_cluster = has_cluster || item.key == kClusterKey;
  if (!has_cluster) {
    // Somebody has removed everything. Jobs and identities go on as they were, until they are
    // stale.
    LogError(
        "event=control_store_gone prefix=\"{}\" reason=\"etcd has no cluster below it any more; "
        "restore a backup\"",
        prefix_);
    NoteUnreachable(absl::FailedPreconditionError(
        fmt::format("etcd has no cluster below {} any more; restore a backup", prefix_)));
    Pause(kProbePeriod);
    return false;
  }
  bool restored = false;
  {
    const std::lock_guard lock(mutex_);
    restored = restored_ || revision < newest;
  }
  mirror_.Replace(*items, revision, restored);
  bool answers_again = false;
  {
    const std::lock_guard lock(mutex_);
    newest_ = revision;
    restored_ = false;
    behind_since_ = 0;
    answers_again = !reachable_.ok();
    reachable_ = absl::OkStatus();
  }
  if (answers_again) LogInfo("event=control_store_answers");
  if (restored) {
    LogError(
        "event=control_store_went_back revision={} reason=\"etcd has lost changes, probably a "
        "backup was restored; tokens that were revoked since then may be valid again\"",
        revision);
  }
  LogInfo("event=control_store_read revision={} records={}", revision, items->size());
  return true;
}

void WatchLoop::Follow() {
  pb::WatchRequest request;
  request.mutable_create_request()->set_key(prefix_ + std::string(kWatchedBegin));
  request.mutable_create_request()->set_range_end(prefix_ + std::string(kWatchedEnd));
  request.mutable_create_request()->set_start_revision(mirror_.revision() + 1);
  const std::unique_ptr<WatchStream> stream = client_.Watch(request);
  {
    const std::lock_guard lock(mutex_);
    stream_ = stream.get();
    if (stopped_) stream->Cancel();
  }
  pb::WatchResponse response;
  while (stream->Next(response) && Apply(response)) {
  }
  stream->Cancel();
  {
    const std::lock_guard lock(mutex_);
    stream_ = nullptr;
    if (stopped_) {
      static_cast<void>(stream->status());
      return;
    }
  }
  client_.AvoidEndpoint();
  LogWarning(
      "event=control_store_watch_ended reason=\"{}\"",
      response.canceled() ? response.cancel_reason() : std::string(MessageOf(stream->status())));
}

bool WatchLoop::Apply(const pb::WatchResponse& response) {
  if (response.canceled() || response.compact_revision() != 0) return false;
  for (const pb::Event& event : response.events()) {
    const std::string key = event.kv().key().substr(prefix_.size());
    if (event.type() == pb::Event::DELETE) {
      mirror_.Remove(key, event.kv().mod_revision());
    } else {
      mirror_.Put({key, event.kv().mod_revision(), event.kv().value()});
    }
  }
  // All events of a revision are in one response.
  if (response.events_size() > 0) {
    mirror_.AdvanceTo(response.events(response.events_size() - 1).kv().mod_revision());
  }
  return true;
}

void WatchLoop::Probe() {
  do {
    ProbeOnce();
  } while (Pause(kProbePeriod));
}

void WatchLoop::ProbeOnce() {
  const TimeNs asked_at = clock_.Now();
  const std::int64_t newest = NewestRevision();
  pb::RangeRequest request;
  request.set_key(prefix_ + std::string(kHeadKey));
  const auto answer = client_.Range(request);
  if (!answer.ok()) return NoteUnreachable(answer.status());
  const std::int64_t head = answer->kvs().empty() ? 0 : answer->kvs(0).mod_revision();
  const bool has_all = mirror_.revision() >= head;
  bool cancel = false;
  bool answers_again = false;
  {
    const std::lock_guard lock(mutex_);
    const bool went_back = answer->header().revision() < newest;
    restored_ = restored_ || went_back;
    newest_ = std::max<std::int64_t>(newest_, answer->header().revision());
    if (head != 0 && !went_back) {
      answers_again = !reachable_.ok();
      reachable_ = absl::OkStatus();
    }
    if (has_all && head != 0 && !restored_) {
      fresh_at_ = asked_at;
      behind_since_ = 0;
    } else if (behind_since_ == 0) {
      behind_since_ = asked_at;
    }
    cancel = went_back || (behind_since_ != 0 && clock_.Now() - behind_since_ > kBehindMax);
  }
  if (answers_again) LogInfo("event=control_store_answers");
  if (cancel) CancelStream();
}

void WatchLoop::CancelStream() {
  const std::lock_guard lock(mutex_);
  if (stream_ != nullptr) stream_->Cancel();
}

void WatchLoop::NoteUnreachable(const absl::Status& status) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = reachable_.ok();
    reachable_ = status;
  }
  if (!first) return;
  LogError(
      "event=control_store_unreachable error=\"{}\" effect=\"changes are refused, except suspend "
      "and revoke at this daemon alone; reads and jobs go on\"",
      MessageOf(status));
}

std::int64_t WatchLoop::NewestRevision() const {
  const std::int64_t delivered = mirror_.revision();
  const std::lock_guard lock(mutex_);
  return std::max(newest_, delivered);
}

absl::Status WatchLoop::reachable() const {
  const std::lock_guard lock(mutex_);
  return reachable_;
}

std::string WatchLoop::Fault() const {
  const std::lock_guard lock(mutex_);
  const DurationNs age = clock_.Now() - fresh_at_;
  if (age <= stale_max_) return {};
  return fmt::format(
      "what phubd knows of tenants and tokens is {} old (control_store_stale_max is "
      "{}){}{}",
      HumanDuration(age), HumanDuration(stale_max_), reachable_.ok() ? "" : ": ",
      MessageOf(reachable_));
}

}  // namespace phub::server::etcd
