// Every score in fp32: a block has 128 queries × 128 rows, each thread 8 × 8 of them, 16 dimensions at a time through shared memory.
// Plain multiply-adds, not tensor cores: tf32 and fp16 would lose digits that the answer has, and the result leaves the device at
// 4 bytes a score, slower than this makes it. At most 16 dimensions are summed
// in one chain, and the chains' sums are added with what each addition loses (Kahan): chains of 128 were off by 1.1e-6 on an H200 where
// all terms have one sign (2026-11-22). For few queries a tile is mostly empty: their scores are those of pairs.cu, rounded.
#include <algorithm>
#include "pairs.cuh"

namespace shoal_cuda {
namespace {

constexpr uint32_t TILE = 128, DEPTH = 16, THREADS = 256, LINE = TILE + 4;
/** Up to so many queries. A tile takes 24 steps of 1 to 2 µs for 384 dimensions, whether it has one query or 128. */
constexpr uint64_t FEW_QUERIES = 8;

/** 8 values of a row, times `scale`; zeros behind its end. */
template <enum shoal_dtype TYPE>
__device__ __forceinline__ void load8(const char *row, uint64_t stride, uint32_t dim, float scale, float *to) {
  const uint64_t at = static_cast<uint64_t>(dim) * (TYPE == SHOAL_F32 ? 4 : TYPE == SHOAL_F16 ? 2 : 1);
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] = 0;
  if (TYPE == SHOAL_F32) {
    if (at < stride) Chunk<SHOAL_F32>::floats(__ldg(reinterpret_cast<const uint4 *>(row + at)), to);
    if (at + 16 < stride) Chunk<SHOAL_F32>::floats(__ldg(reinterpret_cast<const uint4 *>(row + at + 16)), to + 4);
  } else if (TYPE == SHOAL_F16) {
    if (at < stride) Chunk<SHOAL_F16>::floats(__ldg(reinterpret_cast<const uint4 *>(row + at)), to);
  } else if (at < stride) {
    const uint2 bits = __ldg(reinterpret_cast<const uint2 *>(row + at));
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = static_cast<int8_t>((i < 4 ? bits.x : bits.y) >> (8 * (i % 4)));
  }
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] *= scale;
}

/** `scores` is queries × `line` floats; rows [first, first + count) of all. */
template <enum shoal_dtype TYPE, enum shoal_metric METRIC>
__global__ void __launch_bounds__(THREADS) matrix_kernel(Rows rows, const float *queries, const double *norms, uint32_t query_count, uint32_t first, uint32_t count, float *scores, uint64_t line) {
  __shared__ __align__(16) float asked[DEPTH][LINE], stored[DEPTH][LINE];
  const uint32_t stride = divided_up(rows.dims, K_STEP) * K_STEP, query0 = blockIdx.y * TILE, row0 = blockIdx.x * TILE;
  // Each thread brings 8 values of one query and of one row.
  const uint32_t mine = threadIdx.x / 2, part = threadIdx.x % 2 * 8;
  const uint32_t query = min(query0 + mine, query_count - 1), row = first + min(row0 + mine, count - 1);
  float query_scale = 1, row_scale = 1;
  if (METRIC == SHOAL_COSINE) {
    query_scale = norms[query] < SHOAL_MIN_LENGTH ? 0.0f : static_cast<float>(1 / norms[query]);
    row_scale = TYPE == SHOAL_F32 ? rows.cosine_factor[row] / rows.dot_factor[row] : rows.cosine_factor[row];
  } else if (TYPE == SHOAL_I8 && rows.scales != nullptr) {
    row_scale = rows.scales[row];
  }
  const char *const row_at = rows.data + row * rows.stride;
  const uint32_t tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float total[8][8] = {}, lost[8][8] = {};
  const uint32_t steps = divided_up(rows.dims, DEPTH);
  for (uint32_t step = 0; step < steps; step++) {
    float values[8];
    load8<TYPE>(row_at, rows.stride, step * DEPTH + part, row_scale, values);
    const float *const from = queries + static_cast<uint64_t>(query) * stride + step * DEPTH + part;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) stored[part + i][mine] = values[i], asked[part + i][mine] = from[i] * query_scale;
    __syncthreads();
    float chain[8][8] = {};
#pragma unroll
    for (uint32_t d = 0; d < DEPTH; d++) {
      float q[8], r[8];
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        *reinterpret_cast<float4 *>(q + i) = *reinterpret_cast<const float4 *>(&asked[d][ty * 8 + i]);
        *reinterpret_cast<float4 *>(r + i) = *reinterpret_cast<const float4 *>(&stored[d][tx * 8 + i]);
      }
#pragma unroll
      for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
          if (METRIC == SHOAL_L2) chain[i][j] = fmaf(q[i] - r[j], q[i] - r[j], chain[i][j]);
          else chain[i][j] = fmaf(q[i], r[j], chain[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const float term = chain[i][j] - lost[i][j], sum = total[i][j] + term;
        // Where the sum has left fp32, nothing is known to be lost.
        lost[i][j] = isfinite(sum) ? (sum - total[i][j]) - term : 0.0f;
        total[i][j] = sum;
      }
  }
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const uint32_t q = query0 + ty * 8 + i, r = row0 + tx * 8 + j;
      if (q < query_count && r < count) scores[q * line + r] = total[i][j];
    }
}

}  // namespace
}  // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" int shoal_cuda_matrix(const shoal_cuda_rows *of, const float *queries, uint64_t query_count, enum shoal_metric metric, float *scores, const shoal_cuda_terms *terms) {
  return answer([&] {
    const Rows &rows = of->rows;
    const shoal_cuda_terms none{}, &limits = terms == nullptr ? none : *terms;
    Lease slot(of->device);
    shoal_cuda_times times{};
    if (rows.count == 0 || query_count == 0) return;
    const uint32_t stride = padded_dims(rows.dims);
    const uint64_t bytes = limits.work_bytes == 0 ? 512ull << 20 : limits.work_bytes;
    uint64_t chunk = std::min<uint64_t>(query_count, 4096), tile = std::min<uint64_t>(rows.count, std::max<uint64_t>(1 << 12, (32 << 20) / chunk / TILE * TILE));
    const auto bytes_for = [&] { return chunk * (static_cast<uint64_t>(stride) * 4 + 8) + 2 * chunk * tile * 4 + 2048; };
    while (bytes_for() > bytes && tile > TILE) tile = std::max<uint64_t>(TILE, tile / 2);
    while (bytes_for() > bytes && chunk > 1) chunk /= 2;
    while (bytes_for() > bytes && tile > 1) tile /= 2;
    Parts parts(slot->work(bytes_for(), limits.work_bytes));
    float *const padded = parts.take<float>(chunk * stride);
    double *const norms = parts.take<double>(chunk);
    float *out[2] = {parts.take<float>(chunk * tile), parts.take<float>(chunk * tile)};
    const uint64_t query_bytes = chunk * rows.dims * 4, all_bytes = query_count * rows.count * 4;
    // Few scores are written where the host reads them.
    const bool is_written_there = all_bytes <= DIRECT_BYTES && chunk == query_count && tile == rows.count;
    char *const host = slot->host(query_bytes + 256 + (is_written_there ? all_bytes : 0));
    if (is_written_there) out[0] = reinterpret_cast<float *>(host + divided_up<uint64_t>(query_bytes, 256) * 256);
    for (uint64_t q0 = 0; q0 < query_count; q0 += chunk) {
      const uint32_t count = static_cast<uint32_t>(std::min(chunk, query_count - q0));
      std::copy_n(queries + q0 * rows.dims, static_cast<uint64_t>(count) * rows.dims, reinterpret_cast<float *>(host));
      check(cudaEventRecord(slot->begun.handle, slot->stream), "an event");
      pad_queries(reinterpret_cast<const float *>(host), count, rows.dims, padded, norms, slot->stream);
      const auto wide_at = [&](uint64_t first) { return static_cast<uint32_t>(std::min(tile, rows.count - first)); };
      const auto make = [&](uint64_t first, int turn) {
        const uint32_t wide = wide_at(first);
        if (query_count <= FEW_QUERIES) {
          score_pairs(rows, metric, {padded, norms, nullptr, nullptr, nullptr, static_cast<uint32_t>(first), wide, static_cast<uint64_t>(count) * wide}, {nullptr, out[turn]}, of->device, slot->stream);
        } else {
          with_kind(rows.dtype, metric, [&](auto type, auto known) {
            const dim3 grid(divided_up(wide, TILE), divided_up(count, TILE));
            matrix_kernel<decltype(type)::value, decltype(known)::value><<<grid, THREADS, 0, slot->stream>>>(rows, padded, norms, count, static_cast<uint32_t>(first), wide, out[turn], wide);
          });
          check(cudaGetLastError(), "the kernel of a matrix");
        }
        check(cudaEventRecord(slot->launched[turn].handle, slot->stream), "an event");
      };
      make(0, 0);
      if (is_written_there) {
        slot->wait(slot->launched[0], limits.stop);
        std::copy_n(out[0], query_count * rows.count, scores);
        times.copied_bytes += all_bytes;
      } else {
        for (uint64_t first = 0, turn = 0; first < rows.count; first += tile, turn ^= 1) {
          // While this tile is copied, the next one is made.
          if (first + tile < rows.count) make(first + tile, static_cast<int>(turn ^ 1));
          slot->wait(slot->launched[turn], limits.stop);
          const uint64_t wide = wide_at(first);
          check(cudaEventRecord(slot->loaded.handle, slot->copies), "an event");
          copy_out(*slot, slot->copies, reinterpret_cast<char *>(scores + q0 * rows.count + first), rows.count * 4ull, reinterpret_cast<const char *>(out[turn]), wide * 4, wide * 4, count, limits.stop);
          check(cudaEventRecord(slot->ended.handle, slot->copies), "an event");
          check(cudaEventSynchronize(slot->ended.handle), "a copy");
          times.copy_us += microseconds(slot->loaded, slot->ended);
          times.copied_bytes += wide * 4 * count;
        }
      }
      check(cudaEventRecord(slot->computed.handle, slot->stream), "an event");
      slot->wait(slot->computed, limits.stop);
      times.kernel_us += microseconds(slot->begun, slot->computed);
      times.device_us += microseconds(slot->begun, slot->computed);
    }
    if (limits.times != nullptr) *limits.times = times;
  });
}
