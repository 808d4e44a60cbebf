#include "aggregator/metrics_page.h"

#include <sys/resource.h>

#include <map>
#include <string_view>
#include <utility>

#include "aggregator/metric_list.h"
#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/http/text_format.h"

namespace phub::aggregator {
namespace {

using Type = http::TextFormat::Type;

struct Family {
  std::string_view label;  // the name of its label
  std::string_view help;
};

const std::map<std::string_view, Family>& Families() {
  static const std::map<std::string_view, Family> families = {
      {"packets_total", {"kind", "Good packets received, by kind."}},
      {"dropped_total", {"reason", "Packets that were dropped because they are not good."}},
      {"verdicts_total",
       {"verdict",
        "What slots did with good packets of workers. repeated, early and phase were dropped."}},
      {"sums_sent_total", {"", "Sums sent to core loops, repetitions included."}},
      {"sums_repeated_total",
       {"", "Sums sent again because a core loop asked for them; part of sums_sent_total."}},
      {"answers_sent_total", {"", "Answers sent to workers."}},
      {"nacks_dropped_total", {"", "NACKs of core loops that came twice, or after a later one."}},
      {"parameters_forwarded_total", {"", "Datagrams to workers that forward new parameters."}},
      {"kernel_sums_sent_total",
       {"", "Sums that the program in the kernel sent itself (--xdp); part of sums_sent_total."}},
      {"kernel_passed_total",
       {"",
        "Packets that the program in the kernel left to the process: those of core loops, and "
        "datagrams that the network stack had joined."}},
      {"kernel_events_lost_total",
       {"", "Answers and sums that were not sent because the process was too slow."}},
      {"leases_total", {"event", "Leases granted, refused, ended and expired."}},
      {"calls_refused_total",
       {"", "Calls of the control port that were refused because the caller is not a daemon."}},
  };
  return families;
}

DurationNs Time(const timeval& time) { return time.tv_sec * kSecond + time.tv_usec * kMicrosecond; }

class Page {
 public:
  void Add(std::string_view name, Type type, std::string_view help, std::uint64_t value) {
    text_.BeginFamily(std::string("phub_aggregator_").append(name), type, help);
    text_.Add(value);
  }
  void AddLabelled(std::string_view name, std::string_view label, std::uint64_t value) {
    const Family& family = Families().at(name);
    if (name != std::exchange(last_, name))
      text_.BeginFamily(std::string("phub_aggregator_").append(name), Type::kCounter, family.help);
    text_.Add(value, {{family.label, label}});
  }
  http::TextFormat& text() { return text_; }

 private:
  http::TextFormat text_;
  std::string_view last_;
};

void AddSocket(const aggregation::DatagramSocket& socket, Page& page) {
  const auto& counts = socket.counts();
  const auto add = [&](std::string_view name, std::string_view help, std::uint64_t value) {
    page.Add(name, Type::kCounter, help, value);
  };
  add("datagrams_received_total", "Datagrams received.", counts.received);
  add("received_bytes_total", "Bytes of UDP payload received.", counts.received_bytes);
  add("datagrams_sent_total", "Datagrams sent.", counts.sent);
  add("sent_bytes_total", "Bytes of UDP payload sent.", counts.sent_bytes);
  add("datagrams_unsent_total", "Datagrams that the kernel did not take.", counts.sends_failed);
  add("receive_calls_total", "System calls that receive.", counts.receive_calls);
  add("send_calls_total", "System calls that send.", counts.send_calls);
}

}  // namespace

std::string WriteMetrics(const Engine& engine, const aggregation::DatagramSocket& socket,
                         const http::HttpCounts& http) {
  Page page;
  page.text().BeginFamily("phub_aggregator_build_info", Type::kGauge, "Version; always 1.");
  page.text().Add(1, {{"version", BuildVersion()}});
  ForEachCounter(engine.counters(), [&](const char* name, const char* label, std::uint64_t value) {
    page.AddLabelled(name, label, value);
  });
  AddSocket(socket, page);
  page.Add("leases", Type::kGauge, "Leases now.", engine.Leases().size());
  page.Add("slots", Type::kGauge, "Slots of all leases.", engine.slots());
  page.Add("pool_used_bytes", Type::kGauge, "Memory of all leases.", engine.bytes_used());
  page.Add("pool_bytes", Type::kGauge, "The pool (--pool).", engine.limits().pool_bytes);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  page.text().BeginFamily("phub_aggregator_cpu_seconds_total", Type::kCounter,
                          "CPU time of all threads.");
  page.text().AddSeconds(Time(usage.ru_utime) + Time(usage.ru_stime));
  page.text().BeginFamily("phub_aggregator_http_answers_total", Type::kCounter,
                          "Answers of the metrics port, by HTTP status code.");
  for (const auto& [code, count] : http.answers)
    page.text().Add(count, {{"code", std::to_string(code)}});
  return page.text().Take();
}

}  // namespace phub::aggregator
