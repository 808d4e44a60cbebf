#include "tests/sim/sim_load_relay.h"

#include <utility>

namespace phub::sim {
namespace {

constexpr std::uint64_t kRelayDelayMax = 2'000'000;

}  // namespace

void SimLoadRelay::Later(Step step) {
  const auto delay = static_cast<DurationNs>(random_.Below(kRelayDelayMax));
  network_.Schedule(network_.clock().Now() + delay, [self = shared_from_this(), step] {
    self->daemon_.CallControl(
        [self, step](server::Control& control) { (self.get()->*step)(control); });
  });
}

void SimLoadRelay::Send(v1::LoadStateRequest part) {
  parts_.push_back(std::move(part));
  if (std::exchange(busy_, true)) return;
  Later(load_ == 0 ? &SimLoadRelay::Begin : &SimLoadRelay::TakePart);
}

void SimLoadRelay::Begin(server::Control& control) {
  const auto load = control.loads().BeginLoad(parts_.front());
  if (!load.ok()) return End(load.status());
  load_ = *load;
  const auto resume = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Later(&SimLoadRelay::TakePart);
  };
  if (control.loads().AcceptsParts(load_, resume)) TakePart(control);
}

void SimLoadRelay::TakePart(server::Control& control) {
  if (over_) return;
  const absl::Status status = control.loads().LoadPieces(load_, parts_.front(), next_in_part_);
  if (!status.ok()) return End(status);
  if (next_in_part_ < server::Loads::UnitsOf(parts_.front())) {
    return control.loads().Later(
        load_, [self = shared_from_this(), &control] { self->TakePart(control); });
  }
  next_in_part_ = 0;
  parts_.pop_front();
  busy_ = !parts_.empty();
  if (busy_) Later(&SimLoadRelay::TakePart);
}

// The job may have ended, or be adding keys; but what the other daemon sends must be right.
void SimLoadRelay::End(const absl::Status& status) {
  over_ = true;
  if (absl::IsInvalidArgument(status)) mistake_ = std::string(status.message());
}

void SimLoadRelay::Cancel() {
  over_ = true;
  daemon_.CallControl([load = load_](server::Control& control) {
    if (load != 0) control.loads().CancelLoad(load);
  });
}

}  // namespace phub::sim
