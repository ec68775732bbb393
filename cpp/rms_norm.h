// Root-mean-square norm of rows: one pass over each instead of eight operators over all.
#pragma once

#include <cstdint>

namespace dart {

// outputs [rows, size] = weight [size] * (inputs / sqrt(mean(inputs^2) + epsilon)), row by row; a
// row's numbers do not depend on the others.
void rms_norm(const float* inputs, const float* weight, float epsilon, std::int64_t rows,
              std::int64_t size, float* outputs);

}  // namespace dart
