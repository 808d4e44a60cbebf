// Two ranks of a job through the C functions of phub.h, and objects that free themselves.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "phub/phub.h"
#include "tests/process/daemon_process.h"

namespace phub::process {

inline constexpr std::int64_t kPatience = 60 * kSecond;  // much longer than any step takes
inline constexpr std::uint64_t kElements = 50'000;       // more than one chunk

// An error of phub.h that frees itself.
struct Error {
  ~Error() { phub_error_free(error); }
  phub_error** Out() {
    phub_error_free(error);
    error = nullptr;
    return &error;
  }
  std::string message() const { return phub_error_message(error); }
  phub_error* error = nullptr;
};

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using SessionPointer = std::unique_ptr<phub_session, Free<phub_session_free>>;
using JobPointer = std::unique_ptr<phub_job, Free<phub_job_free>>;
using KeyPointer = std::unique_ptr<phub_key, Free<phub_key_free>>;
using HandlePointer = std::unique_ptr<phub_handle, Free<phub_handle_free>>;
using QueuePointer = std::unique_ptr<phub_queue, Free<phub_queue_free>>;

inline phub_job_options OptionsOf(const char* job, std::uint32_t rank, std::uint32_t world_size) {
  phub_job_options options;
  phub_job_options_init(&options, sizeof(options));
  options.job = job;
  options.rank = rank;
  options.world_size = world_size;
  options.leave_timeout_ms = 200;
  return options;
}

inline SessionPointer MakeSession(const DaemonProcess& daemon) {
  Error error;
  phub_session* session = nullptr;
  EXPECT_EQ(phub_connect(daemon.endpoint().c_str(), nullptr, &session, error.Out()), PHUB_OK)
      << error.message();
  return SessionPointer(session);
}

inline JobPointer JoinAs(phub_session* session, const phub_job_options& options) {
  Error error;
  phub_job* job = nullptr;
  EXPECT_EQ(phub_session_join(session, &options, &job, error.Out()), PHUB_OK) << error.message();
  return JobPointer(job);
}

inline KeyPointer AddKey(phub_job* job, const char* name, const phub_optimizer* optimizer,
                         std::uint64_t elements = kElements) {
  Error error;
  phub_key_spec spec;
  phub_key_spec_init(&spec, sizeof(spec));
  spec.name = name;
  spec.element_count = elements;
  spec.optimizer = optimizer;
  phub_key* key = nullptr;
  EXPECT_EQ(phub_job_add_keys(job, &spec, 1, &key, error.Out()), PHUB_OK) << error.message();
  return KeyPointer(key);
}

inline HandlePointer Push(phub_key* key, float gradient) {
  const phub_elements gradients = phub_key_gradients(key);
  std::fill_n(static_cast<float*>(gradients.data), gradients.count, gradient);
  Error error;
  phub_handle* handle = nullptr;
  EXPECT_EQ(phub_key_push_pull(key, &handle, error.Out()), PHUB_OK) << error.message();
  return HandlePointer(handle);
}

inline std::vector<float> ParametersOf(const phub_key* key) {
  const phub_const_elements view = phub_key_parameters(key);
  const auto* const values = static_cast<const float*>(view.data);
  return {values, values + view.count};
}

class CApi : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(daemon_.endpoint(), "") << daemon_.process().Outputs();
    session_ = MakeSession(daemon_);
    ASSERT_NE(session_, nullptr);
  }
  // Both ranks of a job, with one key each.
  void JoinBoth(const char* name, const phub_optimizer* optimizer = nullptr) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      jobs_[rank] = JoinAs(session_.get(), OptionsOf(name, rank, 2));
      ASSERT_NE(jobs_[rank], nullptr);
      keys_[rank] = AddKey(jobs_[rank].get(), "fc1.weight", optimizer);
      ASSERT_NE(keys_[rank], nullptr);
    }
  }
  DaemonProcess daemon_;
  SessionPointer session_;
  JobPointer jobs_[2];
  KeyPointer keys_[2];
  Error error_;
};

}  // namespace phub::process
