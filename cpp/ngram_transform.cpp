#include "ngram_transform.h"

#include <algorithm>
#include <list>

#include "errors.h"
#include "ngram_cursor.h"
#include "ngram_writer.h"

namespace dart {
namespace {

// One input of a merge. Its trie and cursor point at each other's neighbours: never moved.
struct Input {
  explicit Input(const std::string& path) : trie(path), cursor(trie), open(cursor.next()) {}
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  Trie trie;
  Cursor cursor;
  bool open;  // the cursor stands on an n-gram
};

Header common_header(const std::list<Input>& inputs) {
  Header header = inputs.front().trie.header();
  for (const Input& input : inputs) {
    const Header& other = input.trie.header();
    if (other.order != header.order) {
      throw DataError(input.trie.path() + " has order " + std::to_string(other.order) + ", " +
                      inputs.front().trie.path() + " has " + std::to_string(header.order) +
                      ": only files of one order can be merged");
    }
    if (header.fingerprint == Fingerprint{}) header.fingerprint = other.fingerprint;
    if (other.fingerprint != Fingerprint{} && other.fingerprint != header.fingerprint) {
      throw DataError(input.trie.path() + " was made with another tokenizer than " +
                      inputs.front().trie.path() + ": their token ids mean different things");
    }
    header.vocab_size = std::max(header.vocab_size, other.vocab_size);
  }
  return header;
}

}  // namespace

void merge_ngrams(const std::vector<std::string>& paths, const std::string& output) {
  if (paths.empty()) throw DataError("nothing to merge: name at least one n-gram file");
  std::list<Input> inputs;
  for (const std::string& path : paths) inputs.emplace_back(path);
  const Header header = common_header(inputs);
  TrieWriter writer(output, static_cast<int>(header.order), header.vocab_size, header.fingerprint);
  for (const Input& input : inputs) writer.add(0, input.trie.header().root_total);

  for (;;) {
    const Input* first = nullptr;
    for (const Input& input : inputs) {
      if (input.open && (first == nullptr || std::ranges::lexicographical_compare(
                                                 input.cursor.path(), first->cursor.path()))) {
        first = &input;
      }
    }
    if (first == nullptr) break;
    writer.enter(first->cursor.depth(), first->cursor.token());
    for (Input& input : inputs) {
      if (!input.open || !std::ranges::equal(input.cursor.path(), writer.path())) continue;
      writer.add(writer.depth(), input.cursor.count());
      input.open = input.cursor.next();
    }
  }
  writer.finish();
}

void reduce_ngram(const std::string& path, std::int64_t threshold, const std::string& output) {
  const Trie trie(path);
  const Header& header = trie.header();
  TrieWriter writer(output, trie.order(), header.vocab_size, header.fingerprint);
  Cursor cursor(trie);
  int kept = 0;  // depth of the last n-gram on the way to the cursor that is kept
  while (cursor.next()) {
    if (cursor.depth() > kept + 1) continue;  // below a dropped one
    kept = cursor.depth() - 1;
    if (cursor.count() >= threshold) {
      writer.enter(++kept, cursor.token(), cursor.count());
    } else {
      for (int depth = 0; depth <= kept; ++depth) writer.add(depth, -std::int64_t{cursor.count()});
    }
  }
  writer.finish();
}

}  // namespace dart
