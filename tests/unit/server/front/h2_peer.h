// A peer that speaks HTTP/2 with the code under test, and notes what it has received.
#pragma once

#include <cstdint>
#include <string>

#include "server/front/byte_queue.h"
#include "server/front/h2_session.h"

namespace phub::server {

inline constexpr H2Session::Limits kPeerLimits = {.header_list_bytes_max = 64 << 10,
                                                  .memory_bytes_max = 64 << 20,
                                                  .streams_max = 128,
                                                  .stream_window = 65'535,
                                                  .connection_window = 65'535};

// One end of a connection: a client, or what gRPC is for the relay.
class H2Peer final : public H2Events {
 public:
  explicit H2Peer(H2Side side, const H2Session::Limits& limits = kPeerLimits)
      : session(side, limits, *this) {}

  void OnHeaders(std::int32_t stream, ReceivedHeaders headers) override {
    last_stream = stream;
    ends += headers.end ? 1 : 0;
    (headers.kind == HeadersKind::kFirst ? first : trailers) = std::move(headers.list);
  }
  void OnData(std::int32_t stream, std::string_view bytes) override {
    received += bytes;
    if (consumes) session.Consume(stream, bytes.size());
  }
  void OnEnd(std::int32_t) override { ++ends; }
  void OnClosed(std::int32_t, std::uint32_t error) override {
    ++closed;
    last_error = error;
  }
  void OnPing(const std::uint8_t* opaque, bool ack) override {
    if (ack) {
      ++acks;
    } else {
      ++pings;
      session.Ping(opaque, true);
    }
  }
  void OnGoaway(std::int32_t last, std::uint32_t) override { goaway = last; }
  bool OnCheapFrame() override { return true; }
  Supply OnSupply(std::int32_t, char* bytes, std::size_t size) override {
    const std::size_t taken = to_send.Take(bytes, size);
    const bool end = to_send.empty() && ended;
    if (end && !own_trailers.empty()) session.Trailers(last_stream, own_trailers);
    return {taken, end, end && !own_trailers.empty()};
  }
  void OnEndSent(std::int32_t) override {}

  ByteQueue to_send;
  bool ended = false;
  bool consumes = true;
  HeaderList own_trailers;
  std::int32_t last_stream = 0;
  HeaderList first;
  HeaderList trailers;
  std::string received;
  int ends = 0;
  int closed = 0;
  int pings = 0;
  int acks = 0;
  std::uint32_t last_error = 0;
  std::int32_t goaway = -1;
  H2Session session;
};

}  // namespace phub::server
