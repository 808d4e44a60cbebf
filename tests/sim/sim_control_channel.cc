#include "tests/sim/sim_control_channel.h"

#include <utility>

namespace phub::sim {

// What outlives the channel: events under way hold it.
struct SimControlChannel::Wire {
  SimNetwork& network;
  server::Control& control;
  std::string address;
  DurationNs delay;
  bool cut = false;
  std::string session_id;
  server::StreamId stream = 0;
  bool attached = false;
  Observer* observer = nullptr;

  // Back at the worker, one delay from now.
  static void AtWorker(const std::shared_ptr<Wire>& wire, std::function<void()> what) {
    wire->network.Schedule(wire->network.clock().Now() + wire->delay,
                           [wire, what = std::move(what)] {
                             if (!wire->cut) what();
                           });
  }
};

class SimControlChannel::Sink final : public server::EventSink {
 public:
  explicit Sink(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  void Send(const v1::SessionEvent& event) override {
    Wire::AtWorker(wire_, [wire = wire_, event] { wire->observer->OnEvent(event); });
  }
  void End(const absl::Status& status) override {
    wire_->attached = false;
    Wire::AtWorker(wire_, [wire = wire_, status] { wire->observer->OnAttendClosed(status); });
  }

 private:
  std::shared_ptr<Wire> wire_;
};

SimControlChannel::SimControlChannel(SimNetwork& network, server::Control& control,
                                     std::string address, DurationNs delay)
    : wire_(std::make_shared<Wire>(
          Wire{network, control, std::move(address), delay, false, {}, 0, false, nullptr})) {}

SimControlChannel::~SimControlChannel() { wire_->cut = true; }

void SimControlChannel::AtDaemon(std::function<void(server::Control&)> what) {
  wire_->network.Schedule(wire_->network.clock().Now() + wire_->delay,
                          [wire = wire_, what = std::move(what)] { what(wire->control); });
}

template <typename Response>
server::Answer<Response> SimControlChannel::Returning(Done<Response> done) {
  return
      [wire = wire_, done = std::move(done)](const absl::Status& status, const Response& response) {
        Wire::AtWorker(wire, [done, status, response] {
          done(status.ok() ? absl::StatusOr<Response>(response) : status);
        });
      };
}

void SimControlChannel::Join(const v1::JoinRequest& request, DurationNs,
                             Done<v1::JoinResponse> done) {
  auto remember = [wire = wire_, done = std::move(done)](absl::StatusOr<v1::JoinResponse> joined) {
    if (joined.ok()) wire->session_id = joined->session_id();
    done(std::move(joined));
  };
  AtDaemon([wire = wire_, request, back = Returning<v1::JoinResponse>(std::move(remember))](
               server::Control& control) { control.Join(request, wire->address, back); });
}

void SimControlChannel::AddKeys(const v1::AddKeysRequest& request, DurationNs,
                                Done<v1::AddKeysResponse> done) {
  AtDaemon([request, back = Returning(std::move(done))](server::Control& control) {
    control.AddKeys(request, back);
  });
}

void SimControlChannel::OpenLanes(const v1::OpenLanesRequest& request, DurationNs,
                                  Done<v1::OpenLanesResponse> done) {
  AtDaemon([request, back = Returning(std::move(done))](server::Control& control) {
    control.OpenLanes(request, back);
  });
}

void SimControlChannel::Barrier(const v1::BarrierRequest& request, DurationNs,
                                Done<v1::BarrierResponse> done) {
  AtDaemon([request, back = Returning(std::move(done))](server::Control& control) {
    control.Barrier(request, back);
  });
}

void SimControlChannel::Leave(const v1::LeaveRequest& request, DurationNs,
                              Done<v1::LeaveResponse> done) {
  AtDaemon([request, back = Returning(std::move(done))](server::Control& control) {
    control.Leave(request, back);
  });
}

void SimControlChannel::Attend(Observer& observer) {
  wire_->observer = &observer;
  AtDaemon([wire = wire_](server::Control& control) {
    auto stream = control.AttachStream(wire->session_id, std::make_shared<Sink>(wire));
    if (!stream.ok()) return;
    wire->stream = *stream;
    wire->attached = true;
  });
}

void SimControlChannel::SendHeartbeat(const v1::Heartbeat& heartbeat) {
  AtDaemon([heartbeat](server::Control& control) {
    // Refused once the session is over, which the worker learns from the stream.
    (void)control.Heartbeat(heartbeat.session_id(), heartbeat.sequence()).ok();
  });
}

void SimControlChannel::Cut(bool silent) {
  wire_->cut = true;
  if (silent) return;
  AtDaemon([wire = wire_](server::Control& control) {
    if (wire->attached) control.DetachStream(wire->session_id, wire->stream);
  });
}

}  // namespace phub::sim
