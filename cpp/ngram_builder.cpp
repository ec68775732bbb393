#include "ngram_builder.h"

#include <algorithm>

#include "errors.h"
#include "ngram_writer.h"
#include "run_sorter.h"

namespace dart {
namespace {

template <int Order>
class Builder final : public NgramBuilder {
 public:
  Builder(const std::string& path, std::uint64_t vocab_size, const Fingerprint& fingerprint,
          std::uint64_t memory_bytes)
      : vocab_size_(vocab_size),
        writer_(path, Order, vocab_size, fingerprint),
        sorter_(path, memory_bytes, /*sum=*/true) {}

  void add(std::span<const std::int64_t> tokens) override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || static_cast<std::uint64_t>(tokens[i]) >= vocab_size_) {
        throw DataError("token " + std::to_string(tokens[i]) + " at position " + std::to_string(i) +
                        " is outside the vocabulary of " + std::to_string(vocab_size_));
      }
    }
    for (std::size_t start = 0; start < tokens.size(); ++start) {
      Record<Order> record;
      record.count = 1;
      const std::size_t length = std::min<std::size_t>(Order, tokens.size() - start);
      for (std::size_t i = 0; i < length; ++i) {
        record.key[i] = static_cast<std::uint32_t>(tokens[start + i]) + 1;
      }
      sorter_.push(record);
    }
  }

  void finish() override {
    sorter_.drain([this](const Record<Order>& record) {
      const int length = record.length();
      int depth = 0;
      while (depth < std::min(length, writer_.depth()) &&
             writer_.path()[depth] + 1 == record.key[depth]) {
        ++depth;
      }
      while (depth < length) {
        ++depth;
        writer_.enter(depth, record.key[depth - 1] - 1);
      }
      for (; depth >= 0; --depth) writer_.add(depth, record.count);
    });
    writer_.finish();
  }

 private:
  std::uint64_t vocab_size_;
  TrieWriter writer_;
  RunSorter<Order> sorter_;
};

}  // namespace

std::unique_ptr<NgramBuilder> NgramBuilder::make(const std::string& path, int order,
                                                 std::uint64_t vocab_size,
                                                 const Fingerprint& fingerprint,
                                                 std::uint64_t memory_bytes) {
  return with_order(order, [&](auto width) -> std::unique_ptr<NgramBuilder> {
    return std::make_unique<Builder<width()>>(path, vocab_size, fingerprint, memory_bytes);
  });
}

}  // namespace dart
