// Standard input, output and error of programs: closed ones, full disks, closed pipes.
#pragma once

#include <functional>

namespace phub {

// Occupies descriptors 0, 1 and 2 if they are closed. Otherwise sockets would get these numbers,
// and a line for standard error could be sent to a peer. Reading and writing still fail with EBADF,
// as if they were closed. Any thread.
void OpenStandardStreams();

// Writes what standard output has buffered. On failure returns false, and RunWithOutput reports it.
// One thread.
bool FlushOutput();

// Runs `program` and flushes standard output. Returns the program's result, or 1 if its output
// could not be written; then a message on standard error starts with `name`. fmt::print throws when
// it cannot write, and without this function that would abort. Ignores SIGPIPE.
int RunWithOutput(const char* name, const std::function<int()>& program);

}  // namespace phub
