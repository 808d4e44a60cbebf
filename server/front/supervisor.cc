#include "server/front/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/secret_file.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "common/base/waiter.h"
#include "server/front/front_process.h"

namespace phub::server {
namespace {

constexpr int kTurnMs = 100;
// Long: on a starved host, or under emulation, a front takes more than 20 s until it serves.
constexpr DurationNs kStartTimeout = 60 * kSecond;
constexpr DurationNs kStopTimeout = 2 * kSecond;
constexpr DurationNs kStopPoll = 10 * kMillisecond;
// A front that ends at once is started again after a delay that grows up to this one.
constexpr DurationNs kRestartDelayMin = 20 * kMillisecond;
constexpr DurationNs kRestartDelayMax = kSecond;
constexpr DurationNs kStable = 10 * kSecond;
constexpr int kPacketsAtOnce = 256;
constexpr DurationNs kToldTimeout = 200 * kMillisecond;

using PemTexts = std::vector<std::string>;

absl::StatusOr<PemTexts> ReadPemTexts(const TlsFiles& files) {
  if (absl::Status status = CheckTlsFiles(files); !status.ok()) return status;
  auto certificate = ReadPublicFile(files.certificate);
  if (!certificate.ok()) return certificate.status();
  auto key = ReadSecretFile(files.key);
  if (!key.ok()) return key.status();
  absl::StatusOr<std::string> authorities = std::string();
  if (!files.client_ca.empty()) authorities = ReadPublicFile(files.client_ca);
  if (!authorities.ok()) return authorities.status();
  return PemTexts{*std::move(certificate), *std::move(key), *std::move(authorities)};
}

}  // namespace

struct FrontSupervisor::Impl {
  Impl(std::vector<Descriptor> sockets, const Options& given, Host& called)
      : options(given), host(called), listening(std::move(sockets)) {}

  void Loop();
  void Turn();
  void Launch();
  void Lose(std::string_view why);
  void Watch();
  void ReadPackets();
  bool OnPacket(const Packet& packet);
  void OnJudge(const Packet& packet, bool& valid);
  void Send(std::string bytes, Descriptor descriptor = {});
  void SendWaiting();
  void SendCertificates();
  void Refresh();
  void Pulse();
  void NoteOutage();
  void Shut();
  void SetState(absl::Status status);

  const Options options;
  Host& host;
  std::vector<Descriptor> listening;  // the thread's, once it runs
  std::thread thread;
  std::atomic<bool> stopping{false};
  std::atomic<bool> serving{false};
  std::atomic<bool> draining{false};

  std::mutex mutex;
  std::condition_variable changed;
  bool told = false;  // under mutex: the front knows `serving`
  const Doorbell wake;
  std::optional<absl::Status> started;  // under mutex: the first start has succeeded or failed

  // The thread's.
  SystemClock clock;
  std::optional<FrontProcess> front;
  std::deque<std::pair<std::string, Descriptor>> waiting;
  std::set<std::uint64_t> opened;
  PemTexts pem;         // in use
  std::string refused;  // the last error of the files
  bool ready = false;
  bool drained = false;
  TimeNs launched = 0;
  TimeNs heard = 0;
  TimeNs served = 0;  // when a front that was ready was last heard
  bool is_out = false;
  TimeNs pulsed = 0;
  TimeNs refreshed = 0;
  TimeNs launch_at = 0;
  DurationNs delay = kRestartDelayMin;
  FrontCounts counts;
};

void FrontSupervisor::Impl::SetState(absl::Status status) {
  const std::lock_guard lock(mutex);
  if (!started.has_value()) started = std::move(status);
  changed.notify_all();
}

void FrontSupervisor::Impl::Loop() {
  NameThisThread("front");
  while (!stopping.load(std::memory_order_relaxed)) Turn();
  Shut();
}

void FrontSupervisor::Impl::Turn() {
  const TimeNs now = clock.Now();
  if (!front.has_value() && now >= launch_at) Launch();
  if (draining && !drained && front.has_value()) {
    drained = true;
    Send(PacketWriter(PacketType::kDrain).Take());
  }
  if (!front.has_value()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kRestartDelayMin / kMillisecond));
  } else {
    pollfd waits[] = {{front->pair(), POLLIN, 0}, {wake.descriptor(), POLLIN, 0}};
    if (!waiting.empty()) waits[0].events |= POLLOUT;
    poll(waits, 2, kTurnMs);
    ReadPackets();
    if (front.has_value()) SendWaiting();
  }
  Refresh();
  Pulse();
  NoteOutage();
  if (front.has_value()) Watch();
  if (counts.any()) host.OnCounts(std::exchange(counts, {}));
}

void FrontSupervisor::Impl::Launch() {
  if (draining) return;
  auto made = FrontProcess::Start(options.program, listening);
  launched = heard = clock.Now();
  if (!made.ok()) {
    LogError("event=front_failed reason=\"{}\"", MessageOf(made.status()));
    launch_at = launched + delay;
    delay = std::min(delay * 2, kRestartDelayMax);
    return SetState(made.status());
  }
  front.emplace(*std::move(made));
  ready = false;
  pulsed = 0;
  SendCertificates();
}

void FrontSupervisor::Impl::Lose(std::string_view why) {
  front->Kill();
  front.reset();
  waiting.clear();
  opened.clear();
  host.OnAllGone();
  const TimeNs now = clock.Now();
  if (now - launched >= kStable) delay = kRestartDelayMin;
  launch_at = now + delay;
  delay = std::min(delay * 2, kRestartDelayMax);
  if (stopping) return;
  LogError("event=front_lost after_ms={} reason=\"{}\"", (now - launched) / kMillisecond, why);
  ++counts.restarts;
  SetState(absl::UnavailableError(fmt::format("the control port's front did not start: {}", why)));
}

void FrontSupervisor::Impl::Watch() {
  if (const auto how = front->Ended(); how.has_value()) return Lose(*how);
  const TimeNs now = clock.Now();
  if (now - heard >= (ready ? options.silence_max : kStartTimeout)) return Lose("it hangs");
  const std::uint64_t bytes = front->ResidentBytes();
  if (bytes > options.bytes_max + opened.size() * kFrontBytesPerKnown) {
    Lose(fmt::format("it uses {} MiB of memory", bytes >> 20));
  }
}

// A front that serves is heard every kReportEvery.
void FrontSupervisor::Impl::NoteOutage() {
  if (served == 0 || stopping || draining) return;
  const bool out = clock.Now() - served >= kFrontOutageMin;
  if (out != is_out && host.OnOutage(out ? served : 0)) is_out = out;
}

void FrontSupervisor::Impl::ReadPackets() {
  Packet packet;
  for (int i = 0; i < kPacketsAtOnce && front.has_value(); ++i) {
    switch (ReceivePacket(front->pair(), packet)) {
      case PairState::kBlocked: return;
      case PairState::kEnded: {
        // Mostly a process that is ending: its exit code says more.
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const auto how = front->Ended();
        return Lose(how.value_or("it closed its socket"));
      }
      case PairState::kDone:
        heard = clock.Now();
        if (!OnPacket(packet)) return Lose("it sent an invalid message");
        if (ready) served = heard;
    }
  }
}

bool FrontSupervisor::Impl::OnPacket(const Packet& packet) {
  PacketReader reader(packet.body);
  bool valid = true;
  switch (packet.type) {
    case PacketType::kReady: {
      const bool confined = reader.U64() != 0;
      ready = true;
      LogInfo("event=front_started pid={} seccomp={}", front->pid(), confined);
      SetState(absl::OkStatus());
      return reader.ok();
    }
    case PacketType::kTls: {
      const bool used = reader.U64() != 0;
      const std::string why = reader.Text();
      if (!used) {
        ++counts.certificates_refused;
        LogError("event=certificate_refused file=\"{}\" reason=\"{}\"", options.tls.certificate,
                 why);
      }
      return reader.ok();
    }
    case PacketType::kJudge: OnJudge(packet, valid); return valid;
    case PacketType::kGone: {
      const std::uint64_t id = reader.U64();
      if (opened.erase(id) > 0) host.OnGone(id);
      return reader.ok();
    }
    case PacketType::kReport: {
      const auto report = ReadFrontReport(packet.body);
      if (!report.has_value()) return false;
      counts.report.Add(*report);
      return true;
    }
    default: return false;
  }
}

void FrontSupervisor::Impl::OnJudge(const Packet& packet, bool& valid) {
  const auto call = ReadFrontCall(packet.body);
  // A connection has one upstream.
  valid = call.has_value() && !opened.contains(call->connection);
  if (!valid) return;
  Descriptor upstream;
  const FrontVerdict verdict = host.Judge(*call, upstream);
  if (upstream) opened.insert(call->connection);
  Send(ToPacket(verdict), std::move(upstream));
}

void FrontSupervisor::Impl::Send(std::string bytes, Descriptor descriptor) {
  waiting.emplace_back(std::move(bytes), std::move(descriptor));
  SendWaiting();
}

void FrontSupervisor::Impl::SendWaiting() {
  while (!waiting.empty()) {
    const auto& [bytes, descriptor] = waiting.front();
    if (SendPacket(front->pair(), bytes, descriptor.get()) == PairState::kBlocked) return;
    waiting.pop_front();
  }
}

void FrontSupervisor::Impl::SendCertificates() {
  Descriptor file;
  if (!options.tls.empty()) file = SealedTexts(pem);
  Send(PacketWriter(PacketType::kTls).Take(), std::move(file));
}

// Reads the certificate files again. A pair that cannot be used changes nothing.
void FrontSupervisor::Impl::Refresh() {
  const TimeNs now = clock.Now();
  if (options.tls.empty() || now - refreshed < options.refresh_seconds * kSecond) return;
  refreshed = now;
  auto read = ReadPemTexts(options.tls);
  if (!read.ok()) {
    const std::string why(MessageOf(read.status()));
    if (why == std::exchange(refused, why)) return;
    ++counts.certificates_refused;
    LogError("event=certificate_refused file=\"{}\" reason=\"{}\"", options.tls.certificate, why);
    return;
  }
  refused.clear();
  if (*read == pem) return;
  // An update may replace the files between the reads of two of them, such as of a certificate and
  // its key, so a change is taken only if it is read twice.
  const auto again = ReadPemTexts(options.tls);
  if (!again.ok() || *again != *read) return;
  pem = *std::move(read);
  LogInfo("event=certificate_loaded file=\"{}\"", options.tls.certificate);
  if (front.has_value()) SendCertificates();
}

void FrontSupervisor::Impl::Pulse() {
  const TimeNs now = clock.Now();
  std::uint64_t rings = 0;
  const bool asked = read(wake.descriptor(), &rings, sizeof rings) > 0;
  if (!front.has_value() || (!asked && now - pulsed < kReportEvery) || !waiting.empty()) return;
  pulsed = now;
  const bool serves = serving && host.Alive();
  Send(PacketWriter(PacketType::kHealth).U64(serves ? 1 : 0).Take());
  const std::lock_guard lock(mutex);
  told |= asked;
  changed.notify_all();
}

// The front sends what it still has and exits.
void FrontSupervisor::Impl::Shut() {
  if (!front.has_value()) return;
  front->ClosePair();
  const TimeNs until = clock.Now() + kStopTimeout;
  while (!front->Ended().has_value() && clock.Now() < until) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kStopPoll));
  }
  front.reset();
  host.OnAllGone();
}

FrontSupervisor::FrontSupervisor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FrontSupervisor::~FrontSupervisor() { Stop(); }

absl::StatusOr<std::unique_ptr<FrontSupervisor>> FrontSupervisor::Start(
    std::vector<Descriptor> listening, const Options& options, Host& host) {
  auto impl = std::make_unique<Impl>(std::move(listening), options, host);
  if (!options.tls.empty()) {
    auto read = ReadPemTexts(options.tls);
    if (!read.ok()) return read.status();
    impl->pem = *std::move(read);
    impl->refreshed = impl->clock.Now();
  }
  Impl& raw = *impl;
  std::unique_ptr<FrontSupervisor> supervisor(new FrontSupervisor(std::move(impl)));
  if (absl::Status status = raw.wake.status(); !status.ok()) return status;
  const absl::Status started = StartThread(raw.thread, "front", [&raw] { raw.Loop(); });
  if (!started.ok()) return started;
  std::unique_lock lock(raw.mutex);
  raw.changed.wait(lock, [&raw] { return raw.started.has_value(); });
  if (!raw.started->ok()) return *raw.started;
  lock.unlock();
  return supervisor;
}

void FrontSupervisor::SetServing(bool serving) {
  std::unique_lock lock(impl_->mutex);
  impl_->serving = serving;
  impl_->told = false;
  impl_->wake.Ring();
  impl_->changed.wait_for(lock, std::chrono::nanoseconds(kToldTimeout),
                          [this] { return impl_->told; });
}

void FrontSupervisor::Drain() { impl_->draining = true; }

void FrontSupervisor::Stop() {
  impl_->stopping = true;
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace phub::server
