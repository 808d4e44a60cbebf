// How long an answer takes, estimated as in RFC 6298. Pure. One thread.
#pragma once

#include <cstdlib>

#include "common/base/clock.h"

namespace phub::aggregation {

class RoundTrip {
 public:
  void Add(DurationNs measured) {
    if (smoothed_ == 0) {
      smoothed_ = measured;
      deviation_ = measured / 2;
      return;
    }
    deviation_ += (std::abs(measured - smoothed_) - deviation_) / 4;
    smoothed_ += (measured - smoothed_) / 8;
  }
  bool is_known() const { return smoothed_ != 0; }
  // An answer that has not arrived by then is probably lost. 0: nothing was measured.
  DurationNs timeout() const { return smoothed_ + 4 * deviation_; }

 private:
  DurationNs smoothed_ = 0;
  DurationNs deviation_ = 0;
};

}  // namespace phub::aggregation
