#include "ngram_cursor.h"

#include <charconv>

#include "errors.h"

namespace dart {

void Cursor::damaged(const std::string& what) const {
  throw DataError(trie_->path() + " is damaged: " + what + " at level " + std::to_string(depth_));
}

bool Cursor::next() {
  if (depth_ > 0 && descend()) return true;
  while (depth_ > 1 && row_[depth_] + 1 == end_[depth_]) --depth_;
  if (depth_ <= 1) return next_first_token();
  const std::uint32_t before = path_[depth_ - 1];
  enter(row_[depth_] + 1);
  if (path_[depth_ - 1] <= before) damaged("children out of order");
  return true;
}

bool Cursor::next_first_token() {
  const Trie::Level& level = trie_->level(1);
  depth_ = 1;
  while (next_token_ < level.rows) {
    const std::uint32_t token = next_token_++;
    row_[1] = path_[0] = token;
    if (level.present[token] == 1) return true;
    if (level.present[token] != 0 || level.count[token] != 0 ||
        level.begin[token] != level.begin[token + 1]) {
      damaged("an absent token with contents");
    }
  }
  depth_ = 0;
  return false;
}

// To the first child. The ranges of a level begin at 0, end at its size (Trie saw to that) and meet
// each other; so if none runs backwards, they reach every entry once.
bool Cursor::descend() {
  if (depth_ == trie_->order()) return false;
  const Trie::Level& level = trie_->level(depth_);
  const std::uint32_t begin = level.begin[row_[depth_]];
  const std::uint32_t end = level.begin[row_[depth_] + 1];
  if (end < begin || end > trie_->level(depth_ + 1).rows) damaged("a broken child range");
  if (begin == end) return false;
  ++depth_;
  end_[depth_] = end;
  enter(begin);
  return true;
}

void Cursor::enter(std::uint32_t row) {
  row_[depth_] = row;
  path_[depth_ - 1] = trie_->level(depth_).token[row];
  if (path_[depth_ - 1] >= trie_->header().vocab_size) damaged("a token outside the vocabulary");
}

std::string CanonicalText::next_chunk() {
  constexpr std::size_t kChunk = std::size_t{1} << 20;
  std::string text;
  const auto number = [&text](std::int64_t value, char after) {
    char digits[24];
    const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
    text.append(digits, end);
    text.push_back(after);
  };
  if (!started_) {
    started_ = true;
    text = ":";
    number(trie_->header().root_total, '\n');
  }
  while (text.size() < kChunk && cursor_.next()) {
    const auto path = cursor_.path();
    for (std::size_t i = 0; i < path.size(); ++i) {
      number(path[i], i + 1 < path.size() ? ',' : ':');
    }
    number(cursor_.count(), '\n');
  }
  return text;
}

}  // namespace dart
