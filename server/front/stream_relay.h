// The calls of one client connection: HTTP/2 towards the client, HTTP/2 towards phubd's gRPC, and
// the streams between them. Without sockets.
//
//   client                       relay                                phubd
//   first headers          -->   Host::Judge                     -->  judges token, certificate
//                                Open() or Refuse()              <--  and method
//   headers, data, end     -->   stream n  <->  stream m         <->  gRPC
//   resets, pings, GOAWAY  <->   the same                        <->  gRPC
//
// A byte of a body occupies the sender's window until it is taken for the receiver, so a relay
// holds at most a window in each direction. Pings are answered by the far end; before there is an
// upstream, by the relay.
//
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/clock.h"
#include "server/front/byte_queue.h"
#include "server/front/call_checks.h"
#include "server/front/crowd.h"
#include "server/front/front_limits.h"
#include "server/front/h2_session.h"
#include "server/front/request_start.h"

namespace phub::server {

class StreamRelay {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    // Ends with one call of Open or Refuse, from outside Receive.
    virtual void Judge(const HeaderList& headers) = 0;
  };
  StreamRelay(Host& host, bool serving, TimeNs now);
  ~StreamRelay();
  StreamRelay(const StreamRelay&) = delete;
  StreamRelay& operator=(const StreamRelay&) = delete;

  void ReceiveFromClient(std::string_view bytes, TimeNs now);
  void ReceiveFromUpstream(std::string_view bytes);
  std::string_view NextForClient() { return client_.Next(); }
  std::string_view NextForUpstream();

  void Open();
  void Refuse(std::uint32_t code, std::string_view message);
  void SetServing(bool serving);
  // gRPC has closed the upstream: open calls are reset, and no new ones are accepted.
  void UpstreamEnded();

  // Ends calls whose request does not arrive. Many end the connection.
  void EndUnfinished(TimeNs now);
  std::uint64_t TakeUnfinishedEnded() { return std::exchange(unfinished_ended_, 0); }
  // Calls that were refused for their headers, since the last call.
  std::uint64_t TakeRefusedCalls() { return std::exchange(refused_calls_, 0); }

  bool opened() const { return upstream_ != nullptr; }
  bool flooded() const { return flooded_; }
  bool out_of_memory() const;
  // Nothing is left but to send what NextForClient() still returns.
  bool Ended() const { return ended_ || flooded_ || client_.failed() || client_.Finished(); }
  bool upstream_failed() const { return upstream_ != nullptr && upstream_->failed(); }
  std::size_t bytes() const;
  Crowd::Use use() const;

 private:
  struct Call {
    std::int32_t upstream = 0;  // 0: not passed on
    bool upstream_closed = false;
    HeaderList waiting;  // headers, until phubd has judged the connection
    std::size_t waiting_bytes = 0;
    HealthCall health = HealthCall::kNone;
    bool events = false;  // a worker's stream of events
    RequestStart start;
    bool unfinished = false;  // the first message is incomplete; gRPC waits for it
    bool local = false;       // answered here; what the client sends is dropped
    bool request_ended = false;
    bool answer_begun = false;
    bool answer_ended = false;  // all of it is in to_client and trailers
    bool answer_sent = false;
    bool reset_after = false;  // gRPC reset the call after its whole answer
    ByteQueue to_upstream;
    ByteQueue to_client;
    HeaderList trailers;
  };
  struct FromClient;
  struct FromUpstream;

  void OnRequest(std::int32_t id, ReceivedHeaders received);
  void OnRequestData(std::int32_t id, std::string_view bytes);
  void OnRequestEnd(std::int32_t id, Call& call);
  void OnClientClosed(std::int32_t id, std::uint32_t error);
  H2Events::Supply SupplyClient(std::int32_t id, char* bytes, std::size_t size);

  void OnAnswer(std::int32_t upstream, ReceivedHeaders received);
  void OnAnswerData(std::int32_t upstream, std::string_view bytes);
  void OnAnswerEnd(std::int32_t upstream);
  void OnUpstreamClosed(std::int32_t upstream, std::uint32_t error);
  void OnUpstreamGoaway(std::int32_t last, std::uint32_t error);
  H2Events::Supply SupplyUpstream(std::int32_t upstream, char* bytes, std::size_t size);

  void SetUnfinished(Call& call, bool unfinished);
  void JudgeNext();
  void PassOn(std::int32_t id, Call& call);
  void AnswerHere(std::int32_t id, Call& call, const HeaderList& headers);
  void AnswerHealth(std::int32_t id, Call& call);
  void DropRequest(std::int32_t id, Call& call);
  Call* FindUpstream(std::int32_t upstream, std::int32_t* id);

  Host& host_;
  bool serving_;
  bool ended_ = false;
  bool flooded_ = false;
  std::int32_t judged_ = 0;  // the call that phubd judges; 0: none
  int refusals_ = 0;
  std::size_t unfinished_ = 0;  // calls
  std::uint64_t unfinished_ended_ = 0;
  std::uint64_t refused_calls_ = 0;
  int unfinished_of_connection_ = 0;
  std::size_t waiting_bytes_ = 0;
  TimeNs now_ = 0;
  TimeNs cheap_at_ = 0;
  double cheap_left_ = kCheapFrameBurst;
  std::size_t held_bytes_ = 0;
  std::int32_t last_passed_ = 0;
  std::map<std::int32_t, Call> calls_;                // by the client's stream
  std::map<std::int32_t, std::int32_t> by_upstream_;  // the client's stream
  std::unique_ptr<FromClient> from_client_;
  std::unique_ptr<FromUpstream> from_upstream_;
  H2Session client_;
  std::unique_ptr<H2Session> upstream_;
};

}  // namespace phub::server
