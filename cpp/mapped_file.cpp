#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "errors.h"

namespace dart {

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw_errno(path);
  struct stat status{};
  int failure = ::fstat(fd, &status) == 0 ? 0 : errno;
  if (failure == 0 && S_ISDIR(status.st_mode)) failure = EISDIR;
  if (failure == 0 && status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
      failure = errno;
    } else {
      data_ = static_cast<std::byte*>(memory);
    }
  }
  ::close(fd);
  if (failure != 0) throw IoError(failure, path);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void MappedFile::prefetch() const {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_WILLNEED);
}

}  // namespace dart
