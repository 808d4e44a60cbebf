#include "server/control/rpc/peer_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>

namespace phub::server {
namespace {

Descriptor NewSocket() { return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

TEST(PeerTable, AReusedDescriptorIsNotTheAdministratorThatHadIt) {
  PeerTable table;
  Descriptor local = NewSocket();
  const int number = local.get();
  const std::string name = fmt::format("fd:{}", number);
  table.AddLocal(number, {.pid = 17, .uid = 0});
  ASSERT_TRUE(table.FindLocal(name).has_value());
  EXPECT_EQ(table.FindLocal(name)->pid, 17);
  local.Reset();
  EXPECT_FALSE(table.FindLocal(name).has_value());
  Descriptor other = NewSocket();
  ASSERT_EQ(other.get(), number);
  EXPECT_FALSE(table.FindLocal(name).has_value());
  for (const char* odd : {"", "fd:", "fd:x", "ipv4:10.0.0.1:5", "unix-abstract:fd:17"}) {
    EXPECT_FALSE(table.FindLocal(odd).has_value()) << odd;
  }
}

TEST(PeerTable, UpstreamsHaveNamesOfTheirOwnThatAreNeverUsedTwice) {
  PeerTable table;
  const auto first = table.MakeUpstream({.peer = "10.0.0.5:40112", .certificate = {}});
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(PeerTable::IsUpstream(first->name));
  EXPECT_FALSE(PeerTable::IsUpstream("fd:17"));
  // gRPC asks the kernel for the name.
  sockaddr_un address{};
  socklen_t size = sizeof address;
  ASSERT_EQ(getpeername(first->grpc.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_EQ("unix-abstract:" +
                std::string(address.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1),
            first->name);
  EXPECT_EQ(table.FindUpstream(first->name)->peer, "10.0.0.5:40112");
  table.RemoveUpstream(first->name);
  EXPECT_FALSE(table.FindUpstream(first->name).has_value());
  const auto second = table.MakeUpstream({});
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(second->name, first->name);
  EXPECT_FALSE(table.FindLocal(second->name).has_value());
}

}  // namespace
}  // namespace phub::server
