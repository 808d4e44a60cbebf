#include "tests/sim/sim_loader.h"

#include <fmt/format.h>

#include <utility>

namespace phub::sim {
namespace {

constexpr std::uint64_t kDelayMax = 2'000'000;
constexpr std::uint64_t kUnitsPerMessageMax = 8;

}  // namespace

void SimLoader::Later(Step step) {
  const auto delay = static_cast<DurationNs>(random_.Below(kDelayMax));
  network_.Schedule(network_.clock().Now() + delay, [self = shared_from_this(), step] {
    self->daemon_.CallControl(
        [self, step](server::Control& control) { (self.get()->*step)(control); });
  });
}

void SimLoader::Start() { Later(&SimLoader::Begin); }

const std::string& SimLoader::mistake() const {
  for (const auto& [rack, relay] : relays_) {
    if (!relay->mistake().empty()) return relay->mistake();
  }
  return mistake_;
}

// The first message has some of the keys; all of them if the job spans racks.
void SimLoader::Begin(server::Control& control) {
  v1::LoadStateRequest first;
  first.set_session_id(checkpoint_.session_id);
  std::uint64_t count = checkpoint_.keys.size();
  if (checkpoint_.plane.empty()) count = 1 + random_.Below(count);
  while (keys_sent_ < count) *first.add_keys() = checkpoint_.keys[keys_sent_++];
  const auto load = control.loads().BeginLoad(std::move(first));
  if (!load.ok()) return;
  load_ = *load;
  const auto resume = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Later(&SimLoader::TakePart);
  };
  if (control.loads().AcceptsParts(load_, resume)) TakePart(control);
}

void SimLoader::TakePart(server::Control& control) {
  const absl::Status status = control.loads().LoadPieces(load_, message_, next_in_message_);
  if (!status.ok()) {  // the job or the rank's session has ended, or the checkpoint is refused
    if (absl::IsInvalidArgument(status)) mistake_ = std::string(status.message());
    return;
  }
  if (next_in_message_ < server::Loads::UnitsOf(message_)) {
    return control.loads().Later(
        load_, [self = shared_from_this(), &control] { self->TakePart(control); });
  }
  PassOn(control);
  if (keys_sent_ == checkpoint_.keys.size() && pieces_sent_ + 1 == checkpoint_.pieces.size())
    return Later(&SimLoader::Finish);
  DrawMessage();
  Later(&SimLoader::TakePart);
}

void SimLoader::PassOn(server::Control& control) {
  for (auto& [rack, part] : control.loads().PartsForRacks(load_)) {
    std::shared_ptr<SimLoadRelay>& relay = relays_[rack];
    if (relay == nullptr)
      relay = std::make_shared<SimLoadRelay>(network_, *checkpoint_.plane[rack], random_);
    relay->Send(std::move(part));
  }
}

// Keys come before pieces.
void SimLoader::DrawMessage() {
  message_.Clear();
  next_in_message_ = 0;
  for (std::uint64_t left = 1 + random_.Below(kUnitsPerMessageMax); left > 0; --left) {
    if (keys_sent_ < checkpoint_.keys.size()) {
      *message_.add_keys() = checkpoint_.keys[keys_sent_++];
    } else if (pieces_sent_ + 1 < checkpoint_.pieces.size()) {
      *message_.add_pieces() = checkpoint_.pieces[pieces_sent_++];
    }
  }
}

void SimLoader::Finish(server::Control& control) {
  checked_ = true;
  for (const auto& [rack, relay] : relays_) relay->Cancel();
  // The last piece may be another rack's, so that nothing is missing here.
  if (!checkpoint_.plane.empty() || random_.Chance(1, 2)) return control.loads().CancelLoad(load_);
  control.loads().FinishLoad(
      load_, [self = shared_from_this()](const absl::Status& status, const v1::LoadStateResponse&) {
        if (status.ok()) self->mistake_ = "control loaded a checkpoint whose last piece is missing";
      });
}

}  // namespace phub::sim
