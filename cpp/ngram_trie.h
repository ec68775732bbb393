// An n-gram file opened for reading: the arrays of ngram_format.h, mapped, and the lookup over
// them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "mapped_file.h"
#include "ngram_format.h"

namespace dart {

// Stands for any token that no trie can hold: negative or beyond the largest vocabulary.
inline constexpr std::uint32_t kNoToken = 0xFFFFFFFFu;

inline std::uint32_t to_token(std::int64_t id) {
  return id >= 0 && id < static_cast<std::int64_t>(kMaxVocabSize) ? static_cast<std::uint32_t>(id)
                                                                  : kNoToken;
}

// The children of one node: tokens ascending, probability of child i = count(i) * scale in float32.
struct Children {
  const std::uint32_t* tokens = nullptr;
  const std::int32_t* counts = nullptr;
  std::uint32_t size = 0;
  float scale = 0.0F;

  float probability(std::uint32_t child) const { return static_cast<float>(counts[child]) * scale; }
};

class Trie {
 public:
  // Checks header and size, reads nothing else. Throws DataError or IoError.
  explicit Trie(const std::string& path);

  int order() const { return static_cast<int>(header_.order); }
  const Header& header() const { return header_; }
  const std::string& path() const { return path_; }
  void prefetch() const { file_.prefetch(); }

  struct Level {
    std::uint32_t rows = 0;
    const std::uint8_t* present = nullptr;  // level 1 only
    const std::uint32_t* token = nullptr;   // levels 2 and up
    const std::int32_t* count = nullptr;
    const std::uint32_t* begin = nullptr;  // all but the last level
  };
  const Level& level(int depth) const { return levels_[depth]; }

  // Children of the node reached by `path` (1 .. order-1 tokens); nothing where there is no such
  // node or it has no children. Safe whatever the file holds.
  Children children(std::span<const std::uint32_t> path) const;

  // Has what children() begins with on its way from memory, for a path of one token.
  void fetch(std::uint32_t token) const {
    if (token >= levels_[1].rows) return;
    __builtin_prefetch(levels_[1].begin + token);
    __builtin_prefetch(levels_[1].count + token);
  }

  // Probability of each of `tokens` after `context`, from the longest suffix of it (at most order-1
  // tokens) that the token follows; `matched` is that suffix' length, 0 with probability 0 if none.
  void query(std::span<const std::int64_t> context, std::span<const std::int64_t> tokens,
             float* probabilities, std::int32_t* matched) const;

 private:
  MappedFile file_;
  std::string path_;
  Header header_{};
  std::array<Level, kMaxOrder + 1> levels_{};
};

// Calls found(rank, child) for every one of `tokens` that is among the children; rank is its index.
// A block of binary searches runs in step: no branch to mispredict, and their loads overlap.
template <typename Found>
void match(const Children& children, std::span<const std::uint32_t> tokens, Found&& found) {
  constexpr std::size_t kBlock = 32;
  if (children.size == 0) return;
  for (std::size_t first = 0; first < tokens.size(); first += kBlock) {
    const std::size_t count = std::min(kBlock, tokens.size() - first);
    const std::uint32_t* const wanted = tokens.data() + first;
    std::uint32_t low[kBlock] = {};
    for (std::uint32_t length = children.size; length > 1;) {
      const std::uint32_t half = length / 2;
      for (std::size_t i = 0; i < count; ++i) {
        low[i] += half & -static_cast<std::uint32_t>(children.tokens[low[i] + half] <= wanted[i]);
      }
      length -= half;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (children.tokens[low[i]] == wanted[i]) {
        found(static_cast<std::uint32_t>(first + i), low[i]);
      }
    }
  }
}

}  // namespace dart
