// The invariants of a verbs lane's two halves. A violation aborts. A peer cannot cause one, because
// its data is checked before it is counted.
#include "common/base/check.h"
#include "common/transport/verbs/verbs_receiver.h"
#include "common/transport/verbs/verbs_sender.h"

namespace phub::transport {

void VerbsSender::CheckInvariants() const {
  PHUB_CHECK(reported_ <= completed_ && completed_ <= written_ && written_ <= tail_ &&
                 tail_ - reported_ <= capacity_,
             "Q1 reported={} completed={} written={} tail={} capacity={}", reported_, completed_,
             written_, tail_, capacity_);
  PHUB_CHECK(
      messages_taken_ <= messages_sent_ && messages_sent_ - messages_taken_ <= peer_.messages_max,
      "V1 sent={} taken={} window={}", messages_sent_, messages_taken_, peer_.messages_max);
  PHUB_CHECK(units_taken_ <= units_sent_ &&
                 units_sent_ - units_taken_ <= peer_.inbox_bytes / kInboxUnitBytes,
             "V1 units={} taken={}", units_sent_, units_taken_);
  PHUB_CHECK(done_ <= posted_ && posted_ - done_ <= limits_.requests, "V2 posted={} done={}",
             posted_, done_);
  PHUB_CHECK(signals_taken_ <= signals_put_ && signals_put_ - signals_taken_ <= posted_ - done_,
             "V2 signals={} taken={}", signals_put_, signals_taken_);
  // The last work request of each batch is signaled.
  PHUB_CHECK((signals_put_ == signals_taken_) == (posted_ == done_),
             "V2 signals={} taken={} posted={} done={}", signals_put_, signals_taken_, posted_,
             done_);
  PHUB_CHECK(outbox_done_ <= outbox_put_ && outbox_put_ - outbox_done_ <= memory_.outbox_bytes,
             "V3 put={} done={}", outbox_put_, outbox_done_);
}

void VerbsReceiver::CheckInvariants() const {
  pool_.CheckInvariants();
  PHUB_CHECK(arrivals_put_ - arrivals_taken_ <= messages_max_, "V4 put={} taken={}", arrivals_put_,
             arrivals_taken_);
  PHUB_CHECK(units_taken_ <= units_arrived_ &&
                 units_arrived_ - units_taken_ <= memory_.inbox_bytes / kInboxUnitBytes,
             "V4 units={} taken={}", units_arrived_, units_taken_);
  PHUB_CHECK(messages_told_ <= messages_taken_ && units_told_ <= units_taken_,
             "V4 told={} taken={}", messages_told_, messages_taken_);
  if (message_ == nullptr) return;
  PHUB_CHECK(payload_have_ < message_->header.payload_bytes && destination_ != nullptr,
             "R2 have={} of={}", payload_have_, message_->header.payload_bytes);
}

}  // namespace phub::transport
