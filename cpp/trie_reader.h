// Reads a published trie file front to back, a buffer at a time.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "errors.h"
#include "open_file.h"

namespace dart {

[[noreturn]] inline void refuse_trie(const std::string& path, const std::string& reason) {
  throw DataError(path + " is not a usable .trie file: " + reason);
}

// Not a mapping: a file that gets shorter while it is read is an error here, not a bus error.
class TrieReader {
 public:
  explicit TrieReader(std::string path) : path_(std::move(path)) {
    fd_ = open_to_read(path_, size_);
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  TrieReader(const TrieReader&) = delete;
  TrieReader& operator=(const TrieReader&) = delete;
  ~TrieReader() { ::close(fd_); }

  template <typename T>
  T take() {
    if (end_ - at_ < sizeof(T)) refill(sizeof(T));
    T value;
    std::memcpy(&value, buffer_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  void seek(std::uint64_t offset) {
    start_ = offset;
    at_ = end_ = 0;
  }

  std::uint64_t offset() const { return start_ + at_; }
  std::uint64_t size() const { return size_; }
  std::uint64_t rest() const { return size_ - offset(); }

 private:
  void refill(std::size_t wanted) {
    if (buffer_.empty()) buffer_.resize(std::clamp<std::uint64_t>(size_, 64, kBuffer));
    std::memmove(buffer_.data(), buffer_.data() + at_, end_ - at_);
    start_ += at_;
    end_ -= at_;
    at_ = 0;
    while (end_ < wanted) {
      const ssize_t got = ::pread(fd_, buffer_.data() + end_, buffer_.size() - end_,
                                  static_cast<off_t>(start_ + end_));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw_errno(path_);
      if (got == 0) {
        refuse_trie(path_, "it ends inside a record, at byte " + std::to_string(start_ + end_) +
                               " (truncated?)");
      }
      end_ += static_cast<std::size_t>(got);
    }
    // It is read once: its pages need not push others, of the tables we search in, out of memory.
    if (start_ > dropped_ + kDrop) {
      ::posix_fadvise(fd_, static_cast<off_t>(dropped_), static_cast<off_t>(start_ - dropped_),
                      POSIX_FADV_DONTNEED);
      dropped_ = start_;
    }
  }

  static constexpr std::uint64_t kBuffer = std::uint64_t{1} << 22;
  static constexpr std::uint64_t kDrop = std::uint64_t{64} << 20;

  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t start_ = 0;  // where in the file the buffer begins
  std::vector<char> buffer_;
  std::size_t at_ = 0, end_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace dart
