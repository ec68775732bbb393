// N-gram files from anywhere merged and reduced, and token streams of any kind counted.
#include <algorithm>
#include <cstring>
#include <limits>

#include "fuzz.h"
#include "ngram_builder.h"
#include "ngram_cursor.h"
#include "ngram_transform.h"

namespace dart::fuzz {
namespace {

struct Text {
  std::string root, ngrams;
  bool operator==(const Text&) const = default;
};

Text canonical(const std::string& path) {
  const Trie trie(path);
  CanonicalText text(trie);
  std::string whole;
  for (std::string chunk = text.next_chunk(); !chunk.empty(); chunk = text.next_chunk()) {
    whole += chunk;
  }
  const std::size_t line = whole.find('\n') + 1;
  return {whole.substr(0, line), whole.substr(line)};
}

bool merge_and_reduce(const Folder& folder, std::int64_t threshold) {
  const std::string one = folder.path("x.ngram"), other = folder.path("y.ngram");
  const auto output = [&folder](const char* name) { return folder.path(name); };
  const bool whole = folder.accepts([&] { canonical(one); });
  if (folder.accepts([&] { merge_ngrams({one}, output("alone")); })) {
    require(whole && canonical(output("alone")) == canonical(one), "a merge of one changes it");
  } else {
    require(!whole, "a whole file is refused");
  }
  if (folder.accepts([&] { merge_ngrams({one, other}, output("both")); })) {
    merge_ngrams({other, one}, output("reverse"));
    require(canonical(output("both")) == canonical(output("reverse")), "a merge with an order");
  }
  folder.accepts([&] { merge_ngrams({one, one, one}, output("thrice")); });
  if (folder.accepts(
          [&] { reduce_ngram(one, std::numeric_limits<std::int64_t>::min(), output("same")); })) {
    require(canonical(output("same")).ngrams == canonical(one).ngrams, "nothing to drop, and less");
  }
  if (folder.accepts([&] { reduce_ngram(one, threshold, output("reduced")); })) {
    canonical(output("reduced"));
  }
  return whole;
}

bool count(const Folder& folder, std::span<const std::uint8_t> content, Choices& choices) {
  const int order = choices.among({3, 2, 4, 5, 6, 7, 8, 1, 9, 0, -1});
  const auto vocab_size = choices.among<std::uint64_t>({13, 1, 256, 5000, 0, kMaxVocabSize + 1});
  const bool wild = choices.byte() % 4 == 1;
  const std::size_t pieces = 1 + choices.byte() % 3;
  std::vector<std::int64_t> tokens;
  if (wild) {
    tokens.resize(content.size() / 8);
    if (!tokens.empty()) std::memcpy(tokens.data(), content.data(), 8 * tokens.size());
  } else {
    std::ranges::transform(content, std::back_inserter(tokens), [&](std::uint8_t byte) {
      return static_cast<std::int64_t>(byte % std::max<std::uint64_t>(vocab_size, 1));
    });
  }
  const auto build = [&] {
    const auto builder = NgramBuilder::make(folder.path("built"), order, vocab_size, {}, 0);
    for (std::size_t i = 0; i < pieces; ++i) builder->add(tokens);
    builder->finish();
  };
  const bool accepted = folder.accepts(build, /*named=*/false);
  if (accepted) {
    require(
        canonical(folder.path("built")).root == ":" + std::to_string(pieces * tokens.size()) + "\n",
        "tokens that were not counted");
  }
  return accepted;
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> found;
  for (int order = kMinOrder; order <= kMaxOrder; ++order) {
    for (const int tokens : {1, 60}) {
      for (const std::uint8_t way : {0, 1, 2}) {
        Bytes seed = small_ngram(order, 12, tokens, static_cast<std::uint32_t>(order));
        seed.resize(seed.size() + Choices::kBytes);
        seed.back() = way;
        found.push_back(std::move(seed));
      }
    }
  }
  return found;
}

}  // namespace dart::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dart::fuzz;
  static const Folder folder;
  static const Bytes neighbour = small_ngram(3, 20, 50, 99);
  folder.clear();
  Choices choices({data, size});
  const std::uint8_t way = choices.byte();
  std::uint8_t told[8];
  std::ranges::generate(told, [&choices] { return choices.byte(); });
  Choices later(told);
  const auto rest = choices.rest();
  Bytes content(rest.begin(), rest.end());

  // A vocabulary takes 9 bytes a token in a writer; buffers of words grow by doubling.
  Input input((std::uint64_t{2} << 20) + 32 * content.size());
  bool accepted = false;
  if (way % 4 == 3) {
    accepted = count(folder, content, later);
  } else {
    if (way % 4 != 1) content = resealed(std::move(content), way % 4 == 2);
    folder.write("x.ngram", content);
    folder.write("y.ngram", later.flag() ? neighbour : content);
    accepted = merge_and_reduce(folder, later.among<std::int64_t>({2, 0, 1, -5, 1000, 1ll << 40}));
  }
  input.done(accepted);
  for (const std::string& name : folder.names()) {
    require(name.find(".partial") == std::string::npos, "a part that stays behind: " + name);
  }
  return 0;
}
