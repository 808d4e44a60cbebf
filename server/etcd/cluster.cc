#include "server/etcd/cluster.h"

#include <fmt/format.h>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "phub/store/records.pb.h"
#include "server/etcd/record.h"
#include "server/etcd/token_key_file.h"
#include "server/tenant/token.h"

namespace phub::server::etcd {

pb::Compare HasRevision(const std::string& key, std::int64_t revision) {
  pb::Compare compare;
  compare.set_result(pb::Compare::EQUAL);
  compare.set_target(pb::Compare::MOD);
  compare.set_key(key);
  compare.set_mod_revision(revision);
  return compare;
}

pb::RequestOp Put(const std::string& key, const std::string& value) {
  pb::RequestOp operation;
  operation.mutable_request_put()->set_key(key);
  operation.mutable_request_put()->set_value(value);
  return operation;
}

pb::RequestOp Get(const std::string& key) {
  pb::RequestOp operation;
  operation.mutable_request_range()->set_key(key);
  return operation;
}

std::string EndOf(std::string prefix) {
  ++prefix.back();
  return prefix;
}

namespace {

constexpr std::size_t kClusterIdBytes = 16;

// Only one daemon founds the cluster; the others find it at their next attempt.
absl::Status Found(Client& client, const std::string& prefix, const std::string& token_key,
                   Random& random) {
  phub::store::v1::Cluster cluster;
  cluster.set_id(DrawBytes(random, kClusterIdBytes));
  cluster.set_created_at_ns(WallNow());
  const std::string key = prefix + std::string(kClusterKey);
  const std::string head = prefix + std::string(kHeadKey);
  pb::TxnRequest request;
  *request.add_compare() = HasRevision(key, 0);
  *request.add_compare() = HasRevision(head, 0);
  *request.add_success() =
      Put(key, Records(token_key, "").Seal(kClusterKey, cluster.SerializeAsString()));
  *request.add_success() = Put(head, Records(token_key, cluster.id()).OfHead({}));
  const auto answer = client.Txn(request);
  if (!answer.ok()) return answer.status();
  if (answer->succeeded()) LogInfo("event=cluster_founded prefix=\"{}\"", prefix);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Cluster> FindCluster(Client& client, const std::string& prefix,
                                    const std::string& path, Random& random) {
  pb::RangeRequest request;
  request.set_key(prefix + std::string(kClusterKey));
  auto answer = client.Range(request);
  if (!answer.ok()) return answer.status();
  absl::StatusOr<std::string> token_key = ReadTokenKeyFile(path);
  if (answer->kvs().empty()) {
    if (absl::IsNotFound(token_key.status())) token_key = MakeTokenKeyFile(path, random);
    if (!token_key.ok()) return token_key.status();
    if (absl::Status found = Found(client, prefix, *token_key, random); !found.ok()) return found;
    answer = client.Range(request);
    if (!answer.ok()) return answer.status();
    if (answer->kvs().empty()) {
      return absl::DataLossError(fmt::format(
          "etcd has a {}{}, but no {}{}; restore a backup, or remove everything below {}", prefix,
          kHeadKey, prefix, kClusterKey, prefix));
    }
  }
  if (absl::IsNotFound(token_key.status())) {
    return absl::FailedPreconditionError(
        fmt::format("token_key {} is missing, and the cluster at {} exists; copy the file from "
                    "another daemon of the cluster",
                    path, prefix));
  }
  if (!token_key.ok()) return token_key.status();
  const auto body = Records(*token_key, "").Open(kClusterKey, answer->kvs(0).value());
  phub::store::v1::Cluster cluster;
  if (!body.ok()) {
    return absl::Status(body.status().code(),
                        fmt::format("{}{} {}", prefix, kClusterKey, MessageOf(body.status())));
  }
  if (!cluster.ParseFromString(*body))
    return absl::DataLossError("the cluster's record is damaged");
  return Cluster{*token_key, cluster.id(), answer->kvs(0).mod_revision()};
}

}  // namespace phub::server::etcd
