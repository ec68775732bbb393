#include "rms_norm.h"

#include <cmath>

namespace dart {

void rms_norm(const float* inputs, const float* weight, float epsilon, std::int64_t rows,
              std::int64_t size, float* outputs) {
  constexpr int kLanes =
      16;  // partial sums, in an order of our own so that the compiler may use SIMD
  for (std::int64_t row = 0; row < rows; ++row, inputs += size, outputs += size) {
    float sums[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] += inputs[i + lane] * inputs[i + lane];
    }
    double sum = 0.0;
    for (const float part : sums) sum += part;
    for (; i < size; ++i) sum += static_cast<double>(inputs[i]) * inputs[i];
    const auto scale =
        static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(size) + epsilon));
    for (i = 0; i < size; ++i) outputs[i] = weight[i] * (inputs[i] * scale);
  }
}

}  // namespace dart
