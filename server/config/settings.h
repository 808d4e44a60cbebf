// Every setting of phubd, in one table. A row defines the setting's TOML key (data_listen), flag
// (--data-listen), environment variable (PHUB_DATA_LISTEN), default, allowed range and help, its
// line in --dump-config, and its member of Settings.
//
// To add a setting, add a row: X(type of the member, name, kind and range, default, help).
// The default is written as a user would write it, and the same checks apply to it.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/view/view.h"
#include "server/config/setting_kind.h"

namespace phub::server {

// Choice() lists names in the order of the enumerators.
enum class PinMode : std::uint8_t { kAuto, kOn, kOff };
enum class WaitMode : std::uint8_t { kAuto, kPoll, kBlock };
enum class ShmMode : std::uint8_t { kOn, kOff };
enum class VerbsMode : std::uint8_t { kAuto, kOn, kOff };
enum class PeerTransport : std::uint8_t { kAuto, kTcp, kVerbs };
enum class DataTlsMode : std::uint8_t { kAuto, kOn, kOff };
enum class RackRole : std::uint8_t { kRack, kAggregator };

#define PHUB_SETTINGS(X)                                                                           \
  X(std::string, listen, Address(), "127.0.0.1:7700",                                              \
    "Address and port of the control plane (gRPC). Port 0 picks any free port; see port_file.")    \
  X(bool, front, Switch(), "true",                                                                 \
    "Serve listen from a process of its own, which ends TLS and HTTP/2 and passes on only calls "  \
    "of identified callers. false: gRPC serves the port itself; only on a loopback address.")      \
  X(std::string, data_listen, AddressOrEmpty(), "",                                                \
    "Address and port for data lanes. Empty: the address of listen, any free port.")               \
  X(DataTlsMode, data_tls, Choice("auto|on|off"), "auto",                                          \
    "TLS 1.3 on data lanes over TCP. It needs TLS on the control plane, which carries the keys. "  \
    "auto: on if data_listen is not a loopback address. Lanes over RDMA are never encrypted.")     \
  X(bool, insecure, Switch(), "false",                                                             \
    "Allow listening beyond loopback without TLS or without identities. Anyone who reaches the "   \
    "port can use and read every job, and tokens are sent unencrypted.")                           \
  X(std::string, metrics_listen, AddressOrEmpty(), "",                                             \
    "Address and port for metrics over HTTP at /metrics, in Prometheus' text format. Port 0 "      \
    "picks any free port. Empty: no metrics port.")                                                \
  X(bool, metrics_open, Switch(), "false",                                                         \
    "Allow metrics_listen beyond loopback. Anyone who reaches the port can read the names and "    \
    "the resource usage of tenants and jobs. The port is read-only and has no TLS.")               \
  X(std::string, health_listen, AddressOrEmpty(), "",                                              \
    "Address and port for /healthz and /readyz over HTTP, for supervisors such as Kubernetes. "    \
    "The answers name no tenant and no job. Port 0 picks any free port. Empty: only "              \
    "metrics_listen has them.")                                                                    \
  X(std::string, page_listen, AddressOrEmpty(), "",                                                \
    "Address and port of a read-only page over HTTP that shows daemons, tenants and jobs in a "    \
    "browser. With identities it needs an operator's token and a loopback address. Port 0 picks "  \
    "any free port. Empty: no page.")                                                              \
  X(bool, page_open, Switch(), "false",                                                            \
    "Allow page_listen beyond loopback, only without identities. Anyone who reaches the port "     \
    "can read the names and the resource usage of tenants and jobs.")                              \
  X(std::string, state_dir, Path(), "",                                                            \
    "Directory of the control store: tenants, quotas, tokens and the audit log. If set, every "    \
    "call needs an identity. Empty: no identities; tenants and quotas are kept in memory.")        \
  X(std::string, control_store, Path(), "",                                                        \
    "Where tenants, quotas, tokens and the audit log are: sqlite:DIR (as state_dir = DIR) or "     \
    "etcd:https://host:port,... (one store for all daemons of a cluster, see docs/cluster.md). "   \
    "Not together with state_dir. Empty: state_dir.")                                              \
  X(DurationNs, control_store_stale_max, Duration(5 * kSecond, 3600 * kSecond), "60s",             \
    "While etcd does not confirm for this time that what the daemon knows of tenants and tokens "  \
    "is up to date, new jobs are refused. Running jobs go on.")                                    \
  X(std::string, token_key, Path(), "",                                                            \
    "File with the key of the tokens' hashes, mode 0600, the same on every daemon of a cluster "   \
    "and never in etcd. The first daemon of a cluster creates it.")                                \
  X(DurationNs, quota_grace, Duration(10 * kSecond, 24 * 3600 * kSecond), "5m",                    \
    "How long etcd reserves this daemon's part of tenants' quotas after it has lost contact with " \
    "the daemon. Other daemons of the cluster can use it afterwards.")                             \
  X(std::string, daemon_id, Path(), "",                                                            \
    "Name of this daemon in its cluster, another one for each daemon and the same after a "        \
    "restart. Empty: phubd makes one and keeps it in the file token_key with the suffix "          \
    ".daemon.")                                                                                    \
  X(std::string, place, Path(), "",                                                                \
    "Place of this daemon in the cluster's view (phubctl view show): RACK/NUMBER or "              \
    "AGGREGATOR/NUMBER, such as \"north/0\". Numbers begin at 0. Needs a control_store in etcd. "  \
    "Empty: this daemon has no place.")                                                            \
  X(std::string, advertise, AddressOrEmpty(), "",                                                  \
    "Address and port at which other daemons and workers reach the control plane. Set it if "      \
    "listen is a wildcard address such as 0.0.0.0. Empty: listen.")                                \
  X(std::string, etcd_prefix, Path(), "/phub",                                                     \
    "Prefix of the keys in etcd; another one for each cluster.")                                   \
  X(std::string, etcd_ca, Path(), "",                                                              \
    "CA certificates (PEM) of etcd's servers. Empty: the system's.")                               \
  X(std::string, etcd_certificate, Path(), "",                                                     \
    "Client certificate (PEM) for etcd; etcd takes its common name as the user.")                  \
  X(std::string, etcd_key, Path(), "", "Private key of etcd_certificate (PEM), mode 0600.")        \
  X(std::string, control_socket, Path(), "",                                                       \
    "Unix socket on which root and phubd's own user may make every call without a token. Empty: "  \
    "/run/phub/control.sock if there are identities, otherwise none.")                             \
  X(std::string, tls_certificate, Path(), "",                                                      \
    "Certificate chain (PEM) of the control plane. If set, the whole control plane uses TLS. A "   \
    "changed file is loaded without a restart.")                                                   \
  X(std::string, tls_key, Path(), "", "Private key of tls_certificate (PEM), mode 0600.")          \
  X(std::string, tls_client_ca, Path(), "",                                                        \
    "CA certificates (PEM) that may issue certificates to callers: "                               \
    "spiffe://<trust_domain>/tenant/<name>, operator/<name>, admin/<name> or server/<name>. "      \
    "Empty: tokens only.")                                                                         \
  X(std::string, trust_domain, Path(), "phub", "Trust domain in callers' certificates.")           \
  X(std::string, daemons, DaemonList(), "",                                                        \
    "All daemons of this rack: control endpoints, separated by commas, in the same order and "     \
    "spelling on every daemon. The first daemon admits the ranks of every job and completes its "  \
    "barriers. Empty: only this daemon.")                                                          \
  X(std::string, self, AddressOrEmpty(), "",                                                       \
    "Entry of daemons that is this daemon. Empty: the entry that equals listen.")                  \
  X(std::string, racks, DaemonList(), "",                                                          \
    "Racks that jobs may span: one control endpoint for each rack, separated by commas, in the "   \
    "same order and spelling on every daemon. If racks have several daemons, list those with "     \
    "this daemon's number in daemons. The first rack opens such jobs. Empty: only this rack.")     \
  X(std::string, aggregators, DaemonList(), "",                                                    \
    "Daemons without workers that sum and forward what racks exchange: control endpoints, "        \
    "separated by commas. List the same ones on every aggregator and every rack.")                 \
  X(RackRole, role, Choice("rack|aggregator"), "rack",                                             \
    "Role of this daemon. aggregator: it is listed in aggregators and has no workers.")            \
  X(std::string, rack_self, AddressOrEmpty(), "",                                                  \
    "Entry of racks or aggregators that is this daemon. Empty: the entry that equals listen.")     \
  X(std::string, topology, Path(), "",                                                             \
    "Topology file (TOML or JSON, see docs/plan.md), the same on every daemon. Its members are "   \
    "the racks and its aggregating switches are the aggregators, in order. Empty: every rack "     \
    "has one link to one switch, which is the aggregator if there is one. probe: rack 0 has the "  \
    "paths between the racks measured.")                                                           \
  X(std::string, sum_aggregator, AggregatorList(), "",                                             \
    "phub-aggregators that add up the gradients of jobs with sum=fixed on their way "              \
    "(docs/aggregation.md), separated by commas: the path of a control socket, or host:port of a " \
    "--control-listen on another host, which needs TLS. The core loops of jobs are shared among "  \
    "them. Empty: gradients are pushed over TCP.")                                                 \
  X(std::string, sum_listen, Path(), "",                                                           \
    "Numeric address of this host at which core loops exchange datagrams with aggregators. "       \
    "Empty: 127.0.0.1 for a control socket, otherwise the address from which this host reaches "   \
    "the aggregator. Set it if an aggregator of this host is in another network namespace.")       \
  X(ShmMode, shm, Choice("on|off"), "on",                                                          \
    "Shared memory with workers on the same host. Gradients are summed in place, without a "       \
    "copy.")                                                                                       \
  X(VerbsMode, verbs, Choice("auto|on|off"), "auto",                                               \
    "Lanes over RDMA. auto: if this host has a usable device. on: required; without a usable "     \
    "device phubd does not start.")                                                                \
  X(std::string, verbs_devices, Names(), "",                                                       \
    "RDMA devices for lanes, separated by commas (\"mlx5_0,mlx5_1\"), each optionally with port "  \
    "and GID index (\"mlx5_0:1:3\"). Core loops use them in turn. Empty: every device with an "    \
    "active port.")                                                                                \
  X(DurationNs, verbs_ack_timeout, Duration(10 * kMicrosecond, 3600 * kSecond), "250ms",           \
    "Time after which RDMA resends an unacknowledged packet. Devices round it up to 4.1 us "       \
    "times a power of two. After seven retries the lane is lost. Emulated devices need 4s.")       \
  X(PeerTransport, peer_transport, Choice("auto|tcp|verbs"), "auto",                               \
    "Transport of lanes to daemons of other racks. auto: RDMA if both daemons have it, "           \
    "otherwise TCP. verbs: RDMA is required; without it a job that spans racks does not start.")   \
  X(std::string, cores, CoreList(), "auto",                                                        \
    "Core loops: a list of cores (\"0-3,8\"; \"3-3\" for one core), or their number. auto: a "     \
    "quarter of the usable cores, at least 2 and at most 8; 1 if only one core is usable.")        \
  X(PinMode, pin, Choice("auto|on|off"), "auto",                                                   \
    "Bind each core loop to a core. auto: yes for a list of cores; for a number, if two more "     \
    "cores are usable; no for cores = auto, because other programs may need the same cores.")      \
  X(WaitMode, wait, Choice("auto|poll|block"), "auto",                                             \
    "How an idle core loop waits. auto: a pinned loop polls and blocks after 10 ms without "       \
    "work; an unpinned loop yields a few times and blocks. poll: never block; each loop always "   \
    "uses a whole core.")                                                                          \
  X(DurationNs, liveness_timeout, Duration(100 * kMillisecond, 3600 * kSecond), "2s",              \
    "A worker or daemon whose lanes are silent for this time is considered dead. Both ends of a "  \
    "lane send keep-alives eight times per timeout.")                                              \
  X(DurationNs, drain_timeout, Duration(0, 24 * 3600 * kSecond), "10s",                            \
    "On SIGTERM: time that running jobs have to end before they are ended with an error.")         \
  X(std::uint64_t, memory_max, BytesOrAuto(16 * kMebibyte, 1024 * kTebibyte), "auto",              \
    "Memory that all jobs together may reserve. A job that does not fit is refused. auto: three "  \
    "quarters of the memory that phubd may use, which is the host's, or less in a control group "  \
    "(container, systemd's MemoryMax).")                                                           \
  X(std::uint64_t, request_memory, Bytes(8 * kMebibyte, kTebibyte), "256MiB",                      \
    "Memory for each tenant's connections to the control port, calls in progress, requests "       \
    "that wait for their turn and answers that its clients have not read yet. What would "         \
    "exceed it is refused.")                                                                       \
  X(std::uint32_t, chunk_bytes, BytesMultipleOf(64, kChunkBytesMin, kChunkBytesMax), "128KiB",     \
    "Chunk size for jobs that do not request one.")                                                \
  X(std::uint32_t, staging_bytes_per_lane, Bytes(kChunkBytesMin, kGibibyte), "1MiB",               \
    "Staging memory for each worker and core loop, for jobs that do not request more. It is "      \
    "fastest if it fits into the CPU cache.")                                                      \
  X(std::string, port_file, Path(), "",                                                            \
    "File to write the control plane's port to once it is bound; for scripts.")                    \
  X(LogLevel, log_level, Choice("debug|info|warning|error"), "info",                               \
    "Lowest severity of events that are logged to standard error.")

// The values in effect. Plain data, made by LoadConfig(); immutable afterwards.
struct Settings {
#define PHUB_SETTING_MEMBER(type, name, kind, fallback, help) type name{};
  PHUB_SETTINGS(PHUB_SETTING_MEMBER)
#undef PHUB_SETTING_MEMBER
  // Not a setting: the view of the cluster that the settings of racks come from (view_settings.h).
  // Number 0: they come from the operator.
  view::View view;
};

}  // namespace phub::server
