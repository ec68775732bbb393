#include "tree_pruner.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "errors.h"

namespace dart {
namespace {

constexpr float kEpsilon = 1e-10F;
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kNotAsked = std::numeric_limits<float>::quiet_NaN();
constexpr int kMaxBeam = 4096;  // it is kept sorted by insertion
constexpr std::uint64_t kMaxPool = std::uint64_t{1} << 22;

// ln(probability + epsilon). The logarithm is taken in double and rounded, so that every machine
// gets the same float.
float log_term(float probability) {
  const float clamped = probability > 0.0F ? std::min(probability, 1.0F) : 0.0F;  // NaN: 0
  return static_cast<float>(std::log(static_cast<double>(clamped + kEpsilon)));
}

// Larger ones would drive a score to infinity, and infinity times 0 to no number at all.
constexpr float kMaxWeight = 1e6F;

bool usable(float weight) { return weight >= 0.0F && weight <= kMaxWeight; }  // NaN is not

void check_weights(const std::vector<float>& weights, int levels, const char* name) {
  if (static_cast<int>(weights.size()) != levels || !std::ranges::all_of(weights, usable)) {
    throw DataError(std::string(name) + " must be " + std::to_string(levels) +
                    " numbers from 0 to a million, one per level; got " +
                    std::to_string(weights.size()));
  }
}

}  // namespace

TreePruner::TreePruner(std::shared_ptr<const Trie> trie, PrunerSettings settings)
    : trie_(std::move(trie)), settings_(std::move(settings)) {
  if (settings_.levels < 1 || settings_.beam < 1 || settings_.beam > kMaxBeam) {
    throw DataError("the pruner needs at least one level and a beam from 1 to " +
                    std::to_string(kMaxBeam) + "; got " + std::to_string(settings_.levels) +
                    " and " + std::to_string(settings_.beam));
  }
  check_weights(settings_.level_weights, settings_.levels, "level_weights");
  check_weights(settings_.logit_weights, settings_.levels, "logit_weights");
  if (!usable(settings_.ngram_weight)) {
    throw DataError("ngram_weight must be a number from 0 to a million");
  }
  if (settings_.ngram_weight == 0.0F) trie_ = nullptr;
  unknown_term_ = log_term(0.0F) * settings_.ngram_weight;
  std::ranges::sort(settings_.eos_tokens);
  levels_.resize(settings_.levels);
}

int TreePruner::search(const PrunerInput& input, const PrunerOutput& output, PrunerPool* pool) {
  check(input);
  const std::lock_guard lock(mutex_);
  reserve(input, reach(input));
  const auto budget = static_cast<std::size_t>(input.budget);
  const auto beam = static_cast<std::uint64_t>(settings_.beam);
  tree_.clear();
  beam_.assign(1, {0.0F, 0});  // the root
  searched_ = 0;
  // The beam as it is without leaving anything out: it decides whether there is room for candidates
  // that end the sequence.
  std::uint64_t beam_size = 1;
  for (int level = 0; level < input.levels; ++level) {
    // A score up to this one cannot enter the tree, nor can anything below it: later ones lose
    // ties.
    const float floor = pool != nullptr || tree_.size() < budget ? kLowest
                        : budget == 0                            ? -kLowest
                                                                 : tree_.front().score;
    std::erase_if(beam_, [floor](const Choice& choice) { return choice.score <= floor; });
    if (beam_.empty() || input.counts[level] == 0) break;
    enter_beam(input, level);
    read_candidates(input, level, floor);
    score(level);
    searched_ = level + 1;
    choose_tree_nodes(levels_[level], budget);
    const auto width = static_cast<std::uint64_t>(input.counts[level]);
    const auto ending = static_cast<std::uint64_t>(std::count(ends_.begin(), ends_.end(), 1));
    choose_beam(levels_[level], beam - std::min(beam, beam_size * (width - ending)));
    beam_size = std::min(beam, beam_size * width);
  }
  const int nodes = write_tree(input, output);
  if (pool != nullptr) write_pool(input, *pool);
  return nodes;
}

void TreePruner::check(const PrunerInput& input) const {
  if (input.levels < 0 || input.levels > settings_.levels) {
    throw DataError("got candidates for " + std::to_string(input.levels) +
                    " levels, the pruner was made for " + std::to_string(settings_.levels));
  }
  if (input.width < 0) throw DataError("the width is negative: " + std::to_string(input.width));
  for (int level = 0; level < input.levels; ++level) {
    if (input.counts[level] < 0 || input.counts[level] > input.width) {
      throw DataError("level " + std::to_string(level) + " claims " +
                      std::to_string(input.counts[level]) + " candidates in rows of " +
                      std::to_string(input.width));
    }
  }
  if (input.context.empty()) throw DataError("the context is empty; its last token is the root");
  if (input.budget < 0) throw DataError("the budget is negative: " + std::to_string(input.budget));
}

TreePruner::Reach TreePruner::reach(const PrunerInput& input) const {
  const auto width = static_cast<std::uint64_t>(input.width);
  const auto beam = static_cast<std::uint64_t>(settings_.beam);
  Reach most;
  std::uint64_t slots = 1;
  for (int level = 0; level < input.levels; ++level) {
    most.pool += slots * width;
    if (most.pool > kMaxPool) {
      throw DataError(std::to_string(input.levels) + " levels of " + std::to_string(width) +
                      " candidates and a beam of " + std::to_string(beam) + " ask for more than " +
                      std::to_string(kMaxPool) + " scores");
    }
    slots = std::min(beam, slots * width);
    most.slots = std::max(most.slots, slots);
  }
  return most;
}

void TreePruner::reserve(const PrunerInput& input, const Reach& most) {
  const auto beam = static_cast<std::size_t>(most.slots);
  const auto pool = static_cast<std::size_t>(most.pool);
  const std::size_t width = std::min(static_cast<std::size_t>(input.width), pool);
  const auto grow = [](auto& vector, std::size_t size) {
    if (vector.size() < size) vector.resize(size);
  };
  grow(scores_, pool);
  grow(ngram_, pool);
  grow(ngram_terms_, width * beam);
  grow(parent_scores_, beam);
  grow(suffixes_, beam);
  grow(twins_, beam);
  grow(next_suffixes_, beam);
  for (Level& level : levels_) level.parents.reserve(beam);
  candidates_.reserve(width);
  ends_.reserve(width);
  head_terms_.reserve(width);
  tree_.reserve(std::min(pool, static_cast<std::size_t>(input.budget)) + 1);
  beam_.reserve(beam + 1);
  ending_.reserve(beam + 1);
  if (trie_) asked_.reserve(beam * static_cast<std::size_t>(trie_->order() - 1));
}

// Makes the beam the parents of this level: their scores, and the tokens that the n-gram sees.
void TreePruner::enter_beam(const PrunerInput& input, int level) {
  Level& here = levels_[level];
  here.first = level == 0 ? 0 : levels_[level - 1].first + levels_[level - 1].size();
  here.slots = static_cast<std::uint32_t>(beam_.size());
  here.parents.clear();
  const std::uint32_t longest = trie_ ? static_cast<std::uint32_t>(trie_->order()) - 1 : 0;
  for (std::uint32_t slot = 0; slot < here.slots; ++slot) {
    const std::uint32_t place = beam_[slot].place;
    here.parents.push_back(place);
    parent_scores_[slot] = beam_[slot].score;
    if (longest == 0) continue;
    Suffix& suffix = next_suffixes_[slot];
    if (level == 0) {
      suffix.length =
          static_cast<std::uint32_t>(std::min<std::size_t>(longest, input.context.size()));
      std::ranges::transform(input.context.last(suffix.length), suffix.tokens.begin(), to_token);
      continue;
    }
    suffix = suffixes_[levels_[level - 1].slot(place)];
    if (suffix.length == longest) {
      std::shift_left(suffix.tokens.begin(), suffix.tokens.begin() + longest, 1);
    } else {
      ++suffix.length;
    }
    suffix.tokens[suffix.length - 1] = to_token(input.tokens[cell(input, place, level - 1)]);
    trie_->fetch(suffix.tokens[suffix.length - 1]);
  }
  suffixes_.swap(next_suffixes_);
}

// Head terms of the level's candidates, and how many of them are worth scoring.
void TreePruner::read_candidates(const PrunerInput& input, int level, float floor) {
  const auto width = static_cast<std::uint32_t>(input.counts[level]);
  const std::int64_t* const tokens = input.tokens + std::size_t(level) * input.width;
  const float* const probabilities = input.probabilities + std::size_t(level) * input.width;
  const float best_parent =
      *std::max_element(parent_scores_.begin(), parent_scores_.begin() + levels_[level].slots);
  candidates_.clear();
  ends_.clear();
  head_terms_.clear();
  levels_[level].width = 0;
  for (std::uint32_t rank = 0; rank < width; ++rank) {
    const float term = log_term(probabilities[rank]) * settings_.logit_weights[level];
    candidates_.push_back(to_token(tokens[rank]));
    ends_.push_back(std::ranges::binary_search(settings_.eos_tokens, tokens[rank]) ? 1 : 0);
    head_terms_.push_back(term);
    const float best = best_parent + settings_.level_weights[level] * term;
    if (best > floor) levels_[level].width = rank + 1;
  }
}

void TreePruner::score(int level) {
  const Level& here = levels_[level];
  const bool with_ngram = trie_ != nullptr && level > 0;
  if (with_ngram) {
    ask_ngram(here);
  } else {
    std::fill_n(ngram_.begin() + here.first, here.size(), kNotAsked);
  }
  const float level_weight = settings_.level_weights[level];
  std::uint32_t place = here.first;
  for (std::uint32_t rank = 0; rank < here.width; ++rank) {
    for (std::uint32_t slot = 0; slot < here.slots; ++slot, ++place) {
      float term = head_terms_[rank];
      if (with_ngram) term += ngram_terms_[place - here.first];
      scores_[place] = parent_scores_[slot] + level_weight * term;
    }
  }
}

void TreePruner::ask_ngram(const Level& level) {
  std::fill_n(ngram_.begin() + level.first, level.size(), 0.0F);
  std::fill_n(ngram_terms_.begin(), level.size(), unknown_term_);

  // Many slots end in the same token: what follows that token alone is looked up once. All nodes
  // are found before the first is searched, so that their children come from memory meanwhile.
  asked_.clear();
  const auto last = [this](std::uint32_t slot) {
    return suffixes_[slot].tokens[suffixes_[slot].length - 1];
  };
  for (std::uint32_t slot = 0; slot < level.slots; ++slot) {
    twins_[slot] = 0;
    while (last(twins_[slot]) != last(slot)) ++twins_[slot];
    if (twins_[slot] == slot) ask(slot, 1);
  }
  const std::size_t alone = asked_.size();
  for (std::uint32_t slot = 0; slot < level.slots; ++slot) {
    for (std::uint32_t length = 2; length <= suffixes_[slot].length; ++length) ask(slot, length);
  }

  // A longer suffix overwrites a shorter one's answers, so the order is by length.
  for (std::size_t i = 0; i < alone; ++i) answer(level, asked_[i]);
  for (std::uint32_t slot = 1; slot < level.slots; ++slot) {  // the first is nobody's twin
    if (twins_[slot] == slot) continue;
    for (std::uint32_t at = 0; at < level.size(); at += level.slots) {
      ngram_[level.first + at + slot] = ngram_[level.first + at + twins_[slot]];
      ngram_terms_[at + slot] = ngram_terms_[at + twins_[slot]];
    }
  }
  for (std::size_t i = alone; i < asked_.size(); ++i) answer(level, asked_[i]);
}

// Finds the node of the last `length` tokens of the slot's path.
void TreePruner::ask(std::uint32_t slot, std::uint32_t length) {
  const Suffix& suffix = suffixes_[slot];
  const Children node =
      trie_->children({suffix.tokens.data() + suffix.length - length, std::size_t(length)});
  if (node.size == 0) return;
  __builtin_prefetch(node.tokens + node.size / 2);
  __builtin_prefetch(node.tokens + node.size / 4);
  __builtin_prefetch(node.tokens + node.size / 4 * 3);
  asked_.push_back({slot, node});
}

// Enters what the n-gram knows of the candidates.
void TreePruner::answer(const Level& level, const Asked& asked) {
  const std::uint32_t slot = asked.slot;  // clang before 16 lets no lambda use a binding
  const Children& node = asked.node;
  match(node, {candidates_.data(), level.width}, [&](std::uint32_t rank, std::uint32_t child) {
    const std::uint32_t at = rank * level.slots + slot;
    const float probability = node.probability(child);
    ngram_[level.first + at] = probability;
    ngram_terms_[at] = log_term(probability) * settings_.ngram_weight;
  });
}

void TreePruner::choose_tree_nodes(const Level& level, std::size_t budget) {
  if (budget == 0) return;
  const std::uint32_t end = level.first + level.size();
  for (std::uint32_t place = level.first; place < end; ++place) {
    if (tree_.size() == budget) {
      if (scores_[place] <= tree_.front().score) continue;
      std::ranges::pop_heap(tree_, better);
      tree_.pop_back();
    }
    tree_.push_back({scores_[place], place});
    std::ranges::push_heap(tree_, better);
  }
}

void TreePruner::choose_beam(const Level& level, std::uint64_t room_for_ending) {
  const auto limit = static_cast<std::size_t>(settings_.beam);
  beam_.clear();
  ending_.clear();
  std::uint32_t place = level.first;
  for (std::uint32_t rank = 0; rank < level.width; ++rank) {
    std::vector<Choice>& best = ends_[rank] != 0 ? ending_ : beam_;
    for (std::uint32_t slot = 0; slot < level.slots; ++slot, ++place) {
      const Choice choice{scores_[place], place};
      if (best.size() == limit) {
        if (choice.score <= best.back().score) continue;
        best.pop_back();
      }
      best.insert(std::ranges::upper_bound(best, choice, better), choice);
    }
  }
  const auto room = std::min<std::size_t>(room_for_ending, ending_.size());
  beam_.insert(beam_.end(), ending_.begin(), ending_.begin() + static_cast<std::ptrdiff_t>(room));
}

int TreePruner::level_of(std::uint32_t place) const {
  int level = searched_ - 1;
  while (place < levels_[level].first) --level;
  return level;
}

int TreePruner::write_tree(const PrunerInput& input, const PrunerOutput& output) {
  std::ranges::sort(tree_, {}, &Choice::place);  // parents first: they are on lower levels
  output.tokens[0] = input.context.back();
  output.parents[0] = -1;
  output.scores[0] = 0.0F;
  output.probabilities[0] = 1.0F;
  output.ngram[0] = kNotAsked;
  int node = 1;
  for (const auto [score, place] : tree_) {
    const int level = level_of(place);
    const std::size_t from = cell(input, place, level);
    output.parents[node] = 0;
    if (level > 0) {
      const std::uint32_t parent = levels_[level].parents[levels_[level].slot(place)];
      const auto at = std::ranges::lower_bound(tree_, parent, {}, &Choice::place);
      output.parents[node] = static_cast<std::int32_t>(at - tree_.begin()) + 1;
    }
    output.tokens[node] = input.tokens[from];
    output.probabilities[node] = input.probabilities[from];
    output.scores[node] = score;
    output.ngram[node] = ngram_[place];
    ++node;
  }
  return node;
}

void TreePruner::write_pool(const PrunerInput& input, PrunerPool& pool) const {
  const std::uint32_t size =
      searched_ == 0 ? 0 : levels_[searched_ - 1].first + levels_[searched_ - 1].size();
  pool.tokens.resize(size);
  pool.parents.resize(size);
  pool.scores.assign(scores_.begin(), scores_.begin() + size);
  pool.nodes.assign(size, -1);
  for (std::uint32_t place = 0; place < size; ++place) {
    const int level = level_of(place);
    pool.tokens[place] = input.tokens[cell(input, place, level)];
    const std::uint32_t parent = levels_[level].parents[levels_[level].slot(place)];
    pool.parents[place] = level == 0 ? -1 : static_cast<std::int32_t>(parent);
  }
  for (std::size_t i = 0; i < tree_.size(); ++i) {
    pool.nodes[tree_[i].place] = static_cast<std::int32_t>(i) + 1;
  }
}

}  // namespace dart
