// Attention of short rows: one warp has up to 32 queries of one row and one head. Included by run.cu alone.
//
// Why: docs/decisions/encoder.md#its-attention-uses-no-shared-memory-and-no-barrier
#pragma once
#include "tokens.cuh"

namespace shoal {

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

} // namespace shoal
