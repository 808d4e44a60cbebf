// The front's only thread: accepts, asks phubd, moves bytes, and keeps the limits of front_limits.h
// and crowd.h.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "server/front/crowd.h"
#include "server/front/front_connection.h"
#include "server/front/packet.h"

namespace phub::server {

class FrontLoop final : public FrontConnection::Owner {
 public:
  // `pair` leads to phubd. The listening sockets are the `listening_count` descriptors from
  // `first_listening` on.
  FrontLoop(Descriptor pair, int first_listening, int listening_count, const CrowdLimits& limits);

  // Returns once phubd has closed its end of the pair and the open connections have been flushed.
  // `confined`: reported to phubd.
  void Run(bool confined);

  void Judge(const FrontCall& call) override;
  bool serving() const override { return serving_; }

 private:
  using Connections = std::map<std::uint64_t, std::unique_ptr<FrontConnection>>;
  bool Ended() const { return pair_ended_ && (connections_.empty() || clock_.Now() >= end_at_); }
  int WaitMs() const;
  void Handle(std::uint64_t what, std::uint32_t events);
  void Accept(int listening);
  void LookAtSilent(FrontConnection& connection);
  void PromoteSilent(TimeNs now);
  void TurnBusy(TimeNs now);
  void Sweep(TimeNs now);
  void CutLargest();
  void Remove(Connections::iterator it);
  void CloseFor(std::uint64_t id, std::uint64_t& counter);

  void ReadPair();
  void OnPacket(Packet& packet);
  void OnTls(Packet& packet);
  void OnVerdict(Packet& packet);
  void Displace(const std::string& tenant, const std::string& block);
  void Send(std::string packet);
  void SendWaiting();
  void Report(TimeNs now);
  void SetServing(bool serving);

  SystemClock clock_;
  Descriptor epoll_;
  Descriptor pair_;
  std::deque<Descriptor> listening_;
  bool pair_ended_ = false;
  bool configured_ = false;  // phubd has said whether there is TLS
  bool draining_ = false;
  bool starved_ = false;  // out of descriptors or memory
  TimeNs end_at_ = 0;
  TimeNs swept_ = 0;
  TimeNs reported_ = 0;
  TimeNs heard_ = 0;  // the last sign of life of phubd
  bool told_serving_ = false;
  bool serving_ = false;
  TlsContext tls_;
  Crowd crowd_;
  std::uint64_t next_id_ = 1;
  Connections connections_;
  std::set<std::uint64_t> whole_;  // silent connections with a complete first message
  std::set<std::uint64_t> busy_;   // have more to do
  std::map<std::uint64_t, std::size_t> excess_;
  std::size_t excess_bytes_ = 0;
  std::deque<std::string> to_phubd_;
  FrontReport report_;
};

}  // namespace phub::server
