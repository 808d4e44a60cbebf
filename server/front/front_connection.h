// One connection of the front: the client's socket, TLS, the relay, and the upstream's socket once
// phubd has let a call pass. Driven by the front's loop; one thread.
//
//   kSilent     the first message is incomplete and still in the kernel
//   kHandshake  TLS
//   kServing    HTTP/2
//   kClosed     to be destroyed
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/front/packet.h"
#include "server/front/stream_relay.h"
#include "server/front/wire_socket.h"

namespace phub::server {

class FrontConnection final : public StreamRelay::Host {
 public:
  enum class State { kSilent, kHandshake, kServing, kClosed };
  // Why the connection was closed; the front counts it.
  enum class End { kNormal, kForm, kFlood, kMemory };
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void Judge(const FrontCall& call) = 0;
    virtual bool serving() const = 0;
  };

  FrontConnection(Owner& owner, std::uint64_t id, Descriptor client, std::string peer, TimeNs now)
      : owner_(owner), id_(id), peer_(std::move(peer)), since_(now), client_(std::move(client)) {}
  ~FrontConnection() override;

  // The client has a place; its first message is complete. A null context: no TLS.
  void Start(const TlsContext& context, TimeNs now);
  void Open(Descriptor upstream);
  void Refuse(std::uint32_t code, std::string_view message);
  void SetServing(bool serving);

  // What epoll reported. Edge-triggered, so the connection remembers it.
  void NoteClient(bool readable, bool writable);
  void NoteUpstream(bool readable, bool writable);
  // Moves bytes. True: there is more to do at once.
  bool Turn(TimeNs now);
  // Closes the connection if its time is up. True: it was late.
  bool Sweep(TimeNs now);
  // Ended for lack of a request since the last call.
  std::uint64_t TakeUnfinishedEnded() {
    return relay_ == nullptr ? 0 : relay_->TakeUnfinishedEnded();
  }
  std::uint64_t TakeRefusedCalls() { return relay_ == nullptr ? 0 : relay_->TakeRefusedCalls(); }
  void Close(End end);

  std::uint64_t id() const { return id_; }
  State state() const { return state_; }
  End end() const { return end_; }
  TimeNs since() const { return since_; }
  bool opened() const { return relay_ != nullptr && relay_->opened(); }
  Crowd::Use use() const { return relay_ == nullptr ? Crowd::Use::kNothing : relay_->use(); }
  int client_socket() const { return client_.get(); }
  int upstream_socket() const { return upstream_.get(); }
  // Beyond the share that every connection has.
  std::size_t excess_bytes() const;

  void Judge(const HeaderList& headers) override;

 private:
  // One direction out: bytes that the socket has not accepted yet.
  struct Outlet {
    std::string bytes;
    std::size_t head = 0;
    bool writable = true;
    bool empty() const { return head == bytes.size(); }
  };
  void Serve(TimeNs now);
  bool ReadClient(TimeNs now);
  bool ReadUpstream();
  bool Discard();
  template <typename Next>
  bool Flush(WireSocket& socket, Outlet& outlet, Next next);
  bool FlushUpstream();
  void CheckEnd(TimeNs now);

  Owner& owner_;
  const std::uint64_t id_;
  const std::string peer_;
  State state_ = State::kSilent;
  End end_ = End::kNormal;
  TimeNs since_;
  TimeNs ending_since_ = 0;
  bool shut_ = false;  // everything was sent, and the client knows
  std::size_t discarded_ = 0;
  bool client_readable_ = false;
  bool upstream_readable_ = false;
  bool upstream_ended_ = false;
  WireSocket client_;
  WireSocket upstream_;
  Outlet to_client_;
  Outlet to_upstream_;
  std::unique_ptr<StreamRelay> relay_;
};

}  // namespace phub::server
