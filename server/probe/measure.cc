#include "server/probe/measure.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "common/wire/little_endian.h"
#include "server/probe/lane_io.h"

namespace phub::server::probe {
namespace {

constexpr std::uint32_t kMagic = 0x42504850;  // "PHPB" in memory
// The buffer that is sent and received repeatedly; it fits into a core's cache.
constexpr std::size_t kBufferBytes = std::size_t{128} << 10;
// A request is sized to take about kTransferTime. kTransfersAhead requests are in flight, which
// together is more than two round trips. The first requests are small; each is at most twice as
// large as the one before.
constexpr DurationNs kTransferTime = 10 * kMillisecond;
constexpr std::size_t kTransfersAhead = 4;
constexpr std::uint64_t kTransferBytesMin = std::uint64_t{16} << 10;
constexpr std::uint64_t kTransferBytesMax = std::uint64_t{16} << 20;
// On a path with a long round trip a direction is measured for this many round trips, but for at
// most kLongerMax longer than usual.
constexpr int kRoundTripsPerWay = 40;
constexpr DurationNs kLongerMax = kSecond;
// The first third of a direction's time, or of its bytes if they run out first, is not measured.
constexpr int kFirstPart = 3;
constexpr DurationNs kSampleEvery = kMillisecond / 2;
constexpr std::size_t kParts =
    8;  // the measured time has 8 parts; the median of their rates counts
// Echoes take a fifth of the duration, each direction two fifths.
constexpr int kEchoPart = 5;
constexpr std::uint32_t kEchoesFirst = 4;                // not timed: both threads wake up first
constexpr DurationNs kLongRoundTrip = 5 * kMillisecond;  // makes wakeups negligible: timed at once

template <typename Value>
Value Percentile(std::vector<Value>& values, int percent) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) * static_cast<std::size_t>(percent) / 100];
}

absl::Status Garbage(const std::string& what) {
  return absl::AbortedError(fmt::format("the peer broke the probe protocol: {}", what));
}

absl::Status Send(LaneIo& io, const Request& request) {
  std::array<std::byte, kRequestBytes> bytes;
  EncodeRequest(request, bytes);
  return io.Write(bytes);
}

absl::Status AwaitSame(LaneIo& io, const Request& request) {
  std::array<std::byte, kRequestBytes> bytes;
  if (absl::Status status = io.Read(bytes); !status.ok()) return status;
  if (DecodeRequest(bytes) != request) return Garbage("its receipt does not match the request");
  return absl::OkStatus();
}

// A stream of requests of one kind, with up to kTransfersAhead in flight.
class Stream {
 public:
  Stream(LaneIo& io, Request::Kind kind, std::span<std::byte> buffer)
      : io_(io), kind_(kind), buffer_(buffer) {}

  std::uint64_t asked() const { return asked_; }
  std::uint64_t next_bytes() const { return next_bytes_; }

  // Starts a request if there is room, sends and receives what is possible, or waits until
  // something is.
  absl::Status Go(DurationNs transfer_time) {
    transfer_time_ = transfer_time;
    if (writing_left_ == 0 && under_way_.size() < kTransfersAhead) Ask();
    return Move();
  }
  // Blocks until all requests are complete.
  absl::Status Finish() {
    while (!under_way_.empty()) {
      if (absl::Status status = Move(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  struct Transfer {
    std::uint64_t bytes = 0;
    TimeNs asked = 0;
  };

  void Ask() {
    under_way_.push_back({next_bytes_, io_.Now()});
    asked_ += next_bytes_;
    EncodeRequest({kind_, next_bytes_}, request_);
    writing_left_ = kRequestBytes + (kind_ == Request::Kind::kTake ? next_bytes_ : 0);
    request_left_ = kRequestBytes;
    if (under_way_.size() == 1) ExpectAnswer();
  }
  void ExpectAnswer() {
    reading_left_ = kind_ == Request::Kind::kTake ? kRequestBytes : under_way_.front().bytes;
  }

  absl::Status Move() {
    bool any = false;
    if (writing_left_ > 0) {
      const auto written = io_.TryWrite(Unwritten());
      if (!written.ok()) return written.status();
      writing_left_ -= *written;
      request_left_ -= std::min(request_left_, *written);
      any = *written > 0;
    }
    if (!under_way_.empty()) {
      const auto want = std::min<std::uint64_t>(reading_left_, buffer_.size());
      const auto read = io_.TryRead(buffer_.first(static_cast<std::size_t>(want)));
      if (!read.ok()) return read.status();
      if (absl::Status status = Received(*read); !status.ok()) return status;
      any = any || *read > 0;
    }
    if (any) return absl::OkStatus();
    return io_.Await(static_cast<short>(POLLIN | (writing_left_ > 0 ? POLLOUT : 0)));
  }
  std::span<const std::byte> Unwritten() const {
    if (request_left_ > 0) return std::span(request_).last(request_left_);
    return std::span(kZeros).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(writing_left_, kZeros.size())));
  }

  absl::Status Received(std::size_t bytes) {
    if (kind_ == Request::Kind::kTake) {
      std::copy_n(buffer_.begin(), bytes,
                  receipt_.end() - static_cast<std::ptrdiff_t>(reading_left_));
    }
    reading_left_ -= bytes;
    if (reading_left_ > 0) return absl::OkStatus();
    const Transfer done = under_way_.front();
    if (kind_ == Request::Kind::kTake && DecodeRequest(receipt_) != Request{kind_, done.bytes}) {
      return Garbage("its receipt does not match the request");
    }
    if (kind_ == Request::Kind::kTake && under_way_.size() == 1 && writing_left_ > 0) {
      return Garbage("it acknowledged bytes that were not sent yet");
    }
    under_way_.pop_front();
    if (!under_way_.empty()) ExpectAnswer();
    Size(done);
    return absl::OkStatus();
  }
  // Sizes the next transfers from the time that this one took as the oldest in flight.
  void Size(const Transfer& done) {
    const TimeNs now = io_.Now();
    const DurationNs took = std::max<DurationNs>(now - std::max(done.asked, last_done_), 1);
    last_done_ = now;
    const double wanted = static_cast<double>(done.bytes) * static_cast<double>(transfer_time_) /
                          static_cast<double>(took);
    const auto most = std::min(2 * done.bytes, kTransferBytesMax);
    next_bytes_ =
        std::max(kTransferBytesMin,
                 wanted < static_cast<double>(most) ? static_cast<std::uint64_t>(wanted) : most);
  }

  static constexpr std::array<std::byte, kBufferBytes> kZeros{};
  LaneIo& io_;
  const Request::Kind kind_;
  const std::span<std::byte> buffer_;
  std::array<std::byte, kRequestBytes> request_{};  // the one that is being written
  std::size_t request_left_ = 0;
  std::uint64_t writing_left_ = 0;  // bytes of the request and of the data that follows it
  std::array<std::byte, kRequestBytes> receipt_{};
  std::uint64_t reading_left_ = 0;  // bytes of the answer to the oldest request in flight
  std::deque<Transfer> under_way_;
  DurationNs transfer_time_ = 0;
  std::uint64_t next_bytes_ = kTransferBytesMin;
  std::uint64_t asked_ = 0;
  TimeNs last_done_ = 0;
};

class Measurement {
 public:
  Measurement(LaneIo& io, const Limits& limits)
      : io_(io), limits_(limits), begun_(io.Now()), buffer_(kBufferBytes) {}

  absl::StatusOr<Result> Run() {
    Result result;
    if (absl::Status status = Echo(result); !status.ok()) return status;
    const DurationNs part = limits_.duration * 2 / kEchoPart;
    const DurationNs duration =
        std::clamp(kRoundTripsPerWay * result.round_trip, part, part + kLongerMax);
    using Kind = Request::Kind;
    const auto measure = [&](Kind kind, Way& way) {
      return MeasureWay(kind, result.round_trip, duration, way);
    };
    if (absl::Status status = measure(Kind::kTake, result.out); !status.ok()) return status;
    if (absl::Status status = measure(Kind::kGive, result.back); !status.ok()) return status;
    if (absl::Status status = Send(io_, {Kind::kEnd, 0}); !status.ok()) return status;
    if (absl::Status status = io_.AwaitEnd(); !status.ok()) return status;
    return result;
  }

 private:
  absl::Status Echo(Result& result) {
    const TimeNs until = begun_ + limits_.duration / kEchoPart;
    std::vector<DurationNs> times;
    times.reserve(limits_.echoes);
    for (std::uint32_t i = 0; times.size() < limits_.echoes; ++i) {
      const Request request{Request::Kind::kEcho, i};
      const TimeNs sent = io_.Now();
      if (!times.empty() && sent >= until) break;
      if (absl::Status status = Send(io_, request); !status.ok()) return status;
      if (absl::Status status = AwaitSame(io_, request); !status.ok()) return status;
      const DurationNs took = io_.Now() - sent;
      if (i >= kEchoesFirst || took > kLongRoundTrip) times.push_back(took);
    }
    result.echoes = static_cast<std::uint32_t>(times.size());
    result.round_trip = Percentile(times, 5);
    result.round_trip_min = times.front();
    result.round_trip_median = Percentile(times, 50);
    return absl::OkStatus();
  }

  absl::Status MeasureWay(Request::Kind kind, DurationNs round_trip, DurationNs duration,
                          Way& way) {
    Stream stream(io_, kind, buffer_);
    const TimeNs begun = io_.Now();
    const std::uint64_t bytes_max = limits_.bytes / 2;
    const DurationNs transfer_time = std::max(kTransferTime, round_trip / 2);
    const Sample at_first = Sampled(kind);
    std::vector<Sample> samples;
    TimeNs now = begun;
    const auto is_over = [&] {
      return now - begun >= duration || stream.asked() + stream.next_bytes() > bytes_max;
    };
    const auto is_first = [&] {
      return now - begun < duration / kFirstPart && stream.asked() < bytes_max / kFirstPart;
    };
    for (;; now = io_.Now()) {
      const bool is_last = is_over();
      const bool is_due = samples.empty() || now - samples.back().time >= kSampleEvery;
      if (is_last || (is_due && !is_first())) samples.push_back(Sampled(kind));
      if (is_last) break;
      if (absl::Status status = stream.Go(transfer_time); !status.ok()) return status;
    }
    way.bytes = stream.asked();
    Judge(samples, way);
    if (absl::Status status = stream.Finish(); !status.ok()) return status;
    // The transfer was too short for samples; use the whole of it.
    if (way.duration < kSampleEvery || way.mean_bytes_per_s <= 0) {
      Judge({at_first, Sampled(kind)}, way);
    }
    return absl::OkStatus();
  }

  struct Sample {
    TimeNs time = 0;
    std::uint64_t bytes = 0;
  };
  Sample Sampled(Request::Kind kind) const {
    const LaneIo::Moved moved = io_.moved();
    return {io_.Now(), kind == Request::Kind::kTake ? moved.acknowledged : moved.received};
  }

  static double RateOf(const Sample& from, const Sample& to) {
    const double seconds = static_cast<double>(std::max<DurationNs>(to.time - from.time, 1)) * 1e-9;
    return static_cast<double>(to.bytes - from.bytes) / seconds;
  }

  static void Judge(const std::vector<Sample>& samples, Way& way) {
    const Sample &first = samples.front(), &last = samples.back();
    way.duration = last.time - first.time;
    way.bytes_per_s = way.mean_bytes_per_s = RateOf(first, last);
    std::vector<double> rates;
    for (std::size_t part = 1, from = 0, to = 0; part <= kParts; ++part) {
      const TimeNs end =
          first.time + way.duration * static_cast<DurationNs>(part) / DurationNs{kParts};
      while (to + 1 < samples.size() && samples[to].time < end) ++to;
      if (to > from) rates.push_back(RateOf(samples[from], samples[to]));
      from = to;
    }
    const double median = rates.empty() ? 0 : Percentile(rates, 50);
    if (median > 0) way.bytes_per_s = median;
  }

  LaneIo& io_;
  const Limits limits_;
  const TimeNs begun_;
  std::vector<std::byte> buffer_;
};

template <typename Number>
absl::Status TakeLimit(const char* name, Number given, Number least, Number most, Number& limit) {
  if (given == 0) return absl::OkStatus();
  if (given < least || given > most) {
    return absl::InvalidArgumentError(
        fmt::format("the probe's {} is {}; it must be from {} to {}", name, given, least, most));
  }
  limit = given;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Limits> MakeLimits(std::int64_t duration, std::uint64_t bytes,
                                  std::uint32_t echoes) {
  Limits limits;
  for (const absl::Status& status :
       {TakeLimit("duration in ns", duration, kLimitsMin.duration, kLimitsMax.duration,
                  limits.duration),
        TakeLimit("number of bytes", bytes, kLimitsMin.bytes, kLimitsMax.bytes, limits.bytes),
        TakeLimit("number of echoes", echoes, kLimitsMin.echoes, kLimitsMax.echoes,
                  limits.echoes)}) {
    if (!status.ok()) return status;
  }
  return limits;
}

void EncodeRequest(const Request& request, std::span<std::byte, kRequestBytes> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  wire::StoreLittleEndian<std::uint32_t>(kMagic, bytes.data());
  wire::StoreLittleEndian(static_cast<std::uint32_t>(request.kind), bytes.data() + 4);
  wire::StoreLittleEndian<std::uint64_t>(request.bytes, bytes.data() + 8);
}

std::optional<Request> DecodeRequest(std::span<const std::byte, kRequestBytes> bytes) {
  const auto kind = wire::LoadLittleEndian<std::uint32_t>(bytes.data() + 4);
  if (wire::LoadLittleEndian<std::uint32_t>(bytes.data()) != kMagic || kind < 1 || kind > 4 ||
      !wire::AllZero(bytes.subspan(16))) {
    return std::nullopt;
  }
  return Request{static_cast<Request::Kind>(kind),
                 wire::LoadLittleEndian<std::uint64_t>(bytes.data() + 8)};
}

absl::StatusOr<Result> Measure(transport::TcpConnection& lane, const Limits& limits,
                               const Clock& clock, const std::atomic<bool>& stopping) {
  LaneIo io(lane, clock, clock.Now() + 2 * limits.duration + kPatience, stopping);
  return Measurement(io, limits).Run();
}

absl::Status AnswerProbe(transport::TcpConnection& lane, const Limits& limits, const Clock& clock,
                         const std::atomic<bool>& stopping) {
  // The measuring end times out first, so that it can report why.
  LaneIo io(lane, clock, clock.Now() + 2 * limits.duration + 2 * kPatience, stopping);
  std::vector<std::byte> buffer(kBufferBytes);
  std::uint64_t bytes = 0;
  std::uint64_t echoes = 0;
  for (;;) {
    std::array<std::byte, kRequestBytes> received;
    if (absl::Status status = io.Read(received); !status.ok()) return status;
    const std::optional<Request> request = DecodeRequest(received);
    if (!request) return Garbage("it sent an invalid request");
    if (request->kind == Request::Kind::kEnd) return absl::OkStatus();
    absl::Status status;
    if (request->kind == Request::Kind::kEcho) {
      if (++echoes > limits.echoes + kEchoesFirst)
        return Garbage("it sent more echoes than it announced");
      status = io.Write(received);
    } else {
      if (request->bytes > limits.bytes - std::min(bytes, limits.bytes)) {
        return Garbage("it requested more bytes than it announced");
      }
      bytes += request->bytes;
      if (request->kind == Request::Kind::kGive) {
        status = io.WriteOver(buffer, request->bytes);
      } else {
        status = io.ReadOver(buffer, request->bytes);
        if (status.ok()) status = io.Write(received);
      }
    }
    if (!status.ok()) return status;
  }
}

}  // namespace phub::server::probe
