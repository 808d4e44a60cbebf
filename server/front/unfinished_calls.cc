// Calls whose request does not arrive: gRPC has memory for each of them, so they have little time.
#include <vector>

#include "server/front/stream_relay.h"

namespace phub::server {
namespace {

constexpr std::uint32_t kDeadlineExceeded = 4;

}  // namespace

void StreamRelay::SetUnfinished(Call& call, bool unfinished) {
  if (call.unfinished == unfinished) return;
  call.unfinished = unfinished;
  unfinished ? ++unfinished_ : --unfinished_;
}

void StreamRelay::EndUnfinished(TimeNs now) {
  now_ = now;
  if (unfinished_ == 0 || Ended()) return;
  std::vector<std::int32_t> late;
  for (auto& [id, call] : calls_) {
    if (!call.unfinished) continue;
    if (!call.to_upstream.empty()) call.start.Excuse(now);
    if (now - call.start.heard_at() >= kRequestPauseMax ||
        now - call.start.begun_at() >= kRequestTimeMax) {
      late.push_back(id);
    }
  }
  for (const std::int32_t id : late) {
    Call& call = calls_.at(id);
    if (call.upstream != 0 && !call.upstream_closed) {
      by_upstream_.erase(call.upstream);
      call.upstream_closed = true;
      upstream_->Consume(call.upstream, call.to_client.size());
      held_bytes_ -= call.to_client.size();
      call.to_client = {};
      upstream_->Reset(call.upstream, NGHTTP2_CANCEL);
    }
    SetUnfinished(call, false);
    if (call.answer_begun) {
      client_.Reset(id, NGHTTP2_CANCEL);
    } else {
      AnswerHere(id, call,
                 RefusalHeaders(kDeadlineExceeded,
                                "the request of this call did not arrive in time: phubd waits 20 s "
                                "for its next byte"));
    }
    ++unfinished_ended_;
    flooded_ |= ++unfinished_of_connection_ > kUnfinishedEndedMax;
  }
}

}  // namespace phub::server
