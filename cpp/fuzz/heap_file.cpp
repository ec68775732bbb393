// MappedFile on the heap, to the byte: AddressSanitizer sees reads beyond it, and a mapping's last
// page would let them pass. Linked in place of mapped_file.cpp.
#include <unistd.h>

#include "errors.h"
#include "mapped_file.h"
#include "open_file.h"

namespace dart {

MappedFile::MappedFile(const std::string& path) {
  std::uint64_t size = 0;
  const int fd = open_to_read(path, size);
  size_ = static_cast<std::size_t>(size);
  if (size_ > 0) data_ = new std::byte[size_];
  std::size_t at = 0;
  while (at < size_) {
    const ssize_t got = ::pread(fd, data_ + at, size_ - at, static_cast<off_t>(at));
    if (got <= 0) break;
    at += static_cast<std::size_t>(got);
  }
  ::close(fd);
}

MappedFile::~MappedFile() { delete[] data_; }

void MappedFile::prefetch() const {}

}  // namespace dart
