// Ranks that wait for rack 0 to open their job. Bounded. Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "phub/v1/session.pb.h"
#include "server/control/answers.h"

namespace phub::server {

struct HeldJoin {
  v1::JoinRequest request;  // names its tenant
  std::string peer_address;
  Answer<v1::JoinResponse> answer;
  TimeNs deadline = 0;
  // The instance of rack 0's daemon to which the request to open the job was sent.
  std::optional<std::uint64_t> asked_instance;
};

class HeldJoins {
 public:
  bool empty() const { return joins_.empty(); }
  std::size_t size() const { return joins_.size(); }
  TimeNs FirstDeadline() const;  // kNever if empty

  // False if there is no room. An earlier join of the same process is answered CANCELLED, since the
  // rank expects the answer on its new connection.
  [[nodiscard]] bool Add(HeldJoin held);
  std::list<HeldJoin> Take(std::string_view tenant, std::string_view job,
                           std::uint64_t incarnation);
  bool Has(std::string_view tenant, std::string_view job) const;
  std::list<HeldJoin> TakeLate(TimeNs now);  // whose deadline is over

  // Whether this process of rack 0's daemon was asked to open the job already; if not, the caller
  // must ask it now.
  [[nodiscard]] bool NoteAsked(std::string_view tenant, std::string_view job,
                               std::uint64_t incarnation, std::uint64_t instance);
  // Requests were lost, of all jobs or of one run. The next rank that joins asks again.
  void NoteRequestsLost();
  void NoteRequestLost(std::string_view tenant, std::uint64_t incarnation);

 private:
  template <typename Predicate>
  std::list<HeldJoin> TakeIf(Predicate&& wanted);

  std::list<HeldJoin> joins_;
};

}  // namespace phub::server
