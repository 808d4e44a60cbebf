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
  OnEvent on_event;

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
    Wire::AtWorker(wire_, [wire = wire_, event] { wire->on_event(event); });
  }
  void End(const absl::Status&) override { wire_->attached = false; }

 private:
  std::shared_ptr<Wire> wire_;
};

SimControlChannel::SimControlChannel(SimNetwork& network, server::Control& control,
                                     std::string address, DurationNs delay)
    : wire_(std::make_shared<Wire>(
          Wire{network, control, std::move(address), delay, false, {}, 0, false, {}})) {}

SimControlChannel::~SimControlChannel() { wire_->cut = true; }

void SimControlChannel::AtDaemon(std::function<void(server::Control&)> what) {
  wire_->network.Schedule(wire_->network.clock().Now() + wire_->delay,
                          [wire = wire_, what = std::move(what)] { what(wire->control); });
}

template <typename Response>
SimControlChannel::Answer<Response> SimControlChannel::Returning(Answer<Response> answer) {
  return [wire = wire_, answer = std::move(answer)](const absl::Status& status,
                                                    const Response& response) {
    Wire::AtWorker(wire, [answer, status, response] { answer(status, response); });
  };
}

void SimControlChannel::Join(const v1::JoinRequest& request, Answer<v1::JoinResponse> answer) {
  AtDaemon([wire = wire_, request, back = Returning(std::move(answer))](server::Control& control) {
    control.Join(request, wire->address, back);
  });
}

void SimControlChannel::AddKeys(const v1::AddKeysRequest& request,
                                Answer<v1::AddKeysResponse> answer) {
  AtDaemon([request, back = Returning(std::move(answer))](server::Control& control) {
    control.AddKeys(request, back);
  });
}

void SimControlChannel::OpenLanes(const v1::OpenLanesRequest& request,
                                  Answer<v1::OpenLanesResponse> answer) {
  AtDaemon([request, back = Returning(std::move(answer))](server::Control& control) {
    control.OpenLanes(request, back);
  });
}

void SimControlChannel::Barrier(const v1::BarrierRequest& request,
                                Answer<v1::BarrierResponse> answer) {
  AtDaemon([request, back = Returning(std::move(answer))](server::Control& control) {
    control.Barrier(request, back);
  });
}

void SimControlChannel::Leave(const v1::LeaveRequest& request, Answer<v1::LeaveResponse> answer) {
  AtDaemon([request, back = Returning(std::move(answer))](server::Control& control) {
    control.Leave(request, back);
  });
}

void SimControlChannel::Attend(const std::string& session_id, OnEvent on_event) {
  wire_->session_id = session_id;
  wire_->on_event = std::move(on_event);
  AtDaemon([wire = wire_](server::Control& control) {
    auto stream = control.AttachStream(wire->session_id, std::make_shared<Sink>(wire));
    if (!stream.ok()) return;
    wire->stream = *stream;
    wire->attached = true;
  });
}

void SimControlChannel::SendHeartbeat(std::uint64_t sequence) {
  AtDaemon([wire = wire_, sequence](server::Control& control) {
    // Refused once the session is over, which the worker learns from the stream.
    (void)control.Heartbeat(wire->session_id, sequence).ok();
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
