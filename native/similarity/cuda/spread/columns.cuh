// What the kernels of gather.cu and sparse.cu share: a few threads have a node, `ACROSS` of them its columns (VALUES
// each) and TEAM ÷ ACROSS its edges, and their sums are added by shuffles in a fixed order.
#pragma once
#include <algorithm>
#include <type_traits>
#include "step.cuh"

namespace shoal_cuda {

template <int VALUES>
struct Columns {
  float of[VALUES];
};

template <int VALUES>
__device__ __forceinline__ Columns<VALUES> load(const float *from) {
  Columns<VALUES> columns;
  if (VALUES == 4) {
    const float4 four = *reinterpret_cast<const float4 *>(from);
    columns.of[0] = four.x;
    if (VALUES == 4) columns.of[1 % VALUES] = four.y, columns.of[2 % VALUES] = four.z, columns.of[3 % VALUES] = four.w;
  } else {
    columns.of[0] = *from;
  }
  return columns;
}

template <int VALUES>
__device__ __forceinline__ void store(float *to, const Columns<VALUES> &columns) {
  if (VALUES == 4)
    *reinterpret_cast<float4 *>(to) =
        make_float4(columns.of[0], columns.of[1 % VALUES], columns.of[2 % VALUES], columns.of[3 % VALUES]);
  else
    *to = columns.of[0];
}

template <int VALUES>
__device__ __forceinline__ bool any_gives(const Step &step, const Columns<VALUES> &columns) {
  bool some = false;
#pragma unroll
  for (int v = 0; v < VALUES; v++) some |= gives(step, columns.of[v]);
  return some;
}

template <int VALUES>
__device__ __forceinline__ void arrive(const Step &step, uint64_t node, uint32_t column, const Columns<VALUES> &sum) {
  const uint64_t at = node * step.columns + column;
  store<VALUES>(step.arriving + at, sum);
  Columns<VALUES> total = load<VALUES>(step.before + at);
#pragma unroll
  for (int v = 0; v < VALUES; v++) total.of[v] += sum.of[v];
  store<VALUES>(step.activation + at, total);
}

/** Of a ballot: whether a thread of this team of a warp said so. */
template <int TEAM>
__device__ __forceinline__ bool team_said(uint32_t said, uint32_t team) {
  return (said >> (team * TEAM) & ((1u << (TEAM - 1) << 1) - 1)) != 0;
}

template <int VALUES, int ACROSS, int TEAM>
__device__ __forceinline__ void add_team(Columns<VALUES> &sum) {
#pragma unroll
  for (int other = ACROSS; other < TEAM; other *= 2)
#pragma unroll
    for (int v = 0; v < VALUES; v++) sum.of[v] += __shfl_xor_sync(0xffffffffu, sum.of[v], other);
}

/** Calls work(values, across, team) with constants for so many columns. */
template <class Work>
void with_columns(uint32_t all, const Work &work) {
  const uint32_t columns = std::min(all, BLOCK_COLUMNS);
  const auto chosen = [&](auto values, auto across) {
    constexpr int ACROSS = decltype(across)::value, TEAM = ACROSS * 4 < 8 ? 8 : ACROSS * 4 > 32 ? 32 : ACROSS * 4;
    work(values, across, std::integral_constant<int, TEAM>{});
  };
  const std::integral_constant<int, 1> one;
  const std::integral_constant<int, 2> two;
  const std::integral_constant<int, 4> four;
  if (all % 4 == 0) {
    if (columns <= 4)
      chosen(four, one);
    else if (columns <= 8)
      chosen(four, two);
    else
      chosen(four, four);
  } else if (columns == 1)
    chosen(one, one);
  else if (columns == 2)
    chosen(one, two);
  else if (columns <= 4)
    chosen(one, four);
  else if (columns <= 8)
    chosen(one, std::integral_constant<int, 8>{});
  else
    chosen(one, std::integral_constant<int, 16>{});
}

} // namespace shoal_cuda
