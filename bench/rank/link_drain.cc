#include "bench/rank/link_drain.h"

#include <poll.h>

#include <algorithm>

#include "bench/rank/arguments.h"

namespace phub::bench {
namespace {

constexpr int kQuietMilliseconds = 200;

}  // namespace

LinkDrain::LinkDrain(const std::string& echo, std::size_t bytes) : bytes_(bytes) {
  datagrams_.Connect(ParseAddress(echo, "--drain"));
}

void LinkDrain::Send(std::size_t bytes) {
  datagrams_.Send(bytes);
  under_way_ += bytes;
}

void LinkDrain::AwaitBack(std::size_t left) {
  pollfd item{datagrams_.descriptor(), POLLIN, 0};
  while (under_way_ > left) {
    if (poll(&item, 1, kQuietMilliseconds) <= 0)
      Fail("--drain: the echo did not return " + std::to_string(under_way_) +
           " bytes of datagrams");
    under_way_ -= std::min(under_way_, datagrams_.Receive());
  }
}

void LinkDrain::Drain(StartLine& line) {
  AwaitBack(0);  // waits for the datagrams of the last call
  while (under_way_ < bytes_) Send(kBurstBytes);
  AwaitBack(kBurstBytes);
  line.Arrive();
  // One burst uses up the tokens that a bucket gains while other ranks drain theirs.
  while (!line.all_there()) {
    AwaitBack(0);
    Send(kBurstBytes);
  }
}

}  // namespace phub::bench
