// Values of rows as the kernels are given them, for tests and benches: fp16 and back, and one value into a row of any
// type.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include "../include/similarity.h"

inline uint16_t half_of(float value) {
  _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

inline float float_of(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}

/** Writes the value, and gives what was written: int8 as 40 times the value, cut off at 127, and 0 for NaN. */
inline float store(enum shoal_dtype dtype, float value, char *to) {
  if (dtype == SHOAL_F16) {
    const uint16_t bits = half_of(value);
    std::memcpy(to, &bits, 2);
    return float_of(bits);
  }
  if (dtype == SHOAL_I8) {
    const int8_t whole = std::isnan(value) ? 0 : static_cast<int8_t>(std::clamp(value * 40, -127.0f, 127.0f));
    std::memcpy(to, &whole, 1);
    return whole;
  }
  std::memcpy(to, &value, 4);
  return value;
}
