// bench-drain-echo ADDRESS:PORT: echoes datagrams for bench/rank/link_drain.h. Prints `echoes` when
// it is ready, and runs until it is killed.
#include <algorithm>
#include <cstdio>
#include <string_view>

#include "bench/rank/build_info.h"
#include "bench/rank/datagrams.h"

int main(int argc, char** argv) {
  using namespace phub::bench;
  if (argc == 2 && std::string_view(argv[1]) == "--build-info") return PrintBuildInfo();
  if (argc != 2) {
    std::fputs("usage: bench-drain-echo ADDRESS:PORT\n", stderr);
    return 2;
  }
  Datagrams datagrams;
  datagrams.Bind(ParseAddress(argv[1], "bench-drain-echo"));
  std::puts("echoes");
  std::fflush(stdout);
  for (;;) {
    sockaddr_in from{};
    std::size_t left = datagrams.Receive(&from);
    while (left > 0) {
      const std::size_t bytes = std::min(left, kBurstBytes);
      datagrams.Send(bytes, &from);
      left -= bytes;
    }
  }
}
