// One end of an HTTP/2 connection: nghttp2 without sockets. Bytes go in with Receive() and come out
// with Next(). Flow control is manual: a received byte occupies the peer's window until Consume().
//
// Everything that nghttp2 allocates is counted and limited, so that a peer's memory is bounded even
// where no limit of the protocol applies.
//
// One thread. The functions of H2Events may call the session, except Receive() and Next(), and must
// not destroy it.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace phub::server {

using HeaderList = std::vector<std::pair<std::string, std::string>>;
// The first value of a header; empty if the list lacks the header.
std::string_view FindHeader(const HeaderList& headers, std::string_view name);

enum class H2Side { kServer, kClient };
enum class HeadersKind { kFirst, kTrailers };

struct ReceivedHeaders {
  HeadersKind kind = HeadersKind::kFirst;
  HeaderList list;
  bool end = false;        // the stream's last frame in this direction
  bool too_large = false;  // the list was discarded
};

class H2Events {
 public:
  virtual ~H2Events() = default;
  virtual void OnHeaders(std::int32_t stream, ReceivedHeaders headers) = 0;
  virtual void OnData(std::int32_t stream, std::string_view bytes) = 0;
  virtual void OnEnd(std::int32_t stream) = 0;  // after a DATA frame
  virtual void OnClosed(std::int32_t stream, std::uint32_t error) = 0;
  virtual void OnPing(const std::uint8_t* opaque, bool ack) = 0;
  virtual void OnGoaway(std::int32_t last_stream, std::uint32_t error) = 0;
  // A frame that costs its sender nothing. False: too many, close the connection.
  virtual bool OnCheapFrame() = 0;
  // Moves up to `size` bytes of the stream into `bytes`. Returns 0 to be asked again after
  // Resume(). Sets `end` with the last byte or after it; with trailers the implementation calls
  // Trailers().
  struct Supply {
    std::size_t bytes = 0;
    bool end = false;
    bool trailers = false;
  };
  virtual Supply OnSupply(std::int32_t stream, char* bytes, std::size_t size) = 0;
  // The stream's last frame in this direction was sent.
  virtual void OnEndSent(std::int32_t stream) = 0;
};

class H2Session {
 public:
  struct Limits {
    std::size_t header_list_bytes_max = 0;
    std::size_t memory_bytes_max = 0;
    std::uint32_t streams_max = 0;
    std::uint32_t stream_window = 0;
    std::uint32_t connection_window = 0;
    // The peer may send so many for each DATA frame that it gets; more are cheap frames.
    std::uint32_t window_updates_per_frame = 2;
  };
  H2Session(H2Side side, const Limits& limits, H2Events& events);
  ~H2Session();
  H2Session(const H2Session&) = delete;
  H2Session& operator=(const H2Session&) = delete;

  // False: the peer has broken the protocol or a limit. What Next() still returns (GOAWAY) may be
  // sent; then the connection must be closed.
  bool Receive(std::string_view bytes);
  // Bytes to send; empty: nothing. Valid until the next call.
  std::string_view Next();
  bool failed() const { return failed_; }
  // The session wants neither to read nor to write any more.
  bool Finished() const;

  // The client's new stream; negative if the connection takes no more.
  std::int32_t Request(const HeaderList& headers, bool end);
  void Respond(std::int32_t stream, const HeaderList& headers, bool end);
  void Trailers(std::int32_t stream, const HeaderList& headers);
  void Resume(std::int32_t stream);
  void Reset(std::int32_t stream, std::uint32_t error);
  void Consume(std::int32_t stream, std::size_t bytes);
  void Ping(const std::uint8_t* opaque, bool ack);
  void Goaway(std::int32_t last_stream, std::uint32_t error);
  void Widen(const Limits& limits);

  std::size_t memory_bytes() const { return memory_bytes_; }
  bool out_of_memory() const { return out_of_memory_; }

 private:
  struct Calls;  // nghttp2's callbacks
  void MakeSession(H2Side side);
  void Check(int result);
  void EndBlock();
  bool HasRoom(std::size_t bytes);

  Limits limits_;
  H2Events& events_;
  nghttp2_session* session_ = nullptr;
  nghttp2_mem memory_{};
  std::size_t memory_bytes_ = 0;
  bool failed_ = false;
  bool out_of_memory_ = false;  // the limit was reached
  // The header block that is being received; there is at most one.
  bool in_headers_ = false;
  std::int32_t headers_of_ = 0;
  std::size_t block_bytes_ = 0;
  std::size_t list_bytes_ = 0;
  std::uint64_t window_updates_due_ = 0;
  HeaderList list_;
};

}  // namespace phub::server
