#include "tests/process/raw_http2.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

namespace phub::process {
namespace {

constexpr int kPatienceMs = 10'000;

}  // namespace

std::string ClientHello() {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                             SSL_CTX_free);
  const unsigned char protocols[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), protocols, sizeof protocols);
  const std::unique_ptr<SSL, void (*)(SSL*)> session(SSL_new(context.get()), SSL_free);
  BIO* const sent = BIO_new(BIO_s_mem());
  SSL_set_bio(session.get(), BIO_new(BIO_s_mem()), sent);
  SSL_connect(session.get());
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(sent, &bytes);
  return {bytes, static_cast<std::size_t>(size)};
}

RawHttp2::RawHttp2(std::uint32_t from, std::uint16_t port)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free),
      session_(nullptr, SSL_free) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(from);
  if (bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return;
  const timeval patience{kPatienceMs / 1000, 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const unsigned char protocols[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context_.get(), protocols, sizeof protocols);
  session_.reset(SSL_new(context_.get()));
  SSL_set_fd(session_.get(), socket_.get());
  if (SSL_connect(session_.get()) != 1) return;
  fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
  ok_ = Send(std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + Frame(kSettings, 0, 0, ""));
}

RawHttp2::~RawHttp2() = default;

bool RawHttp2::Drain() {
  char bytes[16 * 1024];
  for (;;) {
    const int size = SSL_read(session_.get(), bytes, sizeof bytes);
    if (size > 0) continue;
    const int error = SSL_get_error(session_.get(), size);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  }
}

bool RawHttp2::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    if (!Drain()) return false;
    const int size = SSL_write(session_.get(), bytes.data(), static_cast<int>(bytes.size()));
    if (size > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(size));
      continue;
    }
    if (SSL_get_error(session_.get(), size) != SSL_ERROR_WANT_WRITE) return false;
    pollfd ready{socket_.get(), POLLIN | POLLOUT, 0};
    if (poll(&ready, 1, kPatienceMs) <= 0) return false;
  }
  return true;
}

std::string RawHttp2::Frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream,
                            std::string_view payload) {
  std::string frame;
  const auto add = [&](std::uint32_t value) { frame += static_cast<char>(value); };
  const auto size = static_cast<std::uint32_t>(payload.size());
  for (const int shift : {16, 8, 0}) add(size >> shift);
  add(type);
  add(flags);
  for (const int shift : {24, 16, 8, 0}) add(stream >> shift);
  frame += payload;
  return frame;
}

std::string RawHttp2::Field(std::string_view name, std::string_view value) {
  std::string field(1, '\0');  // literal, not indexed, a new name
  field += static_cast<char>(name.size());
  field += name;
  field += static_cast<char>(value.size());
  field += value;
  return field;
}

std::string RawHttp2::CallHeaders(std::string_view path) {
  return Field(":method", "POST") + Field(":scheme", "https") + Field(":path", path) +
         Field(":authority", "x") + Field("content-type", "application/grpc") +
         Field("te", "trailers");
}

}  // namespace phub::process
