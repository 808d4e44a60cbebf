// Violations of the protocol by a peer: each closes only its own connection, with the error that
// names the violation.
#include <functional>

#include "tests/conformance/lane_test.h"

namespace phub::conformance {
namespace {

struct Breach {
  std::string name;
  ProtocolError expected;
  // Changes an encoded, valid gradient of 100 bytes for slot 1.
  std::function<void(Bytes& message)> corrupt;
};

void Reencode(Bytes& message, const std::function<void(wire::MessageHeader&)>& change) {
  wire::MessageHeader header;
  ASSERT_EQ(wire::DecodeHeader(message, header), wire::DecodeError::kNone);
  change(header);
  wire::EncodeHeader(header,
                     std::span<std::byte, wire::kHeaderBytes>(message.data(), wire::kHeaderBytes));
}

std::vector<Breach> Breaches() {
  using Header = wire::MessageHeader;
  const auto flip = [](std::size_t at, int value) {
    return [at, value](Bytes& m) { m[at] = static_cast<std::byte>(value); };
  };
  const auto change = [](const std::function<void(Header&)>& edit) {
    return [edit](Bytes& m) { Reencode(m, edit); };
  };
  return {
      {"Magic", ProtocolError::kMagic, flip(0, 'X')},
      {"VersionOfTheFuture", ProtocolError::kVersion, flip(2, wire::kLaneVersion + 1)},
      {"VersionZero", ProtocolError::kVersion, flip(2, 0)},
      {"KindZero", ProtocolError::kKind, flip(3, 0)},
      {"KindUnknown", ProtocolError::kKind, flip(3, 200)},
      {"Operation", ProtocolError::kOperation, flip(48, 9)},
      {"TypeZero", ProtocolError::kType, flip(49, 0)},
      {"TypeUnknown", ProtocolError::kType, flip(49, numeric::kElementTypeMax + 1)},
      {"FlagUnknown", ProtocolError::kReserved, flip(50, 2)},
      {"ReservedFirst", ProtocolError::kReserved, flip(51, 1)},
      {"ReservedLast", ProtocolError::kReserved, flip(55, 1)},
      {"PayloadOverMaximum", ProtocolError::kPayloadBytes,
       change([](Header& h) { h.payload_bytes = kChunkBytesMax + 1; })},
      {"PayloadOfCredit", ProtocolError::kPayloadBytes,
       change([](Header& h) { h.kind = wire::MessageKind::kCredit; })},
      {"RecordTooLong", ProtocolError::kPayloadBytes,
       change([](Header& h) { h.kind = wire::MessageKind::kHyperParameters; })},
      {"SlotOutOfRange", ProtocolError::kSlotRange,
       change([](Header& h) { h.slot = SlotIndex{4}; })},
      {"SlotNone", ProtocolError::kSlotRange, change([](Header& h) { h.slot = kNoSlot; })},
      {"SlotClosed", ProtocolError::kSlotClosed, change([](Header& h) { h.slot = SlotIndex{3}; })},
      {"SlotTooSmall", ProtocolError::kSlotBytes,
       change([](Header& h) { h.payload_bytes = kSlotBytes + 1; })},
      // The order of checks: the slot before the size.
      {"SlotClosedAndTooSmall", ProtocolError::kSlotClosed, change([](Header& h) {
         h.slot = SlotIndex{3};
         h.payload_bytes = kSlotBytes + 1;
       })},
      {"Noise", ProtocolError::kMagic, [](Bytes& m) { m = PatternBytes(m.size(), 0xBAD); }},
  };
}

class Protocol : public LaneTest {
 protected:
  static Bytes ValidMessage() {
    const Bytes payload = PatternBytes(100, 20);
    Bytes bytes(wire::kHeaderBytes);
    wire::EncodeHeader(Gradient(1, payload.size()),
                       std::span<std::byte, wire::kHeaderBytes>(bytes.data(), bytes.size()));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
  }
};
// Transports whose lanes are not byte streams do not instantiate these tests.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Protocol);
INSTANTIATE_TEST_SUITE_P(Transports, Protocol, ::testing::ValuesIn(StreamHarnesses()), HarnessName);

TEST_P(Protocol, BreachClosesItsConnectionAndNoOther) {
  for (const Breach& breach : Breaches()) {
    SCOPED_TRACE(breach.name);
    Start();
    Lane& bystander = Open();
    std::unique_ptr<transport::Connection> connection;
    std::unique_ptr<RawPeer> peer = harness->ConnectRaw(connection);
    ASSERT_NE(peer, nullptr);
    Landing landing(4, kSlotBytes);
    landing.table[3] = {};
    const ConnectionId id = left.transport->Adopt(*connection, landing.table);
    left.landings.emplace_back(id, &landing);
    // A valid message, the violation, and a valid message that must be ignored.
    Bytes bytes = ValidMessage();
    Bytes broken = ValidMessage();
    breach.corrupt(broken);
    bytes.insert(bytes.end(), broken.begin(), broken.end());
    const Bytes after = ValidMessage();
    bytes.insert(bytes.end(), after.begin(), after.end());
    peer->Write(bytes);
    ASSERT_TRUE(Until([&] { return left.closed() == 1; }));
    const Completion& last = left.seen.back().completion;
    EXPECT_EQ(last.connection, id);
    EXPECT_EQ(last.error, TransportError::kProtocol);
    EXPECT_STREQ(ToString(last.protocol_error), ToString(breach.expected));
    EXPECT_EQ(left.received(), 1u);
    // Expect: the other lane works in both directions.
    ASSERT_EQ(left.Post({.header = Credit(0), .payload = {}, .connections = {&bystander.left, 1}}),
              1u);
    ASSERT_EQ(
        right.Post({.header = Credit(0), .payload = {}, .connections = {&bystander.right, 1}}), 1u);
    ASSERT_TRUE(Until([&] { return left.received() == 2 && right.received() == 1; }));
    EXPECT_EQ(right.closed(), 0u);
    peer.reset();
    connection.reset();
    TearDown();
  }
  Start();  // for TearDown
}

TEST_P(Protocol, SlotThatIsTakenAwayDuringItsPayloadEndsTheConnection) {
  Start();
  std::unique_ptr<transport::Connection> connection;
  std::unique_ptr<RawPeer> peer = harness->ConnectRaw(connection);
  ASSERT_NE(peer, nullptr);
  Landing landing(4, kSlotBytes);
  const ConnectionId id = left.transport->Adopt(*connection, landing.table);
  const Bytes bytes = ValidMessage();
  peer->Write({bytes.data(), bytes.size() - 10});
  Settle();
  EXPECT_EQ(left.received(), 0u);
  // The owner closes the slot; its memory may be gone. Expect: no further byte is written there.
  landing.table[1] = {};
  const Bytes memory = landing.memory;
  peer->Write({bytes.data() + bytes.size() - 10, 10});
  ASSERT_TRUE(Until([&] { return left.closed() == 1; }));
  EXPECT_EQ(left.seen.back().completion.connection, id);
  EXPECT_EQ(left.seen.back().completion.error, TransportError::kProtocol);
  EXPECT_EQ(left.seen.back().completion.protocol_error, ProtocolError::kSlotClosed);
  EXPECT_EQ(landing.memory, memory);
  peer.reset();
}

TEST_P(Protocol, BytesMayComeOneByOne) {
  Start();
  std::unique_ptr<transport::Connection> connection;
  std::unique_ptr<RawPeer> peer = harness->ConnectRaw(connection);
  ASSERT_NE(peer, nullptr);
  Landing landing(4, kSlotBytes);
  const ConnectionId id = left.transport->Adopt(*connection, landing.table);
  left.landings.emplace_back(id, &landing);
  Bytes bytes = ValidMessage();
  const Bytes once = bytes;
  bytes.insert(bytes.end(), once.begin(), once.end());
  for (const std::byte& byte : bytes) {
    peer->Write({&byte, 1});
    left.Poll();
    harness->Pump();
  }
  ASSERT_TRUE(Until([&] { return left.received() == 2; }));
  for (const Seen& item : left.seen) {
    EXPECT_EQ(item.payload, Bytes(once.begin() + wire::kHeaderBytes, once.end()));
  }
  peer.reset();
  left.transport->Close(id);
  ASSERT_TRUE(Until([&] { return left.closed() == 1; }));
}

}  // namespace
}  // namespace phub::conformance
