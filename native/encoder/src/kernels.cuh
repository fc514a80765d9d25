// The encoder's own kernels; matrix products are cuBLASLt's. All work on packed tokens: row r of a micro-batch is the
// tokens starts[r] to starts[r + 1], and nothing of its padding is here. Values are fp16, sums and statistics fp32.
// Rows never meet: what one row holds, NaN included, cannot reach another. How many tokens, rows and tiles there are is
// read from device memory (Counts), so that one recorded graph serves every run that fits it.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace shoal {

struct Counts {
  int32_t tokens, rows, tiles, unused;
};

/** Up to 32 queries of one row, for one warp and one head. */
struct Tile {
  int32_t start, length, first_query, unused;
};

constexpr int WARP = 32;
constexpr unsigned EVERYONE = 0xffffffffu;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(EVERYONE, value, offset);
  return value;
}

// ---- norms ------------------------------------------------------------------------------------------------------

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

// ---- attention --------------------------------------------------------------------------------------------------

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/** d += a (16 × 16, rows) · b (16 × 8, columns) */
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __half2 two = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t *>(&two);
}

/**
 * One warp, 16 × MT queries of one row and head, all keys of the row, softmax as it goes. No shared memory and no
 * barrier: short rows would leave both idle. Which of the 16 places of a product's inner side a value takes is free as
 * long as both factors agree:
 *  - queries · keys: thread c of four takes 8 neighbouring values of the head, so that a key is one load of 16 bytes
 *    a thread;
 *  - weights · values: column g of product j is value 4 g + j of the head, so that a thread reads 8 bytes of each of
 *    its keys, pairs them by byte permutation, and ends with 8 neighbouring values of the context.
 * KT: keys of one step ÷ 16. Keys behind the end of the row are read from its last one and weigh nothing.
 */
template <int D, int MT, int KT>
struct Attention {
  static constexpr int HALVES = D / 32;
  uint32_t q[MT][2 * HALVES][4];
  float o[MT][4 * HALVES][4];
  float most[MT][2], sum[MT][2];
  const __half *keys;
  uint32_t stride;
  int length, g, c, hidden;
  float scale;

  __device__ __forceinline__ void begin(const __half *row, uint32_t row_stride, int hidden_size, int head,
                                        int row_length, int first_query, float scale_log2) {
    g = (threadIdx.x % WARP) / 4, c = threadIdx.x % 4;
    stride = row_stride, length = row_length, hidden = hidden_size, scale = scale_log2;
    const __half *queries = row + head * D + 8 * c;
    keys = row + hidden + head * D;
#pragma unroll
    for (int m = 0; m < MT; m++) {
      const int upper = min(first_query + 16 * m + g, length - 1),
                lower = min(first_query + 16 * m + g + 8, length - 1);
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        const uint4 a = __ldg(reinterpret_cast<const uint4 *>(queries + upper * static_cast<size_t>(stride) + 32 * h)),
                    b = __ldg(reinterpret_cast<const uint4 *>(queries + lower * static_cast<size_t>(stride) + 32 * h));
        q[m][2 * h][0] = a.x, q[m][2 * h][1] = b.x, q[m][2 * h][2] = a.y, q[m][2 * h][3] = b.y;
        q[m][2 * h + 1][0] = a.z, q[m][2 * h + 1][1] = b.z, q[m][2 * h + 1][2] = a.w, q[m][2 * h + 1][3] = b.w;
      }
      most[m][0] = most[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0;
#pragma unroll
      for (int n = 0; n < 4 * HALVES; n++) o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0;
    }
  }

  /** Keys first to first + 16 KT; `tiles`: how many groups of 16 of them begin within the row. */
  template <bool IS_LAST>
  __device__ __forceinline__ void step(int first, int tiles) {
    float s[MT][2 * KT][4];
    uint2 v[KT][4][HALVES];
    const __half *values = keys + hidden + 4 * g;
#pragma unroll
    for (int t = 0; t < KT; t++) {
      if (IS_LAST && t >= tiles) break;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int key = first + 16 * t + 8 * half + g;
        const __half *at = keys + static_cast<size_t>(IS_LAST ? min(key, length - 1) : key) * stride + 8 * c;
#pragma unroll
        for (int m = 0; m < MT; m++)
          s[m][2 * t + half][0] = s[m][2 * t + half][1] = s[m][2 * t + half][2] = s[m][2 * t + half][3] = 0;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
          const uint4 k = __ldg(reinterpret_cast<const uint4 *>(at + 32 * h));
#pragma unroll
          for (int m = 0; m < MT; m++) {
            multiply(s[m][2 * t + half], q[m][2 * h], k.x, k.y);
            multiply(s[m][2 * t + half], q[m][2 * h + 1], k.z, k.w);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int key = first + 16 * t + 2 * c + (i & 1) + 8 * (i >> 1);
        const __half *at = values + static_cast<size_t>(IS_LAST ? min(key, length - 1) : key) * stride;
#pragma unroll
        for (int h = 0; h < HALVES; h++) v[t][i][h] = __ldg(reinterpret_cast<const uint2 *>(at + 32 * h));
      }
    }
    if (IS_LAST) {
#pragma unroll
      for (int n = 0; n < 2 * KT; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if (first + 8 * n + 2 * c + (i & 1) >= length) {
#pragma unroll
            for (int m = 0; m < MT; m++) s[m][n][i] = -INFINITY;
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
      for (int r = 0; r < 2; r++) soften<IS_LAST>(s[m], o[m], most[m][r], sum[m][r], r, tiles);
    }
#pragma unroll
    for (int t = 0; t < KT; t++) {
      if (IS_LAST && t >= tiles) break;
      uint32_t p[MT][4];
#pragma unroll
      for (int m = 0; m < MT; m++) {
        p[m][0] = pack(s[m][2 * t][0], s[m][2 * t][1]), p[m][1] = pack(s[m][2 * t][2], s[m][2 * t][3]);
        p[m][2] = pack(s[m][2 * t + 1][0], s[m][2 * t + 1][1]), p[m][3] = pack(s[m][2 * t + 1][2], s[m][2 * t + 1][3]);
      }
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const uint32_t one = j < 2 ? v[t][0][h].x : v[t][0][h].y, two = j < 2 ? v[t][1][h].x : v[t][1][h].y;
          const uint32_t three = j < 2 ? v[t][2][h].x : v[t][2][h].y, four = j < 2 ? v[t][3][h].x : v[t][3][h].y;
          const uint32_t which = j % 2 == 0 ? 0x5410 : 0x7632;
          const uint32_t b0 = __byte_perm(one, two, which), b1 = __byte_perm(three, four, which);
#pragma unroll
          for (int m = 0; m < MT; m++) multiply(o[m][4 * h + j], p[m], b0, b1);
        }
      }
    }
  }

  /**
   * Scores of one query a thread (r: the upper or the lower one) to weights. What was summed under a smaller maximum is
   * scaled down first.
   */
  template <bool IS_LAST>
  __device__ __forceinline__ void soften(float (&s)[2 * KT][4], float (&out)[4 * HALVES][4], float &largest,
                                         float &total, int r, int tiles) {
    float now = largest;
#pragma unroll
    for (int n = 0; n < 2 * KT; n++) {
      if (IS_LAST && n >= 2 * tiles) break;
      now = fmaxf(now, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
    }
    now = fmaxf(now, __shfl_xor_sync(EVERYONE, now, 1));
    now = fmaxf(now, __shfl_xor_sync(EVERYONE, now, 2));
    const float shift = now * scale;
    if (__any_sync(EVERYONE, now != largest)) {
      const float factor = exp2_fast(largest * scale - shift);
      total *= factor;
#pragma unroll
      for (int n = 0; n < 4 * HALVES; n++) out[n][2 * r] *= factor, out[n][2 * r + 1] *= factor;
      largest = now;
    }
#pragma unroll
    for (int n = 0; n < 2 * KT; n++) {
      if (IS_LAST && n >= 2 * tiles) break;
      s[n][2 * r] = exp2_fast(s[n][2 * r] * scale - shift);
      s[n][2 * r + 1] = exp2_fast(s[n][2 * r + 1] * scale - shift);
      total += s[n][2 * r] + s[n][2 * r + 1];
    }
  }

  __device__ __forceinline__ void end(__half *context, int first_query, int head) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float total = sum[m][r];
        total += __shfl_xor_sync(EVERYONE, total, 1);
        total += __shfl_xor_sync(EVERYONE, total, 2);
        const float factor = 1.0f / total;
        const int query = first_query + 16 * m + g + 8 * r;
        if (query >= length) continue;
        __half *to = context + query * static_cast<size_t>(hidden) + head * D + 8 * c;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
          const float (*x)[4] = o[m] + 4 * h;
          const uint4 eight = {pack(x[0][2 * r] * factor, x[1][2 * r] * factor),
                               pack(x[2][2 * r] * factor, x[3][2 * r] * factor),
                               pack(x[0][2 * r + 1] * factor, x[1][2 * r + 1] * factor),
                               pack(x[2][2 * r + 1] * factor, x[3][2 * r + 1] * factor)};
          *reinterpret_cast<uint4 *>(to + 32 * h) = eight;
        }
      }
    }
  }

  __device__ __forceinline__ void all(const __half *row, int row_stride, int hidden_size, int head, int row_length,
                                      int first_query, float scale_log2, __half *context) {
    begin(row, row_stride, hidden_size, head, row_length, first_query, scale_log2);
    int first = 0;
    for (; first + 16 * KT <= length; first += 16 * KT) step<false>(first, KT);
    if (first < length) step<true>(first, (length - first + 15) / 16);
    end(context, first_query, head);
  }
};

constexpr int ATTENTION_WARPS = 4;

/**
 * A block is one head and four tiles that follow each other, most often of one row, so that its keys are read from the
 * first cache. Grid: heads × ⌈tiles ÷ 4⌉. BLOCKS on a multiprocessor at least. Measured on an H200 in µs a layer,
 * ragged, 16 and 512 tokens a row (2026-11-22): KT 2 with 4 blocks 152, 94, 313; KT 1 169, 83, 400; KT 4 204, 149, 360.
 * Keys and values staged in shared memory by cp.async, for four, two or one head a block: 154, 95, 303, and 186 k
 * texts/s instead of 184 k with two lanes, in twice the code.
 */
template <int D, int KT, int BLOCKS>
__global__ void __launch_bounds__(ATTENTION_WARPS *WARP, BLOCKS)
    attention_kernel(const __half *__restrict__ qkv, __half *__restrict__ context, const Tile *__restrict__ tiles,
                     int heads, float scale_log2, const Counts *__restrict__ counts) {
  const int head = blockIdx.x % heads, index = (blockIdx.x / heads) * ATTENTION_WARPS + threadIdx.x / WARP;
  if (index >= counts->tiles) return;
  const Tile tile = tiles[index];
  const int hidden = heads * D;
  const __half *row = qkv + static_cast<size_t>(tile.start) * (3 * hidden);
  __half *to = context + static_cast<size_t>(tile.start) * hidden;
  if (tile.length - tile.first_query > 16) {
    Attention<D, 2, KT> attention;
    attention.all(row, 3 * hidden, hidden, head, tile.length, tile.first_query, scale_log2, to);
  } else {
    Attention<D, 1, KT> attention;
    attention.all(row, 3 * hidden, hidden, head, tile.length, tile.first_query, scale_log2, to);
  }
}

// ---- the rest ---------------------------------------------------------------------------------------------------

/** x · (1 + erf(x ÷ √2)) ÷ 2 in place, eight values a thread. */
__global__ void __launch_bounds__(256) exact_gelu_kernel(__half *wide, size_t size, const Counts *__restrict__ counts) {
  const size_t eights = size * static_cast<size_t>(counts->tokens) / 8;
  for (size_t at = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; at < eights;
       at += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint4 eight = reinterpret_cast<uint4 *>(wide)[at];
    __half2 *two = reinterpret_cast<__half2 *>(&eight);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 x = __half22float2(two[i]);
      two[i] = __floats2half2_rn(0.5f * x.x * (1.0f + erff(x.x * 0.70710678f)),
                                 0.5f * x.y * (1.0f + erff(x.y * 0.70710678f)));
    }
    reinterpret_cast<uint4 *>(wide)[at] = eight;
  }
}

constexpr int POOL_THREADS = 512;

/**
 * One block a row: the mean of its tokens (or the first), divided by its length. Threads of a group take eight values
 * each of one token, groups take tokens in turn; shared memory: groups × size floats.
 */
__global__ void __launch_bounds__(POOL_THREADS)
    pool_kernel(const __half *__restrict__ hidden, const int32_t *__restrict__ starts, int size, int is_first,
                int is_normal, float *__restrict__ embeddings, const Counts *__restrict__ counts) {
  extern __shared__ float partial[];
  __shared__ float squares[POOL_THREADS / WARP];
  const int row = blockIdx.x;
  if (row >= counts->rows) return;
  const int eights = size / 8, groups = max(1, POOL_THREADS / eights), start = starts[row],
            tokens = is_first ? 1 : starts[row + 1] - start;
  for (int place = threadIdx.x; place < groups * eights; place += POOL_THREADS) {
    const int group = place / eights, at = place % eights;
    float sum[8] = {};
    const uint4 *from = reinterpret_cast<const uint4 *>(hidden + static_cast<size_t>(start) * size) + at;
#pragma unroll 4
    for (int token = group; token < tokens; token += groups) {
      const uint4 eight = __ldg(from + static_cast<size_t>(token) * eights);
      const __half2 *two = reinterpret_cast<const __half2 *>(&eight);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 x = __half22float2(two[i]);
        sum[2 * i] += x.x, sum[2 * i + 1] += x.y;
      }
    }
    for (int i = 0; i < 8; i++) partial[group * size + at * 8 + i] = sum[i];
  }
  __syncthreads();
  float square = 0;
  for (int at = threadIdx.x; at < size; at += POOL_THREADS) {
    float sum = 0;
    for (int group = 0; group < groups; group++) sum += partial[group * size + at];
    sum /= tokens;
    partial[at] = sum; // the first group's, which nobody but this thread reads here
    square += sum * sum;
  }
  square = warp_sum(square);
  if (threadIdx.x % WARP == 0) squares[threadIdx.x / WARP] = square;
  __syncthreads();
  float all = 0;
  for (int warp = 0; warp < POOL_THREADS / WARP; warp++) all += squares[warp];
  const float factor = is_normal ? 1.0f / fmaxf(sqrtf(all), 1e-12f) : 1.0f;
  for (int at = threadIdx.x; at < size; at += POOL_THREADS)
    embeddings[static_cast<size_t>(row) * size + at] = partial[at] * factor;
}

/**
 * Weights on their way in: fp32 to fp16; says when a value is beyond what fp16 holds. `addend`: a row added to each row
 * of so many.
 */
__global__ void narrow_kernel(const float *__restrict__ from, __half *__restrict__ to, size_t count,
                              const float *__restrict__ addend, int row, int32_t *overflow) {
  for (size_t at = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; at < count;
       at += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const float value = from[at] + (addend == nullptr ? 0.0f : addend[at % row]);
    to[at] = __float2half_rn(value);
    if (isfinite(value) && __hisinf(to[at])) *overflow = 1;
  }
}

/** Something like activations, to time products with: zeros would run faster than what comes. */
__global__ void noise_kernel(__half *to, size_t count) {
  for (size_t at = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; at < count;
       at += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(at) * 2654435761u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    to[at] = __float2half_rn(static_cast<float>(x) * 4.656612873e-10f - 1.0f);
  }
}

} // namespace shoal
