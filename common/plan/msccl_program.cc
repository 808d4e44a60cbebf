#include "common/plan/msccl_program.h"

#include <expat.h>

#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/msccl.h"
#include "common/plan/topology.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

constexpr std::array<std::pair<std::string_view, MscclOperation>, 9> kOperations = {{
    {"s", MscclOperation::kSend},
    {"r", MscclOperation::kReceive},
    {"rcs", MscclOperation::kReceiveCopySend},
    {"rrs", MscclOperation::kReceiveReduceSend},
    {"rrc", MscclOperation::kReceiveReduceCopy},
    {"rrcs", MscclOperation::kReceiveReduceCopySend},
    {"cpy", MscclOperation::kCopy},
    {"re", MscclOperation::kReduce},
    {"nop", MscclOperation::kNothing},
}};

class XmlReader {
 public:
  absl::StatusOr<MscclProgram> Read(std::string_view xml) {
    const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(
        XML_ParserCreate(nullptr), XML_ParserFree);
    parser_ = parser.get();
    XML_SetUserData(parser_, this);
    XML_SetElementHandler(parser_, &XmlReader::OnStart, &XmlReader::OnEnd);
    XML_SetDoctypeDeclHandler(parser_, &XmlReader::OnDoctype, nullptr);
    const XML_Status status = XML_Parse(parser_, xml.data(), static_cast<int>(xml.size()), 1);
    if (!error_.ok()) return error_;
    if (status != XML_STATUS_OK) {
      Fail(XML_ErrorString(XML_GetErrorCode(parser_)));
      return error_;
    }
    return std::move(program_);
  }

 private:
  using Attributes = const XML_Char**;

  static void OnStart(void* reader, const XML_Char* element, Attributes attributes) {
    static_cast<XmlReader*>(reader)->Start(element, attributes);
  }
  static void OnEnd(void* reader, const XML_Char*) { --static_cast<XmlReader*>(reader)->depth_; }
  // No program needs a document type, and its entities could expand without limit.
  static void OnDoctype(void* reader, const XML_Char*, const XML_Char*, const XML_Char*, int) {
    static_cast<XmlReader*>(reader)->Fail("document types are not allowed");
  }

  std::size_t Line() const { return XML_GetCurrentLineNumber(parser_); }

  void Fail(std::string_view what) {
    if (!error_.ok()) return;
    error_ = absl::InvalidArgumentError(fmt::format("line {}: {}", Line(), what));
    XML_StopParser(parser_, XML_FALSE);
  }

  void Start(std::string_view element, Attributes attributes) {
    static constexpr std::array<std::string_view, 4> kLevels = {"algo", "gpu", "tb", "step"};
    ++depth_;
    if (!error_.ok()) return;
    const std::size_t level = depth_ - 1;
    const bool is_copy = level == 2 && element == "copy";
    const bool is_known = level < kLevels.size() && element == kLevels[level];
    if ((!is_copy && !is_known) || (level == 3 && is_in_copy_))
      return Fail(fmt::format("unexpected element <{}>", element.substr(0, 40)));
    attributes_ = attributes;
    if (level == 2) is_in_copy_ = is_copy;
    if (is_copy) return ReadCopy();
    switch (level) {
      case 0: return StartProgram();
      case 1: return StartGpu();
      case 2: return StartBlock();
      default: return StartStep();
    }
  }

  std::optional<std::string_view> Find(std::string_view name) const {
    for (Attributes at = attributes_; *at != nullptr; at += 2)
      if (name == at[0]) return at[1];
    return std::nullopt;
  }

  std::string_view Text(std::string_view name) {
    const auto value = Find(name);
    if (!value) Fail(fmt::format("attribute '{}' is missing", name));
    return value.value_or("");
  }

  std::int64_t Number(std::string_view name, std::int64_t least, std::int64_t most) {
    const std::string_view text = Text(name);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most)
      return value;
    Fail(fmt::format("attribute '{}' must be an integer from {} to {}", name, least, most));
    return least;
  }

  void StartProgram() {
    program_.name = std::string(Find("name").value_or("msccl").substr(0, 100));
    program_.collective = std::string(Text("coll").substr(0, 40));
    program_.chunk_count = Number("nchunksperloop", 1, kMscclChunksMax);
    gpu_count_ = Number("ngpus", 2, static_cast<std::int64_t>(kMembersMax));
    program_.in_place = Find("inplace").value_or("0") == "1";
  }

  void StartGpu() {
    const auto id = static_cast<std::int64_t>(program_.gpus.size());
    if (id >= gpu_count_ || Number("id", 0, gpu_count_ - 1) != id)
      return Fail(fmt::format("expected <gpu id=\"{}\"> (ngpus is {})", id, gpu_count_));
    MscclGpu& gpu = program_.gpus.emplace_back();
    gpu.chunks = {Number("i_chunks", 0, kMscclChunksMax), Number("o_chunks", 0, kMscclChunksMax),
                  Number("s_chunks", 0, kMscclChunksMax)};
    for (const std::int64_t chunks : gpu.chunks) place_count_ += static_cast<std::size_t>(chunks);
    if (place_count_ > kMscclStepsMax)
      Fail(fmt::format("the buffers of all GPUs have more than {} chunks", kMscclStepsMax));
  }

  void ReadCopy() {
    MscclCopy copy{Number("i_off", 0, kMscclChunksMax), Number("o_off", 0, kMscclChunksMax),
                   Line()};
    program_.gpus.back().copies.push_back(copy);
    if (++step_count_ > kMscclStepsMax)
      Fail(fmt::format("the program has more than {} thread blocks and steps", kMscclStepsMax));
  }

  void StartBlock() {
    MscclGpu& gpu = program_.gpus.back();
    const auto id = static_cast<std::int64_t>(gpu.blocks.size());
    if (Number("id", 0, static_cast<std::int64_t>(kMscclStepsMax)) != id)
      return Fail(fmt::format("expected <tb id=\"{}\">", id));
    MscclBlock& block = gpu.blocks.emplace_back();
    block.send = Number("send", -1, gpu_count_ - 1);
    block.receive = Number("recv", -1, gpu_count_ - 1);
    block.channel = Number("chan", 0, 1023);
    if (++step_count_ > kMscclStepsMax)
      Fail(fmt::format("the program has more than {} thread blocks and steps", kMscclStepsMax));
  }

  void StartStep() {
    std::vector<MscclStep>& steps = program_.gpus.back().blocks.back().steps;
    MscclStep step;
    step.line = Line();
    if (Number("s", 0, static_cast<std::int64_t>(kMscclStepsMax)) !=
        static_cast<std::int64_t>(steps.size()))
      return Fail(fmt::format("expected <step s=\"{}\">", steps.size()));
    const std::string_view type = Text("type");
    bool is_known = false;
    for (const auto& [name, operation] : kOperations) {
      if (name != type) continue;
      step.operation = operation;
      is_known = true;
    }
    if (!is_known) return Fail(fmt::format("unknown step type '{}'", type.substr(0, 20)));
    step.source = ReadPlace("srcbuf", "srcoff");
    step.target = ReadPlace("dstbuf", "dstoff");
    step.count = Number("cnt", 0, kMscclChunksMax);
    if (step.count == 0 && step.operation != MscclOperation::kNothing)
      Fail("the step moves no chunk: cnt is 0");
    step.wait_block = Number("depid", -1, static_cast<std::int64_t>(kMscclStepsMax));
    step.wait_step = Number("deps", -1, static_cast<std::int64_t>(kMscclStepsMax));
    steps.push_back(step);
    if (++step_count_ > kMscclStepsMax)
      Fail(fmt::format("the program has more than {} thread blocks and steps", kMscclStepsMax));
    moved_chunks_ += static_cast<std::size_t>(step.count);
    if (moved_chunks_ > kMscclStepsMax)
      Fail(fmt::format("the program moves more than {} chunks", kMscclStepsMax));
  }

  MscclPlace ReadPlace(std::string_view buffer_name, std::string_view offset_name) {
    const std::string_view buffer = Text(buffer_name);
    if (buffer != "i" && buffer != "o" && buffer != "s")
      Fail(fmt::format("attribute '{}' must be i, o or s", buffer_name));
    return {buffer.empty() ? 'i' : buffer[0], Number(offset_name, -1, kMscclChunksMax)};
  }

  XML_Parser parser_ = nullptr;
  Attributes attributes_ = nullptr;
  MscclProgram program_;
  std::int64_t gpu_count_ = 0;
  std::size_t depth_ = 0;
  bool is_in_copy_ = false;
  std::size_t step_count_ = 0;
  std::size_t moved_chunks_ = 0;
  std::size_t place_count_ = 0;
  absl::Status error_;
};

}  // namespace

absl::StatusOr<MscclProgram> ReadMsccl(std::string_view xml) {
  if (xml.size() > kMscclTextBytesMax)
    return absl::InvalidArgumentError(fmt::format("the XML has {} bytes; at most {} are allowed",
                                                  xml.size(), kMscclTextBytesMax));
  absl::StatusOr<MscclProgram> program = XmlReader().Read(xml);
  if (!program.ok()) return program.status();
  for (const MscclGpu& gpu : program->gpus) {
    for (const MscclBlock& block : gpu.blocks) {
      for (const MscclStep& step : block.steps) {
        if (step.wait_block < 0) continue;
        const auto blocks = static_cast<std::int64_t>(gpu.blocks.size());
        if (step.wait_block >= blocks || step.wait_step < 0 ||
            step.wait_step >=
                static_cast<std::int64_t>(
                    gpu.blocks[static_cast<std::size_t>(step.wait_block)].steps.size()))
          return absl::InvalidArgumentError(
              fmt::format("line {}: the step waits for a step that does not exist", step.line));
      }
    }
  }
  return program;
}

}  // namespace phub::plan
