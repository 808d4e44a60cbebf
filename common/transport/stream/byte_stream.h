// The interface to a connection that carries bytes in order, as the framing needs it: a
// non-blocking socket, or a pipe of the simulation. Belongs to the transport's thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace phub::transport {

enum class IoStatus : std::uint8_t {
  kMore,     // the next call may move more bytes
  kDrained,  // no more until the stream is reported ready again; IoResult::bytes were moved
  kClosed,   // reading only: orderly end of stream; no bytes moved
  kReset,    // the stream failed; no bytes moved
};

struct IoResult {
  std::size_t bytes = 0;  // moved by this call
  IoStatus status = IoStatus::kDrained;
};

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Neither call blocks. The spans are not empty and hold at most IOV_MAX entries.
  virtual IoResult Readv(std::span<const iovec> parts) = 0;
  virtual IoResult Writev(std::span<const iovec> parts) = 0;
  // Ends the stream in both directions and notifies the peer. May be called repeatedly.
  virtual void Shutdown() = 0;
};

}  // namespace phub::transport
