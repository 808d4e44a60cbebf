// Takes the credit out of a shaped link before an exchange that is timed.
//
// A token bucket that has been idle lets its burst pass at once: half a megabyte at no cost, which
// would make a link of small tensors look faster than it is. So datagrams are sent to an echo
// (harness/drain_echo.py) and awaited: they take the tokens of both directions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace phub::bench {

class LinkDrain {
 public:
  // "ADDRESS:PORT" of the echo; IPv4. `bytes`: the buckets' burst is less than that.
  LinkDrain(const std::string& echo, std::size_t bytes);
  ~LinkDrain();
  LinkDrain(const LinkDrain&) = delete;
  LinkDrain& operator=(const LinkDrain&) = delete;

  // Returns with both buckets as good as empty.
  void Drain();

 private:
  void Send(std::size_t count, char kind);

  const std::size_t bytes_;
  int socket_ = -1;
  std::vector<char> datagram_;
};

}  // namespace phub::bench
