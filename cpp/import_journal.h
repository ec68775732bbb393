// How far an import is, kept on disk: whatever ends the process, the next one goes on from there.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ngram_format.h"

namespace dart {

struct ImportJournal {
  std::uint64_t nodes_read = 0;
  std::uint64_t offset = 0;    // in the input, of the next node
  std::uint64_t parents = 0;   // nodes with children, so far
  std::uint64_t edges_up = 0;  // see edge_hash
  std::uint64_t edges_down = 0;
  std::uint64_t largest_token = 0;  // plus one
  std::int64_t root_count = 0;
  std::array<std::uint64_t, kMaxOrder> entries{};  // n-grams by length, from 1 on
  std::vector<std::uint64_t> run_ends;             // in records

  // Puts the journal in place, whole. What it speaks of must be on the disk already.
  void save(const std::string& path, const std::string& identity) const;

  // Can an import of `nodes` nodes from a file of `bytes` bytes have come so far?
  bool fits(std::uint64_t nodes, std::uint64_t bytes) const;

  // Nothing where there is none, a damaged one, or one for another import.
  static std::optional<ImportJournal> load(const std::string& path, const std::string& identity);
};

}  // namespace dart
