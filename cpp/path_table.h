// What is needed to know a node's n-gram when only its parent's number is given: the n-grams of all
// nodes that have children, by number, in two mapped files.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "output_file.h"

namespace dart {

// Nodes come in ascending order of their numbers. A bitmap, with the number of ones before each of
// its words, gives the row of a node's path; so leaves, two of three nodes, take two bits.
// A path is `Width` tokens plus one, zeros behind its end.
template <int Width>
class PathTable {
 public:
  using Path = std::array<std::uint32_t, Width>;

  PathTable(const std::string& folder, std::uint64_t nodes)
      : words_(folder + "/parents", (nodes / 64 + 1) * sizeof(Word)),
        paths_(folder + "/paths", nodes * sizeof(Path)) {}

  // Forgets all from `node` on, which is the next one; `rows` paths came before it.
  void go_on_at(std::uint64_t node, std::uint64_t rows) {
    rows_ = rows;
    if (node % 64 == 0) return;  // begin() makes the word
    words_.grow((node / 64 + 1) * sizeof(Word));
    word(node).bits &= bit(node) - 1;
  }

  // For every node, in order.
  void begin(std::uint64_t node) {
    if (node % 64 != 0) return;
    words_.grow((node / 64 + 1) * sizeof(Word));
    word(node) = Word{0, rows_};
  }

  // For every node that has children, after begin().
  void add(std::uint64_t node, const Path& path) {
    word(node).bits |= bit(node);
    std::byte* const data = paths_.grow((rows_ + 1) * sizeof(Path));
    std::memcpy(data + rows_++ * sizeof(Path), &path, sizeof(Path));
  }

  // The path of a node that came already; false if it has no children.
  bool find(std::uint64_t node, Path& path) const {
    const std::uint64_t at = row(node);
    if ((word(node).bits & bit(node)) == 0 || at >= rows_) return false;
    std::memcpy(&path, paths_.data() + at * sizeof(Path), sizeof(Path));
    return true;
  }

  // Both parts of find(), for a node that came already, begin with a wait for memory; these two,
  // called some time before it in this order, shorten that.
  void fetch_word(std::uint64_t node) const { __builtin_prefetch(&word(node)); }
  void fetch_path(std::uint64_t node) const {
    if (const std::uint64_t at = row(node); at < rows_) {
      __builtin_prefetch(paths_.data() + at * sizeof(Path));
    }
  }

  std::uint64_t rows() const { return rows_; }

  void sync() const {
    words_.sync();
    paths_.sync();
  }

 private:
  struct Word {
    std::uint64_t bits;
    std::uint64_t before;
  };

  static std::uint64_t bit(std::uint64_t node) { return std::uint64_t{1} << (node % 64); }
  Word& word(std::uint64_t node) const { return reinterpret_cast<Word*>(words_.data())[node / 64]; }
  // Beyond `rows_` where a file that an earlier process left has been damaged since.
  std::uint64_t row(std::uint64_t node) const {
    const Word& here = word(node);
    return here.before + static_cast<std::uint64_t>(std::popcount(here.bits & (bit(node) - 1)));
  }

  MappedTable words_, paths_;
  std::uint64_t rows_ = 0;
};

}  // namespace dart
