// From the draft head's candidates per level to the draft tree: beam search, then the best nodes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "ngram_trie.h"

namespace dart {

struct PrunerSettings {
  int levels = 0;
  int beam = 0;
  float ngram_weight = 0.0F;         // 0: the n-gram is not asked
  std::vector<float> level_weights;  // one per level each
  std::vector<float> logit_weights;
  std::vector<std::int64_t> eos_tokens;
};

// tokens, probabilities: [levels, width] row by row, the head's candidates in rank order; of row l
// only the first counts[l] are used. context: committed tokens, the root last.
struct PrunerInput {
  const std::int64_t* tokens = nullptr;
  const float* probabilities = nullptr;
  const std::int32_t* counts = nullptr;
  int levels = 0;
  int width = 0;
  std::span<const std::int64_t> context;
  int budget = 0;  // draft nodes, the root not counted
};

// Room for budget + 1 nodes each.
struct PrunerOutput {
  std::int64_t* tokens = nullptr;
  std::int32_t* parents = nullptr;
  float* scores = nullptr;
  float* probabilities = nullptr;
  float* ngram = nullptr;  // NaN where the n-gram was not asked
};

// Everything that was scored, in search order; see Candidates in dart_core/tree.py.
struct PrunerPool {
  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> parents;
  std::vector<float> scores;
  std::vector<std::int32_t> nodes;
};

// score(child) = score(parent) + level_weight[l] * (ln(p + e) * logit_weight[l]
//                                                   + ln(g + e) * ngram_weight),   e = 1e-10,
// all in float32; p from the head, g from the n-gram, whose term is absent on level 0. Both are
// clamped to 0 .. 1 (NaN counts as 0) and weights lie in 0 .. 1e6, so every score is a number and
// no child scores above its parent. The beam nodes of a level are scored against the candidates of
// the next one; candidates that end the sequence come into the beam only where the others leave
// room. Every scored candidate is in the pool, of which the `budget` best are the tree.
//
// Best means: largest score, then the lower level, then the better rank, then the better parent. So
// a parent goes before its children, and the tree always holds every node's parent.
//
// What cannot reach the tree any more is not scored, unless the pool is asked for.
//
// Memory is kept between calls and grows to the largest call seen. Calls may come from any thread;
// concurrent ones wait for each other.
class TreePruner {
 public:
  TreePruner(std::shared_ptr<const Trie> trie, PrunerSettings settings);

  // Returns the number of nodes written, the root included. `pool` is filled if given.
  int search(const PrunerInput& input, const PrunerOutput& output, PrunerPool* pool = nullptr);

 private:
  struct Choice {
    float score;
    std::uint32_t place;  // in the pool; of equal scores the lower place is the better
  };
  struct Level {
    std::uint32_t first = 0;             // place of its first candidate
    std::uint32_t width = 0;             // candidates scored ...
    std::uint32_t slots = 0;             // ... for each of so many beam nodes
    std::vector<std::uint32_t> parents;  // places of those by slot, best first; level 0: the root
    std::uint32_t size() const { return width * slots; }
    std::uint32_t rank(std::uint32_t place) const { return (place - first) / slots; }
    std::uint32_t slot(std::uint32_t place) const { return (place - first) % slots; }
  };
  struct Suffix {  // the last tokens of context and path, as many as the n-gram looks at
    std::array<std::uint32_t, kMaxOrder - 1> tokens{};
    std::uint32_t length = 0;
  };

  struct Asked {  // what the n-gram knows to follow the end of a slot's path
    std::uint32_t slot;
    Children node;
  };

  struct Reach {              // what a call can come to at most
    std::uint64_t pool = 0;   // candidates scored
    std::uint64_t slots = 1;  // beam nodes of a level
  };

  void check(const PrunerInput& input) const;
  Reach reach(const PrunerInput& input) const;
  void reserve(const PrunerInput& input, const Reach& most);
  void enter_beam(const PrunerInput& input, int level);
  void read_candidates(const PrunerInput& input, int level, float floor);
  void ask_ngram(const Level& level);
  void ask(std::uint32_t slot, std::uint32_t length);
  void answer(const Level& level, const Asked& asked);
  void score(int level);
  void choose_tree_nodes(const Level& level, std::size_t budget);
  void choose_beam(const Level& level, std::uint64_t room_for_ending);
  int write_tree(const PrunerInput& input, const PrunerOutput& output);
  void write_pool(const PrunerInput& input, PrunerPool& pool) const;

  int level_of(std::uint32_t place) const;
  std::size_t cell(const PrunerInput& input, std::uint32_t place, int level) const {
    return std::size_t(level) * input.width + levels_[level].rank(place);
  }
  static bool better(const Choice& a, const Choice& b) {
    return a.score > b.score || (a.score == b.score && a.place < b.place);
  }

  std::shared_ptr<const Trie> trie_;  // null: the n-gram is not asked
  PrunerSettings settings_;
  float unknown_term_;  // the n-gram term of a token that the n-gram does not know there

  std::mutex mutex_;
  // The pool, ordered by level, then rank, then beam slot.
  std::vector<float> scores_, ngram_;
  std::vector<Level> levels_;
  int searched_ = 0;                   // levels in the pool
  std::vector<Choice> tree_;           // chosen so far, a heap with the worst on top
  std::vector<Choice> beam_, ending_;  // for the next level, best first; ending_ ends the sequence

  // Of the level at hand.
  std::vector<std::uint32_t> candidates_;         // tokens by rank
  std::vector<std::uint8_t> ends_;                // by rank: ends the sequence
  std::vector<float> head_terms_;                 // by rank
  std::vector<float> ngram_terms_;                // by rank, then slot
  std::vector<float> parent_scores_;              // by slot
  std::vector<Suffix> suffixes_, next_suffixes_;  // by slot
  std::vector<std::uint32_t> twins_;              // by slot: the first that ends in the same token
  std::vector<Asked> asked_;
};

}  // namespace dart
