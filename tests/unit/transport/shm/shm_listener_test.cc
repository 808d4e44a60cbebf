#include "common/transport/shm/shm_listener.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "common/base/log.h"
#include "common/transport/shm/shm_address.h"
#include "common/transport/shm/shm_dial.h"
#include "tests/support/eventually.h"
#include "tests/support/listener_thread.h"
#include "tests/unit/transport/shm/shm_fixture.h"

namespace phub::transport {
namespace {

struct Attached {
  wire::LaneHello hello;
  std::unique_ptr<Connection> connection;
  std::string description;
};

// Admits each nonce once if it starts with 'k' (for "known"). 'j', 'b' and 'c' are refused as the
// job's end, a busy place and too many. 'm' is admitted, but there is no memory.
class RecordingGate final : public ShmGate {
 public:
  wire::LaneRefusal Admit(const wire::LaneHello& hello, const PeerCredentials& peer) override {
    return Judge(hello.nonce, peer);
  }
  absl::StatusOr<LaneMemory> Memory(const wire::LaneHello& hello) override {
    if (static_cast<char>(hello.nonce[0]) == 'm') return absl::ResourceExhaustedError("no memory");
    return rank.lane();
  }
  void Attach(const wire::LaneHello& hello, std::unique_ptr<Connection> connection,
              std::string description) override {
    const std::lock_guard lock(mutex_);
    attached_.push_back({hello, std::move(connection), std::move(description)});
  }
  wire::LaneRefusal AdmitBatch(const wire::SharedBatchRequest& request, const PeerCredentials& peer,
                               BatchMemory& memory) override {
    const wire::LaneRefusal refusal = Judge(request.nonce, peer);
    if (refusal != wire::LaneRefusal::kNone) return refusal;
    if (request.batch != 1) memory.worker = rank.worker.daemons;
    memory.parameters = rank.parameters.daemons;
    memory.parameters_region = request.batch == 1 ? 0 : 1;
    return refusal;
  }
  std::vector<Attached> TakeAttached() {
    const std::lock_guard lock(mutex_);
    return std::exchange(attached_, {});
  }
  PeerCredentials last_peer() const {
    const std::lock_guard lock(mutex_);
    return last_peer_;
  }
  std::size_t asked() const { return asked_; }

  RankMemory rank;

 private:
  wire::LaneRefusal Judge(const wire::Nonce& nonce, const PeerCredentials& peer) {
    const std::lock_guard lock(mutex_);
    ++asked_;
    last_peer_ = peer;
    switch (static_cast<char>(nonce[0])) {
      case 'j': return wire::LaneRefusal::kJob;
      case 'b': return wire::LaneRefusal::kBusy;
      case 'c': return wire::LaneRefusal::kCapacity;
      case 'k':
      case 'm': break;
      default: return wire::LaneRefusal::kNonce;
    }
    for (const wire::Nonce& used : used_) {
      if (used == nonce) return wire::LaneRefusal::kNonce;
    }
    used_.push_back(nonce);
    return wire::LaneRefusal::kNone;
  }

  mutable std::mutex mutex_;
  std::vector<wire::Nonce> used_;
  std::vector<Attached> attached_;
  PeerCredentials last_peer_;
  std::atomic<std::size_t> asked_{0};
};

template <typename Request>
Request With(const std::string& nonce) {
  Request request;
  request.rank = Rank{3};
  request.incarnation = Incarnation{0x1122334455667788u};
  for (std::size_t i = 0; i < nonce.size() && i < request.nonce.size(); ++i) {
    request.nonce[i] = static_cast<std::byte>(nonce[i]);
  }
  return request;
}
wire::LaneHello Hello(const std::string& nonce) { return With<wire::LaneHello>(nonce); }

std::size_t OpenDescriptors() {
  std::size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

class ShmListenerTest : public ::testing::Test {
 protected:
  void Start(const ShmListenerOptions& options = {}) {
    listener.Start(ShmListener::Create(options, gate, clock, random));
  }
  Descriptor Connect() const {
    Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const ShmAddress address(listener->name());
    EXPECT_EQ(connect(socket.get(), address.get(), address.bytes), 0);
    return socket;
  }
  // Receives the next message, within seconds. 0: the end.
  static std::ptrdiff_t Receive(const Descriptor& socket, std::span<std::byte> bytes) {
    pollfd item{socket.get(), POLLIN, 0};
    EXPECT_EQ(poll(&item, 1, 5000), 1);
    return ReceivePacket(socket.get(), bytes).bytes;
  }
  absl::StatusOr<std::unique_ptr<Connection>> Dial(const wire::LaneHello& hello) {
    return DialShm(listener->name(), hello, 5 * kSecond, gate.rank.workers);
  }
  const LaneListenerCounters& counters() const { return listener->counters(); }

  SystemClock clock;
  SystemRandom random;
  RecordingGate gate;
  ListenerThread<ShmListener> listener;
};

TEST_F(ShmListenerTest, AdmittedHelloBecomesALane) {
  Start();
  auto dialled = Dial(Hello("k1"));
  ASSERT_TRUE(dialled.ok()) << dialled.status();
  std::vector<Attached> attached;
  ASSERT_TRUE(Eventually([&] { return !(attached = gate.TakeAttached()).empty(); }));
  EXPECT_EQ(attached[0].hello.rank, Rank{3});
  EXPECT_EQ(attached[0].description, fmt::format("shm pid {} uid {}", getpid(), getuid()));
  EXPECT_EQ(gate.last_peer().gid, getgid());
  EXPECT_EQ(counters().accepted, 1u);
  // A gradient through the slot.
  ShmTransport daemon(1);
  ShmTransport worker(1);
  const std::vector<LandingSlot> landing = gate.rank.landing();
  ASSERT_NE(daemon.Adopt(*attached[0].connection, landing), ConnectionId{});
  const ConnectionId id = worker.Adopt(**dialled, {});
  std::byte* const slot = worker.PeerSlot(id, SlotIndex{3});
  ASSERT_NE(slot, nullptr);
  slot[99] = std::byte{9};
  const SendRequest request{.header = Header(wire::MessageKind::kGradient, SlotIndex{3}, 100),
                            .payload = {slot, 100},
                            .connections = {&id, 1}};
  ASSERT_EQ(worker.Post({&request, 1}), 1u);
  Completion got;
  EXPECT_EQ(worker.Poll({&got, 1}), 0u);
  ASSERT_TRUE(PollFor(daemon, CompletionKind::kReceived, got));
  EXPECT_EQ(got.message->payload, landing[3].data);
  EXPECT_EQ(landing[3].data[99], std::byte{9});
}

TEST_F(ShmListenerTest, LanesThatFailInALoopDoNotFillTheLog) {
  Start();
  std::atomic<int> lines{0};
  SetLogSink(
      [](void* count, LogLevel, const std::string& line) {
        *static_cast<std::atomic<int>*>(count) += line.find("event=lane_failed") != line.npos;
      },
      &lines);
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(Dial(Hello(fmt::format("m{:03}", i))).ok());
  SetLogSink(nullptr, nullptr);
  EXPECT_EQ(counters().refused_capacity, 30u);
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 4);  // one in ten seconds
}

TEST_F(ShmListenerTest, MemoryOfKeysIsFetchedAndAddedInOrder) {
  Start();
  auto fetched =
      FetchSharedBatch(listener->name(), With<wire::SharedBatchRequest>("k1"), 5 * kSecond);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  ASSERT_NE(fetched->worker, nullptr);
  ASSERT_NE(fetched->parameters, nullptr);
  EXPECT_TRUE(fetched->worker->writable());
  EXPECT_FALSE(fetched->parameters->writable());
  gate.rank.parameters.daemons->data()[7] = std::byte{7};
  EXPECT_EQ(fetched->parameters->data()[7], std::byte{7});
  fetched->worker->data()[8] = std::byte{8};
  EXPECT_EQ(gate.rank.worker.daemons->data()[8], std::byte{8});
  SharedRegions regions;
  ASSERT_TRUE(AddRegions(*fetched, regions).ok());
  std::uint32_t hint = 0;
  EXPECT_EQ(gate.rank.daemons->ResolveForReading(
                regions.AddressOf(fetched->worker->data() + 8, 4, hint), 4),
            gate.rank.worker.daemons->data() + 8);
  EXPECT_EQ(AddRegions(*fetched, regions).code(), absl::StatusCode::kInternal) << "twice";
  // Parameters alone, for ranks whose gradients are elsewhere.
  auto request = With<wire::SharedBatchRequest>("k2");
  request.batch = 1;
  fetched = FetchSharedBatch(listener->name(), request, 5 * kSecond);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->worker, nullptr);
  EXPECT_NE(fetched->parameters, nullptr);
  EXPECT_EQ(listener->batches(), 2u);
  request.nonce = With<wire::SharedBatchRequest>("k1").nonce;
  fetched = FetchSharedBatch(listener->name(), request, 5 * kSecond);
  EXPECT_EQ(fetched.status().code(), absl::StatusCode::kPermissionDenied) << fetched.status();
}

TEST_F(ShmListenerTest, RefusalsAreToldByNameAndCounted) {
  Start();
  const struct {
    const char* nonce;
    absl::StatusCode code;
    const char* words;
    const std::atomic<std::uint64_t>& counter;
  } cases[] = {
      {"unknown", absl::StatusCode::kPermissionDenied, "nonce", counters().refused_nonce},
      {"job", absl::StatusCode::kFailedPrecondition, "the job has ended", counters().refused_job},
      {"busy", absl::StatusCode::kAlreadyExists, "already open", counters().refused_busy},
      {"capacity", absl::StatusCode::kResourceExhausted, "too many connections",
       counters().refused_capacity},
  };
  for (const auto& item : cases) {
    SCOPED_TRACE(item.nonce);
    const auto dialled = Dial(Hello(item.nonce));
    EXPECT_EQ(dialled.status().code(), item.code) << dialled.status();
    EXPECT_NE(dialled.status().ToString().find(item.words), std::string::npos);
    EXPECT_NE(dialled.status().ToString().find(listener->name()), std::string::npos);
    EXPECT_EQ(item.counter, 1u);
  }
  EXPECT_EQ(Dial(Hello("memory")).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(counters().refused_capacity, 2u);
  wire::LaneHello newer = Hello("k1");
  newer.version_min = wire::kLaneVersion + 1;
  newer.version_max = wire::kLaneVersion + 2;
  const std::size_t asked = gate.asked();
  EXPECT_NE(Dial(newer).status().ToString().find("versions"), std::string::npos);
  EXPECT_EQ(gate.asked(), asked) << "the nonce was spent";
  EXPECT_EQ(counters().refused_version, 1u);
  EXPECT_TRUE(gate.TakeAttached().empty());
  EXPECT_EQ(counters().accepted, 0u);
}

TEST_F(ShmListenerTest, WhatIsNoRequestIsClosedWithoutAnAnswer) {
  Start();
  std::array<std::byte, wire::kLaneHelloBytes + 1> hello{};
  wire::EncodeLaneHello({.version_min = 1, .version_max = 1},
                        std::span(hello).first<wire::kLaneHelloBytes>());
  const std::size_t before = OpenDescriptors();
  std::uint64_t refused = 0;
  // Cut short at every length, one byte too long, and with unexpected descriptors.
  for (std::size_t bytes = 1; bytes <= hello.size(); ++bytes) {
    if (bytes == wire::kLaneHelloBytes) continue;
    const Descriptor socket = Connect();
    const std::array<int, 2> descriptors = {0, 1};
    ASSERT_TRUE(SendPacket(socket.get(), std::span(hello).first(bytes), descriptors));
    std::array<std::byte, 64> answer;
    EXPECT_LE(Receive(socket, answer), 0);
    EXPECT_EQ(counters().refused_form, ++refused);
  }
  EXPECT_EQ(gate.asked(), 0u);
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_F(ShmListenerTest, SilentPeersAreClosedAtTheDeadline) {
  ShmListenerOptions options;
  options.hello_timeout = 100 * kMillisecond;
  Start(options);
  const Descriptor socket = Connect();
  const TimeNs before = clock.Now();
  std::array<std::byte, 64> answer;
  EXPECT_EQ(Receive(socket, answer), 0);
  EXPECT_GE(clock.Now() - before, 90 * kMillisecond);
  EXPECT_EQ(counters().timeouts, 1u);
}

TEST_F(ShmListenerTest, OneUserHasOnlySoManyPlaces) {
  ShmListenerOptions options;
  options.pending_per_user_max = 3;
  Start(options);
  std::vector<Descriptor> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(Connect());
  // Expect: the next client gets in, and the oldest silent one loses its place.
  const auto newcomer = Dial(Hello("k9"));
  EXPECT_TRUE(newcomer.ok()) << newcomer.status();
  EXPECT_EQ(counters().over_capacity, 1u);
  silent.pop_back();
  ASSERT_TRUE(Eventually([&] { return counters().closed_early == 1; }));
  for (int i = 0; i < 5; ++i) {
    const auto dialled = Dial(Hello(fmt::format("k{}", i)));
    EXPECT_TRUE(dialled.ok()) << dialled.status();
  }
}

TEST_F(ShmListenerTest, TableOfPendingConnectionsIsBounded) {
  ShmListenerOptions options;
  options.pending_max = 2;
  Start(options);
  const Descriptor first = Connect();
  const Descriptor second = Connect();
  const auto newcomer = Dial(Hello("k1"));
  EXPECT_TRUE(newcomer.ok()) << newcomer.status();
  EXPECT_EQ(counters().over_capacity, 1u);
}

TEST_F(ShmListenerTest, HundredsOfLanesLeaveNothingBehind) {
  Start();
  { const auto warm_up = Dial(Hello("k")); }
  ASSERT_TRUE(Eventually([&] { return !gate.TakeAttached().empty(); }));
  const std::size_t before = OpenDescriptors();
  for (int i = 0; i < 300; ++i) {
    const auto dialled = Dial(Hello(fmt::format("k{}", i)));
    ASSERT_TRUE(dialled.ok()) << dialled.status();
    const auto fetched = FetchSharedBatch(
        listener->name(), With<wire::SharedBatchRequest>(fmt::format("kb{}", i)), 5 * kSecond);
    ASSERT_TRUE(fetched.ok()) << fetched.status();
  }
  ASSERT_TRUE(Eventually([&] { return counters().accepted == 301; }));
  ASSERT_TRUE(Eventually([&] {
    gate.TakeAttached();
    return OpenDescriptors() == before;
  })) << OpenDescriptors();
}

TEST_F(ShmListenerTest, DialSaysWhyNobodyAnswers) {
  const auto nobody = DialShm("phub-no-such-name", Hello("k1"), kSecond, nullptr);
  EXPECT_EQ(nobody.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(nobody.status().ToString().find("@phub-no-such-name"), std::string::npos);
  EXPECT_NE(nobody.status().ToString().find("namespace"), std::string::npos) << nobody.status();
  EXPECT_EQ(DialShm(std::string(200, 'x'), Hello("k1"), kSecond, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DialShm("", Hello("k1"), kSecond, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  // A daemon that accepts connections in the kernel only.
  auto created = ShmListener::Create({}, gate, clock, random);
  ASSERT_TRUE(created.ok());
  const auto late = DialShm((*created)->name(), Hello("k1"), 100 * kMillisecond, nullptr);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded) << late.status();
  const std::string name = (*created)->name();
  created->reset();
  EXPECT_EQ(DialShm(name, Hello("k1"), kSecond, nullptr).status().code(),
            absl::StatusCode::kUnavailable);
}

// The server is not a daemon, or passes memory that does not match its description.
TEST_F(ShmListenerTest, AnswersAreNotBelieved) {
  const std::string name = fmt::format("phub-test-{}", random.Next());
  const Descriptor listening(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const ShmAddress address(name);
  ASSERT_EQ(bind(listening.get(), address.get(), address.bytes), 0);
  ASSERT_EQ(listen(listening.get(), 8), 0);
  std::array<std::byte, wire::kLaneWelcomeBytes + wire::kSharedLaneBytes> lane;
  wire::EncodeLaneWelcome({.version = wire::kLaneVersion,
                           .version_min = wire::kLaneVersionMin,
                           .version_max = wire::kLaneVersion},
                          std::span(lane).first<wire::kLaneWelcomeBytes>());
  wire::EncodeSharedLane({8, 4096, 0, 0}, std::span(lane).last<wire::kSharedLaneBytes>());
  std::array<std::byte, 32> noise;
  noise.fill(std::byte{0x41});
  const MappedTwice small(4096, SharedMemory::Others::kWrite);
  const Descriptor file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const int fine = small.daemons->descriptor();
  const struct {
    std::span<const std::byte> bytes;
    std::vector<int> descriptors;
  } answers[] = {{noise, {}},
                 {std::span(lane).first(5), {}},
                 {std::span(lane).first(wire::kLaneWelcomeBytes), {}},
                 {lane, {}},
                 {lane, {fine}},
                 {lane, {fine, fine, fine}},
                 {lane, {fine, fine}},         // too small
                 {lane, {file.get(), fine}}};  // memory that no daemon offers
  for (const auto& answer : answers) {
    std::thread server([&] {
      const Descriptor peer(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::array<std::byte, 64> hello;
      recv(peer.get(), hello.data(), hello.size(), 0);
      SendPacket(peer.get(), answer.bytes, answer.descriptors);
    });
    const auto dialled = DialShm(name, Hello("k1"), 5 * kSecond, nullptr);
    server.join();
    EXPECT_EQ(dialled.status().code(), absl::StatusCode::kInternal) << dialled.status();
  }
}

}  // namespace
}  // namespace phub::transport
