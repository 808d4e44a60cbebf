// Bytes on a TLS lane that are not what the peer sent, and the memory of a lane.
#include <malloc.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/unit/transport/tls/tls_fixture.h"

namespace phub::transport {
namespace {

using TlsSessionTest = TlsListenerTest;

IoResult ReadSome(TcpConnection& connection, std::size_t bytes_max = 4096) {
  std::vector<std::byte> into(bytes_max);
  const iovec part{into.data(), into.size()};
  return connection.Readv({&part, 1});
}

// Reads until the answer is not "no more for now".
IoResult ReadToEnd(TcpConnection& connection) {
  for (int i = 0; i < 5000; ++i) {
    const IoResult io = ReadSome(connection);
    if (io.status == IoStatus::kClosed || io.status == IoStatus::kReset) return io;
    if (io.bytes == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

void SendRaw(const TcpConnection& connection, std::span<const std::byte> bytes) {
  ASSERT_EQ(send(connection.socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

TEST_F(TlsSessionTest, ChangedBytesEndTheLane) {
  Start();
  auto [client, daemon] = MakeLane(HelloWith("k1"));
  ASSERT_NE(daemon, nullptr);
  // A plausible data record with an invalid tag.
  std::vector<std::byte> record(5 + 100, std::byte{0x11});
  record[0] = std::byte{23};
  record[1] = record[2] = std::byte{3};
  record[3] = std::byte{0};
  record[4] = std::byte{100};
  SendRaw(*client, record);
  EXPECT_EQ(ReadToEnd(*daemon).status, IoStatus::kReset);
  EXPECT_EQ(ReadSome(*daemon).status, IoStatus::kReset);  // and remains so
}

TEST_F(TlsSessionTest, ARecordThatIsTooLongEndsTheLane) {
  Start();
  auto [client, daemon] = MakeLane(HelloWith("k1"));
  ASSERT_NE(daemon, nullptr);
  const std::vector<std::byte> header = {std::byte{23}, std::byte{3}, std::byte{3}, std::byte{0xFF},
                                         std::byte{0xFF}};
  SendRaw(*client, header);
  EXPECT_EQ(ReadToEnd(*daemon).status, IoStatus::kReset);
}

TEST_F(TlsSessionTest, PlainBytesOnALaneEndIt) {
  Start();
  auto [client, daemon] = MakeLane(HelloWith("k1"));
  ASSERT_NE(daemon, nullptr);
  SendRaw(*client, std::vector<std::byte>(wire::kHeaderBytes, std::byte{1}));
  EXPECT_EQ(ReadToEnd(*daemon).status, IoStatus::kReset);
}

TEST_F(TlsSessionTest, AStreamThatIsCutOffEnds) {
  Start();
  auto [client, daemon] = MakeLane(HelloWith("k1"));
  ASSERT_NE(daemon, nullptr);
  // Half of a record, and then an end of the stream, which any host on the path can forge.
  const std::vector<std::byte> half = {std::byte{23}, std::byte{3}, std::byte{3}, std::byte{1}};
  SendRaw(*client, half);
  shutdown(client->socket(), SHUT_WR);
  EXPECT_EQ(ReadToEnd(*daemon).status, IoStatus::kClosed);
}

TEST_F(TlsSessionTest, AnOrderlyEndIsOne) {
  Start();
  auto [client, daemon] = MakeLane(HelloWith("k1"));
  ASSERT_NE(daemon, nullptr);
  client->Shutdown();
  EXPECT_EQ(ReadToEnd(*daemon).status, IoStatus::kClosed);
}

// Two ends after a handshake. The sender changes its key every few bytes.
struct Ends {
  Descriptor sockets[2];
  std::unique_ptr<TlsSession> sender;
  std::unique_ptr<TlsSession> receiver;
};
Ends MakeEnds(std::uint64_t bytes_per_key) {
  Ends ends;
  int pair[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  for (int i = 0; i < 2; ++i) ends.sockets[i] = Descriptor(pair[i]);
  const LaneKeyName name = NameOfLane(HelloWith("k1"));
  const LaneKey key = KeyOfLane(name, HelloWith("k1").nonce);
  ends.sender = TlsSession::MakeClient(pair[0], name, key);
  ends.receiver = TlsSession::MakeDaemon(pair[1], {}, [&](const LaneKeyName&, LaneKey& found) {
    found = key;
    return true;
  });
  EXPECT_EQ(ends.sender->Handshake(), TlsSession::Step::kWaitsToRead);
  EXPECT_EQ(ends.receiver->Handshake(), TlsSession::Step::kWaitsToRead);
  EXPECT_EQ(ends.sender->Handshake(), TlsSession::Step::kDone);
  EXPECT_EQ(ends.receiver->Handshake(), TlsSession::Step::kDone);
  ends.sender->BecomeLane(bytes_per_key);
  ends.receiver->BecomeLane();
  return ends;
}

// What an observer on the path sees of a stream: the lengths of its records.
class RecordLengths {
 public:
  explicit RecordLengths(int socket) : socket_(socket) {}
  // Looks at what has arrived since the last call. Nothing is read between Begin and this.
  void Look() {
    std::vector<std::byte> bytes(Waiting());
    ASSERT_EQ(recv(socket_, bytes.data(), bytes.size(), MSG_PEEK),
              static_cast<ssize_t>(bytes.size()));
    for (const std::byte byte : std::span(bytes).subspan(seen_)) Take(byte);
  }
  void Begin() { seen_ = Waiting(); }
  std::size_t CountOf(std::size_t length) const {
    return static_cast<std::size_t>(std::count(lengths_.begin(), lengths_.end(), length));
  }

 private:
  std::size_t Waiting() const {
    int bytes = 0;
    EXPECT_EQ(ioctl(socket_, FIONREAD, &bytes), 0);
    return static_cast<std::size_t>(bytes);
  }
  void Take(std::byte byte) {
    if (left_ > 0) {
      --left_;
      return;
    }
    header_.push_back(byte);
    if (header_.size() < 5) return;
    left_ =
        std::to_integer<std::size_t>(header_[3]) << 8 | std::to_integer<std::size_t>(header_[4]);
    lengths_.push_back(left_);
    header_.clear();
  }

  const int socket_;
  std::size_t seen_ = 0;
  std::size_t left_ = 0;  // bytes left in the current record
  std::vector<std::byte> header_;
  std::vector<std::size_t> lengths_;
};

TEST(TlsSessionRecordsTest, KeysChangeAsOftenAsTheyShould) {
  constexpr std::size_t kRoundBytes = 64 * 1024;
  constexpr std::size_t kRounds = 200;
  constexpr std::size_t kBytesPerKey = 100'000;
  constexpr std::size_t kKeyUpdate = 5 + 1 + 16;  // the message, its type, the tag
  Ends ends = MakeEnds(kBytesPerKey);
  RecordLengths lengths(ends.sockets[1].get());
  std::vector<std::byte> sent(kRoundBytes);
  std::vector<std::byte> got(sent.size());
  for (std::size_t round = 0; round < kRounds; ++round) {
    std::fill(sent.begin(), sent.end(), static_cast<std::byte>(round));
    std::size_t in = 0;
    std::size_t out = 0;
    while (in < got.size()) {
      const iovec from{sent.data() + out, sent.size() - out};
      lengths.Begin();
      if (out < sent.size()) out += ends.sender->Writev({&from, 1}).bytes;
      lengths.Look();
      const iovec into{got.data() + in, got.size() - in};
      const IoResult io = ends.receiver->Readv({&into, 1}, false);
      ASSERT_TRUE(io.status == IoStatus::kMore || io.status == IoStatus::kDrained);
      in += io.bytes;
    }
    ASSERT_EQ(sent, got);
  }
  // The key changes before the record that follows this many bytes, so a key serves for at most one
  // record more.
  constexpr std::size_t kRecordBytes = 16 * 1024;
  EXPECT_LE(lengths.CountOf(kKeyUpdate), kRounds * kRoundBytes / kBytesPerKey);
  EXPECT_GE(lengths.CountOf(kKeyUpdate), kRounds * kRoundBytes / (kBytesPerKey + kRecordBytes) - 1);
}

TEST(TlsSessionRecordsTest, FloodsOfRecordsWithoutDataEndTheLane) {
  // A new key for every byte: two records each.
  Ends ends = MakeEnds(1);
  IoStatus status = IoStatus::kMore;
  std::size_t bytes = 0;
  while (status != IoStatus::kReset && bytes < 100'000) {
    std::byte byte{7};
    const iovec part{&byte, 1};
    ASSERT_EQ(ends.sender->Writev({&part, 1}).bytes, 1u);
    const iovec into{&byte, 1};
    status = ends.receiver->Readv({&into, 1}, false).status;
    ++bytes;
  }
  EXPECT_EQ(status, IoStatus::kReset);
  EXPECT_LT(bytes, 5000u);
}

// A client without our limits: a lane's end whose records are kept in memory first.
class Forger {
 public:
  explicit Forger(int socket) : socket_(socket), context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set1_groups_list(context_, "X25519");
    SSL_CTX_set_psk_use_session_callback(context_, UseKey);
    ssl_ = SSL_new(context_);
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_, in_, out_);
  }
  ~Forger() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  // Processes arrived bytes and sends answers. Returns true when the handshake is done.
  bool Shake() {
    std::array<char, 4096> bytes;
    const ssize_t got = recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) BIO_write(in_, bytes.data(), static_cast<int>(got));
    const bool done = SSL_connect(ssl_) == 1;
    Flush(0);
    return done;
  }
  void ChangeKeys(std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      ASSERT_EQ(SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
      ASSERT_EQ(SSL_do_handshake(ssl_), 1);
    }
  }
  std::size_t made() const { return BIO_ctrl_pending(out_); }
  // Sends a run of records as one piece that ends somewhere within a record.
  void Flush(std::size_t bytes_max) {
    std::vector<char> bytes(bytes_max == 0 ? made() : std::min(bytes_max, made()));
    BIO_read(out_, bytes.data(), static_cast<int>(bytes.size()));
    ASSERT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

 private:
  static int UseKey(SSL* ssl, const EVP_MD*, const unsigned char** name, std::size_t* bytes,
                    SSL_SESSION** used) {
    static const LaneKeyName kName = NameOfLane(HelloWith("k1"));
    static const LaneKey kKey = KeyOfLane(kName, HelloWith("k1").nonce);
    constexpr unsigned char kCipher[] = {0x13, 0x01};
    SSL_SESSION* session = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(kKey.data()),
                                kKey.size());
    SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kCipher));
    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
    *name = reinterpret_cast<const unsigned char*>(kName.data());
    *bytes = kName.size();
    *used = session;
    return 1;
  }
  const int socket_;
  SSL_CTX* const context_;
  SSL* ssl_ = nullptr;
  BIO* in_ = nullptr;
  BIO* out_ = nullptr;
};

TEST(TlsSessionRecordsTest, FloodsOfKeyChangesAloneEndTheLane) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  const Descriptor theirs(pair[0]);
  const Descriptor ours(pair[1]);
  const LaneKeyName name = NameOfLane(HelloWith("k1"));
  auto receiver = TlsSession::MakeDaemon(ours.get(), {}, [&](const LaneKeyName&, LaneKey& found) {
    found = KeyOfLane(name, HelloWith("k1").nonce);
    return true;
  });
  Forger forger(theirs.get());
  EXPECT_FALSE(forger.Shake());
  EXPECT_EQ(receiver->Handshake(), TlsSession::Step::kWaitsToRead);
  EXPECT_TRUE(forger.Shake());
  ASSERT_EQ(receiver->Handshake(), TlsSession::Step::kDone);
  receiver->BecomeLane();
  // Some are allowed.
  std::array<std::byte, 64> bytes;
  const iovec part{bytes.data(), bytes.size()};
  forger.ChangeKeys(100);
  forger.Flush(0);
  EXPECT_EQ(receiver->Readv({&part, 1}, false).status, IoStatus::kDrained);
  // Twice the limit, in pieces. OpenSSL reads each piece ahead.
  forger.ChangeKeys(20'000);
  ASSERT_GT(forger.made(), 2 * TlsSession::kOverheadBytesMax);
  std::size_t sent = 0;
  IoStatus status = IoStatus::kDrained;
  while (status == IoStatus::kDrained && forger.made() > 0) {
    forger.Flush(32 * 1024);
    sent += 32 * 1024;
    status = receiver->Readv({&part, 1}, false).status;
  }
  EXPECT_EQ(status, IoStatus::kReset);
  EXPECT_LE(sent, TlsSession::kOverheadBytesMax + 64 * 1024);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
std::size_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(TlsSessionMemoryTest, ALaneTakesWhatIsReckonedForIt) {
  { Ends warm = MakeEnds(TlsSession::kBytesPerKey); }
  constexpr std::size_t kLanes = 16;
  const std::size_t before = AllocatedBytes();
  std::vector<Ends> lanes;
  std::vector<std::byte> bytes(100'000);
  for (std::size_t i = 0; i < kLanes; ++i) {
    lanes.push_back(MakeEnds(TlsSession::kBytesPerKey));
    for (int turn = 0; turn < 4; ++turn) {
      const iovec part{bytes.data(), bytes.size()};
      (void)lanes.back().sender->Writev({&part, 1});
      (void)lanes.back().receiver->Readv({&part, 1}, false);
      (void)lanes.back().receiver->Writev({&part, 1});
      (void)lanes.back().sender->Readv({&part, 1}, false);
    }
  }
  const std::size_t each = (AllocatedBytes() - before) / (2 * kLanes);
  RecordProperty("bytes_per_lane", static_cast<int>(each));
  EXPECT_LE(each, TlsSession::kLaneBytes);
  EXPECT_GE(each, TlsSession::kLaneBytes / 2);  // the accounted size is realistic
}

TEST_F(TlsSessionTest, StrangersCostWhatTheirPlacesCost) {
  Start({.hello_timeout = 3 * kSecond, .pending_per_address_max = 1000});
  const wire::LaneHello hello = HelloWith("k1");
  gate.Give(hello);
  const std::vector<std::byte> whole = ClientHelloOf(hello);
  const std::vector<std::byte> foreign = ClientHelloOf(HelloWith("unknown"));
  {
    PlainClient warm(listener->port());
    warm.Send(foreign);
  }
  ASSERT_TRUE(Eventually([&] { return counters().refused_key == 1; }));
  std::vector<PlainClient> clients;
  clients.reserve(400);
  const std::size_t before = AllocatedBytes();
  // Half of a handshake; and complete ones with another key.
  for (int i = 0; i < 200; ++i) {
    clients.emplace_back(listener->port());
    clients.back().Send({whole.data(), whole.size() - 1});
    clients.emplace_back(listener->port());
    clients.back().Send(foreign);
  }
  ASSERT_TRUE(Eventually([&] { return counters().refused_key == 201; }));
  const std::size_t strangers = AllocatedBytes() - before;
  EXPECT_LE(strangers, 400 * 4096u);
  // Connections with a key cost more, but there are at most 256 of them.
  for (int i = 0; i < 100; ++i) {
    clients[2 * static_cast<std::size_t>(i) + 1].Close();
  }
  const std::size_t rest = AllocatedBytes();
  std::vector<PlainClient> known;
  known.reserve(100);
  for (int i = 0; i < 100; ++i) {
    known.emplace_back(listener->port());
    known.back().Send(whole);
  }
  ASSERT_TRUE(Eventually([&] { return gate.looked_up() >= 201 + 100u; }));
  const std::size_t each = (AllocatedBytes() - rest) / 100;
  RecordProperty("bytes_per_handshake", static_cast<int>(each));
  EXPECT_LE(each, 96 * 1024u);
}
#endif

}  // namespace
}  // namespace phub::transport
