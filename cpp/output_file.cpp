#include "output_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "errors.h"

namespace dart {
namespace {

void write_all(int fd, const void* data, std::size_t bytes, const std::string& name) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(name);
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

// Makes a new file beside `path`, open for reading and writing; returns its descriptor and name.
int make_beside(const std::string& path, std::string& name) {
  static std::atomic<unsigned> serial{0};
  for (;;) {
    name = path + ".partial-" + std::to_string(::getpid()) + "-" + std::to_string(serial++);
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return fd;
    if (errno != EEXIST) throw_errno(path);  // a leftover of an earlier process: take another name
  }
}

void take_disk(int fd, std::uint64_t offset, std::uint64_t bytes, const std::string& name) {
  const int failure = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  if (failure != 0) throw IoError(failure, name);
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  fd_ = make_beside(path_, temporary_);
}

AtomicFile::AtomicFile(std::string path, std::string temporary)
    : path_(std::move(path)), temporary_(std::move(temporary)) {
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_errno(temporary_);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::reserve(std::uint64_t bytes) { take_disk(fd_, 0, bytes, path_); }

void AtomicFile::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(fd_, at, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(path_);
    at += written;
    offset += static_cast<std::uint64_t>(written);
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) throw_errno(path_);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) throw_errno(path_);
  ::close(fd_);
  fd_ = -1;
  // The new name too must outlast a power cut. Not every file system can be asked for that.
  const std::size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  if (const int fd = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
}

ScratchFile::ScratchFile(const std::string& near) {
  fd_ = make_beside(near, name_);
  ::unlink(name_.c_str());
}

ScratchFile::ScratchFile(std::string path, std::uint64_t keep)
    : name_(std::move(path)), size_(keep) {
  fd_ = ::open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_errno(name_);
  const auto end = static_cast<off_t>(keep);
  if (::ftruncate(fd_, end) != 0 || ::lseek(fd_, end, SEEK_SET) != end) {
    const int failure = errno;
    ::close(fd_);
    throw IoError(failure, name_);
  }
}

ScratchFile::~ScratchFile() { ::close(fd_); }

void ScratchFile::append(const void* data, std::size_t bytes) {
  write_all(fd_, data, bytes, name_);
  size_ += bytes;
}

void ScratchFile::read(std::uint64_t offset, void* data, std::size_t bytes) const {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw IoError(got < 0 ? errno : EIO, name_);
    at += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

void ScratchFile::sync() const {
  if (::fdatasync(fd_) != 0) throw_errno(name_);
}

void WordStream::spill() {
  const std::size_t bytes = buffer_.size() * sizeof(std::uint32_t);
  if (out_ != nullptr) {
    out_->write_at(offset_ + spilled_ * sizeof(std::uint32_t), buffer_.data(), bytes);
  } else {
    if (!file_) file_ = std::make_unique<ScratchFile>(near_);
    file_->append(buffer_.data(), bytes);
  }
  spilled_ += buffer_.size();
  buffer_.clear();
}

void WordStream::finish(AtomicFile& out, std::uint64_t offset) {
  if (file_) {
    std::vector<std::uint32_t> block(kBufferWords);
    const std::size_t bytes = kBufferWords * sizeof(std::uint32_t);
    const std::uint64_t end = spilled_ * sizeof(std::uint32_t);
    for (std::uint64_t at = 0; at < end; at += bytes) {  // spills are whole buffers
      file_->read(at, block.data(), bytes);
      out.write_at(offset + at, block.data(), bytes);
    }
  }
  out_ = &out;
  offset_ = offset;
  spill();
}

MappedTable::MappedTable(std::string path, std::uint64_t most_bytes)
    : path_(std::move(path)), most_(std::max<std::uint64_t>(most_bytes, 1)) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_errno(path_);
  void* memory = MAP_FAILED;
  if (::ftruncate(fd_, static_cast<off_t>(most_)) == 0) {  // a hole: it takes no disk
    memory = ::mmap(nullptr, most_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  }
  if (memory == MAP_FAILED) {
    const int failure = errno;
    ::close(fd_);
    throw IoError(failure, path_);
  }
  data_ = static_cast<std::byte*>(memory);
}

MappedTable::~MappedTable() {
  ::munmap(data_, most_);
  ::close(fd_);
}

void MappedTable::reserve(std::uint64_t bytes) {
  constexpr std::uint64_t kPiece = std::uint64_t{64} << 20;
  const std::uint64_t end = std::min(most_, (bytes + kPiece - 1) / kPiece * kPiece);
  take_disk(fd_, reserved_, end - reserved_, path_);
  reserved_ = end;
}

void MappedTable::sync() const {
  if (::msync(data_, most_, MS_SYNC) != 0) throw_errno(path_);
}

}  // namespace dart
