#include "ngram_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "errors.h"

namespace dart {

TrieWriter::TrieWriter(std::string path, int order, std::uint64_t vocab_size,
                       const Fingerprint& fingerprint)
    : file_(std::move(path)), order_(order) {
  if (order < kMinOrder || order > kMaxOrder) {
    throw DataError("n-gram order " + std::to_string(order) + " is outside " +
                    std::to_string(kMinOrder) + " to " + std::to_string(kMaxOrder));
  }
  if (vocab_size < 1 || vocab_size > kMaxVocabSize) {
    throw DataError("vocabulary size " + std::to_string(vocab_size) + " is outside 1 to " +
                    std::to_string(kMaxVocabSize));
  }
  std::memcpy(header_.magic, kMagic.data(), sizeof header_.magic);
  header_.version = kVersion;
  header_.order = static_cast<std::uint32_t>(order);
  header_.vocab_size = vocab_size;
  header_.fingerprint = fingerprint;
  present_.resize(vocab_size);
  dense_count_.resize(vocab_size);
  dense_begin_.resize(vocab_size + 1);
  for (int depth = 0; depth <= order; ++depth) {
    token_.emplace_back(file_);
    count_.emplace_back(file_);
    begin_.emplace_back(file_);
  }
}

TrieWriter::TrieWriter(std::string path, std::string temporary,
                       std::span<const std::uint64_t> entries, std::uint64_t vocab_size)
    : TrieWriter(std::move(path), static_cast<int>(entries.size()), vocab_size, Fingerprint{}) {
  Header known = header_;
  std::ranges::copy(entries, known.entries);
  const Layout layout(known);
  out_ = std::make_unique<AtomicFile>(file_, std::move(temporary));
  out_->reserve(layout.file_size);
  for (int depth = 2; depth <= order_; ++depth) {
    const Layout::Level& level = layout.levels[depth];
    token_[depth] = WordStream(*out_, level.token);
    count_[depth] = WordStream(*out_, level.count);
    begin_[depth] = WordStream(*out_, level.begin);
  }
}

void TrieWriter::enter(int depth, std::uint32_t token, std::int64_t count) {
  if (!takes(depth, token)) {
    throw std::logic_error("n-grams must reach the writer in ascending path order");
  }
  close_from(depth);
  depth_ = depth;
  path_[depth - 1] = token;
  counts_[depth] = count;
  if (++entries(depth) > kMaxEntries) {
    throw DataError(file_ + " cannot be written: more than " + std::to_string(kMaxEntries) +
                    " n-grams of " + std::to_string(depth) + " tokens; reduce the input first");
  }
  if (depth == 1) {
    present_[token] = 1;
    while (begins_set_ <= token) {
      dense_begin_[begins_set_++] = static_cast<std::uint32_t>(entries(2));
    }
    return;
  }
  token_[depth].push(token);
  if (depth < order_) begin_[depth].push(static_cast<std::uint32_t>(entries(depth + 1)));
}

void TrieWriter::close_from(int depth) {
  for (; depth_ >= depth; --depth_) {
    const std::int64_t count = counts_[depth_];
    if (count > std::numeric_limits<std::int32_t>::max() ||
        count < std::numeric_limits<std::int32_t>::min()) {
      too_large("32");
    }
    const auto word = static_cast<std::uint32_t>(static_cast<std::int32_t>(count));
    if (depth_ == 1) {
      dense_count_[path_[0]] = word;
    } else {
      count_[depth_].push(word);
    }
  }
}

void TrieWriter::too_large(const char* bits) const {
  throw DataError(file_ + " cannot be written: a count of its n-grams takes more than " + bits +
                  " bits");
}

void TrieWriter::finish() {
  close_from(1);
  while (begins_set_ < dense_begin_.size()) {
    dense_begin_[begins_set_++] = static_cast<std::uint32_t>(entries(2));
  }
  for (int depth = 2; depth < order_; ++depth) {
    begin_[depth].push(static_cast<std::uint32_t>(entries(depth + 1)));
  }
  const Layout layout(header_);
  header_.root_total = counts_[0];
  header_.file_size = layout.file_size;
  header_.checksum = header_checksum(header_);

  if (!out_) {
    out_ = std::make_unique<AtomicFile>(file_);
    out_->reserve(layout.file_size);
  }
  out_->write_at(0, &header_, sizeof header_);
  const auto dense = [this](std::uint64_t offset, const auto& rows) {
    out_->write_at(offset, rows.data(), rows.size() * sizeof(rows[0]));
  };
  dense(layout.levels[1].token, present_);
  dense(layout.levels[1].count, dense_count_);
  dense(layout.levels[1].begin, dense_begin_);
  for (int depth = 2; depth <= order_; ++depth) {
    const Layout::Level& level = layout.levels[depth];
    token_[depth].finish(*out_, level.token);
    count_[depth].finish(*out_, level.count);
    if (depth < order_) begin_[depth].finish(*out_, level.begin);
  }
  out_->commit();
}

}  // namespace dart
