#include "tests/sim/sim_control_channel.h"

#include <type_traits>
#include <utility>

#include "server/control/rpc/control_methods.h"

namespace phub::sim {

// The state that outlives the channel, since scheduled events use it.
struct SimControlChannel::Wire {
  SimNetwork& network;
  SimDaemon& daemon;
  std::string address;
  DurationNs delay;
  bool cut = false;
  std::string session_id;
  server::StreamId stream = 0;
  std::uint64_t attends = 0;  // the number of streams opened so far
  bool open = false;          // the worker's view: the last stream is open
  bool attached = false;      // the daemon's view: `stream` belongs to the session
  Observer* observer = nullptr;

  // Runs at the worker, one delay from now.
  static void AtWorker(const std::shared_ptr<Wire>& wire, std::function<void()> what) {
    wire->network.Schedule(wire->network.clock().Now() + wire->delay,
                           [wire, what = std::move(what)] {
                             if (!wire->cut) what();
                           });
  }
  // Ends the stream with that number.
  static void EndStream(const std::shared_ptr<Wire>& wire, std::uint64_t number,
                        const absl::Status& status) {
    AtWorker(wire, [wire, number, status] {
      if (wire->attends != number || !std::exchange(wire->open, false)) return;
      wire->observer->OnAttendClosed(status);
    });
  }
};

class SimControlChannel::Sink final : public server::EventSink {
 public:
  Sink(std::shared_ptr<Wire> wire, std::uint64_t number)
      : wire_(std::move(wire)), number_(number) {}
  void Send(const v1::SessionEvent& event) override {
    Wire::AtWorker(wire_, [wire = wire_, number = number_, event] {
      if (wire->attends == number && wire->open) wire->observer->OnEvent(event);
    });
  }
  void End(const absl::Status& status) override {
    if (wire_->attends == number_) wire_->attached = false;
    Wire::EndStream(wire_, number_, status);
  }

 private:
  std::shared_ptr<Wire> wire_;
  const std::uint64_t number_;
};

SimControlChannel::SimControlChannel(SimNetwork& network, SimDaemon& daemon, std::string address,
                                     DurationNs delay)
    : wire_(std::make_shared<Wire>(Wire{.network = network,
                                        .daemon = daemon,
                                        .address = std::move(address),
                                        .delay = delay,
                                        .session_id = {}})) {
  daemon.OnClosed([weak = std::weak_ptr<Wire>(wire_)] {
    if (const auto wire = weak.lock()) {
      Wire::EndStream(wire, wire->attends, absl::UnavailableError("connection closed"));
    }
  });
}

SimControlChannel::~SimControlChannel() { wire_->cut = true; }

void SimControlChannel::AtDaemon(std::function<void(server::Control&)> what) {
  wire_->network.Schedule(
      wire_->network.clock().Now() + wire_->delay,
      [wire = wire_, what = std::move(what)] { wire->daemon.CallControl(what); });
}

template <typename Response>
server::Answer<Response> SimControlChannel::Returning(DurationNs timeout, Done<Response> done) {
  auto pending = std::make_shared<Done<Response>>(std::move(done));
  const auto finish = [pending](absl::StatusOr<Response> answer) {
    if (*pending) std::exchange(*pending, nullptr)(std::move(answer));
  };
  if (timeout > 0) {
    wire_->network.Schedule(wire_->network.clock().Now() + timeout, [wire = wire_, finish] {
      if (!wire->cut) finish(absl::DeadlineExceededError("no answer"));
    });
  }
  return [wire = wire_, finish](const absl::Status& status, const Response& response) {
    Wire::AtWorker(wire, [finish, status, response] {
      finish(status.ok() ? absl::StatusOr<Response>(response) : status);
    });
  };
}

template <typename Rpc>
void SimControlChannel::Carry(const typename Rpc::Request& request, DurationNs timeout,
                              Done<typename Rpc::Response> done) {
  if constexpr (std::is_same_v<Rpc, rpc::Join>) {
    Join(request, timeout, std::move(done));
  } else if constexpr (std::is_same_v<Rpc, rpc::LoadState>) {
    Load(request, timeout, std::move(done));
  } else {
    AtDaemon(
        [request, back = Returning<typename Rpc::Response>(timeout, std::move(done))](
            server::Control& control) { server::kControlMethod<Rpc>(control, request, back); });
  }
}

void SimControlChannel::Join(const v1::JoinRequest& request, DurationNs timeout,
                             Done<v1::JoinResponse> done) {
  auto remember = [wire = wire_, done = std::move(done)](absl::StatusOr<v1::JoinResponse> joined) {
    if (joined.ok()) wire->session_id = joined->session_id();
    done(std::move(joined));
  };
  AtDaemon(
      [wire = wire_, request, back = Returning<v1::JoinResponse>(timeout, std::move(remember))](
          server::Control& control) { control.joins().Join(request, wire->address, back); });
}

void SimControlChannel::Load(const v1::LoadStateRequest& request, DurationNs timeout,
                             Done<v1::LoadStateResponse> done) {
  AtDaemon([request, back = Returning<v1::LoadStateResponse>(timeout, std::move(done))](
               server::Control& control) {
    const absl::StatusOr<server::LoadId> load = control.loads().BeginLoad(request);
    absl::Status status = load.status();
    if (status.ok()) status = control.loads().LoadPart(*load, request);
    if (status.ok()) return control.loads().FinishLoad(*load, back);
    if (load.ok()) control.loads().CancelLoad(*load);
    back(status, {});
  });
}

void SimControlChannel::Attend(Observer& observer) {
  wire_->observer = &observer;
  wire_->open = true;
  const std::uint64_t number = ++wire_->attends;
  wire_->network.Schedule(wire_->network.clock().Now() + wire_->delay, [wire = wire_, number] {
    SimDaemon& daemon = wire->daemon;
    if (wire->cut) return;
    if (!daemon.alive()) {
      if (daemon.closed()) Wire::EndStream(wire, number, absl::UnavailableError("refused"));
      return;
    }
    daemon.CallControl([wire, number](server::Control& control) {
      auto stream =
          control.liveness().AttachStream(wire->session_id, std::make_shared<Sink>(wire, number));
      if (!stream.ok()) return Wire::EndStream(wire, number, stream.status());
      wire->stream = *stream;
      wire->attached = wire->attends == number && wire->open;
      if (!wire->attached) control.liveness().DetachStream(wire->session_id, wire->stream);
    });
  });
}

void SimControlChannel::SendHeartbeat(const v1::Heartbeat& heartbeat) {
  AtDaemon([wire = wire_, heartbeat](server::Control& control) {
    // A call is refused once the session is over, which the worker learns from the stream.
    if (wire->attached)
      (void)control.liveness().Heartbeat(heartbeat.session_id(), heartbeat.sequence()).ok();
  });
}

void SimControlChannel::BreakStream() {
  if (!wire_->open) return;
  Wire::EndStream(wire_, wire_->attends, absl::UnavailableError("connection reset"));
  AtDaemon([wire = wire_](server::Control& control) {
    if (std::exchange(wire->attached, false)) {
      control.liveness().DetachStream(wire->session_id, wire->stream);
    }
  });
}

void SimControlChannel::Cut(bool silent) {
  wire_->cut = true;
  if (silent) return;
  AtDaemon([wire = wire_](server::Control& control) {
    if (wire->attached) control.liveness().DetachStream(wire->session_id, wire->stream);
  });
}

}  // namespace phub::sim
