// The draft tree's search over candidates of any kind, with and without an n-gram.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "fuzz.h"
#include "ngram_trie.h"
#include "tree_pruner.h"

namespace dart::fuzz {
namespace {

// Values from an input's front; zeros once it is used up.
class Values {
 public:
  explicit Values(std::span<const std::uint8_t> input) : rest_(input) {}

  template <typename T>
  T take() {
    T value{};
    const std::size_t size = std::min(sizeof(T), rest_.size());
    if (size > 0) std::memcpy(&value, rest_.data(), size);
    rest_ = rest_.subspan(size);
    return value;
  }
  template <typename T>
  std::vector<T> take(std::size_t count) {
    std::vector<T> values(count);
    for (T& value : values) value = take<T>();
    return values;
  }
  std::size_t size() const { return rest_.size(); }

 private:
  std::span<const std::uint8_t> rest_;
};

float weight(Choices& choices, Values& values) {
  return choices.byte() % 4 == 1 ? values.take<float>()
                                 : choices.among({1.0F, 0.0F, 0.5F, 1e6F, 1e-30F});
}

struct Call {
  std::vector<std::int64_t> tokens, context;
  std::vector<float> probabilities;
  std::vector<std::int32_t> counts;
  PrunerInput input;
};

// Tokens and probabilities are few and alike, as scores must tie, or any bits at all.
Call make_call(Choices& choices, Values& values, int levels) {
  Call call;
  const std::uint8_t shape = choices.byte();
  const auto width = static_cast<std::size_t>(choices.among({5, 0, 1, 3, 24, 200}));
  const auto rows = static_cast<std::size_t>(shape % 16 == 1 ? levels + 1 : levels);
  const bool wild = choices.flag();
  for (std::size_t i = 0; i < rows * width; ++i) {
    call.tokens.push_back(wild ? values.take<std::int64_t>() : values.take<std::uint8_t>() % 13);
    call.probabilities.push_back(wild ? values.take<float>()
                                      : static_cast<float>(values.take<std::uint8_t>() % 8) / 7.0F);
  }
  for (std::size_t row = 0; row < rows; ++row) {
    call.counts.push_back(shape % 8 == 2 ? values.take<std::int32_t>()
                                         : static_cast<std::int32_t>(width));
  }
  call.context = values.take<std::int64_t>(shape % 32 == 3 ? 0 : 1 + shape % 9);
  const int budget = choices.among({12, 0, 1, 60, 4096, -1, std::numeric_limits<int>::min()});
  call.input = {call.tokens.data(),
                call.probabilities.data(),
                call.counts.data(),
                static_cast<int>(rows),
                static_cast<int>(shape % 64 == 4 ? -1 : static_cast<int>(width)),
                call.context,
                budget};
  return call;
}

// The most candidates that a call can have scored.
std::uint64_t reach(const Call& call, int beam) {
  std::uint64_t total = 0, slots = 1;
  for (std::size_t row = 0; row < call.counts.size(); ++row) {
    const std::uint64_t wide = slots * (call.tokens.size() / call.counts.size());
    total += wide;
    slots = std::min<std::uint64_t>(wide, static_cast<std::uint64_t>(std::max(beam, 1)));
  }
  return std::min(total, std::uint64_t{1} << 22);
}

// What dart_core/tree.py relies on.
void check_tree(const Call& call, int count, const PrunerOutput& tree, const PrunerPool* pool) {
  require(count >= 1 && count <= call.input.budget + 1, "a tree larger than its budget");
  require(tree.parents[0] == -1 && tree.tokens[0] == call.context.back(), "a root that is not");
  for (int node = 1; node < count; ++node) {
    const std::int32_t parent = tree.parents[node];
    require(parent >= 0 && parent < node, "a node that comes before its parent");
    require(tree.scores[node] <= tree.scores[parent], "a child that scores above its parent");
    require(std::ranges::find(call.tokens, tree.tokens[node]) != call.tokens.end(),
            "a token that was no candidate");
  }
  if (pool == nullptr) return;
  const std::size_t size = pool->tokens.size();
  require(pool->parents.size() == size && pool->scores.size() == size && pool->nodes.size() == size,
          "a pool of unlike columns");
  int chosen = 0;
  for (std::size_t place = 0; place < size; ++place) {
    require(pool->parents[place] < static_cast<std::int64_t>(place), "a pool with a later parent");
    require(std::isfinite(pool->scores[place]), "a score that is no number");
    if (pool->nodes[place] < 0) continue;
    ++chosen;
    require(pool->nodes[place] < count && tree.tokens[pool->nodes[place]] == pool->tokens[place],
            "a pool that names another node");
  }
  require(chosen == count - 1, "a tree that is not in its pool");
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> found;
  for (const std::size_t size : {0, 64, 300, 2000}) {
    Bytes seed(size + Choices::kBytes);
    for (std::size_t i = 0; i < size; ++i) seed[i] = static_cast<std::uint8_t>(i * 37 + size);
    found.push_back(seed);
    std::ranges::fill(std::span(seed).last(Choices::kBytes), std::uint8_t{2});
    found.push_back(std::move(seed));
  }
  return found;
}

}  // namespace dart::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dart::fuzz;
  static const Folder folder;
  static const auto trie = [] {
    folder.write("x.ngram", small_ngram(4, 13, 400, 7));
    return std::make_shared<const dart::Trie>(folder.path("x.ngram"));
  }();
  Choices choices({data, size});
  dart::PrunerSettings settings;
  settings.levels = choices.among({4, 1, 2, 9, 0, -1});
  settings.beam = choices.among({5, 1, 2, 20, 300, 0, -7, 4096, std::numeric_limits<int>::max()});
  const bool with_trie = choices.flag(), with_pool = choices.flag(), twice = choices.flag();
  const std::uint8_t ends = choices.byte();
  Choices later = choices;  // the rest is read from the front, while choices go on from the end
  Values values(choices.rest());
  settings.ngram_weight = weight(later, values);
  const std::size_t rows = settings.levels > 0 ? static_cast<std::size_t>(settings.levels) : 0;
  for (std::size_t i = 0; i < rows + (ends % 16 == 1); ++i) {
    settings.level_weights.push_back(weight(later, values));
    settings.logit_weights.push_back(weight(later, values));
  }
  for (int i = 0; i < ends % 4; ++i) {
    settings.eos_tokens.push_back(ends % 8 < 4 ? i * 3 : values.take<std::int64_t>());
  }
  std::vector<Call> calls;
  for (int i = 0; i < (twice ? 2 : 1); ++i) {  // memory that was kept fits the next call too
    calls.push_back(make_call(later, values, settings.levels > 0 ? settings.levels : 1));
  }

  std::uint64_t scored = 0;  // at most, where it is not refused
  for (const Call& call : calls) scored += reach(call, settings.beam);
  Input input((std::uint64_t{1} << 20) + 100 * scored);
  input.done(folder.accepts(
      [&] {
        dart::TreePruner pruner(with_trie ? trie : nullptr, settings);
        for (const Call& call : calls) {
          const auto room = static_cast<std::size_t>(std::max(call.input.budget, 0)) + 1;
          std::vector<std::int64_t> tokens(room);
          std::vector<std::int32_t> parents(room);
          std::vector<float> scores(room), head(room), ngram(room);
          const dart::PrunerOutput tree{tokens.data(), parents.data(), scores.data(), head.data(),
                                        ngram.data()};
          dart::PrunerPool pool;
          const int count = pruner.search(call.input, tree, with_pool ? &pool : nullptr);
          check_tree(call, count, tree, with_pool ? &pool : nullptr);
        }
      },
      /*named=*/false));
  return 0;
}
