// A read-only memory mapping that owns itself: pages are shared between processes and reclaimable.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace dart {

class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MappedFile();

  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  void prefetch() const;  // start reading all of it into the page cache

 private:
  void swap(MappedFile& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace dart
