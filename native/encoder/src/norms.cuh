// Norms and embeddings: one warp a token. Included by run.cu alone.
#pragma once
#include "tokens.cuh"

namespace shoal {

/** Four values from 8 bytes, and back. */
struct Quad {
  float v[4];
};

__device__ __forceinline__ Quad widen(uint2 packed) {
  const float2 low = __half22float2(*reinterpret_cast<const __half2 *>(&packed.x)),
               high = __half22float2(*reinterpret_cast<const __half2 *>(&packed.y));
  return {{low.x, low.y, high.x, high.y}};
}

__device__ __forceinline__ uint2 narrow(const float *v) {
  const __half2 low = __floats2half2_rn(v[0], v[1]), high = __floats2half2_rn(v[2], v[3]);
  return {*reinterpret_cast<const uint32_t *>(&low), *reinterpret_cast<const uint32_t *>(&high)};
}

/**
 * Norm of a token in the registers of one warp: lane l holds values 4 (32 i + l) to 4 (32 i + l) + 3 of QUADS × 128.
 * Mean first, then the squares around it, so that nothing cancels.
 */
template <int QUADS>
__device__ __forceinline__ void normalise(float (&v)[QUADS][4], const float (&weight)[QUADS][4],
                                          const float (&bias)[QUADS][4], float epsilon) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < QUADS; i++) sum += (v[i][0] + v[i][1]) + (v[i][2] + v[i][3]);
  const float mean = warp_sum(sum) * (1.0f / (QUADS * 128));
  float squares = 0;
#pragma unroll
  for (int i = 0; i < QUADS; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      v[i][j] -= mean;
      squares += v[i][j] * v[i][j];
    }
  }
  const float factor = rsqrtf(warp_sum(squares) * (1.0f / (QUADS * 128)) + epsilon);
#pragma unroll
  for (int i = 0; i < QUADS; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) v[i][j] = v[i][j] * factor * weight[i][j] + bias[i][j];
  }
}

template <int QUADS>
__device__ __forceinline__ void load_floats(float (&v)[QUADS][4], const float *__restrict__ from, int lane) {
#pragma unroll
  for (int i = 0; i < QUADS; i++) {
    const float4 four = reinterpret_cast<const float4 *>(from)[i * WARP + lane];
    v[i][0] = four.x, v[i][1] = four.y, v[i][2] = four.z, v[i][3] = four.w;
  }
}

/**
 * hidden[t] = norm(hidden[t]), in place; one warp a token, tokens strided over the grid so that weights are loaded once
 * a warp.
 */
template <int QUADS>
__global__ void __launch_bounds__(256)
    norm_kernel(__half *hidden, const float *__restrict__ weight, const float *__restrict__ bias, float epsilon,
                const Counts *__restrict__ counts) {
  const int lane = threadIdx.x % WARP, warps = gridDim.x * (blockDim.x / WARP);
  int token = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
  const int tokens = counts->tokens;
  if (token >= tokens) return;
  float w[QUADS][4], b[QUADS][4], v[QUADS][4];
  load_floats<QUADS>(w, weight, lane);
  load_floats<QUADS>(b, bias, lane);
  for (; token < tokens; token += warps) {
    uint2 *row = reinterpret_cast<uint2 *>(hidden + static_cast<size_t>(token) * (QUADS * 128));
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
      const Quad quad = widen(row[i * WARP + lane]);
#pragma unroll
      for (int j = 0; j < 4; j++) v[i][j] = quad.v[j];
    }
    normalise<QUADS>(v, w, b, epsilon);
#pragma unroll
    for (int i = 0; i < QUADS; i++) row[i * WARP + lane] = narrow(v[i]);
  }
}

/**
 * hidden[t] = norm(words[ids[t]] + positions[places[t]]); the row of the one token type is in the positions already.
 */
template <int QUADS>
__global__ void __launch_bounds__(256)
    embed_kernel(const __half *__restrict__ words, const __half *__restrict__ positions,
                 const int32_t *__restrict__ ids, const uint16_t *__restrict__ places, const float *__restrict__ weight,
                 const float *__restrict__ bias, float epsilon, __half *__restrict__ hidden,
                 const Counts *__restrict__ counts) {
  const int lane = threadIdx.x % WARP, warps = gridDim.x * (blockDim.x / WARP);
  int token = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
  const int tokens = counts->tokens;
  if (token >= tokens) return;
  float w[QUADS][4], b[QUADS][4], v[QUADS][4];
  load_floats<QUADS>(w, weight, lane);
  load_floats<QUADS>(b, bias, lane);
  for (; token < tokens; token += warps) {
    const uint2 *word = reinterpret_cast<const uint2 *>(words + static_cast<size_t>(ids[token]) * (QUADS * 128));
    const uint2 *place =
        reinterpret_cast<const uint2 *>(positions + static_cast<size_t>(places[token]) * (QUADS * 128));
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
      const Quad one = widen(__ldg(word + i * WARP + lane)), other = widen(__ldg(place + i * WARP + lane));
#pragma unroll
      for (int j = 0; j < 4; j++) v[i][j] = one.v[j] + other.v[j];
    }
    normalise<QUADS>(v, w, b, epsilon);
    uint2 *row = reinterpret_cast<uint2 *>(hidden + static_cast<size_t>(token) * (QUADS * 128));
#pragma unroll
    for (int i = 0; i < QUADS; i++) row[i * WARP + lane] = narrow(v[i]);
  }
}

/**
 * Both of the above for sizes that are no multiple of 128: one warp a token, values read three times. `ids` null: the
 * norm in place.
 */
__global__ void __launch_bounds__(256)
    any_norm_kernel(const __half *__restrict__ words, const __half *__restrict__ positions,
                    const int32_t *__restrict__ ids, const uint16_t *__restrict__ places,
                    const float *__restrict__ weight, const float *__restrict__ bias, float epsilon, __half *hidden,
                    int size, const Counts *__restrict__ counts) {
  const int lane = threadIdx.x % WARP, token = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
  if (token >= counts->tokens) return;
  __half *row = hidden + static_cast<size_t>(token) * size;
  const __half *word = ids == nullptr ? nullptr : words + static_cast<size_t>(ids[token]) * size,
               *place = ids == nullptr ? nullptr : positions + static_cast<size_t>(places[token]) * size;
  const auto value = [&](int at) {
    return ids == nullptr ? __half2float(row[at]) : __half2float(word[at]) + __half2float(place[at]);
  };
  float sum = 0, squares = 0;
  for (int at = lane; at < size; at += WARP) sum += value(at);
  const float mean = warp_sum(sum) / size;
  for (int at = lane; at < size; at += WARP) squares += (value(at) - mean) * (value(at) - mean);
  const float factor = rsqrtf(warp_sum(squares) / size + epsilon);
  for (int at = lane; at < size; at += WARP)
    row[at] = __float2half_rn((value(at) - mean) * factor * weight[at] + bias[at]);
}

} // namespace shoal
