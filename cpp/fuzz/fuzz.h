// What the fuzz targets share. Each of them is a program: fuzz.cpp, one *_target.cpp, and either
// libFuzzer or mutator.cpp around them. launch/fuzz.sh builds and runs all.
//
// A target may refuse an input, in words that name the file, or take it. All else is a fault and
// ends the process: what the sanitizers find, an unmet require(), another exception than the two of
// errors.h, memory beyond a bound that goes by the input's size, and a file that stays behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dart::fuzz {

using Bytes = std::vector<std::uint8_t>;

struct Tally {
  std::uint64_t accepted = 0, refused = 0;
};
inline Tally* tally = nullptr;  // of this run; mutator.cpp puts it where it outlives a crash

// Inputs to start from, made by the target.
std::vector<Bytes> seeds();

// Ends the process with a report of what does not hold.
void require(bool holds, std::string_view what);

// An input's last bytes, taken from the end: what to do with those before them.
class Choices {
 public:
  static constexpr std::size_t kBytes = 16;
  explicit Choices(std::span<const std::uint8_t> input) : rest_(input) {}

  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t last = rest_.back();
    rest_ = rest_.first(rest_.size() - 1);
    return last;
  }
  bool flag() { return byte() % 2 == 1; }
  template <typename T>
  T among(std::initializer_list<T> known) {
    return known.begin()[byte() % known.size()];
  }
  std::span<const std::uint8_t> rest() const { return rest_; }

 private:
  std::span<const std::uint8_t> rest_;
};

// A folder of this process in TMPDIR, empty at first.
class Folder {
 public:
  Folder();
  ~Folder();
  std::string path(std::string_view name) const { return path_ + "/" + std::string(name); }
  void write(std::string_view name, std::span<const std::uint8_t> content) const;
  Bytes read(std::string_view name) const;
  std::vector<std::string> names() const;
  std::uint64_t bytes() const;  // of all files
  void clear() const;

  // True if `use` succeeds. A refusal must have words, and name a file in here if `named`.
  bool accepts(const std::function<void()>& use, bool named = true) const;

 private:
  std::string path_;
};

// Counts an input, and sees to its memory: from construction on at most `bytes` more.
class Input {
 public:
  explicit Input(std::uint64_t bytes);
  ~Input();
  void done(bool accepted) { accepted_ = accepted; }

 private:
  std::int64_t limit_;
  bool accepted_ = false;
};

// A small n-gram file over tokens below `vocab_size`, as content; the same for the same `salt`.
Bytes small_ngram(int order, std::uint64_t vocab_size, int tokens, std::uint32_t salt);

// Content with a header that its checksum agrees with, as an attacker would make it; with `sized`,
// also of the size that the header asks for, where that is small.
Bytes resealed(Bytes content, bool sized);

}  // namespace dart::fuzz
