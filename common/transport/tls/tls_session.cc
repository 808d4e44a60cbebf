#include "common/transport/tls/tls_session.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/transport/tls/tls_context.h"

namespace phub::transport {
namespace {

constexpr std::size_t kRecordBytesMax = SSL3_RT_MAX_PLAIN_LENGTH;
// Overhead of a record's ciphertext: header, type and tag; OpenSSL's upper bound.
constexpr std::size_t kRecordOverheadMax =
    SSL3_RT_MAX_TLS13_ENCRYPTED_LENGTH - SSL3_RT_MAX_PLAIN_LENGTH + SSL3_RT_HEADER_LENGTH;
// Room for alerts and key updates in addition to data.
constexpr std::size_t kSideBytes = 1024;
// A daemon sends about 250 bytes in the handshake, a client about 400.
constexpr std::size_t kHandshakeBytes = 4 * 1024;
// Shorter runs of plaintext share a record.
constexpr std::size_t kOwnRecordBytes = 4 * 1024;
// Size of OpenSSL's reads from the kernel.
constexpr std::size_t kReadAheadBytes = 64 * 1024;
// A peer may send kRecordsFree records, and another one for every kBytesPerRecordMin bytes of data
// (a message has at least 64 bytes). The limit prevents a peer from wasting CPU with short or empty
// records.
constexpr std::uint64_t kRecordsFree = 4096;
constexpr std::uint64_t kBytesPerRecordMin = 32;

}  // namespace

// Iterates over the parts that a caller wants to write.
class TlsSession::Parts {
 public:
  explicit Parts(std::span<const iovec> parts) : parts_(parts) { SkipEmpty(); }

  bool done() const { return index_ == parts_.size(); }
  std::size_t run_bytes() const { return parts_[index_].iov_len - offset_; }
  const std::byte* data() const {
    return static_cast<const std::byte*>(parts_[index_].iov_base) + offset_;
  }
  void Advance(std::size_t bytes) {
    while (bytes > 0) {
      PHUB_CHECK(!done(), "the caller offers {} bytes less than it did before", bytes);
      const std::size_t step = std::min(bytes, run_bytes());
      offset_ += step;
      bytes -= step;
      SkipEmpty();
    }
  }

 private:
  void SkipEmpty() {
    while (!done() && offset_ == parts_[index_].iov_len) {
      ++index_;
      offset_ = 0;
    }
  }
  std::span<const iovec> parts_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
};

TlsSession::TlsSession(int socket, bool is_client)
    : socket_(socket),
      session_(tls::NewSession(is_client, *this)),
      out_(std::make_unique<std::byte[]>(kHandshakeBytes)),
      out_capacity_(kHandshakeBytes) {}

TlsSession::~TlsSession() {
  OPENSSL_cleanse(key_.data(), key_.size());
  ERR_clear_error();
}

void TlsSession::FreeSession::operator()(ssl_st* session) const { SSL_free(session); }

std::unique_ptr<TlsSession> TlsSession::MakeClient(int socket, const LaneKeyName& name,
                                                   const LaneKey& key) {
  std::unique_ptr<TlsSession> session(new TlsSession(socket, /*is_client=*/true));
  session->name_ = name;
  session->key_ = key;
  return session;
}

std::unique_ptr<TlsSession> TlsSession::MakeDaemon(int socket, std::span<const std::byte> first,
                                                   LaneKeyFinder finder) {
  std::unique_ptr<TlsSession> session(new TlsSession(socket, /*is_client=*/false));
  session->first_ = first;
  session->finder_ = std::move(finder);
  return session;
}

TlsSession::Step TlsSession::Handshake() {
  PHUB_CHECK(!is_lane(), "the handshake is over");
  // Before a client's first bytes, the socket can only have an unencrypted refusal: do not read it.
  drained_ = SSL_is_server(session_.get()) == 0 && SSL_in_before(session_.get()) == 1;
  ERR_clear_error();
  const int result = SSL_do_handshake(session_.get());
  const int error = SSL_get_error(session_.get(), result);
  if (result != 1) {
    const char* const reason = ERR_reason_error_string(ERR_peek_error());
    failure_ = reason != nullptr ? reason : "the peer closed the connection";
    ERR_clear_error();
  }
  Flush();  // may include an alert
  first_ = {};
  // An end that does not know the key would go on with certificates, which no end has.
  if (end_ != End::kOpen || write_failed_ || has_unsent()) return Step::kFailed;
  if (result == 1) {
    return SSL_session_reused(session_.get()) == 1 ? Step::kDone : Step::kFailed;
  }
  return error == SSL_ERROR_WANT_READ ? Step::kWaitsToRead : Step::kFailed;
}

void TlsSession::BecomeLane(std::uint64_t bytes_per_key) {
  finder_ = nullptr;
  OPENSSL_cleanse(key_.data(), key_.size());
  PHUB_CHECK(!is_lane() && bytes_per_key > 0, "bytes_per_key={}", bytes_per_key);
  bytes_per_key_ = bytes_per_key;
  PHUB_CHECK(!has_unsent());
  out_capacity_ = kCiphertextBytes + kRecordBytesMax + kRecordOverheadMax + kSideBytes;
  out_ = std::make_unique<std::byte[]>(out_capacity_);
  out_begin_ = out_end_ = 0;
  SSL_set_read_ahead(session_.get(), 1);
  SSL_set_default_read_buffer_len(session_.get(), kReadAheadBytes);
  // The next read then allocates buffers of that size. If they hold bytes, the old buffers stay.
  [[maybe_unused]] const int result = SSL_free_buffers(session_.get());
}

IoResult TlsSession::Ended(std::size_t bytes) const {
  if (bytes > 0) return {bytes, IoStatus::kMore};  // the next call reports the end
  return {0, end_ == End::kClosed ? IoStatus::kClosed : IoStatus::kReset};
}

bool TlsSession::IsThrifty(std::size_t bytes) {
  received_bytes_ += bytes;
  overhead_bytes_ -= std::min(overhead_bytes_, 2 * bytes);  // the data, and as much overhead
  return ++received_records_ <= kRecordsFree + received_bytes_ / kBytesPerRecordMin;
}

bool TlsSession::ReadRecord(std::span<std::byte> into, std::size_t& bytes) {
  for (;;) {
    ERR_clear_error();
    if (SSL_read_ex(session_.get(), into.data(), into.size(), &bytes) == 1) {
      if (IsThrifty(bytes)) return true;
      end_ = End::kReset;
      return false;
    }
    bytes = 0;
    const int error = SSL_get_error(session_.get(), 0);
    if (error == SSL_ERROR_WANT_READ) {
      if (drained_) return false;
      // A record without data, such as a key update.
      if (IsThrifty(0)) continue;
    } else if (error == SSL_ERROR_ZERO_RETURN) {
      end_ = End::kClosed;
      return false;
    }
    // If the stream ended without a close alert, SessionSide::Read has already set end_.
    if (end_ == End::kOpen) end_ = End::kReset;
    return false;
  }
}

IoResult TlsSession::Readv(std::span<const iovec> parts, bool hangup) {
  PHUB_DCHECK(!parts.empty());
  if (end_ != End::kOpen) return Ended(0);
  hangup_ = hangup;
  drained_ = false;
  std::size_t total = 0;
  for (const iovec& part : parts) {
    std::span<std::byte> rest(static_cast<std::byte*>(part.iov_base), part.iov_len);
    while (!rest.empty()) {
      std::size_t bytes = 0;
      if (!ReadRecord(rest, bytes)) {
        ERR_clear_error();
        if (has_unsent()) Flush();
        return end_ == End::kOpen ? IoResult{total, IoStatus::kDrained} : Ended(total);
      }
      total += bytes;
      rest = rest.subspan(bytes);
    }
  }
  return {total, IoStatus::kMore};
}

bool TlsSession::Encrypt(std::span<const std::byte> plain) {
  if (key_bytes_ >= bytes_per_key_) {
    if (SSL_key_update(session_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
    key_bytes_ = 0;
  }
  key_bytes_ += plain.size();
  std::size_t bytes = 0;
  ERR_clear_error();
  PHUB_DCHECK(plain.size() <= room(), "bytes={} room={}", plain.size(), room());
  return SSL_write_ex(session_.get(), plain.data(), plain.size(), &bytes) == 1 &&
         bytes == plain.size();
}

bool TlsSession::EncryptSome(Parts& parts, std::size_t& bytes) {
  std::array<std::byte, kRecordBytesMax> gathered;
  while (!parts.done() && out_end_ < kCiphertextBytes) {
    std::span<const std::byte> record(parts.data(), std::min(parts.run_bytes(), kRecordBytesMax));
    if (record.size() >= kOwnRecordBytes) {
      parts.Advance(record.size());
    } else {
      std::size_t have = 0;
      while (!parts.done() && parts.run_bytes() < kOwnRecordBytes &&
             have + parts.run_bytes() <= gathered.size()) {
        const std::size_t run = parts.run_bytes();
        std::memcpy(gathered.data() + have, parts.data(), run);
        have += run;
        parts.Advance(run);
      }
      record = {gathered.data(), have};
    }
    if (!Encrypt(record)) return false;
    bytes += record.size();
  }
  return true;
}

IoResult TlsSession::Writev(std::span<const iovec> offered) {
  PHUB_DCHECK(!offered.empty());
  Flush();
  if (has_unsent() && !write_failed_) return {0, IoStatus::kDrained};
  std::size_t moved = std::exchange(ahead_bytes_, 0);
  Parts parts(offered);
  parts.Advance(moved);
  while (!write_failed_ && !parts.done()) {
    std::size_t encrypted = 0;
    if (!EncryptSome(parts, encrypted)) write_failed_ = true;
    ERR_clear_error();
    Flush();
    if (has_unsent() && !write_failed_) {
      ahead_bytes_ = encrypted;
      return {moved, IoStatus::kDrained};
    }
    moved += encrypted;
  }
  return write_failed_ ? IoResult{0, IoStatus::kReset} : IoResult{moved, IoStatus::kMore};
}

void TlsSession::Close() {
  if (end_ != End::kOpen) return;
  ERR_clear_error();
  [[maybe_unused]] const int told = SSL_shutdown(session_.get());
  ERR_clear_error();
  Flush();
  write_failed_ = true;
}

void TlsSession::Flush() {
  while (has_unsent() && !write_failed_) {
    const ssize_t put =
        send(socket_, out_.get() + out_begin_, out_end_ - out_begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) write_failed_ = true;
      return;
    }
    out_begin_ += static_cast<std::size_t>(put);
  }
  if (!has_unsent()) out_begin_ = out_end_ = 0;
}

}  // namespace phub::transport
