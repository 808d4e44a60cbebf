// Every setting of phubd, in one table. A line here gives the setting its TOML key (data_listen),
// flag (--data-listen), environment variable (PHUB_DATA_LISTEN), default, allowed range, help, its
// line in --dump-config and its part of error messages, and a member of Settings.
//
// Adding a setting is adding a line: X(type of the member, name, kind and range, default, help).
// The default is written as a user would write it and goes through the same checks.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/units.h"
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
    "Address and port of the control plane (gRPC). Port 0 takes any free one: see port_file.")     \
  X(std::string, data_listen, AddressOrEmpty(), "",                                                \
    "Address and port on which data lanes are accepted. Empty: the address of listen, any port.")  \
  X(DataTlsMode, data_tls, Choice("auto|on|off"), "auto",                                          \
    "TLS 1.3 on data lanes over tcp, with keys that come over the control plane (and need it to "  \
    "be TLS). auto: if data_listen is beyond loopback. Lanes over RDMA are never encrypted.")      \
  X(bool, insecure, Switch(), "false",                                                             \
    "Allow listening beyond loopback without TLS or without identities: whoever reaches the port " \
    "can use and read every job, and tokens travel in the clear.")                                 \
  X(std::string, metrics_listen, AddressOrEmpty(), "",                                             \
    "Address and port of the metrics: Prometheus' text format, over HTTP, at /metrics. Empty: "    \
    "none. Port 0 takes any free one.")                                                            \
  X(bool, metrics_open, Switch(), "false",                                                         \
    "Allow metrics_listen beyond loopback: whoever reaches the port can read the names of "        \
    "tenants and jobs and what they use. It has no TLS and changes nothing.")                      \
  X(std::string, state_dir, Path(), "",                                                            \
    "Directory of the control state: tenants, quotas, tokens and the audit log, durable. With it " \
    "every call needs an identity. Empty: no identities; tenants and quotas are kept in memory.")  \
  X(std::string, control_socket, Path(), "",                                                       \
    "Unix socket on which root and phubd's own user may do everything without a token. Empty: "    \
    "/run/phub/control.sock with a state_dir, none without.")                                      \
  X(std::string, tls_certificate, Path(), "",                                                      \
    "Certificate (PEM, the chain) of the control plane; with it all of it is TLS. New files are "  \
    "taken up without a restart.")                                                                 \
  X(std::string, tls_key, Path(), "", "Private key of tls_certificate (PEM), mode 0600.")          \
  X(std::string, tls_client_ca, Path(), "",                                                        \
    "Certificates (PEM) of who may issue certificates to callers: spiffe://<trust_domain>/"        \
    "tenant/<name>, operator/<name>, admin/<name> or server/<name>. Empty: tokens only.")          \
  X(std::string, trust_domain, Path(), "phub", "The name space of callers' certificates.")         \
  X(std::string, daemons, DaemonList(), "",                                                        \
    "The rack: control endpoints of all its daemons, separated by commas, in the same order and "  \
    "spelling at each of them. The first seats the ranks of every job. Empty: this one alone.")    \
  X(std::string, self, AddressOrEmpty(), "",                                                       \
    "Which entry of daemons this one is. Empty: the entry that equals listen.")                    \
  X(std::string, racks, DaemonList(), "",                                                          \
    "Jobs may span these racks: the control endpoint of each rack's daemon, separated by commas, " \
    "in the same order and spelling at each of them. Of racks with several daemons, of the one "   \
    "with the number that this one has in daemons. The first opens such jobs. Empty: this one "    \
    "alone.")                                                                                      \
  X(std::string, aggregators, DaemonList(), "",                                                    \
    "Daemons that only sum and pass on what racks exchange, and have no workers: the control "     \
    "endpoint of each, separated by commas, the same at each of them and at each of racks.")       \
  X(RackRole, role, Choice("rack|aggregator"), "rack",                                             \
    "What this daemon is. aggregator: one of aggregators, to which no worker comes.")              \
  X(std::string, rack_self, AddressOrEmpty(), "",                                                  \
    "Which entry of racks, or of aggregators, this daemon is. Empty: the one that equals listen.") \
  X(std::string, topology, Path(), "",                                                             \
    "File (TOML or JSON, see docs/plan.md) of how the racks are connected: its members are the "   \
    "racks, its aggregating switches the aggregators, in order. The same at each of them. Empty: " \
    "every rack has one link to one switch, which is the aggregator, if there is one. probe: "     \
    "rack "                                                                                        \
    "0 has it measured.")                                                                          \
  X(ShmMode, shm, Choice("on|off"), "on",                                                          \
    "Shared memory with workers of the same host: gradients are summed where they lie.")           \
  X(VerbsMode, verbs, Choice("auto|on|off"), "auto",                                               \
    "Lanes over RDMA. auto: where this host has a device that can, else without a word; on: or "   \
    "phubd does not start.")                                                                       \
  X(std::string, verbs_devices, Names(), "",                                                       \
    "RDMA devices for lanes, separated by commas (\"mlx5_0,mlx5_1\"), with port and GID index "    \
    "where those found are not wanted (\"mlx5_0:1:3\"); core loops take them in turn. Empty: "     \
    "every one with an active port.")                                                              \
  X(DurationNs, verbs_ack_timeout, Duration(10 * kMicrosecond, 3600 * kSecond), "250ms",           \
    "RDMA: an unanswered packet is sent again after so long (devices round up to 4.1 us times a "  \
    "power of two), up to seven times; then the lane is lost. Emulated devices want 4s.")          \
  X(PeerTransport, peer_transport, Choice("auto|tcp|verbs"), "auto",                               \
    "Lanes to the daemons of other racks. auto: over RDMA where both have it, else over tcp; "     \
    "verbs: over RDMA, or a job that spans racks does not start.")                                 \
  X(std::string, cores, CoreList(), "auto",                                                        \
    "Core loops: a list of cores (\"0-3,8\"; \"3-3\" for one), or how many. auto: a quarter of "   \
    "the usable cores, 2 to 8; 1 if there is one.")                                                \
  X(PinMode, pin, Choice("auto|on|off"), "auto",                                                   \
    "Bind each core loop to a core. auto: a list of cores always; a number of them if two more "   \
    "are usable; never with cores = auto, since then nothing says that the host is phubd's own.")  \
  X(WaitMode, wait, Choice("auto|poll|block"), "auto",                                             \
    "How an idle core loop waits. auto: a pinned loop polls and blocks after 10 ms without work; " \
    "one that is not pinned yields a few times and blocks. poll never blocks: it takes a whole "   \
    "core, always.")                                                                               \
  X(DurationNs, liveness_timeout, Duration(100 * kMillisecond, 3600 * kSecond), "2s",              \
    "A worker that is silent for so long is dead. Workers send a heartbeat every quarter of it.")  \
  X(DurationNs, drain_timeout, Duration(0, 24 * 3600 * kSecond), "10s",                            \
    "On SIGTERM: how long running jobs may take to end before they are ended with an error.")      \
  X(std::uint64_t, memory_max, Bytes(16 * kMebibyte, 1024 * kTebibyte), "8GiB",                    \
    "Memory that all jobs together may reserve. A job that does not fit is refused.")              \
  X(std::uint32_t, chunk_bytes, BytesMultipleOf(64, kChunkBytesMin, kChunkBytesMax), "128KiB",     \
    "Size of a chunk for jobs that do not ask for one.")                                           \
  X(std::uint32_t, staging_bytes_per_lane, Bytes(kChunkBytesMin, kGibibyte), "1MiB",               \
    "Staging memory per worker and core loop for jobs that do not ask for more. Small enough to "  \
    "stay in cache is fastest.")                                                                   \
  X(std::string, port_file, Path(), "",                                                            \
    "Write the port of the control plane into this file, once it is bound; for scripts.")          \
  X(LogLevel, log_level, Choice("debug|info|warning|error"), "info",                               \
    "Least severe event that is logged, to standard error.")

// The values in effect. Plain data, made by LoadConfig(); immutable afterwards.
struct Settings {
#define PHUB_SETTING_MEMBER(type, name, kind, fallback, help) type name{};
  PHUB_SETTINGS(PHUB_SETTING_MEMBER)
#undef PHUB_SETTING_MEMBER
};

}  // namespace phub::server
