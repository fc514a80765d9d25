// coarse_thin: a warp has 16 rows and all queries (8, 16 or 32). Four lanes share a row: each loads 16 of every 64
// bytes, straight into the registers of the product. The product's order of dimensions is its own affair as long as
// rows and queries agree, so no byte passes through shared memory but those of the queries, which stay there.
// Shapes: coarse.cuh. Memory: none but shared, 8 to 32 places of dims × 2 bytes and padding.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "coarse.cuh"
#include "../device/launch.cuh"
#include <algorithm>

namespace shoal_cuda {
namespace {

constexpr int THREADS = 256;
/** Steps of 64 bytes whose loads are under way together: 12 KB a warp. */
constexpr uint32_t AHEAD = 6;

/** Queries lie so far apart in shared memory that the 8 lanes of a quarter of a load meet in no bank. */
__host__ __device__ __forceinline__ uint32_t query_stride(uint32_t dims) {
  return dims * 2 + (dims * 2 % 128 == 64 ? 0 : 64);
}

template <int BLOCKS>
__global__ void __launch_bounds__(THREADS) thin(CoarseRows rows, CoarseQueries queries, CoarseOut out) {
  extern __shared__ __align__(16) char shared[];
  const uint32_t stride = query_stride(queries.dims), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t tiles = divided_up(rows.count, 16u), first_tile = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  next_may_begin();
  // The first rows are on their way while thresholds are found: a thirtieth of a million rows.
  const uint64_t near = static_cast<uint64_t>(first_tile) * 16 + lane;
  if (lane < 16 && near < rows.count) bring_near(rows.half + near * rows.stride, rows.bytes);
  after_previous();
  for (uint32_t i = threadIdx.x; i < BLOCKS * 8 * queries.dims / 8; i += THREADS) {
    const uint32_t query = i / (queries.dims / 8), chunk = i % (queries.dims / 8);
    *reinterpret_cast<uint4 *>(shared + query * stride + chunk * 16) =
        *reinterpret_cast<const uint4 *>(queries.half + static_cast<uint64_t>(query) * queries.dims * 2 + chunk * 16);
  }
  __syncthreads();
  const char *const query_at = shared + g * stride + t * 16;
  const uint32_t steps = divided_up(rows.bytes, 64u);
  // Of each block of 8 queries a lane has the scores of two.
  float threshold[BLOCKS][2], bias_scale[BLOCKS][2];
#pragma unroll
  for (int n = 0; n < BLOCKS; n++)
#pragma unroll
    for (int i = 0; i < 2; i++)
      threshold[n][i] = queries.threshold[n * 8 + 2 * t + i],
      bias_scale[n][i] = rows.bias == nullptr ? 0 : queries.bias_scale[n * 8 + 2 * t + i];

  for (uint32_t tile = first_tile; tile < tiles; tile += gridDim.x * (THREADS / 32)) {
    // Rows behind the end are read as the last one and dropped below.
    uint32_t row[2];
    const char *from[2];
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      row[h] = tile * 16 + g + 8 * h;
      const uint32_t there = min(row[h], rows.count - 1);
      from[h] = rows.half + there * rows.stride + t * 16;
      factor[h] = row[h] < rows.count ? __ldg(rows.factor + rows.first + static_cast<uint64_t>(there) * rows.step)
                                      : __int_as_float(0x7fc00000);
    }
    float sum[BLOCKS][4] = {};
    for (uint32_t step0 = 0; step0 < steps; step0 += AHEAD) {
      uint4 bits[AHEAD][2];
#pragma unroll
      for (uint32_t i = 0; i < AHEAD; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const uint32_t at = (step0 + i) * 64;
          bits[i][h] =
              at + t * 16 < rows.bytes ? __ldcs(reinterpret_cast<const uint4 *>(from[h] + at)) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
      for (uint32_t i = 0; i < AHEAD; i++) {
        if (step0 + i >= steps) break;
        const uint32_t a[2][4] = {{bits[i][0].x, bits[i][1].x, bits[i][0].y, bits[i][1].y},
                                  {bits[i][0].z, bits[i][1].z, bits[i][0].w, bits[i][1].w}};
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
          const uint4 asked = *reinterpret_cast<const uint4 *>(query_at + n * 8 * stride + (step0 + i) * 64);
          const uint32_t b[2][2] = {{asked.x, asked.y}, {asked.z, asked.w}};
          mma(sum[n], a[0], b[0]);
          mma(sum[n], a[1], b[1]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float bias = rows.bias == nullptr || row[h] >= rows.count
                             ? 0.0f
                             : __ldg(rows.bias + rows.first + static_cast<uint64_t>(row[h]) * rows.step);
#pragma unroll
      for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const float value = fmaf(sum[n][h * 2 + i], factor[h], bias * bias_scale[n][i]);
          if (value >= threshold[n][i]) keep(out, n * 8 + 2 * t + i, value, rows.first + row[h] * rows.step);
        }
    }
  }
}

template <int BLOCKS>
void launch(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out, int device,
            cudaStream_t stream) {
  const size_t bytes = BLOCKS * 8 * query_stride(queries.dims);
  allow_shared<thin<BLOCKS>>(device, bytes);
  // By its registers, two blocks run on a multiprocessor.
  const uint32_t most = 2 * static_cast<uint32_t>(facts_of(device).multiprocessors),
                 wanted = divided_up(rows.count, 16u * (THREADS / 32));
  launch_overlapping("the thin kernel of coarse scores", device, thin<BLOCKS>, most < wanted ? most : wanted, THREADS,
                     bytes, stream, rows, queries, out);
}

} // namespace

/**
 * 32 places even for one query where they fit: a search of a million rows of 768 bytes takes 216 µs, and 260 with 8
 * places (H200, 2026-11-22).
 */
static uint32_t places_for(const CoarseQueries &queries, int device) {
  const size_t most = std::min<size_t>(facts_of(device).shared_bytes, 96 * 1024);
  for (uint32_t places = 32; places >= 8 && places >= queries.count; places /= 2)
    if (places * query_stride(queries.dims) <= most) return places;
  return 0;
}

bool fits_thin(const CoarseQueries &queries, int device) {
  return queries.count <= MAX_THIN_QUERIES && places_for(queries, device) != 0;
}

void coarse_thin(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out, int device,
                 cudaStream_t stream) {
  const uint32_t places = places_for(queries, device);
  if (places == 8)
    launch<1>(rows, queries, out, device, stream);
  else if (places == 16)
    launch<2>(rows, queries, out, device, stream);
  else
    launch<4>(rows, queries, out, device, stream);
}

} // namespace shoal_cuda
