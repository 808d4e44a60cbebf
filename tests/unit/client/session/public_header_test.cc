// The public header comes first and alone: it includes everything that it uses, and no types of
// other libraries.
#include "phub/client.h"

#if defined(ABSL_BASE_CONFIG_H_) || defined(GOOGLE_PROTOBUF_VERSION) || defined(GRPC_GRPC_H) || \
    defined(FMT_VERSION)
#error "the public header brings a dependency of the library along"
#endif

#include <gtest/gtest.h>

#include <type_traits>

namespace phub {
namespace {

static_assert(std::is_copy_constructible_v<Handle> && std::is_nothrow_move_constructible_v<Handle>);
static_assert(std::is_copy_constructible_v<Key>);
static_assert(!std::is_copy_constructible_v<Job> && std::is_nothrow_move_constructible_v<Job>);
static_assert(!std::is_copy_constructible_v<Session>);
// The names of earlier versions.
template <typename Named>
concept HasEarlierNames = requires(Named& job) {
  requires std::is_same_v<decltype(job.SaveState("")), decltype(job.SaveCheckpoint(""))>;
  requires std::is_same_v<decltype(job.LoadState("")), decltype(job.LoadCheckpoint(""))>;
};
static_assert(HasEarlierNames<Job>);

TEST(Result, HoldsAValueOrWhyThereIsNone) {
  Result<int> value = 3;
  EXPECT_TRUE(value.ok());
  EXPECT_TRUE(value.status().ok());
  EXPECT_EQ(*value, 3);
  const Result<int> none = Status(StatusCode::kNotFound, "no such key");
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(ToString(none.status()), "NOT_FOUND: no such key");
  const Result<int> wrong = Status();
  EXPECT_EQ(wrong.status().code(), StatusCode::kInternal);
}

TEST(ResultDeathTest, ValueOfAFailedResultAborts) {
  const Result<int> none = Status(StatusCode::kNotFound, "no such key");
  EXPECT_DEATH((void)*none, "NOT_FOUND: no such key");
}

TEST(Handle, MadeWithoutAPushIsCompleteWithAnError) {
  const Handle handle;
  EXPECT_TRUE(handle.Test());
  EXPECT_EQ(handle.Wait().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(handle.Cancel().code(), StatusCode::kFailedPrecondition);
}

TEST(Status, PrintsItsCodeAndMessage) {
  EXPECT_EQ(ToString(Status()), "OK");
  EXPECT_EQ(ToString(Status(StatusCode::kAborted, "rank 2 died")), "ABORTED: rank 2 died");
}

}  // namespace
}  // namespace phub
