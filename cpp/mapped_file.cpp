#include "mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include "open_file.h"

namespace dart {

MappedFile::MappedFile(const std::string& path) {
  std::uint64_t size = 0;
  const int fd = open_to_read(path, size);
  int failure = 0;
  if (size > 0) {
    size_ = static_cast<std::size_t>(size);
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
