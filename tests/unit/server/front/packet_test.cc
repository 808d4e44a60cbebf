#include "server/front/packet.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace phub::server {
namespace {

FrontCall SomeCall() {
  FrontCall call;
  call.connection = 7;
  call.peer = "10.0.0.5:40112";
  call.certificate = true;
  call.uris = {"spiffe://phub/tenant/acme", "x"};
  call.certificate_end = 1'900'000'000;
  call.path = "/phub.v1.Session/Join";
  call.authorization = {"Bearer phub_x"};
  return call;
}

TEST(Packet, ACallArrivesAsItWasSent) {
  const auto read = ReadFrontCall(ToPacket(SomeCall()).substr(1));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->connection, 7u);
  EXPECT_EQ(read->peer, "10.0.0.5:40112");
  EXPECT_TRUE(read->certificate);
  EXPECT_EQ(read->uris.size(), 2u);
  EXPECT_EQ(read->certificate_end, 1'900'000'000);
  EXPECT_EQ(read->path, "/phub.v1.Session/Join");
  EXPECT_EQ(read->authorization, std::vector<std::string>{"Bearer phub_x"});
}

TEST(Packet, NothingButAWholeCallIsRead) {
  const std::string whole = ToPacket(SomeCall()).substr(1);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ReadFrontCall(whole.substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(ReadFrontCall(whole + "x").has_value());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = '\xff';
    ReadFrontCall(changed);  // must not read beyond its end; the address sanitizer checks
  }
}

TEST(Packet, ADescriptorComesWithItsPacket) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor near(ends[0]);
  Descriptor far(ends[1]);
  const Descriptor file = SealedTexts({"certificate", "", "authorities"});
  ASSERT_TRUE(file);
  ASSERT_EQ(SendPacket(near.get(), PacketWriter(PacketType::kTls).Take(), file.get()),
            PairState::kDone);
  Packet packet;
  ASSERT_EQ(ReceivePacket(far.get(), packet), PairState::kDone);
  EXPECT_EQ(packet.type, PacketType::kTls);
  const auto texts = ReadSealedTexts(packet.descriptor.get(), 3);
  ASSERT_TRUE(texts.has_value());
  EXPECT_EQ((*texts)[0], "certificate");
  EXPECT_EQ((*texts)[2], "authorities");
  EXPECT_LT(write(packet.descriptor.get(), "x", 1), 0);
  EXPECT_EQ(ReceivePacket(far.get(), packet), PairState::kBlocked);
  far.Reset();
  EXPECT_EQ(SendPacket(near.get(), "x"), PairState::kEnded);
}

}  // namespace
}  // namespace phub::server
