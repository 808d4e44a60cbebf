// Forwards calls that concern another rack's part of a job to that rack's daemon, with this
// daemon's own certificate, and returns its answer. This daemon has already authorized the caller;
// the request names the tenant. The relay stores nothing of what passes through, and forwards
// streams part by part (snapshot_relay.h, load_relay.h).
//
// Threads: only the owner calls Start and Stop; all other functions are called with Control's lock
// held.
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
  // racks: "host:port" of their control planes. `control` must outlive it.
  RackRelay(ControlThread& control, std::vector<std::string> racks, PeerCredentials credentials);
  ~RackRelay();  // Stop()
  RackRelay(const RackRelay&) = delete;
  RackRelay& operator=(const RackRelay&) = delete;

  // FAILED_PRECONDITION: a file of the credentials cannot be read.
  absl::Status Start();
  // Cancels running calls; their callers get an error. Streams are ended by their owners.
  void Stop();

  // call(async, context, request, response, callback): a method of the stub's async interface.
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
    if (!Begin(&pending->context))
      return answer(absl::UnavailableError("phubd is shutting down"), {});
    control_.Defer([this, to, pending, answer = std::move(answer), call = std::move(call)] {
      call(*admin(to)->async(), &pending->context, &pending->request, &pending->response,
           [this, to, pending, answer](const grpc::Status& status) {
             control_.Run([&](Control&) { answer(SaidBy(to, status), pending->response); });
             End(&pending->context);
           });
    });
  }

  // The rack's daemon is at another endpoint now. Any thread.
  void SetEndpoint(RackIndex rack, const std::string& endpoint);
  // For one call only: the stub may be replaced before the next one.
  std::shared_ptr<v1::Admin::Stub> admin(RackIndex rack);
  std::shared_ptr<v1::Session::Stub> session(RackIndex rack);
  RelayedLoads& loads() { return loads_; }
  // Converts the answer of that rack's daemon to an error for the caller.
  absl::Status SaidBy(RackIndex rack, const grpc::Status& status);

 private:
  // For one unary call. The daemon itself bounds the time for an answer.
  static constexpr std::chrono::seconds kCallTimeout{20};

  struct Stubs {
    std::shared_ptr<v1::Admin::Stub> admin;
    std::shared_ptr<v1::Session::Stub> session;
  };

  Stubs Connect(RackIndex rack) const;    // under mutex_
  bool Begin(grpc::ClientContext* call);  // false: stopping
  void End(grpc::ClientContext* call);

  ControlThread& control_;
  const PeerCredentials files_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;  // made from files_ by Start
  RelayedLoads loads_;                                     // under Control's lock

  std::mutex mutex_;                // guards what follows
  std::vector<std::string> racks_;  // their endpoints
  std::vector<Stubs> stubs_;        // [rack]; set by Start
  std::condition_variable ended_;
  std::set<grpc::ClientContext*> calls_;
  bool stopping_ = false;
};

}  // namespace phub::server
