#include "row_gemm.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>

#include "workers.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define DART_AVX2 __attribute__((target("avx2,fma")))
#endif

namespace dart {
namespace {

constexpr int kPanel = 16;         // columns
constexpr int kMostRows = 6;       // computed together: 12 sums in the 16 registers
constexpr std::size_t kLine = 64;  // bytes: a cache line

// What a panel holds of one input, in words of 32 bits. Full: a float for each column. Half: in
// word c the upper 16 bits of column c above those of column c + 8, so that an instruction for each
// brings the floats back.
constexpr int kFull = kPanel, kHalf = kPanel / 2;
constexpr std::uint32_t kUpper = 0xffff0000;

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

bool are_bfloat16(const float* values, std::int64_t count) {
  return std::all_of(values, values + count,
                     [](float value) { return !(bits_of(value) & ~kUpper); });
}

}  // namespace

void RowMatrix::Free::operator()(std::uint32_t* memory) const {
  operator delete[](memory, std::align_val_t{kLine});
}

RowMatrix::RowMatrix(const float* weights, std::int64_t columns, std::int64_t depth)
    : columns_(columns),
      depth_(depth),
      panels_((columns + kPanel - 1) / kPanel),
      halved_(are_bfloat16(weights, columns * depth)) {
  const auto size = static_cast<std::size_t>(bytes()) / sizeof(std::uint32_t);
  packed_.reset(new (std::align_val_t{kLine}) std::uint32_t[size]());
  for (std::int64_t column = 0; column < columns_; ++column) {
    const auto [first, shift] = place(column);
    for (std::int64_t k = 0; k < depth_; ++k) {
      packed_[first + k * words()] |= bits_of(weights[column * depth_ + k]) >> shift;
    }
  }
}

int RowMatrix::words() const { return halved_ ? kHalf : kFull; }

RowMatrix::Place RowMatrix::place(std::int64_t column) const {
  return {column / kPanel * depth_ * words() + column % kPanel % words(),
          halved_ && column % kPanel >= kHalf ? 16 : 0};
}

std::int64_t RowMatrix::bytes() const {
  return panels_ * depth_ * words() * static_cast<int>(sizeof(std::uint32_t));
}

void RowMatrix::unpack(float* weights) const {
  for (std::int64_t column = 0; column < columns_; ++column) {
    const auto [first, shift] = place(column);
    for (std::int64_t k = 0; k < depth_; ++k) {
      const std::uint32_t bits = packed_[first + k * words()] << shift;
      weights[column * depth_ + k] = std::bit_cast<float>(halved_ ? bits & kUpper : bits);
    }
  }
}

#ifdef DART_AVX2

namespace {

struct Product {
  const float* inputs;
  const std::uint32_t* packed;
  const float* bias;
  float* outputs;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t depth;
};

struct Full {
  static constexpr int kWords = kFull;
  DART_AVX2 static void load(const std::uint32_t* words, __m256& low, __m256& high) {
    low = _mm256_load_ps(reinterpret_cast<const float*>(words));
    high = _mm256_load_ps(reinterpret_cast<const float*>(words + kPanel / 2));
  }
};

struct Half {
  static constexpr int kWords = kHalf;
  DART_AVX2 static void load(const std::uint32_t* words, __m256& low, __m256& high) {
    const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(words));
    low = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(kUpper))));
    high = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  }
};

// What to fetch while something else is computed: of the cache lines of ``panels`` panels from
// ``from`` on, counted across the panels (line 0 of each, line 1 of each, ...), those in
// [first, last). Memory serves several streams faster than one.
struct Prefetch {
  const std::uint32_t* from;
  std::int64_t panels;
  std::int64_t first;
  std::int64_t last;
};

// R rows from ``row`` on times G panels from ``panel`` on.
template <class Weights, int R, int G>
DART_AVX2 void block(const Product& product, std::int64_t row, std::int64_t panel,
                     const Prefetch& prefetch) {
  const std::int64_t depth = product.depth;
  const float* inputs = product.inputs + row * depth;
  const std::uint32_t* packed = product.packed + panel * depth * Weights::kWords;
  // Without the pragmas the sums would live in memory.
  __m256 low[R][G], high[R][G];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) low[r][g] = high[r][g] = _mm256_setzero_ps();
  }
  const std::int64_t lines = prefetch.last - prefetch.first;
  constexpr std::int64_t kLineWords = kLine / sizeof(std::uint32_t);
  const std::uint32_t* line = prefetch.from + prefetch.first / prefetch.panels * kLineWords;
  std::int64_t stream = prefetch.first % prefetch.panels;
  std::int64_t due = 0;  // of a line, in units of 1 / depth
  for (std::int64_t k = 0; k < depth; ++k) {
    for (due += lines; due >= depth; due -= depth) {
      _mm_prefetch(reinterpret_cast<const char*>(line + stream * depth * Weights::kWords),
                   _MM_HINT_T0);
      if (++stream == prefetch.panels) {
        stream = 0;
        line += kLineWords;
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      __m256 first, second;
      Weights::load(packed + (g * depth + k) * Weights::kWords, first, second);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256 value = _mm256_broadcast_ss(inputs + r * depth + k);
        low[r][g] = _mm256_fmadd_ps(value, first, low[r][g]);
        high[r][g] = _mm256_fmadd_ps(value, second, high[r][g]);
      }
    }
  }
  alignas(32) float sums[R][G][kPanel];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      _mm256_store_ps(sums[r][g], low[r][g]);
      _mm256_store_ps(sums[r][g] + kPanel / 2, high[r][g]);
    }
  }
  for (int g = 0; g < G; ++g) {
    const std::int64_t column = (panel + g) * kPanel;
    const std::int64_t count = std::min<std::int64_t>(kPanel, product.columns - column);
    for (int r = 0; r < R; ++r) {
      float* out = product.outputs + (row + r) * product.columns + column;
      if (product.bias) {
        for (std::int64_t c = 0; c < count; ++c) out[c] = sums[r][g][c] + product.bias[column + c];
      } else if (count == kPanel) {
        std::memcpy(out, sums[r][g], sizeof sums[r][g]);
      } else {
        std::memcpy(out, sums[r][g], static_cast<std::size_t>(count) * sizeof(float));
      }
    }
  }
}

using Block = void (*)(const Product&, std::int64_t, std::int64_t, const Prefetch&);
template <class Weights>
constexpr Block kNarrow[kMostRows + 1] = {
    nullptr,
    block<Weights, 1, 1>,
    block<Weights, 2, 1>,
    block<Weights, 3, 1>,
    block<Weights, 4, 1>,
    block<Weights, 5, 1>,
    block<Weights, 6, 1>,
};
// Few rows leave registers free for several panels at once: streams enough, and the latency of the
// additions is hidden.
constexpr std::int64_t kFewRows = 3;
constexpr int kWidth[kFewRows + 1] = {0, 4, 3, 2};
template <class Weights>
constexpr Block kWide[kFewRows + 1] = {nullptr, block<Weights, 1, 4>, block<Weights, 2, 3>,
                                       block<Weights, 3, 2>};

template <class Weights>
void multiply_few(const Product& product, std::int64_t from, std::int64_t to) {
  const int width = kWidth[product.rows];
  for (; from + width <= to; from += width)
    kWide<Weights>[product.rows](product, 0, from, {nullptr, 1, 0, 0});
  for (; from < to; ++from) kNarrow<Weights>[product.rows](product, 0, from, {nullptr, 1, 0, 0});
}

template <class Weights>
void multiply_many(const Product& product, std::int64_t from, std::int64_t to) {
  const std::int64_t blocks = (product.rows + kMostRows - 1) / kMostRows;
  const std::int64_t smaller = product.rows / blocks, larger = product.rows % blocks;
  // Panels that are fetched while as many are computed with; both fit the second-level cache.
  constexpr std::int64_t kMostStreams = 4, kFetched = 256 << 10;
  const std::int64_t words = product.depth * Weights::kWords;
  const std::int64_t group = std::clamp<std::int64_t>(
      kFetched / (words * static_cast<int>(sizeof(std::uint32_t))), 1, kMostStreams);
  for (; from < to; from += group) {
    const std::int64_t here = std::min(group, to - from);
    const std::int64_t next = std::min(group, to - from - here);
    const std::int64_t lines = next * words * sizeof(std::uint32_t) / kLine;
    const std::int64_t parts = here * blocks;
    std::int64_t part = 0;
    for (std::int64_t panel = from; panel < from + here; ++panel) {
      std::int64_t row = 0;
      for (std::int64_t i = 0; i < blocks; ++i, ++part) {
        const Prefetch prefetch{product.packed + (from + here) * words,
                                std::max<std::int64_t>(next, 1), lines * part / parts,
                                lines * (part + 1) / parts};
        const std::int64_t rows = smaller + (i < larger);
        kNarrow<Weights>[rows](product, row, panel, prefetch);
        row += rows;
      }
    }
  }
}

// All rows times the panels [from, to).
template <class Weights>
void multiply_panels_of(const Product& product, std::int64_t from, std::int64_t to) {
  (product.rows <= kFewRows ? multiply_few<Weights> : multiply_many<Weights>)(product, from, to);
}

}  // namespace

bool RowMatrix::runs_here() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

void RowMatrix::multiply(const float* inputs, std::int64_t rows, const float* bias, float* outputs,
                         int threads) const {
  if (rows <= 0) return;
  const Product product{inputs, packed_.get(), bias, outputs, rows, columns_, depth_};
  constexpr std::int64_t kFewest = 6;  // panels that are worth another thread
  threads = static_cast<int>(std::clamp<std::int64_t>(panels_ / kFewest, 1, threads));
  const auto multiply_panels = halved_ ? multiply_panels_of<Half> : multiply_panels_of<Full>;
  if (threads == 1) return multiply_panels(product, 0, panels_);
  const std::int64_t shares = 4 * threads;  // more than threads: one may be held up
  std::atomic<std::int64_t> taken{0};
  run_workers(threads, [&] {
    for (std::int64_t share; (share = taken.fetch_add(1)) < shares;) {
      multiply_panels(product, panels_ * share / shares, panels_ * (share + 1) / shares);
    }
  });
}

#else

bool RowMatrix::runs_here() { return false; }
void RowMatrix::multiply(const float*, std::int64_t, const float*, float*, int) const {}

#endif

}  // namespace dart
