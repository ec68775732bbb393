// Counts the n-grams of token streams by sorting, in bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ngram_format.h"

namespace dart {

// Every start position of a stream contributes the next min(order, rest) tokens, and every prefix
// of those, the empty one included, is counted once. N-grams never cross from a stream to the next.
class NgramBuilder {
 public:
  static std::unique_ptr<NgramBuilder> make(const std::string& path, int order,
                                            std::uint64_t vocab_size,
                                            const Fingerprint& fingerprint,
                                            std::uint64_t memory_bytes);
  virtual ~NgramBuilder() = default;
  virtual void add(std::span<const std::int64_t> tokens) = 0;
  virtual void finish() = 0;
};

}  // namespace dart
