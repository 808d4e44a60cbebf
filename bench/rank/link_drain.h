// Uses up a shaped link's token credit before a timed exchange.
//
// A token bucket that was idle lets its burst (half a megabyte) pass at once, which would make
// links look too fast for small tensors. Therefore each rank sends datagrams to an echo
// (bench/network/drain_echo.cc) and waits for their return; they use up the tokens of both
// directions. Ranks finish this at different times, and a rank that began early would be timed
// while it waits for the last one. So the ranks wait for each other, and keep a burst of datagrams
// in flight meanwhile.
#pragma once

#include <cstddef>
#include <string>

#include "bench/rank/datagrams.h"
#include "bench/rank/start_line.h"

namespace phub::bench {

class LinkDrain {
 public:
  // `echo`: "ADDRESS:PORT", IPv4. `bytes`: must exceed the buckets' burst.
  LinkDrain(const std::string& echo, std::size_t bytes);

  // Returns with both buckets nearly empty, after all ranks have drained theirs.
  void Drain(StartLine& line);

 private:
  void Send(std::size_t bytes);
  // Waits until at most `left` bytes are in flight.
  void AwaitBack(std::size_t left);

  const std::size_t bytes_;
  Datagrams datagrams_;
  std::size_t under_way_ = 0;  // bytes that have not returned yet
};

}  // namespace phub::bench
