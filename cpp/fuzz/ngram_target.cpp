// An n-gram file from anywhere: opened, asked, walked through, and drafted with.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "fuzz.h"
#include "ngram_cursor.h"
#include "ngram_trie.h"
#include "tree_pruner.h"

namespace dart::fuzz {
namespace {

constexpr std::int64_t kHostile[] = {-1,
                                     0,
                                     1,
                                     5,
                                     11,
                                     12,
                                     1 << 22,
                                     std::int64_t{1} << 32,
                                     std::numeric_limits<std::int64_t>::max(),
                                     std::numeric_limits<std::int64_t>::min()};

void ask(const Trie& trie, Choices& choices) {
  std::array<std::int64_t, 9> context;
  for (std::int64_t& token : context) {
    token = choices.flag() ? kHostile[choices.byte() % std::size(kHostile)] : choices.byte() % 13;
  }
  std::array<std::int64_t, 40> tokens;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = i < std::size(kHostile) ? kHostile[i] : static_cast<std::int64_t>(i) % 14;
  }
  std::array<float, tokens.size()> probabilities;
  std::array<std::int32_t, tokens.size()> matched;
  for (std::size_t length = 0; length <= context.size(); ++length) {
    trie.query(std::span(context).last(length), tokens, probabilities.data(), matched.data());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      require(matched[i] >= 0 && matched[i] < trie.order(), "a match of an impossible length");
      require(matched[i] > 0 || probabilities[i] == 0.0F, "a probability of what is not there");
    }
  }
}

void draft(std::shared_ptr<const Trie> trie) {
  constexpr int kLevels = 4, kWidth = 6, kBudget = 12;
  const std::vector<float> weights(kLevels, 1.0F);
  TreePruner pruner(std::move(trie), {kLevels, 5, 0.5F, weights, weights, {3}});
  std::array<std::int64_t, kLevels * kWidth> tokens;
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int64_t>(i % 13);
  const std::vector<float> probabilities(tokens.size(), 1.0F / kWidth);
  const std::vector<std::int32_t> counts(kLevels, kWidth);
  const std::array<std::int64_t, 3> context{1, 2, 3};
  std::array<std::int64_t, kBudget + 1> nodes;
  std::array<std::int32_t, kBudget + 1> parents;
  std::array<float, kBudget + 1> scores, head, ngram;
  const int count = pruner.search(
      {tokens.data(), probabilities.data(), counts.data(), kLevels, kWidth, context, kBudget},
      {nodes.data(), parents.data(), scores.data(), head.data(), ngram.data()});
  require(count == kBudget + 1, "a tree that is smaller than its budget");
  for (int node = 1; node < count; ++node) {
    require(parents[node] >= 0 && parents[node] < node, "a node that comes before its parent");
    require(std::isfinite(scores[node]), "a score that is no number");
  }
}

// All n-grams; whatever is walked past is found by looking it up.
void walk(const Trie& trie) {
  Cursor cursor(trie);
  while (cursor.next()) {
    const auto path = cursor.path();
    if (path.size() < 2) continue;
    const Children children = trie.children(path.first(path.size() - 1));
    const auto* const end = children.tokens + children.size;
    const auto* const at = std::lower_bound(children.tokens, end, path.back());
    require(
        at != end && *at == path.back() && children.counts[at - children.tokens] == cursor.count(),
        "an n-gram that is in the file and cannot be looked up");
  }
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> found;
  for (int order = kMinOrder; order <= kMaxOrder; ++order) {
    for (const int tokens : {0, 1, 40, 120}) {
      Bytes seed = small_ngram(order, 12, tokens, static_cast<std::uint32_t>(order + tokens));
      seed.resize(seed.size() + Choices::kBytes);
      found.push_back(std::move(seed));
    }
  }
  return found;
}

}  // namespace dart::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dart::fuzz;
  static const Folder folder;
  Choices choices({data, size});
  const bool raw = choices.byte() % 8 == 1, sized = choices.byte() % 4 != 1;
  std::array<std::uint8_t, Choices::kBytes> asked;
  std::ranges::generate(asked, [&choices] { return choices.byte(); });
  Choices questions(asked);
  Bytes content(choices.rest().begin(), choices.rest().end());
  if (!raw) content = resealed(std::move(content), sized);
  folder.write("x.ngram", content);

  Input input((std::uint64_t{2} << 20) + 8 * content.size());
  std::shared_ptr<const dart::Trie> trie;
  if (!folder.accepts([&] { trie = std::make_shared<const dart::Trie>(folder.path("x.ngram")); })) {
    return 0;
  }
  ask(*trie, questions);
  draft(trie);
  input.done(folder.accepts([&] {
    dart::CanonicalText text(*trie);
    while (!text.next_chunk().empty()) {
    }
    walk(*trie);
  }));
  return 0;
}
