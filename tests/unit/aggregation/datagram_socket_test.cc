#include "common/aggregation/datagram_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <vector>

namespace phub::aggregation {
namespace {

using Bytes = std::vector<std::uint8_t>;

absl::StatusOr<DatagramSocket> BindTo(const char* address) {
  sockaddr_storage storage{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  v4.sin_family = AF_INET;
  inet_pton(AF_INET, address, &v4.sin_addr);
  return DatagramSocket::Bind(storage, sizeof v4);
}

// Receives until there are `count` datagrams, or nothing arrives for 5 s.
std::vector<Bytes> Receive(DatagramSocket& socket, std::size_t count,
                           const phub_endpoint& expected_source) {
  std::vector<Bytes> all;
  while (all.size() < count) {
    pollfd item{socket.descriptor(), POLLIN, 0};
    if (poll(&item, 1, 5000) <= 0) break;
    socket.Receive([&](std::span<const std::uint8_t> datagram, const phub_endpoint& source) {
      EXPECT_TRUE(phub_endpoint_equals(&source, &expected_source));
      all.emplace_back(datagram.begin(), datagram.end());
    });
  }
  return all;
}

TEST(DatagramSocket, DatagramsOfAllLengthsArriveInTheirOrderWhateverTheKernelJoins) {
  auto from = BindTo("127.0.0.1");
  auto to = BindTo("127.0.0.1");
  auto other = BindTo("127.0.0.1");
  ASSERT_TRUE(from.ok() && to.ok() && other.ok());
  std::vector<Bytes> sent;
  for (std::size_t i = 0; i < 200; ++i) {
    // Runs of equal lengths, shorter last ones, and empty datagrams.
    const std::size_t payload = i % 10 == 9 ? 7 : i % 50 == 20 ? 0 : 1400;
    Bytes header(payload == 0 ? 0 : 32, static_cast<std::uint8_t>(i));
    Bytes rest(payload, static_cast<std::uint8_t>(i + 1));
    from->Queue(to->endpoint(), header, rest);
    from->Queue(other->endpoint(), header, {});
    header.insert(header.end(), rest.begin(), rest.end());
    sent.push_back(header);
  }
  from->Flush();
  EXPECT_EQ(Receive(*to, sent.size(), from->endpoint()), sent);
  EXPECT_EQ(Receive(*other, sent.size(), from->endpoint()).size(), sent.size());
  EXPECT_EQ(from->counts().sent, 400u);
  EXPECT_EQ(from->counts().sends_failed, 0u);
  EXPECT_EQ(to->counts().received, 200u);
  if (from->cuts()) {
    EXPECT_LT(from->counts().send_calls, 20u);
  }
}

TEST(DatagramSocket, SendsToNobodyDoNoHarm) {
  auto from = BindTo("127.0.0.1");
  phub_endpoint nobody{};
  {
    auto closed = BindTo("127.0.0.1");
    ASSERT_TRUE(from.ok() && closed.ok());
    nobody = closed->endpoint();
  }
  for (int i = 0; i < 10; ++i) {
    from->Queue(nobody, Bytes(32), {});
    from->Flush();
    EXPECT_EQ(from->Receive([](auto, const auto&) { ADD_FAILURE(); }), 0u);
  }
}

TEST(DatagramSocket, ADatagramThatIsTooLongIsLostAlone) {
  auto from = BindTo("127.0.0.1");
  auto to = BindTo("127.0.0.1");
  ASSERT_TRUE(from.ok() && to.ok());
  from->Queue(to->endpoint(), Bytes(32), {});
  from->Queue(to->endpoint(), Bytes(32), Bytes(70'000));
  from->Queue(to->endpoint(), Bytes(33), {});
  from->Flush();
  EXPECT_EQ(Receive(*to, 2, from->endpoint()), (std::vector<Bytes>{Bytes(32), Bytes(33)}));
  EXPECT_EQ(from->counts().sends_failed, 1u);
}

TEST(DatagramSocket, RefusesAllAddressesAtOnce) {
  EXPECT_EQ(BindTo("0.0.0.0").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BindTo("203.0.113.1").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace phub::aggregation
