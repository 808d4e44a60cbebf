#include "client/session/dump_answers.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/shortage.h"

namespace phub::client {
namespace {

constexpr std::size_t kOwnShare = 4;  // rounds and calls take at most this fraction of a record
constexpr std::size_t kHeadlineBytesMax = 512;
constexpr std::size_t kOverheadBytes = 64;  // tags and lengths

// The whole text, or its lines that fit, from the first one.
std::string LinesThatFit(const std::string& text, std::size_t bytes_max, std::string& note) {
  if (text.size() <= bytes_max) return text;
  const std::size_t end = text.rfind('\n', bytes_max);
  const std::size_t kept = end == std::string::npos ? 0 : end + 1;
  note = fmt::format("the record's text was cut from {} to {} bytes", text.size(), kept);
  return text.substr(0, kept);
}

v1::RankRecord CallRecorder(const Recorder& recorder, std::size_t bytes_max) {
  v1::RankRecord record;
  std::string note;
  try {
    const DumpRecord given = recorder(bytes_max);
    record.set_headline(Printable(given.headline, kHeadlineBytesMax));
    record.set_text(PrintableLines(LinesThatFit(given.text, bytes_max / 2, note)));
    const std::size_t left = bytes_max - std::min(bytes_max, record.ByteSizeLong());
    if (given.json.size() <= left) {
      record.set_json(PrintableLines(given.json));
    } else {
      note += fmt::format("{}the record's JSON of {} bytes was left out", note.empty() ? "" : "; ",
                          given.json.size());
    }
  } catch (const std::exception& error) {
    note = fmt::format("the program's recorder failed: {}", Printable(error.what(), 256));
  } catch (...) {
    note = "the program's recorder failed";
  }
  record.set_note(note);
  return record;
}

}  // namespace

DumpAnswers::~DumpAnswers() { PHUB_CHECK(!thread_.joinable()); }

void DumpAnswers::Answer(const v1::DumpRequested& request, const DaemonLink& link) {
  const Question question{&link, request.number(), request.bytes_max()};
  bool has_recorder = false;
  {
    const std::lock_guard lock(state_->mutex);
    has_recorder = state_->recorder != nullptr && !state_->quit;
  }
  Report(question, OwnRecord(question.bytes_max / kOwnShare), has_recorder,
         // Calls can overtake each other, and the recorder's report is the last that the daemon
         // takes: the recorder runs when the daemon has this one.
         [has_recorder, question, state = state_] {
           const std::lock_guard lock(state->mutex);
           if (!has_recorder || state->recorder == nullptr) return;
           std::erase_if(state->questions,
                         [&](const Question& each) { return each.link == question.link; });
           state->questions.push_back(question);
           state->changed.notify_all();
         });
}

v1::RankRecord DumpAnswers::OwnRecord(std::size_t bytes_max) const {
  const TimeNs now = clock_.Now();
  const std::vector<std::shared_ptr<KeyImpl>> keys = keys_();  // rounds refer to their names
  std::vector<KeyImpl::OpenRound> open;
  for (const std::shared_ptr<KeyImpl>& key : keys)
    if (const std::optional<KeyImpl::OpenRound> round = key->Open()) open.push_back(*round);
  std::ranges::stable_sort(open, {}, &KeyImpl::OpenRound::since);
  v1::RankRecord record;
  record.set_round_count(static_cast<std::uint32_t>(open.size()));
  for (const WaitingCalls::Call& each : calls_.waiting().OldestFirst()) {
    v1::OpenCall& call = *record.add_calls();
    call.set_name(each.name);
    call.set_waiting_ns(std::max<DurationNs>(0, now - each.since));
    if (record.ByteSizeLong() <= bytes_max / 2) continue;
    record.mutable_calls()->RemoveLast();
    break;
  }
  for (const KeyImpl::OpenRound& each : open) {
    v1::OpenRound& round = *record.add_rounds();
    round.set_key(*each.key);
    round.set_iteration(each.iteration);
    round.set_operation(each.operation);
    round.set_waiting_ns(std::max<DurationNs>(0, now - each.since));
    if (record.ByteSizeLong() <= bytes_max) continue;
    record.mutable_rounds()->RemoveLast();
    break;
  }
  return record;
}

void DumpAnswers::Report(const Question& question, v1::RankRecord record, bool more,
                         std::function<void()> then) const {
  v1::ReportDumpRequest request;
  request.set_session_id(question.link->joined.session_id());
  request.set_number(question.number);
  *request.mutable_record() = std::move(record);
  request.set_more(more);
  question.link->channel->Call<rpc::ReportDump>(
      request, calls_.timeout(),
      [then = std::move(then)](const absl::StatusOr<v1::ReportDumpResponse>& response) {
        if (response.ok()) return then();
        // The dump is over, or control is out: an administrator can ask again.
        LogDebug("event=dump_not_answered error=\"{}\"", std::string(response.status().message()));
      });
}

void DumpAnswers::Run(std::shared_ptr<State> state) {
  pthread_setname_np(pthread_self(), "phub-dump");
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] {
      return state->quit || (!state->questions.empty() && state->recorder != nullptr);
    });
    if (state->quit) return;
    const Question question = state->questions.front();
    state->questions.erase(state->questions.begin());
    std::shared_ptr<const Recorder> recorder = state->recorder;
    state->calling = true;
    lock.unlock();
    const std::size_t own = question.bytes_max / kOwnShare + kHeadlineBytesMax + kOverheadBytes;
    const std::size_t room = question.bytes_max - std::min(question.bytes_max, own);
    v1::RankRecord record = CallRecorder(*recorder, room);
    recorder.reset();
    lock.lock();
    state->calling = false;
    state->changed.notify_all();
    if (state->quit) return;  // this object may be gone
    lock.unlock();
    Report(question, std::move(record), /*more=*/false, [] {});
    lock.lock();
  }
}

Status DumpAnswers::SetRecorder(Recorder recorder) {
  if (IsOwnThread())
    return Status(StatusCode::kFailedPrecondition, "a recorder cannot set a recorder");
  const std::lock_guard one_at_a_time(set_mutex_);
  const bool is_set = recorder != nullptr;
  if (is_set && !thread_.joinable()) {
    {
      const std::lock_guard lock(state_->mutex);
      if (state_->quit) return Status(StatusCode::kFailedPrecondition, "the job has ended");
    }
    const absl::Status started =
        StartThread(thread_, "phub-dump", [this, state = state_] { Run(state); });
    if (!started.ok())
      return Status(static_cast<StatusCode>(started.code()), std::string(started.message()));
    thread_id_ = thread_.get_id();
  }
  auto set = is_set ? std::make_shared<const Recorder>(std::move(recorder)) : nullptr;
  std::unique_lock lock(state_->mutex);
  state_->recorder.swap(set);
  if (!is_set) state_->questions.clear();
  state_->changed.notify_all();
  state_->changed.wait(lock, [this] { return !state_->calling; });
  return Status();
}

void DumpAnswers::Quit() {
  const auto quit = [this] {
    const std::lock_guard lock(state_->mutex);
    state_->quit = true;
    state_->changed.notify_all();
  };
  if (IsOwnThread()) {  // it ends when the recorder returns, and uses only its state until then
    quit();
    if (thread_.joinable()) thread_.detach();
    return;
  }
  const std::lock_guard one_at_a_time(set_mutex_);
  quit();
  if (thread_.joinable()) thread_.join();
}

}  // namespace phub::client
