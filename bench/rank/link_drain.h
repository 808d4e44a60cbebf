// Takes the credit out of a shaped link before an exchange that is timed.
//
// A token bucket that has been idle lets its burst pass at once: half a megabyte at no cost, which
// would make a link of small tensors look faster than it is. So datagrams are sent to an echo
// (bench/network/drain_echo.cc) and awaited: they take the tokens of both directions. Ranks are not
// done with that at the same time, and whoever began early would be timed while it waits for the
// last; so they wait for each other, and keep a burst of datagrams under way meanwhile.
#pragma once

#include <cstddef>
#include <string>

#include "bench/rank/datagrams.h"
#include "bench/rank/start_line.h"

namespace phub::bench {

class LinkDrain {
 public:
  // "ADDRESS:PORT" of the echo; IPv4. `bytes`: the buckets' burst is less than that.
  LinkDrain(const std::string& echo, std::size_t bytes);

  // Returns with both buckets as good as empty, once all ranks have come that far.
  void Drain(StartLine& line);

 private:
  void Send(std::size_t bytes);
  // Waits for bytes that come back until at most `left` are under way.
  void AwaitBack(std::size_t left);

  const std::size_t bytes_;
  Datagrams datagrams_;
  std::size_t under_way_ = 0;  // bytes that have not come back yet
};

}  // namespace phub::bench
