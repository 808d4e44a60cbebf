// Calls that are about another rack's part of a job: passed on to that rack's daemon with this
// daemon's own certificate, and answered as it answers. Callers have been let in by this daemon; in
// whose name they call is in the request. Nothing of what passes through is kept, and streams go
// part by part (snapshot_relay.h, load_relay.h).
//
// Threads: Start and Stop are the owner's; all else comes with Control's lock held.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "phub/v1/admin.grpc.pb.h"
#include "phub/v1/session.grpc.pb.h"
#include "server/control/ports/control_thread.h"
#include "server/control/rpc/peer_channel.h"
#include "server/control/rpc/relayed_loads.h"

namespace phub::server {

class RackRelay {
 public:
  // racks: "host:port" of their control planes. `control` outlives it.
  RackRelay(ControlThread& control, std::vector<std::string> racks, PeerCredentials credentials);
  ~RackRelay();  // Stop()
  RackRelay(const RackRelay&) = delete;
  RackRelay& operator=(const RackRelay&) = delete;

  // FAILED_PRECONDITION: a file of the credentials cannot be read.
  absl::Status Start();
  // Ends the calls that are under way; their callers are told. Streams are ended by who has them.
  void Stop();

  // call(async, context, request, response, callback): of the stub's interface.
  template <typename Response, typename Request, typename Call>
  void PassOn(RackIndex to, const Request& request, Answer<Response> answer, Call call) {
    struct Pending {
      grpc::ClientContext context;
      Request request;
      Response response;
    };
    const auto pending = std::make_shared<Pending>();
    pending->request = request;
    pending->request.mutable_rack()->set_passed_on(true);
    pending->context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    if (!Begin(&pending->context)) return answer(absl::UnavailableError("phubd is stopping"), {});
    control_.Defer([this, to, pending, answer = std::move(answer), call = std::move(call)] {
      call(*admin(to)->async(), &pending->context, &pending->request, &pending->response,
           [this, to, pending, answer](const grpc::Status& status) {
             control_.Run([&](Control&) { answer(SaidBy(to, status), pending->response); });
             End(&pending->context);
           });
    });
  }

  // For one call: the next one may have another connection.
  std::shared_ptr<v1::Admin::Stub> admin(RackIndex rack);
  std::shared_ptr<v1::Session::Stub> session(RackIndex rack);
  RelayedLoads& loads() { return loads_; }
  // What that rack's daemon said, as the one that was asked says it.
  absl::Status SaidBy(RackIndex rack, const grpc::Status& status);

 private:
  // Of one unary call: what a daemon takes to answer is bounded by itself.
  static constexpr std::chrono::seconds kCallTimeout{20};

  struct Stubs {
    std::shared_ptr<v1::Admin::Stub> admin;
    std::shared_ptr<v1::Session::Stub> session;
  };

  Stubs Connect(RackIndex rack) const;
  bool Begin(grpc::ClientContext* call);  // false: it is stopping
  void End(grpc::ClientContext* call);

  ControlThread& control_;
  const std::vector<std::string> racks_;
  const PeerCredentials files_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;  // of files_, since Start
  RelayedLoads loads_;                                     // under Control's lock

  std::mutex mutex_;          // of what follows
  std::vector<Stubs> stubs_;  // [rack], since Start
  std::condition_variable ended_;
  std::set<grpc::ClientContext*> calls_;
  bool stopping_ = false;
};

}  // namespace phub::server
