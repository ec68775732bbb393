// Writes an n-gram file from n-grams that arrive in ascending path order, in bounded memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ngram_format.h"
#include "output_file.h"

namespace dart {

class TrieWriter {
 public:
  TrieWriter(std::string path, int order, std::uint64_t vocab_size, const Fingerprint& fingerprint);

  // For n-grams whose number per level is known: written straight to their place in `temporary`.
  TrieWriter(std::string path, std::string temporary, std::span<const std::uint64_t> entries,
             std::uint64_t vocab_size);

  // Opens the n-gram that ends in `token` at `depth` (1 .. order) below the open one at depth-1,
  // and closes all open ones from `depth` on. Siblings come in ascending token order.
  void enter(int depth, std::uint32_t token, std::int64_t count = 0);

  // Can enter() be called so?
  bool takes(int depth, std::uint32_t token) const {
    return depth >= 1 && depth <= order_ && depth <= depth_ + 1 && token < header_.vocab_size &&
           (depth > depth_ || token > path_[depth - 1]);
  }

  // Adds to the count of the open n-gram at `depth`; depth 0 is the root.
  void add(int depth, std::int64_t count) {
    if (__builtin_add_overflow(counts_[depth], count, &counts_[depth])) too_large("64");
  }

  int depth() const { return depth_; }                                           // of the open path
  std::uint64_t written(int depth) const { return header_.entries[depth - 1]; }  // so far
  std::span<const std::uint32_t> path() const { return {path_.data(), std::size_t(depth_)}; }

  // Closes everything and puts the file in place, whole.
  void finish();

 private:
  void close_from(int depth);
  [[noreturn]] void too_large(const char* bits) const;
  std::uint64_t& entries(int depth) { return header_.entries[depth - 1]; }

  std::string file_;
  std::unique_ptr<AtomicFile> out_;
  Header header_{};
  int order_;
  int depth_ = 0;
  std::array<std::uint32_t, kMaxOrder> path_{};
  std::array<std::int64_t, kMaxOrder + 1> counts_{};

  // Level 1 is dense and small; the other levels are streams. Index = depth.
  std::vector<std::uint8_t> present_;
  std::vector<std::uint32_t> dense_count_, dense_begin_;
  std::uint32_t begins_set_ = 0;
  std::vector<WordStream> token_, count_, begin_;
};

}  // namespace dart
