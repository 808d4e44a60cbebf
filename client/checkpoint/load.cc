// Loads a checkpoint: reads and checks it, then sends every daemon the state of its chunks.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "client/checkpoint/checkpoint.h"
#include "client/checkpoint/key_names.h"
#include "client/checkpoint/outage_wait.h"
#include "client/checkpoint/transfer.h"
#include "common/checkpoint/reader.h"

namespace phub::client {
namespace {

constexpr std::size_t kMessageBytes = 1 << 20;   // limit of a message, and so of a piece
constexpr std::size_t kPieceOverheadBytes = 32;  // a piece has at most this besides its elements
// Daemons receive messages of up to 4 MiB. Older ones expect all keys in the first message.
constexpr std::size_t kFirstMessageBytesMax = (4 << 20) - (64 << 10);
constexpr int kKeysPerMessage = 4096;

using Writer = grpc::ClientWriterInterface<v1::LoadStateRequest>;

// Finds the saved key for every key of the job, and null for collective keys. The error names the
// missing or different one.
absl::StatusOr<std::vector<const checkpoint::SavedKey*>> Match(
    std::span<const LoadKey> keys, const checkpoint::CheckpointDescription& saved,
    const std::string& directory) {
  std::map<std::string, const checkpoint::SavedKey*> by_name;
  for (const checkpoint::SavedKey& key : saved.keys) by_name[key.name] = &key;
  std::vector<const checkpoint::SavedKey*> matched;
  std::size_t collective_count = 0;
  for (const LoadKey& key : keys) {
    if (key.spec.collective()) {
      ++collective_count;
      matched.push_back(nullptr);
      continue;
    }
    const auto found = by_name.find(key.spec.name());
    if (found == by_name.end()) {
      return absl::InvalidArgumentError(
          fmt::format("the checkpoint in {} (of job {}) has no key {}; add the keys that it was "
                      "saved with",
                      directory, saved.job, key.spec.name()));
    }
    if (absl::Status status = CheckSameKey(*found->second, DescribeKey(key.spec)); !status.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("the checkpoint in {} does not match the job: {}", directory,
                      std::string(status.message())));
    }
    matched.push_back(found->second);
  }
  if (matched.size() - collective_count == saved.keys.size()) return matched;
  for (const checkpoint::SavedKey& key : saved.keys) {
    const bool is_there = std::any_of(keys.begin(), keys.end(), [&](const LoadKey& each) {
      return each.spec.name() == key.name && !each.spec.collective();
    });
    if (is_there) continue;
    return absl::InvalidArgumentError(
        fmt::format("the checkpoint in {} has key {}, which the job does not have; add the keys "
                    "that it was saved with",
                    directory, key.name));
  }
  return absl::InternalError("a key was matched twice");
}

v1::LoadedState DescribeLoaded(std::span<const checkpoint::SavedKey* const> saved,
                               std::uint64_t iteration) {
  v1::LoadedState loaded;
  loaded.set_iteration(iteration);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    if (saved[i] == nullptr || !saved[i]->initialized) continue;
    v1::KeyStateInfo& info = *loaded.add_keys();
    info.set_key_index(static_cast<std::uint32_t>(i));
    info.set_reductions(saved[i]->optimizer_steps);
    *info.mutable_hyper_parameters() = HyperParametersOf(saved[i]->hyper_parameters);
  }
  return loaded;
}

// The stream to one daemon.
class Sending {
 public:
  Sending(const checkpoint::CheckpointReader& reader, Writer& writer, Transfer& transfer)
      : reader_(reader), writer_(writer), transfer_(transfer) {}

  // False: the stream broke; Finish() returns the reason.
  absl::StatusOr<bool> Send(std::uint32_t key_index, const checkpoint::SavedKey& key,
                            const LoadKey::Chunk& chunk) {
    for (const v1::StateTensor tensor : StateTensors(key)) {
      const std::uint32_t element_bytes = TensorElementBytes(key, tensor);
      for (std::uint64_t sent = 0; sent < chunk.element_count;) {
        const std::size_t used = bytes_ + kPieceOverheadBytes;
        const std::size_t room = used < kMessageBytes ? kMessageBytes - used : 0;
        const std::uint64_t count =
            std::min<std::uint64_t>(chunk.element_count - sent, room / element_bytes);
        if (count == 0) {
          if (!Flush()) return false;
          continue;
        }
        v1::StatePiece& piece = *message_.add_pieces();
        piece.set_key_index(key_index);
        piece.set_tensor(tensor);
        piece.set_element_offset(chunk.element_offset + sent);
        std::string& elements = *piece.mutable_elements();
        elements.resize(count * element_bytes);
        const absl::Status status =
            reader_.Read(TensorName(key, tensor), chunk.element_offset + sent,
                         std::as_writable_bytes(std::span(elements)));
        if (!status.ok()) return status;
        bytes_ += elements.size() + kPieceOverheadBytes;
        moved_ += elements.size();
        sent += count;
      }
    }
    return true;
  }
  bool Flush() {
    const bool written = message_.pieces().empty() || writer_.Write(message_);
    transfer_.Moved(moved_);
    message_.Clear();
    bytes_ = 0;
    moved_ = 0;
    return written;
  }

 private:
  const checkpoint::CheckpointReader& reader_;
  Writer& writer_;
  Transfer& transfer_;
  v1::LoadStateRequest message_;
  std::size_t bytes_ = 0;  // in the message
  std::size_t moved_ = 0;  // its elements' part
};

// The first messages: the keys, as many as fit into each.
bool SendKeys(Writer& writer, v1::LoadStateRequest first, const v1::LoadedState& state) {
  if (state.ByteSizeLong() + first.ByteSizeLong() <= kFirstMessageBytesMax) {
    *first.mutable_keys() = state.keys();
    return writer.Write(first);
  }
  int next = 0;
  do {
    for (int i = 0; i < kKeysPerMessage && next < state.keys_size(); ++i, ++next)
      *first.add_keys() = state.keys(next);
    if (!writer.Write(first)) return false;
    first.Clear();
  } while (next < state.keys_size());
  return true;
}

// Sends everything once. A later call replaces what an earlier one has sent.
absl::Status SendOnce(std::span<const CheckpointDaemon> daemons, std::span<const LoadKey> keys,
                      std::span<const checkpoint::SavedKey* const> saved,
                      const checkpoint::CheckpointReader& reader, const LoadedCheckpoint& loaded,
                      const std::string& directory, std::uint64_t bytes,
                      const TransferOptions& options) {
  Transfer transfer(daemons.size(), bytes, options);
  return transfer.Run([&](std::size_t daemon) -> absl::Status {
    v1::LoadStateResponse response;
    const std::unique_ptr<Writer> writer =
        daemons[daemon].session->LoadState(&transfer.context(daemon), &response);
    v1::LoadStateRequest first;
    first.set_session_id(daemons[daemon].session_id);
    first.set_iteration(loaded.iteration);
    if (options.lasts) *first.mutable_source() = WhereSaved(loaded.iteration, directory);
    bool open = SendKeys(*writer, std::move(first), loaded.state);
    Sending sending(reader, *writer, transfer);
    for (std::uint32_t key = 0; key < keys.size(); ++key) {
      if (saved[key] == nullptr || !saved[key]->initialized) continue;
      for (const LoadKey::Chunk& chunk : keys[key].chunks) {
        if (!open || chunk.daemon != daemon) continue;
        const absl::StatusOr<bool> sent = sending.Send(key, *saved[key], chunk);
        if (!sent.ok()) {
          transfer.context(daemon).TryCancel();
          writer->Finish();  // returns CANCELLED
          return sent.status();
        }
        open = *sent;
      }
    }
    if (open && sending.Flush()) writer->WritesDone();
    return FromGrpc(writer->Finish(), daemons[daemon].endpoint);
  });
}

}  // namespace

absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(std::span<const CheckpointDaemon> daemons,
                                                std::span<const LoadKey> keys,
                                                const std::string& directory,
                                                const TransferOptions& options) {
  const auto opened = checkpoint::CheckpointReader::Open(directory);
  if (!opened.ok()) return opened.status();
  const checkpoint::CheckpointReader& reader = **opened;
  const auto saved = Match(keys, reader.description(), directory);
  if (!saved.ok()) return saved.status();
  LoadedCheckpoint loaded;
  loaded.iteration = reader.description().iteration;
  loaded.world_size = reader.description().world_size;
  loaded.state = DescribeLoaded(*saved, loaded.iteration);

  std::uint64_t bytes = 0;
  for (const checkpoint::TensorDescription& tensor : checkpoint::TensorsOf(reader.description())) {
    bytes += tensor.bytes();
  }
  OutageWait outage(options);
  absl::Status status;
  do {
    status = SendOnce(daemons, keys, *saved, reader, loaded, directory, bytes, options);
  } while (outage.Pause(status, {TransferProgress::Phase::kMoving, 0, 0, bytes}));
  if (!status.ok()) return status;
  return loaded;
}

}  // namespace phub::client
