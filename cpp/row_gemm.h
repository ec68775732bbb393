// A few rows times a large matrix, on CPUs without matrix units: what verifying a draft tree spends
// its time on. General GEMMs are made for many rows. Here the weights are read once, in the order
// in which they lie in memory, and the next ones are fetched while these are computed with, so that
// up to some ten rows cost no more than one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace dart {

// A weight matrix [columns, depth] in panels of 16 columns: [panels, depth, 16], zero beyond the
// last column. Where every weight is a bfloat16, as in most published models, 16 bits of each are
// kept: the same numbers from half the memory traffic, which is what one row takes its time for.
class RowMatrix {
 public:
  RowMatrix(const float* weights, std::int64_t columns, std::int64_t depth);

  // Whether this CPU has the instructions.
  static bool runs_here();

  std::int64_t columns() const { return columns_; }
  std::int64_t depth() const { return depth_; }
  std::int64_t bytes() const;  // of the packed weights

  // outputs [rows, columns] = inputs [rows, depth] x weights transposed (+ bias [columns], unless
  // null). Every output is one chain of fused multiply-adds in the order of ``depth``: a row's
  // numbers depend neither on the other rows nor on ``threads``. Safe from several threads at once.
  void multiply(const float* inputs, std::int64_t rows, const float* bias, float* outputs,
                int threads) const;

  // The weights as they came: [columns, depth].
  void unpack(float* weights) const;

 private:
  struct Free {
    void operator()(std::uint32_t* memory) const;
  };

  struct Place {
    std::int64_t first;  // the word of its first input
    int shift;           // how far its bits lie below the top of the word
  };

  int words() const;  // of a panel for one input
  Place place(std::int64_t column) const;

  std::int64_t columns_;
  std::int64_t depth_;
  std::int64_t panels_;
  bool halved_;  // see Half and Full in row_gemm.cpp
  std::unique_ptr<std::uint32_t[], Free> packed_;
};

}  // namespace dart
