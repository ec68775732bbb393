// Visits every n-gram of a file in ascending path order, each before its extensions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "ngram_trie.h"

namespace dart {

// Checks the structure as it goes: every entry is reached exactly once, children ascend, tokens lie
// in the vocabulary. A damaged file throws DataError and never makes it loop or read outside.
class Cursor {
 public:
  explicit Cursor(const Trie& trie) : trie_(&trie) {}

  // To the next n-gram; false when there is none left.
  bool next();

  int depth() const { return depth_; }
  std::span<const std::uint32_t> path() const { return {path_.data(), std::size_t(depth_)}; }
  std::uint32_t token() const { return path_[depth_ - 1]; }
  std::int32_t count() const { return trie_->level(depth_).count[row_[depth_]]; }

 private:
  bool next_first_token();
  bool descend();
  void enter(std::uint32_t row);
  [[noreturn]] void damaged(const std::string& what) const;

  const Trie* trie_;
  int depth_ = 0;                 // 0 before the first and after the last
  std::uint32_t next_token_ = 0;  // of level 1
  std::array<std::uint32_t, kMaxOrder> path_{};
  std::array<std::uint32_t, kMaxOrder + 1> row_{};  // by depth: where we are
  std::array<std::uint32_t, kMaxOrder + 1> end_{};  // by depth: where the siblings end
};

// The n-grams as text, "t1,t2,..:count\n" each and the root (no token) first: the canonical form
// whose sha256 tells whether two files hold the same n-grams.
class CanonicalText {
 public:
  explicit CanonicalText(const Trie& trie) : trie_(&trie), cursor_(trie) {}

  // About a megabyte of text, empty at the end.
  std::string next_chunk();

 private:
  const Trie* trie_;
  Cursor cursor_;
  bool started_ = false;
};

}  // namespace dart
