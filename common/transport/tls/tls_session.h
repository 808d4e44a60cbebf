// TLS 1.3 over one non-blocking socket: the handshake, and then bytes either way.
//
// Both ends prove that they have the lane's key (lane_key.h); there are no certificates, no
// resumption, no early data, and no older version of TLS. Made by a cold thread, which goes through
// the handshake and calls BecomeLane; after that it belongs to the thread that serves the lane, and
// takes no more memory.
//
// Writing. Plaintext is encrypted into a buffer of kCiphertextBytes, which leaves with one call of
// the kernel. Bytes count as moved when their ciphertext has left: what was encrypted and could not
// be sent is not reported, so the caller offers it again, and then it is skipped.
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

// The key of that name, if it is good now. Says false for any other name.
using LaneKeyFinder = std::function<bool(const LaneKeyName& name, LaneKey& key)>;

class TlsSession {
 public:
  // Encrypted at once, and sent by one call. Small enough to stay in a core's cache.
  static constexpr std::size_t kCiphertextBytes = 64 * 1024;
  // A lane changes its sending key after so many bytes: far below what AES-GCM bears (2^24.5
  // records, some 380 GB).
  static constexpr std::uint64_t kBytesPerKey = std::uint64_t{64} << 30;
  // What a peer may send that is no data: so many bytes, and then as many as it sends of data.
  // OpenSSL goes through all that it can get of them within one call, which this bounds, too. More
  // than it reads ahead.
  static constexpr std::size_t kOverheadBytesMax = 256 * 1024;
  static_assert(kOverheadBytesMax > 2 * kCiphertextBytes);
  // What a lane takes of memory, with what OpenSSL allocates; TlsSessionTest measures it.
  static constexpr std::size_t kLaneBytes = 224 * 1024;

  // The client's end of the lane with this name and key.
  static std::unique_ptr<TlsSession> MakeClient(int socket, const LaneKeyName& name,
                                                const LaneKey& key);
  // The daemon's end. `first`: what was read of the socket already.
  static std::unique_ptr<TlsSession> MakeDaemon(int socket, std::span<const std::byte> first,
                                                LaneKeyFinder finder);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  enum class Step : std::uint8_t { kDone, kWaitsToRead, kFailed };
  // Goes on until the peer has to say something. kDone: the peer has the key. A client's first call
  // reads nothing.
  Step Handshake();
  // After kFailed: why, in OpenSSL's words.
  const char* failure() const { return failure_; }
  // The largest buffers, once, after the handshake: from here on nothing is allocated.
  void BecomeLane(std::uint64_t bytes_per_key = kBytesPerKey);

  // As ByteStream says. `hangup`: the kernel said that the peer sends no more.
  IoResult Readv(std::span<const iovec> parts, bool hangup);
  IoResult Writev(std::span<const iovec> parts);
  // Tells the peer that nothing more comes, if it can be told without waiting.
  void Close();

 private:
  friend struct SessionSide;
  class Parts;
  enum class End : std::uint8_t { kOpen, kClosed, kReset };

  TlsSession(int socket, bool is_client);
  IoResult Ended(std::size_t bytes) const;
  bool IsThrifty(std::size_t bytes);
  // False if reading has to stop, for `end_` or as nothing is there.
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
  bool write_failed_ = false;  // nothing leaves any more; reading tells why
  bool drained_ = false;       // since the present call began, the socket had no more
  // Ciphertext that has not left: [out_begin_, out_end_) of out_.
  std::unique_ptr<std::byte[]> out_;
  std::size_t out_capacity_ = 0;
  std::size_t out_begin_ = 0;
  std::size_t out_end_ = 0;
  std::size_t ahead_bytes_ = 0;  // of plaintext: in out_, and not yet said to have moved
  std::uint64_t bytes_per_key_ = 0;
  std::uint64_t key_bytes_ = 0;     // encrypted with the present key
  std::size_t overhead_bytes_ = 0;  // read of the socket, and not made up for by data
  std::uint64_t received_bytes_ = 0;
  std::uint64_t received_records_ = 0;
};

}  // namespace phub::transport
