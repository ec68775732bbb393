// Writing: a file that appears whole or not at all, and scratch space that vanishes with the
// process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dart {

// Written under another name, synced and renamed by commit(); removed if commit() is not reached.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);                // under a name of its own beside it
  AtomicFile(std::string path, std::string temporary);  // which may be there, left by a killed run
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void reserve(std::uint64_t bytes);  // the file's size, on disk at once: later nothing can fail
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  void commit();

 private:
  std::string path_, temporary_;
  int fd_ = -1;
};

// A file of our own to append to and to read from.
class ScratchFile {
 public:
  // Unnamed, in the folder of `near`: the kernel frees it when we close it or die.
  explicit ScratchFile(const std::string& near);
  // Named, and staying there; it is taken up with its first `keep` bytes.
  ScratchFile(std::string path, std::uint64_t keep);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  void append(const void* data, std::size_t bytes);
  void read(std::uint64_t offset, void* data, std::size_t bytes) const;
  void sync() const;  // wait until all is on the disk
  std::uint64_t size() const { return size_; }

 private:
  std::string name_;  // for messages
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

// A stream of 32-bit words on its way to a place in a file. Where the place is not known yet, it is
// in memory while short and in a scratch file beyond that.
class WordStream {
 public:
  explicit WordStream(std::string near) : near_(std::move(near)) {}
  WordStream(AtomicFile& out, std::uint64_t offset) : out_(&out), offset_(offset) {}

  void push(std::uint32_t word) {
    buffer_.push_back(word);
    if (buffer_.size() == kBufferWords) spill();
  }
  void finish(AtomicFile& out, std::uint64_t offset);  // all of it is there then

 private:
  static constexpr std::size_t kBufferWords = std::size_t{1} << 16;
  void spill();

  std::string near_;
  AtomicFile* out_ = nullptr;
  std::uint64_t offset_ = 0;
  std::vector<std::uint32_t> buffer_;
  std::uint64_t spilled_ = 0;
  std::unique_ptr<ScratchFile> file_;
};

// A named file, mapped for reading and writing, that grows. Disk is taken before it is written to:
// running out of it under a mapping would be a bus error.
class MappedTable {
 public:
  MappedTable(std::string path, std::uint64_t most_bytes);  // of what is there, nothing is lost
  MappedTable(const MappedTable&) = delete;
  MappedTable& operator=(const MappedTable&) = delete;
  ~MappedTable();

  std::byte* grow(std::uint64_t bytes) {  // that many can be used
    if (bytes > reserved_) reserve(bytes);
    return data_;
  }
  std::byte* data() const { return data_; }
  void sync() const;

 private:
  void reserve(std::uint64_t bytes);

  std::string path_;
  std::uint64_t most_;
  std::uint64_t reserved_ = 0;
  int fd_ = -1;
  std::byte* data_ = nullptr;
};

}  // namespace dart
