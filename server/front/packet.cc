#include "server/front/packet.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace phub::server {
namespace {

// Headers are limited to 8 KiB, and messages of errors to less.
constexpr std::size_t kPacketBytesMax = 32 * 1024;
constexpr std::size_t kTextsMax = 64;
constexpr off_t kSealedBytesMax = 16 << 20;

}  // namespace

PacketWriter& PacketWriter::U64(std::uint64_t value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  bytes_.append(bytes, sizeof bytes);
  return *this;
}

PacketWriter& PacketWriter::Text(std::string_view text) {
  U64(text.size());
  bytes_.append(text);
  return *this;
}

std::uint64_t PacketReader::U64() {
  std::uint64_t value = 0;
  ok_ = ok_ && rest_.size() >= sizeof value;
  if (!ok_) return 0;
  std::memcpy(&value, rest_.data(), sizeof value);
  rest_.remove_prefix(sizeof value);
  return value;
}

std::string PacketReader::Text() {
  const std::uint64_t size = U64();
  ok_ = ok_ && size <= rest_.size();
  if (!ok_) return {};
  std::string text(rest_.substr(0, size));
  rest_.remove_prefix(size);
  return text;
}

std::string ToPacket(const FrontCall& call) {
  PacketWriter writer(PacketType::kJudge);
  writer.U64(call.connection).Text(call.peer).U64(call.certificate ? 1 : 0);
  writer.U64(static_cast<std::uint64_t>(call.certificate_end)).Text(call.path);
  for (const auto* texts : {&call.uris, &call.authorization}) {
    writer.U64(texts->size());
    for (const std::string& text : *texts) writer.Text(text);
  }
  return writer.Take();
}

std::optional<FrontCall> ReadFrontCall(std::string_view body) {
  PacketReader reader(body);
  FrontCall call;
  call.connection = reader.U64();
  call.peer = reader.Text();
  call.certificate = reader.U64() != 0;
  call.certificate_end = static_cast<std::int64_t>(reader.U64());
  call.path = reader.Text();
  for (auto* texts : {&call.uris, &call.authorization}) {
    const std::uint64_t count = reader.U64();
    if (count > kTextsMax) return std::nullopt;
    for (std::uint64_t i = 0; i < count; ++i) texts->push_back(reader.Text());
  }
  if (!reader.ok()) return std::nullopt;
  return call;
}

std::string ToPacket(const FrontVerdict& verdict) {
  return PacketWriter(PacketType::kVerdict)
      .U64(verdict.connection)
      .U64(verdict.code)
      .Text(std::string_view(verdict.message).substr(0, kPacketBytesMax / 2))
      .Text(verdict.tenant)
      .U64(verdict.displaces ? 1 : 0)
      .Text(verdict.displaced_tenant)
      .Text(verdict.displaced_block)
      .Take();
}

std::optional<FrontVerdict> ReadFrontVerdict(std::string_view body) {
  PacketReader reader(body);
  FrontVerdict verdict;
  verdict.connection = reader.U64();
  verdict.code = static_cast<std::uint32_t>(reader.U64());
  verdict.message = reader.Text();
  verdict.tenant = reader.Text();
  verdict.displaces = reader.U64() != 0;
  verdict.displaced_tenant = reader.Text();
  verdict.displaced_block = reader.Text();
  if (!reader.ok()) return std::nullopt;
  return verdict;
}

std::string ToPacket(const FrontReport& report) {
  PacketWriter writer(PacketType::kReport);
  for (const std::uint64_t value : {report.form, report.crowd, report.late, report.flood,
                                    report.memory, report.unfinished, report.calls}) {
    writer.U64(value);
  }
  return writer.Take();
}

std::optional<FrontReport> ReadFrontReport(std::string_view body) {
  PacketReader reader(body);
  FrontReport report;
  for (std::uint64_t* value : {&report.form, &report.crowd, &report.late, &report.flood,
                               &report.memory, &report.unfinished, &report.calls}) {
    *value = reader.U64();
  }
  if (!reader.ok()) return std::nullopt;
  return report;
}

PairState SendPacket(int pair, std::string_view bytes, int descriptor) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  for (;;) {
    if (sendmsg(pair, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return PairState::kDone;
    if (errno == EINTR) continue;
    const bool full = errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS;
    return full ? PairState::kBlocked : PairState::kEnded;
  }
}

PairState ReceivePacket(int pair, Packet& packet) {
  packet.descriptor.Reset();
  packet.body.resize(kPacketBytesMax);
  iovec part{packet.body.data(), packet.body.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t size = 0;
  do {
    size = recvmsg(pair, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return errno == EAGAIN ? PairState::kBlocked : PairState::kEnded;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof number);
    packet.descriptor = Descriptor(number);
  }
  if (size == 0 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return PairState::kEnded;
  packet.type = static_cast<PacketType>(packet.body[0]);
  packet.body.resize(static_cast<std::size_t>(size));
  packet.body.erase(0, 1);
  return PairState::kDone;
}

Descriptor SealedTexts(const std::vector<std::string>& texts) {
  PacketWriter writer(PacketType::kTls);
  for (const std::string& text : texts) writer.Text(text);
  const std::string bytes = writer.Take();
  Descriptor file(memfd_create("phubd-front", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto size = static_cast<ssize_t>(bytes.size());
  if (!file || pwrite(file.get(), bytes.data(), bytes.size(), 0) != size ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)) {
    return {};
  }
  return file;
}

std::optional<std::vector<std::string>> ReadSealedTexts(int file, std::size_t count) {
  struct stat facts {};
  if (fstat(file, &facts) != 0 || facts.st_size < 1 || facts.st_size > kSealedBytesMax) {
    return std::nullopt;
  }
  std::string bytes(static_cast<std::size_t>(facts.st_size), '\0');
  if (pread(file, bytes.data(), bytes.size(), 0) != facts.st_size) return std::nullopt;
  PacketReader reader(std::string_view(bytes).substr(1));
  std::vector<std::string> texts;
  while (texts.size() < count) texts.push_back(reader.Text());
  if (!reader.ok()) return std::nullopt;
  return texts;
}

}  // namespace phub::server
