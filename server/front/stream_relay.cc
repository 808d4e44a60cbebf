#include "server/front/stream_relay.h"

#include <algorithm>

#include "common/base/check.h"

namespace phub::server {
namespace {

constexpr std::uint32_t kInvalidArgument = 3;
constexpr std::uint32_t kNotFound = 5;
constexpr std::size_t kHealthBytesMax = 256;
constexpr std::int32_t kNoLastStream = 0x7fffffff;
constexpr std::string_view kSessionService = "phub.v1.Session";
constexpr std::string_view kEventsPath = "/phub.v1.Session/Attend";

std::uint32_t ErrorOr(std::uint32_t error, std::uint32_t otherwise) {
  return error == NGHTTP2_NO_ERROR ? otherwise : error;
}

}  // namespace

struct StreamRelay::FromClient final : H2Events {
  explicit FromClient(StreamRelay& given) : relay(given) {}
  void OnHeaders(std::int32_t id, ReceivedHeaders headers) override {
    relay.OnRequest(id, std::move(headers));
  }
  void OnData(std::int32_t id, std::string_view bytes) override { relay.OnRequestData(id, bytes); }
  void OnEnd(std::int32_t id) override {
    const auto found = relay.calls_.find(id);
    if (found != relay.calls_.end()) relay.OnRequestEnd(id, found->second);
  }
  void OnClosed(std::int32_t id, std::uint32_t error) override { relay.OnClientClosed(id, error); }
  void OnPing(const std::uint8_t* opaque, bool ack) override {
    if (relay.upstream_ != nullptr) {
      relay.upstream_->Ping(opaque, ack);
    } else if (!ack) {
      relay.client_.Ping(opaque, /*ack=*/true);
    }
  }
  void OnGoaway(std::int32_t, std::uint32_t) override {}
  bool OnCheapFrame() override {
    const double earned = static_cast<double>(relay.now_ - relay.cheap_at_) /
                          static_cast<double>(kSecond) * kCheapFramesPerSecond;
    relay.cheap_at_ = relay.now_;
    relay.cheap_left_ = std::min(kCheapFrameBurst, relay.cheap_left_ + earned) - 1;
    relay.flooded_ |= relay.cheap_left_ < 0;
    return !relay.flooded_;
  }
  Supply OnSupply(std::int32_t id, char* bytes, std::size_t size) override {
    return relay.SupplyClient(id, bytes, size);
  }
  void OnEndSent(std::int32_t id) override {
    const auto found = relay.calls_.find(id);
    if (found == relay.calls_.end()) return;
    found->second.answer_sent = true;
    if (found->second.reset_after) relay.client_.Reset(id, NGHTTP2_NO_ERROR);
  }
  StreamRelay& relay;
};

struct StreamRelay::FromUpstream final : H2Events {
  explicit FromUpstream(StreamRelay& given) : relay(given) {}
  void OnHeaders(std::int32_t id, ReceivedHeaders headers) override {
    relay.OnAnswer(id, std::move(headers));
  }
  void OnData(std::int32_t id, std::string_view bytes) override { relay.OnAnswerData(id, bytes); }
  void OnEnd(std::int32_t id) override { relay.OnAnswerEnd(id); }
  void OnClosed(std::int32_t id, std::uint32_t error) override {
    relay.OnUpstreamClosed(id, error);
  }
  void OnPing(const std::uint8_t* opaque, bool ack) override { relay.client_.Ping(opaque, ack); }
  void OnGoaway(std::int32_t last, std::uint32_t error) override {
    relay.OnUpstreamGoaway(last, error);
  }
  bool OnCheapFrame() override { return true; }
  Supply OnSupply(std::int32_t id, char* bytes, std::size_t size) override {
    return relay.SupplyUpstream(id, bytes, size);
  }
  void OnEndSent(std::int32_t) override {}
  StreamRelay& relay;
};

StreamRelay::StreamRelay(Host& host, bool serving, TimeNs now)
    : host_(host),
      serving_(serving),
      now_(now),
      cheap_at_(now),
      from_client_(std::make_unique<FromClient>(*this)),
      from_upstream_(std::make_unique<FromUpstream>(*this)),
      client_(H2Side::kServer, kStrangerLimits, *from_client_) {}
StreamRelay::~StreamRelay() = default;

void StreamRelay::ReceiveFromClient(std::string_view bytes, TimeNs now) {
  now_ = now;
  client_.Receive(bytes);
}

void StreamRelay::ReceiveFromUpstream(std::string_view bytes) {
  if (upstream_ != nullptr) upstream_->Receive(bytes);
}

std::string_view StreamRelay::NextForUpstream() {
  return upstream_ == nullptr ? std::string_view() : upstream_->Next();
}

std::size_t StreamRelay::bytes() const {
  const std::size_t own = held_bytes_ + waiting_bytes_ + client_.memory_bytes();
  if (upstream_ == nullptr) return own;
  return own + upstream_->memory_bytes() + unfinished_ * kUnfinishedCallBytes;
}

Crowd::Use StreamRelay::use() const {
  Crowd::Use use = Crowd::Use::kNothing;
  for (const auto& [upstream, id] : by_upstream_)
    use = std::max(use, calls_.at(id).events ? Crowd::Use::kEvents : Crowd::Use::kCalls);
  return use;
}

bool StreamRelay::out_of_memory() const {
  return client_.out_of_memory() || (upstream_ != nullptr && upstream_->out_of_memory());
}

void StreamRelay::OnRequest(std::int32_t id, ReceivedHeaders received) {
  if (received.kind == HeadersKind::kTrailers) {
    // gRPC's clients send none; their end matters, their content does not.
    const auto found = calls_.find(id);
    if (found != calls_.end()) OnRequestEnd(id, found->second);
    return;
  }
  Call& call = calls_[id];
  call.request_ended = received.end;
  call.start.Begin(now_);
  SetUnfinished(call, !received.end);
  if (const auto refusal = RefusalOf(received); refusal.has_value()) {
    ++refused_calls_;
    return AnswerHere(id, call, *refusal);
  }
  call.health = HealthCallOf(received.list);
  if (call.health != HealthCall::kNone) {
    if (received.end) OnRequestEnd(id, call);
    return;
  }
  call.events = FindHeader(received.list, ":path") == kEventsPath;
  StripIdentity(received.list);
  call.waiting = std::move(received.list);
  if (upstream_ != nullptr) return PassOn(id, call);
  for (const auto& [name, value] : call.waiting) call.waiting_bytes += name.size() + value.size();
  waiting_bytes_ += call.waiting_bytes;
  if (waiting_bytes_ > kWaitingHeaderBytesMax) return client_.Reset(id, NGHTTP2_REFUSED_STREAM);
  JudgeNext();
}

void StreamRelay::JudgeNext() {
  if (judged_ != 0 || upstream_ != nullptr) return;
  for (auto& [id, call] : calls_) {
    if (call.waiting.empty()) continue;
    judged_ = id;
    return host_.Judge(call.waiting);
  }
}

void StreamRelay::Open() {
  judged_ = 0;
  upstream_ = std::make_unique<H2Session>(H2Side::kClient, kUpstreamLimits, *from_upstream_);
  client_.Widen(kKnownLimits);
  for (auto& [id, call] : calls_) {
    if (!call.waiting.empty()) PassOn(id, call);
  }
}

void StreamRelay::Refuse(std::uint32_t code, std::string_view message) {
  const auto found = calls_.find(std::exchange(judged_, 0));
  if (found != calls_.end()) {
    AnswerHere(found->first, found->second, RefusalHeaders(code, message));
  }
  flooded_ |= ++refusals_ > kRefusalsMax;
  if (!flooded_) JudgeNext();
}

void StreamRelay::PassOn(std::int32_t id, Call& call) {
  waiting_bytes_ -= std::exchange(call.waiting_bytes, 0);
  const HeaderList headers = std::exchange(call.waiting, {});
  const bool ends = call.request_ended && call.to_upstream.empty();
  const std::int32_t upstream = ended_ ? -1 : upstream_->Request(headers, ends);
  // After GOAWAY: the client may repeat the call on another connection.
  if (upstream < 0) return client_.Reset(id, NGHTTP2_REFUSED_STREAM);
  call.upstream = upstream;
  by_upstream_[upstream] = id;
  last_passed_ = id;
}

void StreamRelay::DropRequest(std::int32_t id, Call& call) {
  client_.Consume(id, call.to_upstream.size());
  held_bytes_ -= call.to_upstream.size();
  call.to_upstream = {};
}

void StreamRelay::AnswerHere(std::int32_t id, Call& call, const HeaderList& headers) {
  call.local = true;
  SetUnfinished(call, false);
  waiting_bytes_ -= std::exchange(call.waiting_bytes, 0);
  call.waiting.clear();
  DropRequest(id, call);
  call.answer_begun = call.answer_ended = true;
  // A client that still sends must not believe that anything reads it.
  call.reset_after = !call.request_ended;
  client_.Respond(id, headers, /*end=*/true);
}

void StreamRelay::OnRequestData(std::int32_t id, std::string_view bytes) {
  const auto found = calls_.find(id);
  if (found == calls_.end() || found->second.local) return client_.Consume(id, bytes.size());
  Call& call = found->second;
  call.start.Take(bytes, now_);
  if (call.start.whole()) SetUnfinished(call, false);
  if (call.health != HealthCall::kNone) {
    client_.Consume(id, bytes.size());
    if (call.to_upstream.size() + bytes.size() > kHealthBytesMax) {
      held_bytes_ -= call.to_upstream.size();
      call.to_upstream = {};
      return AnswerHere(id, call, RefusalHeaders(kInvalidArgument, "not a HealthCheckRequest"));
    }
  }
  call.to_upstream.Append(bytes);
  held_bytes_ += bytes.size();
  if (call.upstream != 0) upstream_->Resume(call.upstream);
}

void StreamRelay::OnRequestEnd(std::int32_t id, Call& call) {
  call.request_ended = true;
  SetUnfinished(call, false);
  if (call.health != HealthCall::kNone && !call.local) return AnswerHealth(id, call);
  if (call.upstream != 0) upstream_->Resume(call.upstream);
}

H2Events::Supply StreamRelay::SupplyUpstream(std::int32_t upstream, char* bytes, std::size_t size) {
  std::int32_t id = 0;
  Call* const call = FindUpstream(upstream, &id);
  if (call == nullptr) return {.bytes = 0, .end = true, .trailers = false};
  const std::size_t taken = call->to_upstream.Take(bytes, size);
  held_bytes_ -= taken;
  if (taken > 0) client_.Consume(id, taken);
  return {taken, call->request_ended && call->to_upstream.empty(), false};
}

H2Events::Supply StreamRelay::SupplyClient(std::int32_t id, char* bytes, std::size_t size) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return {.bytes = 0, .end = true, .trailers = false};
  Call& call = found->second;
  const std::size_t taken = call.to_client.Take(bytes, size);
  held_bytes_ -= taken;
  if (taken > 0 && call.upstream != 0) upstream_->Consume(call.upstream, taken);
  const bool end = call.answer_ended && call.to_client.empty();
  const bool trailers = end && !call.trailers.empty();
  if (trailers) client_.Trailers(id, std::exchange(call.trailers, {}));
  return {taken, end, trailers};
}

void StreamRelay::OnClientClosed(std::int32_t id, std::uint32_t error) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  Call& call = found->second;
  SetUnfinished(call, false);
  waiting_bytes_ -= call.waiting_bytes;
  held_bytes_ -= call.to_upstream.size() + call.to_client.size();
  if (call.health == HealthCall::kNone) client_.Consume(id, call.to_upstream.size());
  if (call.upstream != 0) {
    upstream_->Consume(call.upstream, call.to_client.size());
    by_upstream_.erase(call.upstream);
    // gRPC forgets the stream by itself if both directions have ended.
    const bool ended = call.upstream_closed || (call.answer_ended && call.request_ended);
    if (!ended) {
      upstream_->Reset(call.upstream, ErrorOr(error, NGHTTP2_CANCEL));
    }
  }
  calls_.erase(found);
}

StreamRelay::Call* StreamRelay::FindUpstream(std::int32_t upstream, std::int32_t* id) {
  const auto found = by_upstream_.find(upstream);
  if (found == by_upstream_.end()) return nullptr;
  *id = found->second;
  return &calls_.at(found->second);
}

void StreamRelay::OnAnswer(std::int32_t upstream, ReceivedHeaders received) {
  std::int32_t id = 0;
  Call* const call = FindUpstream(upstream, &id);
  if (call == nullptr) return;
  if (!call->answer_begun) {
    call->answer_begun = true;
    call->answer_ended = received.end;
    client_.Respond(id, received.list, received.end);
    return;
  }
  call->trailers = std::move(received.list);
  call->answer_ended = true;
  client_.Resume(id);
}

void StreamRelay::OnAnswerData(std::int32_t upstream, std::string_view bytes) {
  std::int32_t id = 0;
  Call* const call = FindUpstream(upstream, &id);
  if (call == nullptr) return upstream_->Consume(upstream, bytes.size());
  call->to_client.Append(bytes);
  held_bytes_ += bytes.size();
  client_.Resume(id);
}

void StreamRelay::OnAnswerEnd(std::int32_t upstream) {
  std::int32_t id = 0;
  Call* const call = FindUpstream(upstream, &id);
  if (call == nullptr) return;
  call->answer_ended = true;
  client_.Resume(id);
}

void StreamRelay::OnUpstreamClosed(std::int32_t upstream, std::uint32_t error) {
  std::int32_t id = 0;
  Call* const call = FindUpstream(upstream, &id);
  if (call == nullptr) return;
  by_upstream_.erase(upstream);
  call->upstream_closed = call->local = true;
  DropRequest(id, *call);
  if (!call->answer_ended) {
    client_.Reset(id, ErrorOr(error, NGHTTP2_INTERNAL_ERROR));
  } else if (!call->request_ended) {
    call->reset_after = true;
    if (call->answer_sent) client_.Reset(id, NGHTTP2_NO_ERROR);
  }
}

void StreamRelay::OnUpstreamGoaway(std::int32_t last, std::uint32_t error) {
  if (last == kNoLastStream) return client_.Goaway(kNoLastStream, error);
  std::int32_t highest = last_passed_;
  for (const auto& [upstream, id] : by_upstream_) {
    if (upstream <= last) continue;
    highest = std::max(id - 2, 0);  // the call before the first one that gRPC has not accepted
    break;
  }
  client_.Goaway(highest, error);
}

void StreamRelay::UpstreamEnded() {
  if (ended_) return;
  ended_ = true;
  for (auto& [id, call] : calls_) {
    if (!call.answer_ended) client_.Reset(id, NGHTTP2_INTERNAL_ERROR);
  }
  client_.Goaway(last_passed_, NGHTTP2_NO_ERROR);
}

void StreamRelay::AnswerHealth(std::int32_t id, Call& call) {
  const auto service = HealthServiceOf(call.to_upstream.view());
  held_bytes_ -= call.to_upstream.size();
  call.to_upstream = {};
  if (!service.has_value()) {
    return AnswerHere(id, call, RefusalHeaders(kInvalidArgument, "not a HealthCheckRequest"));
  }
  const bool known = service->empty() || *service == kSessionService;
  const bool check = call.health == HealthCall::kCheck;
  if (!known && check) {
    return AnswerHere(id, call, RefusalHeaders(kNotFound, "service name unknown"));
  }
  const HealthStatus status = !known     ? HealthStatus::kServiceUnknown
                              : serving_ ? HealthStatus::kServing
                                         : HealthStatus::kNotServing;
  // A watch of an unknown service never changes.
  if (!known) call.health = HealthCall::kCheck;
  call.local = call.answer_begun = true;
  call.to_client.Append(HealthMessage(status));
  held_bytes_ += call.to_client.size();
  if (check) {
    call.answer_ended = true;
    call.trailers = StatusTrailers(0);
  }
  client_.Respond(id, AnswerHeaders(), /*end=*/false);
}

void StreamRelay::SetServing(bool serving) {
  if (std::exchange(serving_, serving) == serving) return;
  const std::string message =
      HealthMessage(serving ? HealthStatus::kServing : HealthStatus::kNotServing);
  for (auto& [id, call] : calls_) {
    // A client that does not read gets the last states only.
    const bool watches = call.health == HealthCall::kWatch && call.answer_begun;
    if (!watches || call.to_client.size() > kHealthBytesMax) continue;
    call.to_client.Append(message);
    held_bytes_ += message.size();
    client_.Resume(id);
  }
}

}  // namespace phub::server
