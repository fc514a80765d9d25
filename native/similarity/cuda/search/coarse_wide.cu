// coarse_wide: a block of 4 warps has 128 queries × 128 rows, each warp 64 × 64 of them in registers; both come through
// shared memory in steps of 64 dimensions, two or three steps ahead of the product. Two blocks fit on a multiprocessor
// of 200 KB: one selects while the other multiplies. Blocks of one row tile are neighbours, so that it is read from
// memory once.
// Shapes: coarse.cuh. Memory: none but shared, 32 KB a stage, three stages or (sm_75) two.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "coarse.cuh"
#include <cstdlib>

namespace shoal_cuda {
namespace {

constexpr int TILE = 128, THREADS = 128;
constexpr uint32_t STEP_BYTES = K_STEP * 2;        // of one row or query
constexpr uint32_t PART_BYTES = TILE * STEP_BYTES; // 16 KB of queries, 16 KB of rows

__device__ __forceinline__ uint32_t shared_address(const void *at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

/** 16 bytes into shared memory, zeros where they are not `there`. */
__device__ __forceinline__ void load16(uint32_t to, const char *from, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
#else
  const uint4 bits = there ? __ldg(reinterpret_cast<const uint4 *>(from)) : make_uint4(0, 0, 0, 0);
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
               : "memory");
#endif
}

__device__ __forceinline__ void loads_issued() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int STAGES>
__device__ __forceinline__ void wait_for_oldest() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
#endif
}

__device__ __forceinline__ void load_matrix(uint32_t *to, uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from));
}

/** Address of 16 bytes of a line in a part; lines of 128 bytes would meet in the same banks otherwise. */
__device__ __forceinline__ uint32_t in_part(uint32_t line, uint32_t chunk) {
  return line * STEP_BYTES + ((chunk ^ (line & 7)) << 4);
}

template <int STAGES>
__global__ void __launch_bounds__(THREADS, 2) wide(CoarseRows rows, CoarseQueries queries, CoarseOut out) {
  extern __shared__ __align__(128) char shared[];
  const uint32_t base = shared_address(shared);
  const uint32_t query_tiles = queries.padded / TILE, query_tile = blockIdx.x % query_tiles,
                 row_tile = blockIdx.x / query_tiles;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t warp_queries = warp / 2 * 64, warp_rows = warp % 2 * 64;
  const uint32_t steps = queries.dims / K_STEP;

  // Each thread loads chunk `threadIdx % 8` of lines threadIdx / 8 + 16 i.
  const uint32_t line = threadIdx.x / 8, chunk = threadIdx.x % 8;
  const char *const query_from =
      queries.half + (static_cast<uint64_t>(query_tile) * TILE + line) * queries.dims * 2 + chunk * 16;
  const uint64_t first_row = static_cast<uint64_t>(row_tile) * TILE + line;
  const auto load = [&](uint32_t step, uint32_t stage) {
    const uint32_t to = base + stage * 2 * PART_BYTES, column = step * STEP_BYTES + chunk * 16;
#pragma unroll
    for (uint32_t i = 0; i < TILE / 16; i++) {
      load16(to + in_part(line + 16 * i, chunk),
             query_from + static_cast<uint64_t>(16 * i) * queries.dims * 2 + step * STEP_BYTES, true);
      const uint64_t row = first_row + 16 * i;
      const bool there = row < rows.count && column < rows.bytes;
      load16(to + PART_BYTES + in_part(line + 16 * i, chunk),
             there ? rows.half + row * rows.stride + column : rows.half, there);
    }
  };

  float sum[4][8][4];
#pragma unroll
  for (int m = 0; m < 4; m++)
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) sum[m][n][i] = 0;

  for (uint32_t step = 0; step < STAGES - 1; step++) {
    if (step < steps) load(step, step);
    loads_issued();
  }
  for (uint32_t step = 0; step < steps; step++) {
    wait_for_oldest<STAGES>();
    __syncthreads(); // the step's data is there for all, and nobody still reads the stage that is loaded next
    if (step + STAGES - 1 < steps) load(step + STAGES - 1, (step + STAGES - 1) % STAGES);
    loads_issued();
    const uint32_t query_part = base + step % STAGES * 2 * PART_BYTES, row_part = query_part + PART_BYTES;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      uint32_t a[4][4], b[4][4];
#pragma unroll
      for (uint32_t m = 0; m < 4; m++)
        load_matrix(a[m], query_part + in_part(warp_queries + m * 16 + lane % 16, k * 2 + lane / 16));
      // Two blocks of 8 rows at a time: matrices (rows 0–7, k 0–7), (rows 0–7, k 8–15), (rows 8–15, k 0–7), (rows 8–15,
      // k 8–15).
#pragma unroll
      for (uint32_t n = 0; n < 4; n++)
        load_matrix(b[n], row_part + in_part(warp_rows + n * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 8; n++) mma(sum[m][n], a[m], b[n / 2] + n % 2 * 2);
    }
  }

  // A thread has queries g and g + 8 of each 16, and rows 2t and 2t + 1 of each 8.
  const uint32_t row0 = row_tile * TILE + warp_rows + 2 * t;
  float factor[16];
#pragma unroll
  for (int n = 0; n < 16; n++) {
    const uint32_t row = row0 + n / 2 * 8 + n % 2;
    factor[n] = row < rows.count ? __ldg(rows.factor + rows.first + static_cast<uint64_t>(row) * rows.step)
                                 : __int_as_float(0x7fc00000);
  }
  if (rows.bias != nullptr) {
#pragma unroll
    for (int n = 0; n < 16; n++) {
      const uint32_t row = row0 + n / 2 * 8 + n % 2;
      const float bias =
          row < rows.count ? __ldg(rows.bias + rows.first + static_cast<uint64_t>(row) * rows.step) : 0.0f;
#pragma unroll
      for (int m = 0; m < 4; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float &value = sum[m][n / 2][h * 2 + n % 2];
          value = fmaf(value, factor[n],
                       bias * __ldg(queries.bias_scale + query_tile * TILE + warp_queries + m * 16 + h * 8 + g));
        }
    }
  } else {
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int m = 0; m < 4; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) sum[m][n / 2][h * 2 + n % 2] *= factor[n];
  }
#pragma unroll
  for (int m = 0; m < 4; m++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t query = query_tile * TILE + warp_queries + m * 16 + h * 8 + g;
      float most = -INFINITY; // a maximum of a number and NaN is the number
#pragma unroll
      for (int n = 0; n < 16; n++) most = fmaxf(most, sum[m][n / 2][h * 2 + n % 2]);
      if (out.maxima != nullptr) {
        out.maxima[static_cast<uint64_t>(query) * out.groups + row_tile * (TILE / GROUP_ROWS) + warp_rows / GROUP_ROWS +
                   t] = most;
        continue;
      }
      const float threshold = __ldg(queries.threshold + query);
      if (most >= threshold) {
#pragma unroll
        for (int n = 0; n < 16; n++)
          if (sum[m][n / 2][h * 2 + n % 2] >= threshold)
            keep(out, query, sum[m][n / 2][h * 2 + n % 2], rows.first + (row0 + n / 2 * 8 + n % 2) * rows.step);
      }
    }
}

template <int STAGES>
void launch(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out, int device,
            cudaStream_t stream) {
  constexpr int BYTES = STAGES * 2 * PART_BYTES;
  allow_shared<wide<STAGES>>(device, BYTES);
  const uint32_t tiles =
      out.maxima != nullptr ? out.groups / (TILE / GROUP_ROWS) : divided_up(rows.count, static_cast<uint32_t>(TILE));
  wide<STAGES><<<tiles *(queries.padded / TILE), THREADS, BYTES, stream>>>(rows, queries, out);
  check(cudaGetLastError(), "the wide kernel of coarse scores");
}

} // namespace

void coarse_wide(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out, int device,
                 cudaStream_t stream) {
  if (facts_of(device).shared_bytes >= 3 * 2 * PART_BYTES)
    launch<3>(rows, queries, out, device, stream);
  else
    launch<2>(rows, queries, out, device, stream); // 64 KB of shared memory on sm_75
}

char coarse_asked() {
  const char *const asked = std::getenv("SHOAL_CUDA_COARSE");
  return asked == nullptr ? '\0' : asked[0];
}

void coarse(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out, int device,
            cudaStream_t stream) {
  const char asked = coarse_asked();
  const auto is_asked = [&](char name) { return asked == 0 || asked == name; };
  if (out.maxima == nullptr && fits_thin(queries, device) && is_asked('t'))
    coarse_thin(rows, queries, out, device, stream);
  else if (has_hopper(device) && is_asked('h'))
    coarse_hopper(rows, queries, out, device, stream);
  else
    coarse_wide(rows, queries, out, device, stream);
}

} // namespace shoal_cuda
