// What the framing needs of a connection that carries bytes in order: a non-blocking socket, or a
// pipe of the simulation. One thread, the transport's.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace phub::transport {

enum class IoStatus : std::uint8_t {
  kMore,     // the next call may move bytes too
  kDrained,  // no more until the stream is reported ready again; the bytes given did move
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
  // Tells the peer that nothing more is sent or read here. Harmless when repeated.
  virtual void Shutdown() = 0;
};

}  // namespace phub::transport
