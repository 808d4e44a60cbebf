// Lanes with TLS, and everything else that reaches the data port from the network.
#include <openssl/evp.h>
#include <openssl/x509.h>

#include "tests/support/eventually.h"
#include "tests/unit/transport/tls/tls_fixture.h"

namespace phub::transport {
namespace {

using ::testing::Test;

wire::LaneHello HelloOf(std::uint32_t rank, const std::string& nonce) {
  wire::LaneHello hello = HelloWith(nonce);
  hello.rank = Rank{rank};
  return hello;
}

// Writes all bytes and reads them at the other end.
bool Carries(TcpConnection& from, TcpConnection& to, std::size_t bytes) {
  std::vector<std::byte> sent(bytes);
  for (std::size_t i = 0; i < bytes; ++i) sent[i] = static_cast<std::byte>(i * 31 + i / 4096);
  std::vector<std::byte> got(bytes);
  std::size_t out = 0;
  std::size_t in = 0;
  while (in < bytes) {
    if (out < bytes) {
      const iovec part{sent.data() + out, bytes - out};
      const IoResult io = from.Writev({&part, 1});
      if (io.status == IoStatus::kReset) return false;
      out += io.bytes;
    }
    const iovec part{got.data() + in, bytes - in};
    const IoResult io = to.Readv({&part, 1});
    if (io.status == IoStatus::kReset || io.status == IoStatus::kClosed) return false;
    in += io.bytes;
  }
  return sent == got;
}

TEST_F(TlsListenerTest, AWorkerWithTheNonceGetsALane) {
  Start();
  const wire::LaneHello hello = HelloWith("k1");
  gate.Give(hello);
  auto [client, daemon] = MakeLane(hello);
  ASSERT_NE(daemon, nullptr);
  EXPECT_EQ(client->version(), wire::kLaneVersion);
  EXPECT_TRUE(Carries(*client, *daemon, 5'000'000));
  EXPECT_TRUE(Carries(*daemon, *client, 5'000'000));
  EXPECT_TRUE(Eventually([&] { return counters().accepted == 1u; }));
}

TEST_F(TlsListenerTest, RefusalsAreToldInside) {
  Start();
  for (const auto& [nonce, code] : {std::pair("job", absl::StatusCode::kFailedPrecondition),
                                    std::pair("busy", absl::StatusCode::kAlreadyExists),
                                    std::pair("capacity", absl::StatusCode::kResourceExhausted)}) {
    SCOPED_TRACE(nonce);
    const wire::LaneHello hello = HelloWith(nonce);
    gate.Give(hello);
    EXPECT_EQ(Dial(hello).status().code(), code);
  }
  EXPECT_TRUE(gate.TakeAttached().empty());
}

TEST_F(TlsListenerTest, ANonceServesOnce) {
  Start();
  const wire::LaneHello hello = HelloWith("k1");
  auto [client, daemon] = MakeLane(hello);
  // The gate of this test still finds the nonce, but does not admit it.
  EXPECT_TRUE(absl::IsPermissionDenied(Dial(hello).status()));
  gate.Forget(hello);
  EXPECT_TRUE(absl::IsPermissionDenied(Dial(hello).status()));
  EXPECT_TRUE(Eventually([&] { return counters().refused_nonce == 1u; }));
  EXPECT_TRUE(Eventually([&] { return counters().refused_key == 1u; }));
  EXPECT_TRUE(Eventually([&] { return counters().accepted == 1u; }));
}

TEST_F(TlsListenerTest, AnotherNonceOpensNothing) {
  Start();
  gate.Give(HelloWith("k1"));
  EXPECT_TRUE(absl::IsPermissionDenied(Dial(HelloWith("k2")).status()));
  EXPECT_EQ(gate.asked(), 0u);  // no nonce was consumed
  EXPECT_TRUE(Eventually([&] { return counters().refused_key == 1u; }));
}

TEST_F(TlsListenerTest, TheKeyOfOneLaneDoesNotOpenAnother) {
  Start();
  const wire::LaneHello own = HelloOf(3, "k3");
  const wire::LaneHello other = HelloOf(4, "k4");
  gate.Give(own);
  gate.Give(other);
  PlainClient peer(listener->port());
  const LaneKeyName name = NameOfLane(own);
  auto session = TlsSession::MakeClient(peer.socket(), name, KeyOfLane(name, own.nonce));
  while (session->Handshake() == TlsSession::Step::kWaitsToRead) {
  }
  std::array<std::byte, wire::kLaneHelloBytes> bytes;
  wire::EncodeLaneHello(other, bytes);
  const iovec part{bytes.data(), bytes.size()};
  ASSERT_EQ(session->Writev({&part, 1}).bytes, bytes.size());
  ASSERT_TRUE(Eventually([&] { return counters().refused_form == 1; }));
  EXPECT_EQ(gate.asked(), 0u);
}

TEST_F(TlsListenerTest, PlainHellosAreToldWhy) {
  Start();
  PlainClient client(listener->port());
  ASSERT_TRUE(client.SendHello(HelloWith("k1")));
  wire::LaneWelcome welcome;
  ASSERT_TRUE(client.ReceiveWelcome(welcome));
  EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kEncryption);
  EXPECT_EQ(gate.asked(), 0u);
  EXPECT_TRUE(Eventually([&] { return counters().refused_plain == 1u; }));
}

TEST_F(TlsListenerTest, OrdinaryClientsOfTlsAreRefused) {
  Start();
  gate.Give(HelloWith("k1"));
  EXPECT_FALSE(ShakeAsAnybody(listener->port(), TLS1_3_VERSION));
  EXPECT_FALSE(ShakeAsAnybody(listener->port(), TLS1_2_VERSION));
  EXPECT_TRUE(Eventually([&] { return counters().refused_key + counters().refused_form == 2u; }));
  EXPECT_EQ(gate.looked_up(), 0u);
}

TEST_F(TlsListenerTest, NoiseIsRefusedAtOnce) {
  Start();
  // Expect: a record that claims 16 KiB is not awaited, nor one that is too short.
  for (const char length_high : {'\x40', '\xFF', '\x00'}) {
    PlainClient client(listener->port());
    std::array<std::byte, 64> bytes{std::byte{22}, std::byte{3}, std::byte{1},
                                    static_cast<std::byte>(length_high)};
    ASSERT_TRUE(client.Send(bytes));
    EXPECT_TRUE(client.ReceiveAll(2000).empty());
    EXPECT_TRUE(client.ended());
  }
  EXPECT_TRUE(Eventually([&] { return counters().refused_form == 3u; }));
  // The right length, but not a ClientHello.
  PlainClient client(listener->port());
  std::vector<std::byte> bytes(300, std::byte{0x5A});
  bytes[0] = std::byte{22};
  bytes[1] = bytes[2] = std::byte{3};
  bytes[3] = std::byte{1};
  bytes[4] = std::byte{(300 - 5) & 0xFF};
  ASSERT_TRUE(client.Send(bytes));
  ASSERT_TRUE(Eventually([&] { return counters().refused_key == 1; }));
}

TEST_F(TlsListenerTest, HalfAndSlowHandshakesEndInTime) {
  Start({.hello_timeout = 300 * kMillisecond});
  const wire::LaneHello hello = HelloWith("k1");
  gate.Give(hello);
  const std::vector<std::byte> whole = ClientHelloOf(hello);
  ASSERT_GT(whole.size(), 100u);
  EXPECT_LE(whole.size(), 1024u);  // fits the buffer of an unauthenticated client
  const std::size_t cuts[] = {0, 3, 63, 64, whole.size() - 1, whole.size()};
  std::vector<std::unique_ptr<PlainClient>> clients;
  for (const std::size_t cut : cuts) {
    clients.push_back(std::make_unique<PlainClient>(listener->port()));
    ASSERT_TRUE(clients.back()->Send({whole.data(), cut}));
  }
  // A slow client: its time counts from the beginning.
  std::atomic<bool> dribbled{false};
  std::thread dribbler([&] {
    PlainClient slow(listener->port());
    for (std::size_t i = 0; i < whole.size() && slow.Send({whole.data() + i, 1}); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    dribbled = true;
  });
  EXPECT_TRUE(Eventually([&] { return counters().timeouts == std::size(cuts) + 1; }));
  dribbler.join();
  EXPECT_TRUE(dribbled);
  EXPECT_EQ(counters().accepted, 0u);
  // The nonce is still valid for its owner.
  auto [client, daemon] = MakeLane(hello);
  EXPECT_NE(daemon, nullptr);
}

TEST_F(TlsListenerTest, AReplayedHandshakeNeverBecomesALane) {
  Start({.hello_timeout = 300 * kMillisecond});
  const wire::LaneHello hello = HelloWith("k1");
  gate.Give(hello);
  const std::vector<std::byte> seen = ClientHelloOf(hello);
  // While the nonce is valid, an eavesdropper's copy begins a handshake that cannot be finished.
  PlainClient early(listener->port());
  ASSERT_TRUE(early.Send(seen));
  ASSERT_TRUE(Eventually([&] { return counters().timeouts == 1; }));
  auto [client, daemon] = MakeLane(hello);
  ASSERT_NE(daemon, nullptr);
  gate.Forget(hello);
  // Afterwards, not even that.
  PlainClient late(listener->port());
  ASSERT_TRUE(late.Send(seen));
  ASSERT_TRUE(Eventually([&] { return counters().refused_key == 1; }));
  EXPECT_TRUE(Eventually([&] { return counters().accepted == 1u; }));
}

TEST_F(TlsListenerTest, HandshakesAtOnceAreBounded) {
  Start({.hello_timeout = 2 * kSecond, .pending_per_address_max = 1000});
  const wire::LaneHello hello = HelloWith("k1");
  gate.Give(hello);
  const std::vector<std::byte> seen = ClientHelloOf(hello);
  std::vector<std::unique_ptr<PlainClient>> clients;
  for (int i = 0; i < 300; ++i) {
    clients.push_back(std::make_unique<PlainClient>(listener->port()));
    clients.back()->Send(seen);
  }
  EXPECT_TRUE(Eventually([&] { return counters().over_capacity >= 44; }));
  // A connection whose first bytes have not been read yet has a place, too.
  EXPECT_TRUE(Eventually([&] { return listener->pending_count() <= 256u; }));
}

TEST_F(TlsListenerTest, AWorkerGetsInAmongSilentPeersOfItsAddress) {
  Start({.pending_per_address_max = 4});
  const wire::LaneHello hello = HelloWith("k1");
  gate.Give(hello);
  std::vector<std::unique_ptr<PlainClient>> crowd;
  for (int i = 0; i < 4; ++i) crowd.push_back(std::make_unique<PlainClient>(listener->port()));
  ASSERT_TRUE(Eventually([&] { return listener->pending_count() == 4; }));
  const absl::Status status = Dial(hello).status();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Eventually([&] { return counters().over_capacity == 1u; }));
}

// --- A server that is not the daemon ----------------------------------------------------------

TEST(DialTlsTest, AnImpostorWithACertificateLearnsNothing) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_sign(certificate, key, EVP_sha256());
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  ASSERT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
  const Descriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  ASSERT_EQ(bind(listening.get(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(listen(listening.get(), 1), 0);
  ASSERT_EQ(getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  int read = -1;
  std::thread impostor([&] {
    const Descriptor socket(accept(listening.get(), nullptr, nullptr));
    SSL* ssl = SSL_new(context);
    SSL_set_fd(ssl, socket.get());
    if (SSL_accept(ssl) == 1) {
      char byte = 0;
      read = SSL_read(ssl, &byte, 1);
    }
    SSL_free(ssl);
  });
  const absl::Status status =
      DialTls("127.0.0.1", ntohs(address.sin_port), HelloWith("k1"), 5 * kSecond).status();
  impostor.join();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_LE(read, 0);  // no hello, no nonce
  SSL_CTX_free(context);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

TEST_F(TlsListenerTest, DiallingAPortWithoutTlsFailsClearly) {
  RecordingGate plain_gate;
  ListenerThread<TcpListener> plain;
  plain.Start(TcpListener::Create({}, plain_gate, clock));
  const absl::Status status =
      DialTls("127.0.0.1", plain->port(), HelloWith("k1"), 5 * kSecond).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_TRUE(Eventually([&] { return plain->counters().refused_form == 1u; }));
}

}  // namespace
}  // namespace phub::transport
