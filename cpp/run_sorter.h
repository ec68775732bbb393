// Sorts more records than memory holds: sorted runs in a scratch file, merged at the end.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "errors.h"
#include "ngram_format.h"
#include "output_file.h"

namespace dart {

// An n-gram as a sort key: tokens plus one, zeros behind the end, so that a prefix sorts before its
// extensions and a merge in key order is a walk over the trie.
template <int Order>
struct Record {
  std::array<std::uint32_t, Order> key{};
  std::int32_t count = 0;

  bool operator<(const Record& other) const {  // two tokens at a time
    for (int i = 0; i + 1 < Order; i += 2) {
      const std::uint64_t mine = pair(i), others = other.pair(i);
      if (mine != others) return mine < others;
    }
    return Order % 2 == 1 && key[Order - 1] < other.key[Order - 1];
  }

  int length() const {
    int length = 0;
    while (length < Order && key[length] != 0) ++length;
    return length;
  }

 private:
  std::uint64_t pair(int i) const { return std::uint64_t{key[i]} << 32 | key[i + 1]; }
};

template <int Order>
class RunSorter {
 public:
  // sum: records of equal key may be replaced by one with their total.
  RunSorter(std::string near, std::uint64_t memory_bytes, bool sum)
      : near_(std::move(near)), capacity_(capacity(memory_bytes)), sum_(sum) {}

  // Goes on from runs that lie in `file` already; they end at `ends`, in records.
  RunSorter(std::unique_ptr<ScratchFile> file, std::span<const std::uint64_t> ends,
            std::uint64_t memory_bytes)
      : capacity_(capacity(memory_bytes)), sum_(false), file_(std::move(file)) {
    std::uint64_t start = 0;
    for (const std::uint64_t end : ends) {
      runs_.push_back({start, end, {}, 0});
      start = end;
    }
  }

  void push(const Record<Order>& record) {
    // At once: growing by copies would hold two buffers. Memory is taken as it is filled.
    if (buffer_.capacity() == 0) buffer_.reserve(capacity_);
    if (room() == 0) spill();
    buffer_.push_back(record);
  }

  std::size_t room() const { return capacity_ - buffer_.size(); }  // with none, a push spills
  bool in_memory() const { return runs_.empty(); }

  // Writes what is in memory to the scratch file, as a sorted run.
  void spill() {
    if (buffer_.empty()) return;
    sort_buffer();
    if (!file_) file_ = std::make_unique<ScratchFile>(near_);
    const std::uint64_t start = file_->size() / sizeof(Record<Order>);
    file_->append(buffer_.data(), buffer_.size() * sizeof(Record<Order>));
    runs_.push_back({start, start + buffer_.size(), {}, 0});
    buffer_.clear();
  }

  // The runs on disk, as the constructor takes them; once all of each is there for good.
  std::vector<std::uint64_t> synced_ends() const {
    if (file_) file_->sync();
    std::vector<std::uint64_t> ends;
    for (const Run& run : runs_) ends.push_back(run.end);
    return ends;
  }

  // Calls visit(record) in ascending key order; equal keys may come more than once. After `limit`
  // records it returns true, and the next call goes on; false: that were all. Nothing is pushed any
  // more after the first call.
  template <typename Visit>
  bool drain(Visit&& visit, std::uint64_t limit = std::numeric_limits<std::uint64_t>::max()) {
    if (!draining_) begin_drain();
    for (; limit > 0; --limit) {
      if (in_memory()) {
        if (drained_ == buffer_.size()) return false;
        visit(buffer_[drained_++]);
      } else if (!merge_one(visit)) {
        return false;
      }
    }
    return true;
  }

 private:
  struct Run {
    std::uint64_t next, end;  // records of the scratch file not yet read
    std::vector<Record<Order>> block;
    std::size_t at = 0;
  };
  struct Head {
    Record<Order> record;
    std::size_t run;
    bool operator<(const Head& other) const {  // std's heaps have the largest on top
      return other.record < record || (!(record < other.record) && other.run < run);
    }
  };

  // Few enough that the counts of 1 in one buffer add up within 32 bits.
  static std::size_t capacity(std::uint64_t memory_bytes) {
    return std::clamp<std::uint64_t>(memory_bytes / sizeof(Record<Order>), 1024,
                                     std::numeric_limits<std::int32_t>::max());
  }

  void sort_buffer() {
    std::sort(buffer_.begin(), buffer_.end());
    if (!sum_ || buffer_.empty()) return;
    std::size_t last = 0;
    for (std::size_t i = 1; i < buffer_.size(); ++i) {
      if (buffer_[i].key == buffer_[last].key) {
        buffer_[last].count += buffer_[i].count;
      } else {
        buffer_[++last] = buffer_[i];
      }
    }
    buffer_.resize(last + 1);
  }

  const Record<Order>* head(Run& run) {  // the next record of a run, null at its end
    if (run.at == run.block.size()) {
      const std::uint64_t share = std::max<std::uint64_t>(capacity_ / runs_.size(), 256);
      run.block.resize(std::min({share, run.end - run.next, std::uint64_t{1} << 16}));
      run.at = 0;
      if (run.block.empty()) return nullptr;
      file_->read(run.next * sizeof(Record<Order>), run.block.data(),
                  run.block.size() * sizeof(Record<Order>));
      run.next += run.block.size();
    }
    return &run.block[run.at];
  }

  void begin_drain() {
    draining_ = true;
    if (in_memory()) return sort_buffer();
    spill();
    std::vector<Record<Order>>().swap(buffer_);  // "= {}" would keep its memory
    for (std::size_t run = 0; run < runs_.size(); ++run) {
      if (const auto* record = head(runs_[run])) heads_.push_back({*record, run});
    }
    std::make_heap(heads_.begin(), heads_.end());
  }

  template <typename Visit>
  bool merge_one(Visit& visit) {
    if (heads_.empty()) return false;
    std::pop_heap(heads_.begin(), heads_.end());
    auto& [record, run] = heads_.back();
    visit(record);
    ++runs_[run].at;
    if (const auto* next = head(runs_[run])) {
      record = *next;
      std::push_heap(heads_.begin(), heads_.end());
    } else {
      heads_.pop_back();
    }
    return true;
  }

  std::string near_;
  std::size_t capacity_;
  bool sum_;
  std::vector<Record<Order>> buffer_;
  std::unique_ptr<ScratchFile> file_;
  std::vector<Run> runs_;
  bool draining_ = false;
  std::size_t drained_ = 0;  // of a buffer that was never spilled
  std::vector<Head> heads_;  // a heap: the next record of each run, the smallest on top
};

// Calls f with std::integral_constant<int, order>, so that record width is known to the compiler.
template <typename F>
auto with_order(int order, F&& f) {
  switch (order) {
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 5:
      return f(std::integral_constant<int, 5>{});
    case 6:
      return f(std::integral_constant<int, 6>{});
    case 7:
      return f(std::integral_constant<int, 7>{});
    case 8:
      return f(std::integral_constant<int, 8>{});
    default:
      throw DataError("n-gram order " + std::to_string(order) + " is outside " +
                      std::to_string(kMinOrder) + " to " + std::to_string(kMaxOrder));
  }
}

}  // namespace dart
