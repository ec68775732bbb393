#include "ngram_trie.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "errors.h"

namespace dart {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw DataError(path + " is not a usable n-gram file: " + reason);
}

Header checked_header(const MappedFile& file, const std::string& path) {
  const std::string size = std::to_string(file.size());
  Header header;
  if (file.size() < sizeof(Header)) {
    refuse(path,
           "it has " + size + " bytes, fewer than the header's " + std::to_string(sizeof(Header)));
  }
  std::memcpy(&header, file.data(), sizeof(Header));
  if (std::string_view(header.magic, sizeof header.magic) != kMagic) {
    refuse(path, "it does not start with " + std::string(kMagic) +
                     "; a published .trie is imported first (python -m dart_core ngram import)");
  }
  if (header.checksum != header_checksum(header)) refuse(path, "its header is damaged");
  if (header.version != kVersion) {
    refuse(path, "it has version " + std::to_string(header.version) + ", this program reads " +
                     std::to_string(kVersion));
  }
  if (header.order < kMinOrder || header.order > kMaxOrder) {
    refuse(path, "its order is " + std::to_string(header.order) + ", expected " +
                     std::to_string(kMinOrder) + " to " + std::to_string(kMaxOrder));
  }
  if (header.vocab_size < 1 || header.vocab_size > kMaxVocabSize) {
    refuse(path, "its vocabulary size is " + std::to_string(header.vocab_size) +
                     ", expected 1 to " + std::to_string(kMaxVocabSize));
  }
  for (std::uint32_t depth = 1; depth <= header.order; ++depth) {
    const std::uint64_t limit = depth == 1 ? header.vocab_size : kMaxEntries;
    if (header.entries[depth - 1] > limit) {
      refuse(path, "level " + std::to_string(depth) + " claims " +
                       std::to_string(header.entries[depth - 1]) + " entries, more than the " +
                       std::to_string(limit) + " possible");
    }
  }
  const std::uint64_t expected = Layout(header).file_size;
  if (header.file_size != expected || file.size() != expected) {
    refuse(path, "it has " + size + " bytes, its header says " + std::to_string(expected) +
                     (file.size() < expected ? " (truncated?)" : ""));
  }
  return header;
}

}  // namespace

Trie::Trie(const std::string& path)
    : file_(path), path_(path), header_(checked_header(file_, path)) {
  const Layout layout(header_);
  for (int depth = 1; depth <= order(); ++depth) {
    const Layout::Level& at = layout.levels[depth];
    Level& level = levels_[depth];
    level.rows = static_cast<std::uint32_t>(at.rows);
    const std::byte* const base = file_.data();
    level.count = reinterpret_cast<const std::int32_t*>(base + at.count);
    if (depth == 1) {
      level.present = reinterpret_cast<const std::uint8_t*>(base + at.token);
    } else {
      level.token = reinterpret_cast<const std::uint32_t*>(base + at.token);
    }
    if (depth == order()) continue;
    level.begin = reinterpret_cast<const std::uint32_t*>(base + at.begin);
    if (level.begin[0] != 0 || level.begin[level.rows] != header_.entries[depth]) {
      refuse(path, "level " + std::to_string(depth) + " does not cover level " +
                       std::to_string(depth + 1));
    }
  }
}

Children Trie::children(std::span<const std::uint32_t> path) const {
  Children node;
  std::uint32_t row = path[0];
  if (row >= levels_[1].rows) return node;
  for (int depth = 1;; ++depth) {
    const Level& level = levels_[depth];
    const Level& below = levels_[depth + 1];
    const std::uint32_t end = std::min(level.begin[row + 1], below.rows);
    const std::uint32_t begin = std::min(level.begin[row], end);
    if (depth == static_cast<int>(path.size())) {
      node.tokens = below.token + begin;
      node.counts = below.count + begin;
      node.size = std::min(end - begin, levels_[1].rows);  // more only if the file is damaged
      node.scale = 1.0F / static_cast<float>(level.count[row]);
      return node;
    }
    const std::uint32_t* const stop = below.token + end;
    const std::uint32_t* const at = std::lower_bound(below.token + begin, stop, path[depth]);
    if (at == stop || *at != path[depth]) return node;
    row = static_cast<std::uint32_t>(at - below.token);
  }
}

void Trie::query(std::span<const std::int64_t> context, std::span<const std::int64_t> tokens,
                 float* probabilities, std::int32_t* matched) const {
  std::fill_n(probabilities, tokens.size(), 0.0F);
  std::fill_n(matched, tokens.size(), 0);

  std::vector<std::uint32_t> wanted(tokens.size());
  std::ranges::transform(tokens, wanted.begin(), to_token);

  std::array<std::uint32_t, kMaxOrder> tail;
  const int longest = static_cast<int>(std::min<std::size_t>(context.size(), order() - 1));
  for (int i = 0; i < longest; ++i) tail[i] = to_token(context[context.size() - longest + i]);

  for (int length = 1; length <= longest; ++length) {  // a longer match overwrites a shorter one
    const Children node = children({tail.data() + longest - length, std::size_t(length)});
    match(node, wanted, [&](std::uint32_t rank, std::uint32_t child) {
      probabilities[rank] = node.probability(child);
      matched[rank] = length;
    });
  }
}

}  // namespace dart
