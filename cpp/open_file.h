// Opening a file that somebody gave us: never waits, and takes regular files alone.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "errors.h"

namespace dart {

// A descriptor to read `path` with; sets `size`. Throws IoError, and DataError for a pipe or a
// device: to open the one waits for its writer, and neither has a size to hold a header against.
inline int open_to_read(const std::string& path, std::uint64_t& size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw_errno(path);
  struct stat status{};
  const int failure = ::fstat(fd, &status) != 0 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  if (failure == 0 && S_ISREG(status.st_mode)) {
    size = static_cast<std::uint64_t>(status.st_size);
    return fd;
  }
  ::close(fd);
  if (failure != 0) throw IoError(failure, path);
  throw DataError(path + " is a pipe or a device; expected a file");
}

}  // namespace dart
