// Scores in fp32: a block has a tile of queries × rows, each thread 8 queries × 4 rows of them (or 1), some dimensions
// at a time through shared memory while the next ones are on their way. Plain multiply-adds, not tensor cores: tf32 and
// fp16 would lose digits that the answer has. At most 32 dimensions are summed in one chain, and the chains' sums are
// added with what each addition loses (Kahan): chains of 128 were off by 1.1e-6 on an H200 where all terms have one
// sign (2026-11-22). Shapes: `Tile` in tiles.h; queries are padded_dims(dims) floats apart. Memory: none but shared.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "tiles.h"
#include "../pairs/pairs.cuh"

namespace shoal_cuda {
namespace {

constexpr uint32_t THREADS = 128, CHAIN = 32;

/**
 * How a block divides its tile: each thread has QUERIES × ROWS scores, `ACROSS` threads lie side by side along the
 * rows, and DEPTH dimensions are there at a time.
 */
template <uint32_t QUERIES, uint32_t ROWS, uint32_t ACROSS, uint32_t DEPTH, uint32_t BLOCKS>
struct Tiling {
  static constexpr uint32_t queries = QUERIES, rows = ROWS, across = ACROSS, depth = DEPTH, blocks = BLOCKS,
                            query_tile = QUERIES * (THREADS / ACROSS), row_tile = ROWS * ACROSS;
};
/** 64 × 64 scores; and 8 × 128. */
typedef Tiling<8, 4, 16, 16, 3> Wide;
typedef Tiling<8, 1, 128, 32, 5> Thin;

/** 8 values of a row as they lie there; zeros behind its end. */
template <enum shoal_dtype TYPE>
struct Eight {
  uint4 bits[TYPE == SHOAL_F32 ? 2 : 1];

  __device__ __forceinline__ void load(const char *row, uint64_t stride, uint32_t dim) {
    const uint64_t at = static_cast<uint64_t>(dim) * (TYPE == SHOAL_F32 ? 4 : TYPE == SHOAL_F16 ? 2 : 1);
    bits[0] = make_uint4(0, 0, 0, 0);
    if (TYPE == SHOAL_I8) {
      if (at >= stride) return;
      const uint2 half = __ldg(reinterpret_cast<const uint2 *>(row + at));
      bits[0].x = half.x, bits[0].y = half.y;
    } else if (at < stride) {
      bits[0] = __ldg(reinterpret_cast<const uint4 *>(row + at));
    }
    if (TYPE != SHOAL_F32) return;
    constexpr int LAST = TYPE == SHOAL_F32 ? 1 : 0;
    bits[LAST] = at + 16 < stride ? __ldg(reinterpret_cast<const uint4 *>(row + at + 16)) : make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ void values(float *to) const {
    if (TYPE == SHOAL_F32) {
      Chunk<SHOAL_F32>::floats(bits[0], to), Chunk<SHOAL_F32>::floats(bits[TYPE == SHOAL_F32 ? 1 : 0], to + 4);
    } else if (TYPE == SHOAL_F16) {
      Chunk<SHOAL_F16>::floats(bits[0], to);
    } else {
#pragma unroll
      for (int i = 0; i < 8; i++) to[i] = static_cast<int8_t>((i < 4 ? bits[0].x : bits[0].y) >> (8 * (i % 4)));
    }
  }
};

/** `scores` is queries × `line` floats; rows [first, first + count) of all. */
template <enum shoal_dtype TYPE, enum shoal_metric METRIC, class T>
__global__ void __launch_bounds__(THREADS, T::blocks)
    matrix_kernel(Rows rows, const float *queries, const double *norms, uint32_t query_count, uint32_t first,
                  uint32_t count, float *scores, uint64_t line) {
  constexpr uint32_t EIGHTS = T::depth / 8, ROW_EIGHTS = T::row_tile * EIGHTS / THREADS,
                     QUERY_EIGHTS = (T::query_tile * EIGHTS + THREADS - 1) / THREADS;
  constexpr int Q = T::queries, R = T::rows;
  __shared__ __align__(16) float asked[2][T::depth][T::query_tile + 4], stored[2][T::depth][T::row_tile + 4];
  const uint32_t stride = divided_up(rows.dims, K_STEP) * K_STEP, query0 = blockIdx.y * T::query_tile,
                 row0 = blockIdx.x * T::row_tile;
  // What this thread brings: 8 values each of some rows and queries.
  const char *row_at[ROW_EIGHTS];
  float row_scale[ROW_EIGHTS], query_scale[QUERY_EIGHTS];
  const float *query_at[QUERY_EIGHTS];
#pragma unroll
  for (uint32_t i = 0; i < ROW_EIGHTS; i++) {
    const uint32_t row = first + min(row0 + (threadIdx.x + i * THREADS) / EIGHTS, count - 1);
    row_at[i] = rows.data + row * rows.stride;
    row_scale[i] = 1;
    if (METRIC == SHOAL_COSINE)
      row_scale[i] = TYPE == SHOAL_F32 ? rows.cosine_factor[row] / rows.dot_factor[row] : rows.cosine_factor[row];
    else if (TYPE == SHOAL_I8 && rows.scales != nullptr)
      row_scale[i] = rows.scales[row];
  }
#pragma unroll
  for (uint32_t i = 0; i < QUERY_EIGHTS; i++) {
    const uint32_t query = min(query0 + (threadIdx.x + i * THREADS) / EIGHTS, query_count - 1);
    query_at[i] = queries + static_cast<uint64_t>(query) * stride;
    query_scale[i] = METRIC != SHOAL_COSINE            ? 1.0f
                     : norms[query] < SHOAL_MIN_LENGTH ? 0.0f
                                                       : static_cast<float>(1 / norms[query]);
  }
  Eight<TYPE> row_next[ROW_EIGHTS];
  Eight<SHOAL_F32> query_next[QUERY_EIGHTS];
  const auto load = [&](uint32_t dim) {
#pragma unroll
    for (uint32_t i = 0; i < ROW_EIGHTS; i++)
      row_next[i].load(row_at[i], rows.stride, dim + (threadIdx.x + i * THREADS) % EIGHTS * 8);
#pragma unroll
    for (uint32_t i = 0; i < QUERY_EIGHTS; i++)
      if (threadIdx.x + i * THREADS < T::query_tile * EIGHTS)
        query_next[i].load(reinterpret_cast<const char *>(query_at[i]), stride * 4ull,
                           dim + (threadIdx.x + i * THREADS) % EIGHTS * 8);
  };
  const auto put = [&](uint32_t turn) {
    float values[8];
#pragma unroll
    for (uint32_t i = 0; i < ROW_EIGHTS; i++) {
      const uint32_t mine = threadIdx.x + i * THREADS;
      row_next[i].values(values);
#pragma unroll
      for (int v = 0; v < 8; v++) stored[turn][mine % EIGHTS * 8 + v][mine / EIGHTS] = values[v] * row_scale[i];
    }
#pragma unroll
    for (uint32_t i = 0; i < QUERY_EIGHTS; i++) {
      const uint32_t mine = threadIdx.x + i * THREADS;
      if (mine >= T::query_tile * EIGHTS) break;
      query_next[i].values(values);
#pragma unroll
      for (int v = 0; v < 8; v++) asked[turn][mine % EIGHTS * 8 + v][mine / EIGHTS] = values[v] * query_scale[i];
    }
  };
  const uint32_t tx = threadIdx.x % T::across, ty = threadIdx.x / T::across;
  float total[Q][R] = {}, lost[Q][R] = {}, chain[Q][R] = {};
  load(0);
  const uint32_t steps = divided_up(rows.dims, T::depth);
  for (uint32_t step = 0; step < steps; step++) {
    const uint32_t turn = step % 2;
    put(turn);
    if (step + 1 < steps) load((step + 1) * T::depth);
    __syncthreads(); // of the values before these, nobody reads any more: everybody has come here since
#pragma unroll
    for (uint32_t d = 0; d < T::depth; d++) {
      float q[Q], r[R];
#pragma unroll
      for (int i = 0; i < Q; i += 4)
        *reinterpret_cast<float4 *>(q + i) = *reinterpret_cast<const float4 *>(&asked[turn][d][ty * Q + i]);
      if (R % 4 == 0)
        *reinterpret_cast<float4 *>(r) = *reinterpret_cast<const float4 *>(&stored[turn][d][tx * R]);
      else
        r[0] = stored[turn][d][tx];
#pragma unroll
      for (int i = 0; i < Q; i++)
#pragma unroll
        for (int j = 0; j < R; j++) {
          if (METRIC == SHOAL_L2)
            chain[i][j] = fmaf(q[i] - r[j], q[i] - r[j], chain[i][j]);
          else
            chain[i][j] = fmaf(q[i], r[j], chain[i][j]);
        }
    }
    if ((step + 1) * T::depth % CHAIN != 0 && step + 1 < steps) continue;
#pragma unroll
    for (int i = 0; i < Q; i++)
#pragma unroll
      for (int j = 0; j < R; j++) {
        const float term = chain[i][j] - lost[i][j], sum = total[i][j] + term;
        // Where the sum has left fp32, nothing is known to be lost.
        lost[i][j] = isfinite(sum) ? (sum - total[i][j]) - term : 0.0f;
        total[i][j] = sum;
        chain[i][j] = 0;
      }
  }
#pragma unroll
  for (int i = 0; i < Q; i++) {
    const uint32_t q = query0 + ty * Q + i, r = row0 + tx * R;
    float *const to = scores + q * line + r;
    if (q >= query_count || r >= count) continue;
    if (R == 4 && line % 4 == 0 && r + R <= count) {
      *reinterpret_cast<float4 *>(to) = make_float4(total[i][0], total[i][1 % R], total[i][2 % R], total[i][3 % R]);
      continue;
    }
#pragma unroll
    for (int j = 0; j < R; j++)
      if (r + j < count) to[j] = total[i][j];
  }
}

static_assert(Wide::query_tile == WIDE_QUERIES && Thin::query_tile == THIN_QUERIES);

template <class T>
void launch(const Rows &rows, enum shoal_metric metric, const Tile &tile, cudaStream_t stream) {
  with_kind(rows.dtype, metric, [&](auto type, auto known) {
    const dim3 grid(divided_up(tile.wide, T::row_tile), divided_up(tile.deep, T::query_tile));
    matrix_kernel<decltype(type)::value, decltype(known)::value, T><<<grid, THREADS, 0, stream>>>(
        rows, tile.queries, tile.norms, tile.deep, tile.first, tile.wide, tile.scores, tile.wide);
  });
  check(cudaGetLastError(), "the kernel of a matrix");
}

} // namespace

void score_tile(const Rows &rows, enum shoal_metric metric, const Tile &tile, bool is_thin, cudaStream_t stream) {
  if (is_thin)
    launch<Thin>(rows, metric, tile, stream);
  else
    launch<Wide>(rows, metric, tile, stream);
}

} // namespace shoal_cuda
