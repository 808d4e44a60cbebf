// libbench-count-traffic.so is preloaded into a rank program. It wraps the C library's functions
// that copy memory or move bytes through sockets, and counts the bytes. It slows copies down, so
// runs with it are not timed.
//
// Not counted: copies that the compiler inlined (short ones of constant size) and io_uring.
#include <dlfcn.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "bench/rank/traffic.h"

namespace {

using phub::bench::Traffic;
using Counter = std::atomic<std::uint64_t>;

Counter copied_bytes{0};
Counter socket_sent_bytes{0};
Counter socket_sent_in_place{0};
Counter socket_received_bytes{0};
Counter peer_copied_bytes{0};

ssize_t Count(Counter& counter, ssize_t bytes) {
  if (bytes > 0) counter.fetch_add(static_cast<std::uint64_t>(bytes), std::memory_order_relaxed);
  return bytes;
}

// Unix sockets carry no payload in any measured system, only handshakes and wake-ups.
bool IsNetwork(int descriptor) {
  int domain = 0;
  socklen_t length = sizeof domain;
  return getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
         (domain == AF_INET || domain == AF_INET6);
}

ssize_t CountSocket(Counter& counter, int descriptor, ssize_t bytes) {
  const int saved = errno;
  const bool network = bytes > 0 && IsNetwork(descriptor);
  errno = saved;
  return network ? Count(counter, bytes) : bytes;
}

// The C library's own function, which this one wraps.
template <typename Function>
Function Next(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// In assembler, because the compiler may turn a C++ loop into a call of memcpy.
void CopyUp(void* to, const void* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
void CopyDown(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  auto* last_to = static_cast<char*>(to) + bytes - 1;
  const auto* last_from = static_cast<const char*>(from) + bytes - 1;
  asm volatile("std\n\trep movsb\n\tcld"
               : "+D"(last_to), "+S"(last_from), "+c"(bytes)
               :
               : "memory");
}

}  // namespace

#define COUNTED extern "C" __attribute__((visibility("default")))
#define NEXT(name) static const auto next = Next(&::name, #name)

COUNTED void PhubBenchReadTraffic(Traffic* traffic) {
  traffic->copied_bytes = copied_bytes;
  traffic->socket_sent_bytes = socket_sent_bytes;
  traffic->socket_sent_in_place = socket_sent_in_place;
  traffic->socket_received_bytes = socket_received_bytes;
  traffic->peer_copied_bytes = peer_copied_bytes;
}

COUNTED void* memcpy(void* __restrict to, const void* __restrict from, std::size_t bytes) noexcept {
  copied_bytes.fetch_add(bytes, std::memory_order_relaxed);
  CopyUp(to, from, bytes);
  return to;
}
COUNTED void* memmove(void* to, const void* from, std::size_t bytes) noexcept {
  copied_bytes.fetch_add(bytes, std::memory_order_relaxed);
  const auto distance =
      reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from);
  distance >= bytes ? CopyUp(to, from, bytes) : CopyDown(to, from, bytes);
  return to;
}

// The functions that a build with _FORTIFY_SOURCE calls.
COUNTED void* __memcpy_chk(void* to, const void* from, std::size_t bytes, std::size_t) noexcept {
  return memcpy(to, from, bytes);
}
COUNTED void* __memmove_chk(void* to, const void* from, std::size_t bytes, std::size_t) noexcept {
  return memmove(to, from, bytes);
}

COUNTED ssize_t send(int fd, const void* data, std::size_t bytes, int flags) {
  NEXT(send);
  return CountSocket(socket_sent_bytes, fd, next(fd, data, bytes, flags));
}
COUNTED ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  NEXT(sendmsg);
  return CountSocket(socket_sent_bytes, fd, next(fd, message, flags));
}
COUNTED ssize_t write(int fd, const void* data, std::size_t bytes) {
  NEXT(write);
  return CountSocket(socket_sent_bytes, fd, next(fd, data, bytes));
}
COUNTED ssize_t writev(int fd, const iovec* parts, int count) {
  NEXT(writev);
  return CountSocket(socket_sent_bytes, fd, next(fd, parts, count));
}
COUNTED ssize_t sendfile(int to, int from, off_t* offset, std::size_t bytes) noexcept {
  NEXT(sendfile);
  return CountSocket(socket_sent_in_place, to, next(to, from, offset, bytes));
}
COUNTED ssize_t recv(int fd, void* data, std::size_t bytes, int flags) {
  NEXT(recv);
  return CountSocket(socket_received_bytes, fd, next(fd, data, bytes, flags));
}
COUNTED ssize_t recvmsg(int fd, msghdr* message, int flags) {
  NEXT(recvmsg);
  return CountSocket(socket_received_bytes, fd, next(fd, message, flags));
}
COUNTED ssize_t read(int fd, void* data, std::size_t bytes) {
  NEXT(read);
  return CountSocket(socket_received_bytes, fd, next(fd, data, bytes));
}
COUNTED ssize_t readv(int fd, const iovec* parts, int count) {
  NEXT(readv);
  return CountSocket(socket_received_bytes, fd, next(fd, parts, count));
}
COUNTED ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long local_count,
                                 const iovec* remote, unsigned long remote_count,
                                 unsigned long flags) noexcept {
  NEXT(process_vm_readv);
  return Count(peer_copied_bytes, next(pid, local, local_count, remote, remote_count, flags));
}
COUNTED ssize_t process_vm_writev(pid_t pid, const iovec* local, unsigned long local_count,
                                  const iovec* remote, unsigned long remote_count,
                                  unsigned long flags) noexcept {
  NEXT(process_vm_writev);
  return Count(peer_copied_bytes, next(pid, local, local_count, remote, remote_count, flags));
}
