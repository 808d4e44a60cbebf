#include "common/base/standard_streams.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <system_error>

#include "common/base/errno_text.h"

namespace phub {
namespace {

// Not fmt::print, which throws if standard error cannot be written either.
int OutputFailed(const char* name, const std::string& why) {
  const std::string line = fmt::format("{}: cannot write the output: {}\n", name, why);
  std::fputs(line.c_str(), stderr);
  return EXIT_FAILURE;
}

int flush_error = 0;  // errno of the first FlushOutput that failed

}  // namespace

bool FlushOutput() {
  if (std::fflush(stdout) == 0) return true;
  if (flush_error == 0) flush_error = errno;
  return false;
}

void OpenStandardStreams() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    const int opened = open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened > STDERR_FILENO) close(opened);  // another thread took the number
  }
}

int RunWithOutput(const char* name, const std::function<int()>& program) {
  signal(SIGPIPE, SIG_IGN);  // write() returns an error if the reader is gone
  int result = EXIT_FAILURE;
  try {
    result = program();
  } catch (const std::system_error& error) {
    return OutputFailed(name, ErrnoText(error.code().value()));
  }
  FlushOutput();
  if (flush_error != 0) return OutputFailed(name, ErrnoText(flush_error));
  return std::ferror(stdout) != 0 ? OutputFailed(name, ErrnoText(EIO)) : result;
}

}  // namespace phub
