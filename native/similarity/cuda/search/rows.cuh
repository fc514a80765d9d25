// Rows and queries as kernels see them, and the exact score of one pair. Data of a row begins on a multiple of 16 bytes
// and is padded with zeros to the next; queries are padded with zeros to a multiple of 64 values.
#pragma once
#include <cuda_fp16.h>
#include <cstdint>
#include "../device/facts.h"
#include "../device/workspace.h"

namespace shoal_cuda {

/** Queries in fp16 are scaled to this length, and fp32 rows to 64 … 128: far from what fp16 cannot hold. */
constexpr double HALF_LENGTH = 64;
constexpr uint32_t K_STEP = 64;

struct Rows {
  const char *data;
  uint64_t stride;
  /** fp16 form: the data itself for fp16 rows; null where there is none. */
  const char *half;
  uint64_t half_stride;
  /** Null: 1. */
  const float *scales;
  /**
   * A coarse score is (product of the fp16 forms) × factor + bias of its row: for dot, for cosine (1/‖fp16 form‖), for
   * both with l2 (−‖row‖²). NaN for rows that hold no numbers: they are above no threshold.
   */
  const float *dot_factor, *cosine_factor, *l2_bias;
  /** ‖row‖ as stored, without its scale; 0 where the row is shorter than SHOAL_MIN_LENGTH. */
  const double *length;
  uint32_t count, dims;
  enum shoal_dtype dtype;
};

/** What is known of all rows together. */
struct Summary {
  /** Longest row, and how far the fp16 form of a row is from it, relative to its length; of rows that are numbers. */
  double longest, half_error;
  uint32_t nan_rows, strange_rows;
};

template <enum shoal_dtype TYPE>
struct Chunk;
template <>
struct Chunk<SHOAL_F32> {
  static constexpr int VALUES = 4;
  static __device__ __forceinline__ void floats(uint4 bits, float *to) {
    to[0] = __uint_as_float(bits.x), to[1] = __uint_as_float(bits.y), to[2] = __uint_as_float(bits.z),
    to[3] = __uint_as_float(bits.w);
  }
};
template <>
struct Chunk<SHOAL_F16> {
  static constexpr int VALUES = 8;
  static __device__ __forceinline__ void floats(uint4 bits, float *to) {
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2 *>(words + i));
      to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
    }
  }
};
template <>
struct Chunk<SHOAL_I8> {
  static constexpr int VALUES = 16;
  static __device__ __forceinline__ void floats(uint4 bits, float *to) {
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 16; i++) to[i] = static_cast<int8_t>(words[i / 4] >> (8 * (i % 4)));
  }
};

/** So many lanes score a pair: 768 bytes of fp16 are three loads of 16 bytes for each. */
constexpr int PAIR_LANES = 16;

/** The lanes of the other pair of a warp may be elsewhere meanwhile. */
__device__ __forceinline__ double sum_of_pair(double value) {
  const uint32_t lanes = 0xffffu << (threadIdx.x & 16);
#pragma unroll
  for (int other = PAIR_LANES / 2; other > 0; other /= 2) value += __shfl_xor_sync(lanes, value, other);
  return value;
}

/**
 * Scores of N rows and one query in fp64, as exact_score of the CPU has them; in every one of PAIR_LANES lanes. Several
 * loads are under way before the first is used, and what is read of the query serves N rows: converting values to fp64
 * is what costs (2026-11-22: 42 µs for 100,000 rows one by one, of which 18 were memory). A row's score is the same
 * whatever N.
 */
template <enum shoal_dtype TYPE, enum shoal_metric METRIC, int N>
__device__ __forceinline__ void exact_scores(const Rows &rows, const uint32_t (&numbers)[N], const float *query,
                                             double query_norm, int lane, double (&scores)[N]) {
  // 384 dimensions of fp16 in one go
  constexpr int VALUES = Chunk<TYPE>::VALUES, LOADS = N == 1 ? 4 : TYPE == SHOAL_I8 ? 2 : 3;
  const int chunks = static_cast<int>((rows.dims + VALUES - 1) / VALUES);
  const uint4 *from[N];
  double scale[N], sum[N], length[N];
#pragma unroll
  for (int n = 0; n < N; n++) {
    from[n] = reinterpret_cast<const uint4 *>(rows.data + numbers[n] * rows.stride);
    scale[n] = METRIC != SHOAL_COSINE && TYPE == SHOAL_I8 && rows.scales != nullptr ? rows.scales[numbers[n]] : 1.0;
    length[n] = METRIC == SHOAL_COSINE ? __ldg(rows.length + numbers[n]) : 1.0;
    sum[n] = 0;
  }
  for (int c = lane; c < chunks; c += PAIR_LANES * LOADS) {
    uint4 bits[LOADS][N];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
#pragma unroll
      for (int n = 0; n < N; n++)
        if (c + i * PAIR_LANES < chunks) bits[i][n] = __ldg(from[n] + c + i * PAIR_LANES);
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int chunk = c + i * PAIR_LANES;
      if (chunk >= chunks) break;
      float values[N][VALUES];
#pragma unroll
      for (int n = 0; n < N; n++) Chunk<TYPE>::floats(bits[i][n], values[n]);
      const float4 *const q4 = reinterpret_cast<const float4 *>(query + chunk * VALUES);
#pragma unroll
      for (int d = 0; d < VALUES; d += 4) {
        const float4 four = q4[d / 4];
        const float asked[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const double q = asked[j];
#pragma unroll
          for (int n = 0; n < N; n++) {
            const double r = METRIC != SHOAL_COSINE && TYPE == SHOAL_I8 ? values[n][d + j] * scale[n]
                                                                        : static_cast<double>(values[n][d + j]);
            if (METRIC == SHOAL_L2)
              sum[n] = fma(q - r, q - r, sum[n]);
            else
              sum[n] = fma(q, r, sum[n]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < N; n++) {
    scores[n] = sum_of_pair(sum[n]);
    if (METRIC != SHOAL_COSINE) continue;
    // NaN stays NaN
    scores[n] = length[n] == 0 || query_norm < SHOAL_MIN_LENGTH ? 0 * length[n] : scores[n] / (query_norm * length[n]);
  }
}

} // namespace shoal_cuda

/** What the interface hands out. */
struct shoal_cuda_rows {
  int device;
  shoal_cuda::Memory memory;
  shoal_cuda::Rows rows;
  const shoal_cuda::Summary *device_summary;
};

namespace shoal_cuda {

/** Lays rows out in memory of `bytes_for(…)` bytes. */
size_t bytes_for(const shoal_rows &rows, bool has_half);
Rows lay_out(char *memory, const shoal_rows &rows, bool has_half, Summary **summary);
/** Works out factors, lengths and (where there is room for one) the fp16 form of rows whose data has been copied. */
void measure(const Rows &rows, Summary *summary, cudaStream_t stream);
/** fp16 form of the rows first, first + step, …: `count` of them, `stride` bytes apart. */
void convert(const Rows &rows, uint32_t first, uint32_t step, uint32_t count, char *half, uint64_t stride,
             cudaStream_t stream);
void check_shape(const shoal_rows &rows);
inline uint64_t half_stride_of(uint32_t dims) { return divided_up<uint64_t>(dims, 8) * 16; }
inline uint32_t padded_dims(uint32_t dims) { return divided_up(dims, K_STEP) * K_STEP; }
inline size_t element_bytes(enum shoal_dtype type) { return type == SHOAL_F32 ? 4 : type == SHOAL_F16 ? 2 : 1; }

} // namespace shoal_cuda
