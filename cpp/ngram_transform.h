// From n-gram files to an n-gram file: sum several, or drop what is rare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dart {

// Counts of equal n-grams are added. All inputs must have one order and, where known, one
// tokenizer.
void merge_ngrams(const std::vector<std::string>& inputs, const std::string& output);

// Keeps an n-gram if its count is at least `threshold` and all its prefixes are kept. The count of
// the topmost dropped n-gram is taken off every n-gram above it. As in the published library, the
// root starts at 0, so that its total ends at minus what was dropped.
void reduce_ngram(const std::string& input, std::int64_t threshold, const std::string& output);

}  // namespace dart
