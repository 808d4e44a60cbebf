#include "bench/wire/load.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <linux/if_link.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "common/base/descriptor.h"
#include "common/base/errno_text.h"

namespace phub::bench {
namespace {

constexpr const char* kObject = "load.bpf.o";
constexpr std::uint32_t kZero = 0;
constexpr std::uint32_t kBatch = 64;  // frames that are put on the interface together

struct ObjectCloser {
  void operator()(bpf_object* object) const { bpf_object__close(object); }
};

absl::Status Refused(const std::string& what, int error) {
  return absl::UnavailableError(fmt::format("{}: {}", what, ErrnoText(error)));
}

}  // namespace

struct WireLoad::Handles {
  std::unique_ptr<bpf_object, ObjectCloser> object;
  std::vector<Descriptor> links;
};

WireLoad::WireLoad(std::unique_ptr<Handles> handles) : handles_(std::move(handles)) {}
WireLoad::~WireLoad() = default;

absl::StatusOr<std::unique_ptr<WireLoad>> WireLoad::Open(const std::vector<std::string>& programs) {
  libbpf_set_print([](libbpf_print_level, const char*, va_list) { return 0; });
  auto handles = std::make_unique<Handles>();
  // The build puts it next to this program.
  const std::string path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / kObject;
  handles->object.reset(bpf_object__open_file(path.c_str(), nullptr));
  if (!handles->object) return Refused("cannot open " + path, errno);
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, handles->object.get()) {
    const bool wanted =
        std::find(programs.begin(), programs.end(), bpf_program__name(program)) != programs.end();
    bpf_program__set_autoload(program, wanted);
  }
  if (const int error = bpf_object__load(handles->object.get()); error != 0)
    return Refused("the kernel refuses the programs", -error);
  return std::unique_ptr<WireLoad>(new WireLoad(std::move(handles)));
}

int WireLoad::Program(const std::string& name) const {
  return bpf_program__fd(bpf_object__find_program_by_name(handles_->object.get(), name.c_str()));
}

absl::Status WireLoad::Attach(const std::string& program, const std::string& interface) {
  const unsigned index = if_nametoindex(interface.c_str());
  if (index == 0) return absl::InvalidArgumentError("there is no interface " + interface);
  bpf_link_create_opts options{};
  options.sz = sizeof options;
  options.flags = XDP_FLAGS_DRV_MODE;
  const int link = bpf_link_create(Program(program), static_cast<int>(index), BPF_XDP, &options);
  if (link < 0) return Refused("cannot attach to " + interface, errno);
  handles_->links.emplace_back(link);
  return absl::OkStatus();
}

absl::Status WireLoad::Configure(const phub_wire_load& load) {
  const int map = bpf_object__find_map_fd_by_name(handles_->object.get(), "load");
  if (bpf_map_update_elem(map, &kZero, &load, BPF_ANY) != 0)
    return Refused("cannot configure the load", errno);
  return absl::OkStatus();
}

absl::Status WireLoad::Run(const std::string& program, std::span<const std::uint8_t> frame,
                           std::uint32_t frames) {
  bpf_test_run_opts options{};
  options.sz = sizeof options;
  options.data_in = frame.data();
  options.data_size_in = static_cast<std::uint32_t>(frame.size());
  options.repeat = static_cast<int>(frames);
  options.flags = BPF_F_TEST_XDP_LIVE_FRAMES;
  options.batch_size = std::min(frames, kBatch);
  if (const int error = bpf_prog_test_run_opts(Program(program), &options); error != 0)
    return Refused("the kernel makes no frames", -error);
  return absl::OkStatus();
}

absl::StatusOr<ProgramTime> TimeOf(const std::string& program) {
  ProgramTime found;
  bool any = false;
  for (std::uint32_t id = 0; bpf_prog_get_next_id(id, &id) == 0;) {
    const Descriptor descriptor(bpf_prog_get_fd_by_id(id));
    bpf_prog_info info{};
    std::uint32_t bytes = sizeof info;
    if (!descriptor || bpf_obj_get_info_by_fd(descriptor.get(), &info, &bytes) != 0) continue;
    if (program != info.name) continue;
    found = {.ns = info.run_time_ns, .runs = info.run_cnt};
    any = true;
  }
  if (!any) return absl::NotFoundError("the kernel has no program " + program);
  return found;
}

int MeasurePrograms() { return bpf_enable_stats(BPF_STATS_RUN_TIME); }

}  // namespace phub::bench
