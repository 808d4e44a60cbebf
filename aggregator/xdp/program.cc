#include "aggregator/xdp/program.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "aggregator/engine.h"
#include "aggregator/xdp/layout.h"
#include "common/base/errno_text.h"

namespace phub::aggregator {
namespace {

constexpr std::size_t kHeaders = 42;  // Ethernet, IPv4, UDP
constexpr std::size_t kDatagramMax = PHUB_PACKET_BYTES + 4 * PHUB_PACKET_COUNT_MAX;
constexpr std::uint32_t kZero = 0;

struct ObjectCloser {
  void operator()(bpf_object* object) const { bpf_object__close(object); }
};
struct RingCloser {
  void operator()(ring_buffer* ring) const { ring_buffer__free(ring); }
};

// libbpf's last warning before a call of it failed.
thread_local std::string last_warning;

__attribute__((format(printf, 2, 0))) int KeepWarning(libbpf_print_level level, const char* format,
                                                      va_list arguments) {
  if (level != LIBBPF_WARN) return 0;
  std::array<char, 512> text{};
  const int length = std::vsnprintf(text.data(), text.size(), format, arguments);
  last_warning = text.data();
  while (!last_warning.empty() && last_warning.back() == '\n') last_warning.pop_back();
  return length;
}

absl::Status LoadError(int error) {
  if (error == EPERM || error == EACCES)
    return absl::PermissionDeniedError(
        "the kernel refuses the program; this process needs CAP_BPF, CAP_NET_ADMIN and "
        "CAP_PERFMON");
  return absl::UnavailableError(
      fmt::format("cannot load the program: {} ({})", ErrnoText(error), last_warning));
}

absl::Status AttachError(const std::string& interface, int error) {
  std::string hint;
  if (error == EBUSY || error == EEXIST) hint = "; another XDP program is attached to it";
  if (error == ERANGE) hint = "; its MTU is probably too large for XDP";
  return absl::UnavailableError(
      fmt::format("cannot attach to interface {}: {}{}", interface, ErrnoText(error), hint));
}

std::uint32_t AddressOf(const phub_endpoint& endpoint) {
  return static_cast<std::uint32_t>(endpoint.address[1] >> 32);  // in network byte order
}

std::uint16_t InNetworkOrder(std::size_t value) { return htons(static_cast<std::uint16_t>(value)); }

void Put16(std::vector<std::uint8_t>& frame, std::size_t at, std::uint16_t value) {
  std::memcpy(frame.data() + at, &value, sizeof value);
}

// The frame in which `datagram` could have come. Without checksums: the program does not look at
// them.
std::vector<std::uint8_t> FrameOf(std::span<const std::uint8_t> datagram,
                                  const phub_endpoint& source, const phub_endpoint& own) {
  // One integer too many is enough to be too long.
  datagram = datagram.first(std::min(datagram.size(), kDatagramMax + 4));
  std::vector<std::uint8_t> frame(kHeaders + datagram.size());
  frame[12] = 0x08;  // IPv4
  frame[14] = 0x45;  // version 4, 20 bytes
  Put16(frame, 16, InNetworkOrder(28 + datagram.size()));
  frame[22] = 64;
  frame[23] = IPPROTO_UDP;
  const std::uint32_t addresses[] = {AddressOf(source), AddressOf(own)};
  std::memcpy(frame.data() + 26, addresses, sizeof addresses);
  Put16(frame, 34, source.port);
  Put16(frame, 36, own.port);
  Put16(frame, 38, InNetworkOrder(8 + datagram.size()));
  std::copy(datagram.begin(), datagram.end(), frame.begin() + kHeaders);
  return frame;
}

}  // namespace

struct XdpProgram::Handles {
  std::unique_ptr<bpf_object, ObjectCloser> object;
  std::unique_ptr<ring_buffer, RingCloser> ring;
  const std::function<void(const KernelEvent&)>* take = nullptr;
  int aggregate = -1;
  int hand_in = -1;
  int settings = -1;
  int leases = -1;
  int pool = -1;
  int hops = -1;
  int counters = -1;

  static int OnEvent(void* context, void* data, std::size_t bytes) {
    const auto& self = *static_cast<const Handles*>(context);
    phub_xdp_event event{};
    if (bytes < sizeof event || self.take == nullptr) return 0;
    std::memcpy(&event, data, sizeof event);
    (*self.take)({.packet = event.packet,
                  .verdict = static_cast<phub_verdict>(event.verdict),
                  .slot = event.slot});
    return 0;
  }
  absl::Status Find() {
    const auto map = [&](const char* name) {
      return bpf_object__find_map_fd_by_name(object.get(), name);
    };
    const auto program = [&](const char* name) {
      return bpf_program__fd(bpf_object__find_program_by_name(object.get(), name));
    };
    aggregate = program("aggregate");
    hand_in = program("hand_in");
    settings = map("settings");
    leases = map("leases");
    pool = map("pool");
    hops = map("hops");
    counters = map("counters");
    ring.reset(ring_buffer__new(map("events"), &OnEvent, this, nullptr));
    if (std::min({aggregate, hand_in, settings, leases, pool, hops, counters}) < 0 || !ring)
      return absl::InternalError("the program lacks an entry or a map");
    return absl::OkStatus();
  }
  // False: there is no such lease.
  bool Find(std::uint32_t number, phub_xdp_lease& lease) const {
    return bpf_map_lookup_elem(leases, &number, &lease) == 0;
  }
};

XdpProgram::XdpProgram(std::unique_ptr<Handles> handles) : handles_(std::move(handles)) {}
XdpProgram::~XdpProgram() = default;

absl::StatusOr<std::unique_ptr<XdpProgram>> XdpProgram::Load(std::span<const std::byte> object,
                                                             const phub_endpoint& own,
                                                             std::uint64_t pool_bytes) {
  libbpf_set_print(&KeepWarning);
  auto handles = std::make_unique<Handles>();
  handles->object.reset(bpf_object__open_mem(object.data(), object.size(), nullptr));
  if (!handles->object) return LoadError(errno);
  const std::uint64_t slots =
      std::clamp<std::uint64_t>(pool_bytes / sizeof(phub_xdp_slot), 1, std::uint64_t{1} << 24);
  bpf_map* const pool = bpf_object__find_map_by_name(handles->object.get(), "pool");
  if (pool == nullptr) return absl::InternalError("the program has no pool");
  bpf_map__set_max_entries(pool, static_cast<std::uint32_t>(slots));
  if (const int error = bpf_object__load(handles->object.get()); error != 0)
    return LoadError(-error);
  if (const absl::Status status = handles->Find(); !status.ok()) return status;
  const phub_xdp_settings settings{.address = AddressOf(own), .port = own.port, .zero = 0};
  if (bpf_map_update_elem(handles->settings, &kZero, &settings, BPF_ANY) != 0)
    return LoadError(errno);
  std::unique_ptr<XdpProgram> program(new XdpProgram(std::move(handles)));
  program->own_ = own;
  program->slot_count_ = static_cast<std::uint32_t>(slots);
  program->free_[0] = program->slot_count_;
  return program;
}

absl::StatusOr<XdpProgram::Attached> XdpProgram::Attach(const std::string& interface) {
  const unsigned index = if_nametoindex(interface.c_str());
  if (index == 0)
    return absl::InvalidArgumentError(fmt::format("there is no interface {}", interface));
  Attached attached;
  attached.native = true;
  bpf_link_create_opts options{};
  options.sz = sizeof options;
  options.flags = XDP_FLAGS_DRV_MODE;
  int link = bpf_link_create(handles_->aggregate, static_cast<int>(index), BPF_XDP, &options);
  if (link < 0) {
    attached = {.native = false, .why_not_native = ErrnoText(errno)};
    options.flags = XDP_FLAGS_SKB_MODE;
    link = bpf_link_create(handles_->aggregate, static_cast<int>(index), BPF_XDP, &options);
  }
  if (link < 0) return AttachError(interface, errno);
  links_.emplace_back(link);
  return attached;
}

int XdpProgram::event_descriptor() const { return ring_buffer__epoll_fd(handles_->ring.get()); }

std::uint64_t XdpProgram::slot_bytes() const { return sizeof(phub_xdp_slot); }

absl::Status XdpProgram::Grant(const phub_lease& lease) {
  const auto range = std::find_if(free_.begin(), free_.end(), [&](const auto& each) {
    return each.second >= lease.slot_count;
  });
  if (range == free_.end())
    return absl::ResourceExhaustedError(
        fmt::format("the pool has no {} free slots in a row, of {} in all (--pool)",
                    lease.slot_count, slot_count_));
  phub_xdp_lease value{};
  value.lease = lease;
  value.first_slot = range->first;
  // Zeros, under the lock: a program on another CPU may still be adding for an older lease.
  phub_xdp_slot slot{};
  slot.lease = lease.number;
  for (std::uint32_t i = 0; i < lease.slot_count; ++i) {
    const std::uint32_t index = value.first_slot + i;
    if (bpf_map_update_elem(handles_->pool, &index, &slot, BPF_F_LOCK) != 0)
      return absl::InternalError(fmt::format("cannot zero a slot: {}", ErrnoText(errno)));
  }
  if (bpf_map_update_elem(handles_->leases, &lease.number, &value, BPF_NOEXIST) != 0)
    return absl::ResourceExhaustedError(fmt::format(
        "the kernel takes no more leases ({} at most): {}", PHUB_XDP_LEASES_MAX, ErrnoText(errno)));
  const std::uint32_t left = range->second - lease.slot_count;
  free_.erase(range);
  if (left != 0) free_[value.first_slot + lease.slot_count] = left;
  return absl::OkStatus();
}

void XdpProgram::End(std::uint32_t lease) {
  phub_xdp_lease value{};
  if (!handles_->Find(lease, value)) return;
  bpf_map_delete_elem(handles_->leases, &lease);
  bpf_map_delete_elem(handles_->hops, &lease);
  auto range = free_.emplace(value.first_slot, value.lease.slot_count).first;
  if (const auto next = std::next(range);
      next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range == free_.begin()) return;
  const auto before = std::prev(range);
  if (before->first + before->second != range->first) return;
  before->second += range->second;
  free_.erase(range);
}

void XdpProgram::HandIn(std::span<const std::uint8_t> datagram, const phub_endpoint& source) {
  Run(Entry::kHandIn, datagram, source);
}

XdpProgram::Ran XdpProgram::Run(Entry entry, std::span<const std::uint8_t> datagram,
                                const phub_endpoint& source) const {
  const std::vector<std::uint8_t> frame = FrameOf(datagram, source, own_);
  Ran ran;
  ran.packet.resize(frame.size());
  bpf_test_run_opts options{};
  options.sz = sizeof options;
  options.data_in = frame.data();
  options.data_size_in = static_cast<std::uint32_t>(frame.size());
  options.data_out = ran.packet.data();
  options.data_size_out = static_cast<std::uint32_t>(ran.packet.size());
  options.repeat = 1;
  const int program = entry == Entry::kInterface ? handles_->aggregate : handles_->hand_in;
  if (bpf_prog_test_run_opts(program, &options) == 0) ran.action = static_cast<int>(options.retval);
  return ran;
}

void XdpProgram::TakeEvents(const std::function<void(const KernelEvent&)>& take) {
  handles_->take = &take;
  ring_buffer__consume(handles_->ring.get());
  handles_->take = nullptr;
}

bool XdpProgram::Read(std::uint32_t lease, std::uint32_t slot, phub_slot& state,
                      std::span<std::uint32_t> values) const {
  phub_xdp_lease value{};
  phub_xdp_slot held{};
  if (!handles_->Find(lease, value)) return false;
  const std::uint32_t index = value.first_slot + slot;
  if (bpf_map_lookup_elem_flags(handles_->pool, &index, &held, BPF_F_LOCK) != 0) return false;
  if (held.lease != lease) return false;
  state = held.slot;
  std::copy_n(held.values, std::min<std::size_t>(values.size(), PHUB_PACKET_COUNT_MAX),
              values.begin());
  return true;
}

void XdpProgram::AddTo(Counters& counters) const {
  const int cpus = libbpf_num_possible_cpus();
  if (cpus <= 0) return;
  std::vector<phub_xdp_counters> all(static_cast<std::size_t>(cpus));
  if (bpf_map_lookup_elem(handles_->counters, &kZero, all.data()) != 0) return;
  for (const phub_xdp_counters& each : all) {
    for (std::size_t i = 0; i < counters.kinds.size(); ++i) counters.kinds[i] += each.kinds[i];
    for (std::size_t i = 0; i < counters.checks.size(); ++i) counters.checks[i] += each.checks[i];
    for (std::size_t i = 0; i < counters.verdicts.size(); ++i)
      counters.verdicts[i] += each.verdicts[i];
    counters.sums += each.sums;
    counters.kernel_sums += each.sums;
    counters.kernel_passed += each.passed;
    counters.kernel_events_lost += each.events_lost;
  }
}

std::uint64_t XdpProgram::Sums(std::uint32_t lease) const {
  phub_xdp_lease value{};
  return handles_->Find(lease, value) ? value.sums : 0;
}

}  // namespace phub::aggregator
