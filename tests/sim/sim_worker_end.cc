// How a worker ends: it agrees with the other ranks on a verdict, leaves, or crashes.
#include <fmt/format.h>

#include <utility>

#include "client/session/fault_text.h"
#include "tests/sim/sim_worker.h"
#include "tests/sim/sim_worker_calls.h"

namespace phub::sim {

using client::Command;

// As phub::Job does, offers the verdict to the anchor, unless the rank is not in the job yet or is
// leaving it.
void SimWorker::Fail(const phub::Status& verdict, const Link* from) {
  if (state_ == State::kStopping || done()) return;
  if (engine_ == nullptr || state_ == State::kLeaving) return End(verdict, from, nullptr);
  first_verdict_.Offer({verdict, "", from == nullptr ? nullptr : &from->known});
}

void SimWorker::Settle(const client::FirstVerdict::Verdict& verdict,
                       const client::DaemonLink* anchor) {
  if (state_ == State::kStopping || done()) return;  // a refused call came first
  const Link* from = nullptr;
  for (const auto& link : links_) {
    if (&link->known == verdict.from) from = link.get();
  }
  const bool is_anchors = from == links_.front().get() && verdict.status.subject() != nullptr;
  agreed_ = anchor != nullptr || is_anchors;
  stands_alone_ = !agreed_;
  End(verdict.status, from, anchor);
}

// A job that is over at one daemon is over at all of them.
void SimWorker::End(const phub::Status& verdict, const Link* from,
                    const client::DaemonLink* anchor) {
  if (state_ == State::kStopping || done()) return;
  verdict_ = verdict.message();
  verdict_at_ = network_.clock().Now();
  const bool leaving = ended_leaving_ = state_ == State::kLeaving;
  for (const auto& link : links_) {
    const bool knows = link.get() == from || &link->known == anchor;
    if (leaving || knows || link->joined.session_id().empty()) continue;
    v1::LeaveRequest request;
    request.set_session_id(link->joined.session_id());
    request.set_verdict(verdict_);
    link->channel->Call<rpc::Leave>(request, LeaveTimeout(), [](const auto&) {});
  }
  if (engine_ == nullptr) {
    state_ = State::kFailed;
    return;
  }
  state_ = State::kStopping;
  Stop();
}

void SimWorker::Refused(const char* what, const Link& link, const absl::Status& status) {
  const bool run_is_over = script_.restart && absl::IsAborted(status);  // left to the judge
  if (script_.fate == Fate::kCompletes && !run_is_over) {
    mistake_ = fmt::format("{} rank {}: {}: {}", script_.name, rank_, what, status.ToString());
  }
  End(client::CallStatus(what, EndpointOf(link), status), &link, nullptr);
}

void SimWorker::Stop() {
  Command stop;
  stop.kind = Command::Kind::kStop;
  Submit(stop);
}

void SimWorker::OnStopped() { state_ = state_ == State::kLeaving ? State::kLeft : State::kFailed; }

void SimWorker::LeaveInOrder() {
  state_ = State::kLeaving;
  CallAll<v1::LeaveResponse>(
      "leave",
      [this](Link& link, auto done) {
        v1::LeaveRequest request;
        request.set_session_id(link.joined.session_id());
        link.channel->Call<rpc::Leave>(request, LeaveTimeout(), std::move(done));
      },
      [](Link&, const v1::LeaveResponse&) {}, [this] { Stop(); });
}

// Shared memory cannot be cut.
bool SimWorker::CutLanes(Cut cut) {
  std::vector<const Link*> links;
  for (const auto& link : links_) {
    if (!link->shared) links.push_back(link.get());
  }
  if (links.empty()) return false;
  const SimDaemon& daemon = links[random_.Below(links.size())]->daemon;
  for (std::uint32_t core = 0; core < daemon.core_count(); ++core) {
    if (cut != Cut::kFromDaemon) network_.Cut(node_, daemon.node(core));
    if (cut != Cut::kToDaemon) network_.Cut(daemon.node(core), node_);
  }
  return true;
}

void SimWorker::Crash(bool silent) {
  if (done()) return;
  state_ = State::kDead;
  *alive_ = false;
  for (const auto& link : links_) link->channel->Cut(silent);
  network_.Crash(node_, silent ? 3600 * kSecond : kMillisecond);
  engine_ = nullptr;
  transports_.clear();
  lanes_.clear();
}

}  // namespace phub::sim
