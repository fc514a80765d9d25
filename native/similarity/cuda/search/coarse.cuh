// Coarse scores on tensor cores: products of fp16 forms summed in fp32, every query with every row, never written to
// memory. A kernel gives either the largest score of every 16 rows (`maxima`: a sample, to find a threshold with), or
// appends the rows whose score is at least their query's threshold to that query's list (`filter`).
//
// Shapes: queries are `padded` (a multiple of 128) × `dims` padded to 64, fp16, padding zero, thresholds of padding
// +infinity. Rows are `count` of `bytes` (a multiple of 16, padding zero), `stride` bytes apart. Three kernels of the
// same result:
//   coarse_thin    at most 32 queries, rows straight from memory into registers: as fast as rows can be read (sm_75 and
//                  later)
//   coarse_wide    tiles of 128 × 128 in shared memory, mma.sync (sm_75 and later)
//   coarse_hopper  tiles of 128 × 256, wgmma and the copy engine (sm_90a)
#pragma once
#include "rows.cuh"

namespace shoal_cuda {

constexpr uint32_t QUERY_TILE = 128;
constexpr uint32_t GROUP_ROWS = 16;
constexpr uint32_t MAX_THIN_QUERIES = 32;

struct CoarseRows {
  const char *half;
  uint64_t stride;
  uint32_t bytes, count;
  /** Row i of these has the number first + i × step in the collection, and its factors there. */
  uint32_t first, step;
  const float *factor;
  /** Null but for l2. */
  const float *bias;
};

struct CoarseQueries {
  const char *half;
  uint32_t count, padded, dims;
  /** What a row's bias is multiplied with for each query. */
  const float *bias_scale;
  const float *threshold;
};

struct Candidate {
  float score;
  uint32_t row;
};

struct CoarseOut {
  /** padded × groups; null: filter. */
  float *maxima;
  uint32_t groups;
  /** Rows appended to each query's list, also those that found no room. */
  uint32_t *found;
  Candidate *list;
  uint32_t room;
};

/** Groups that each kernel writes for so many rows: a multiple of what one tile has. */
inline uint32_t groups_for(uint32_t count) { return divided_up(count, 256u) * (256 / GROUP_ROWS); }

/** At most 32 queries whose fp16 forms fit into shared memory. */
bool fits_thin(const CoarseQueries &queries, int device);
void coarse_thin(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out, int device,
                 cudaStream_t stream);
void coarse_wide(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out, int device,
                 cudaStream_t stream);
/** False where this build or device cannot. */
bool has_hopper(int device);
void coarse_hopper(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out, int device,
                   cudaStream_t stream);

/**
 * Whichever is best; SHOAL_CUDA_COARSE=thin|wide|hopper asks for one where it can be used (tests and benches): its
 * first letter, or 0.
 */
char coarse_asked();
void coarse(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out, int device,
            cudaStream_t stream);

__device__ __forceinline__ void keep(const CoarseOut &out, uint32_t query, float score, uint32_t row) {
  const uint32_t place = atomicAdd(&out.found[query], 1u);
  if (place < out.room) out.list[static_cast<uint64_t>(query) * out.room + place] = {score, row};
}

/** c += a (16 × 16, by rows) × b (16 × 8, by columns). */
__device__ __forceinline__ void mma(float *c, const uint32_t *a, const uint32_t *b) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#  pragma unroll
  for (int half = 0; half < 2; half++)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}

} // namespace shoal_cuda
