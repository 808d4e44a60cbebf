// TLS 1.3 over one non-blocking socket: the handshake, and then bytes in both directions.
//
// Both ends prove that they have the lane's key (lane_key.h). There are no certificates, no
// resumption, no early data, and no older versions of TLS. A thread off the data path creates the
// session, runs the handshake and calls BecomeLane. After that the session belongs to the thread
// that serves the lane, and allocates no more memory.
//
// Writing: plaintext is encrypted into a buffer of kCiphertextBytes, which one system call sends.
// Bytes count as moved only after their ciphertext was sent. If ciphertext could not be sent, the
// caller offers the same plaintext again, and the session skips it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "common/transport/stream/byte_stream.h"
#include "common/transport/tls/lane_key.h"

struct ssl_st;

namespace phub::transport {

// Finds the key with that name. Returns false if no key has it, or the key is not valid now.
using LaneKeyFinder = std::function<bool(const LaneKeyName& name, LaneKey& key)>;

class TlsSession {
 public:
  // Bytes that are encrypted at once and sent by one system call. Fits into a core's cache.
  static constexpr std::size_t kCiphertextBytes = 64 * 1024;
  // A lane changes its sending key after this many bytes, far below AES-GCM's limit (2^24.5
  // records, about 380 GB).
  static constexpr std::uint64_t kBytesPerKey = std::uint64_t{64} << 30;
  // Limit for what a peer may send besides data: this many bytes, plus as many as its data. OpenSSL
  // processes all of it within one call, so this also limits the time of that call. It must exceed
  // what OpenSSL reads ahead.
  static constexpr std::size_t kOverheadBytesMax = 256 * 1024;
  static_assert(kOverheadBytesMax > 2 * kCiphertextBytes);
  // Memory of a lane, including OpenSSL's allocations; TlsSessionTest measures it.
  static constexpr std::size_t kLaneBytes = 224 * 1024;

  // The client's end of the lane with this name and key.
  static std::unique_ptr<TlsSession> MakeClient(int socket, const LaneKeyName& name,
                                                const LaneKey& key);
  // The daemon's end. `first`: bytes that were already read from the socket.
  static std::unique_ptr<TlsSession> MakeDaemon(int socket, std::span<const std::byte> first,
                                                LaneKeyFinder finder);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  enum class Step : std::uint8_t { kDone, kWaitsToRead, kFailed };
  // Continues until the peer must send something. kDone: the peer has proved that it has the key. A
  // client's first call reads nothing.
  Step Handshake();
  // After kFailed: OpenSSL's reason.
  const char* failure() const { return failure_; }
  // Call once after the handshake: allocates the largest buffers. Nothing is allocated after that.
  void BecomeLane(std::uint64_t bytes_per_key = kBytesPerKey);
  bool is_lane() const { return bytes_per_key_ > 0; }

  // See ByteStream. `hangup`: the kernel has reported that the peer sends no
  // more.
  IoResult Readv(std::span<const iovec> parts, bool hangup);
  IoResult Writev(std::span<const iovec> parts);
  // Sends the close alert to the peer, if that is possible without waiting.
  void Close();

 private:
  friend struct SessionSide;
  class Parts;
  enum class End : std::uint8_t { kOpen, kClosed, kReset };

  TlsSession(int socket, bool is_client);
  IoResult Ended(std::size_t bytes) const;
  bool IsThrifty(std::size_t bytes);
  // False if reading must stop, because the stream has ended or the socket is drained.
  bool ReadRecord(std::span<std::byte> into, std::size_t& bytes);
  bool Encrypt(std::span<const std::byte> plain);
  // Fills the buffer; false if OpenSSL fails.
  bool EncryptSome(Parts& parts, std::size_t& bytes);
  void Flush();
  std::size_t room() const { return out_capacity_ - out_end_; }
  bool has_unsent() const { return out_begin_ != out_end_; }

  struct FreeSession {
    void operator()(ssl_st* session) const;
  };

  const int socket_;
  std::unique_ptr<ssl_st, FreeSession> session_;
  LaneKeyFinder finder_;  // the daemon's
  LaneKeyName name_{};    // the client's
  LaneKey key_{};
  std::span<const std::byte> first_;  // until the first call of Handshake returns
  const char* failure_ = "";

  End end_ = End::kOpen;
  bool hangup_ = false;
  bool write_failed_ = false;  // nothing can be sent any more; reading reports why
  bool drained_ = false;       // the socket had no more bytes during this call
  // Ciphertext that was not sent yet: [out_begin_, out_end_) of out_.
  std::unique_ptr<std::byte[]> out_;
  std::size_t out_capacity_ = 0;
  std::size_t out_begin_ = 0;
  std::size_t out_end_ = 0;
  std::size_t ahead_bytes_ = 0;  // plaintext whose ciphertext is in out_, not reported as moved
  std::uint64_t bytes_per_key_ = 0;
  std::uint64_t key_bytes_ = 0;     // encrypted with the current key
  std::size_t overhead_bytes_ = 0;  // bytes from the socket that data has not compensated for yet
  std::uint64_t received_bytes_ = 0;
  std::uint64_t received_records_ = 0;
};

}  // namespace phub::transport
