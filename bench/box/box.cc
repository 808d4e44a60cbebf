#include "bench/box/box.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <net/if.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>

#include "bench/box/held_packets.h"
#include "common/aggregation/packet.h"
#include "common/base/errno_text.h"

namespace phub::bench {
namespace {

constexpr std::uint32_t kZero = 0;
constexpr const char* kObject = "box.bpf.o";

struct ObjectCloser {
  void operator()(bpf_object* object) const { bpf_object__close(object); }
};
struct RingCloser {
  void operator()(ring_buffer* ring) const { ring_buffer__free(ring); }
};

const char* KindName(std::uint32_t kind) {
  switch (kind) {
    case PHUB_PACKET_PAYLOAD: return "payload";
    case PHUB_PACKET_MISSING: return "missing";
    case PHUB_PACKET_REFUSED: return "refused";
    case PHUB_PACKET_SUM: return "sum";
    case PHUB_PACKET_NACK: return "nack";
    case PHUB_PACKET_PARAMETERS: return "parameters";
    default: return nullptr;
  }
}

std::string AsJson(const phub_box_counters& counters) {
  std::string kinds;
  for (std::uint32_t kind = 0; kind < PHUB_BOX_KINDS; ++kind) {
    if (const char* name = KindName(kind); name != nullptr)
      kinds +=
          fmt::format(R"({}"{}":{{"packets":{},"payload_bytes":{}}})", kinds.empty() ? "" : ",",
                      name, counters.kinds[kind], counters.payload_bytes[kind]);
  }
  return fmt::format(
      R"({{"seen":{},"lost":{},"repeated":{},"repeated_late":{},"reordered":{},"delayed":{},)"
      R"("ring_full":{},"joined":{},"kinds":{{{}}}}})",
      counters.seen, counters.lost, counters.repeated, counters.repeated_late, counters.reordered,
      counters.delayed, counters.ring_full, counters.joined, kinds);
}

absl::Status Refused(const std::string& what, int error) {
  return absl::UnavailableError(fmt::format("{}: {}", what, ErrnoText(error)));
}

}  // namespace

struct Box::Handles {
  std::unique_ptr<bpf_object, ObjectCloser> object;
  std::unique_ptr<ring_buffer, RingCloser> ring;
  HeldPackets* held = nullptr;
  TimeNs now = 0;
  int program = -1;

  int Map(const char* name) const { return bpf_object__find_map_fd_by_name(object.get(), name); }
  static int OnPacket(void* context, void* data, std::size_t bytes) {
    auto& self = *static_cast<Handles*>(context);
    if (bytes >= sizeof(phub_box_packet) && self.held != nullptr)
      self.held->Add(*static_cast<const phub_box_packet*>(data), self.now);
    return 0;
  }
};

Box::Box(std::unique_ptr<Handles> handles) : handles_(std::move(handles)) {}

Box::~Box() {
  for (const int interface : attached_) {
    bpf_tc_hook hook{};
    hook.sz = sizeof hook;
    hook.ifindex = interface;
    hook.attach_point = static_cast<bpf_tc_attach_point>(BPF_TC_INGRESS | BPF_TC_EGRESS);
    bpf_tc_hook_destroy(&hook);
  }
}

absl::StatusOr<std::unique_ptr<Box>> Box::Start(const std::vector<BoxLink>& links,
                                                const phub_box_settings& settings) {
  libbpf_set_print([](libbpf_print_level, const char*, va_list) { return 0; });
  auto handles = std::make_unique<Handles>();
  // The build puts it next to this program.
  const std::string path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / kObject;
  handles->object.reset(bpf_object__open_file(path.c_str(), nullptr));
  if (!handles->object) return Refused("cannot open " + path, errno);
  if (const int error = bpf_object__load(handles->object.get()); error != 0)
    return Refused("the kernel refuses the program", -error);
  handles->program =
      bpf_program__fd(bpf_object__find_program_by_name(handles->object.get(), "box"));
  handles->ring.reset(
      ring_buffer__new(handles->Map("held"), &Handles::OnPacket, handles.get(), nullptr));
  if (!handles->ring) return Refused("cannot read the ring", errno);
  if (bpf_map_update_elem(handles->Map("settings"), &kZero, &settings, BPF_ANY) != 0)
    return Refused("cannot write the settings", errno);
  std::unique_ptr<Box> box(new Box(std::move(handles)));
  for (const auto& [first, second] : links) {
    const auto index = static_cast<std::uint32_t>(2 * box->links_++);
    if (absl::Status status = box->Attach(first, second, index); !status.ok()) return status;
    if (absl::Status status = box->Attach(second, first, index + 1); !status.ok()) return status;
  }
  return box;
}

absl::Status Box::Attach(const std::string& interface, const std::string& other,
                         std::uint32_t index) {
  const unsigned own = if_nametoindex(interface.c_str());
  const unsigned others = if_nametoindex(other.c_str());
  if (own == 0) return absl::InvalidArgumentError("there is no interface " + interface);
  if (others == 0) return absl::InvalidArgumentError("there is no interface " + other);
  const phub_box_place place{.other = others, .index = index};
  if (bpf_map_update_elem(handles_->Map("places"), &own, &place, BPF_NOEXIST) != 0)
    return Refused("interface " + interface + " cannot be in two links", errno);
  bpf_tc_hook hook{};
  hook.sz = sizeof hook;
  hook.ifindex = static_cast<int>(own);
  hook.attach_point = BPF_TC_INGRESS;
  if (const int error = bpf_tc_hook_create(&hook); error != 0)
    return Refused("cannot create a hook of TC on " + interface, -error);
  attached_.push_back(hook.ifindex);
  bpf_tc_opts options{};
  options.sz = sizeof options;
  options.prog_fd = handles_->program;
  if (const int error = bpf_tc_attach(&hook, &options); error != 0)
    return Refused("cannot attach to " + interface, -error);
  return absl::OkStatus();
}

int Box::descriptor() const { return ring_buffer__epoll_fd(handles_->ring.get()); }

void Box::TakePackets(HeldPackets& held, TimeNs now) {
  handles_->held = &held;
  handles_->now = now;
  ring_buffer__consume(handles_->ring.get());
}

std::string Box::CountersAsJson(std::uint64_t unsent) const {
  std::string links;
  for (std::uint32_t index = 0; index < 2 * links_; ++index) {
    phub_box_counters counters{};
    bpf_map_lookup_elem(handles_->Map("counters"), &index, &counters);
    links += index % 2 == 0 ? fmt::format(R"({}{{"up":{})", index == 0 ? "" : ",", AsJson(counters))
                            : fmt::format(R"(,"down":{}}})", AsJson(counters));
  }
  return fmt::format(R"({{"links":[{}],"unsent":{}}})", links, unsent);
}

}  // namespace phub::bench
