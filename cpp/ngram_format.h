// The n-gram file, version 1: a trie as plain arrays (CSR), little-endian, exact counts.
//
//   header                       256 bytes
//   level 1, dense by token id   present u8[V], count i32[V], begin u32[V + 1]
//   levels 2 .. order-1          token u32[E], count i32[E], begin u32[E + 1]
//   level order                  token u32[E], count i32[E]
//
// V is the vocabulary size, E the entries of the level. Every section starts at a multiple of 64
// bytes. The children of entry i are the entries begin[i] .. begin[i + 1] of the next level, in
// ascending token order. Counts are signed and presence at level 1 is kept apart from the count,
// because the published library's `reduce` leaves nodes of count 0 in place and drives the root's
// total below zero; so every published file converts without loss.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace dart {

static_assert(std::endian::native == std::endian::little, "the n-gram file is little-endian");

inline constexpr std::string_view kMagic = "DARTNGRM";
inline constexpr std::uint32_t kVersion = 1;
inline constexpr int kMinOrder = 2;
inline constexpr int kMaxOrder = 8;
inline constexpr std::uint64_t kMaxVocabSize = std::uint64_t{1} << 22;
inline constexpr std::uint64_t kMaxEntries = 0xFFFFFFFFu;  // of one level: indices are 32 bits
inline constexpr std::uint64_t kAlignment = 64;

using Fingerprint = std::array<std::uint8_t, 32>;  // sha256 of the tokenizer, zero if unknown

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t order;
  std::uint64_t vocab_size;
  std::int64_t root_total;
  std::uint64_t file_size;
  std::uint64_t entries[kMaxOrder];  // of levels 1 .. order; level 1: tokens present
  Fingerprint fingerprint;
  std::uint8_t reserved[112];
  std::uint64_t checksum;  // FNV-1a of the bytes before it
};
static_assert(sizeof(Header) == 256 && offsetof(Header, checksum) == 248);

inline std::uint64_t header_checksum(const Header& header) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&header);
  for (std::size_t i = 0; i < offsetof(Header, checksum); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001B3u;
  }
  return hash;
}

// Where the sections of a file with this header lie.
struct Layout {
  struct Level {
    std::uint64_t rows = 0;   // V at level 1, else the entries
    std::uint64_t token = 0;  // offsets in bytes; `token` is `present` at level 1
    std::uint64_t count = 0;
    std::uint64_t begin = 0;  // 0 at the last level, which has none
  };
  std::array<Level, kMaxOrder + 1> levels{};  // index 0 unused
  std::uint64_t file_size = 0;

  explicit Layout(const Header& header) {
    std::uint64_t offset = sizeof(Header);
    const auto section = [&offset](std::uint64_t bytes) {
      const std::uint64_t start = (offset + kAlignment - 1) / kAlignment * kAlignment;
      offset = start + bytes;
      return start;
    };
    const int order = static_cast<int>(header.order);
    for (int depth = 1; depth <= order; ++depth) {
      Level& level = levels[depth];
      level.rows = depth == 1 ? header.vocab_size : header.entries[depth - 1];
      level.token = section(level.rows * (depth == 1 ? 1 : sizeof(std::uint32_t)));
      level.count = section(level.rows * sizeof(std::int32_t));
      if (depth < order) level.begin = section((level.rows + 1) * sizeof(std::uint32_t));
    }
    file_size = offset;
  }
};

}  // namespace dart
