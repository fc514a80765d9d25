// coarse_hopper: wgmma over tiles of 128 queries × 256 rows. One warp asks the copy engine for the next steps of 64
// dimensions (two to six stages of shared memory, each with a barrier for "full" and one for "empty"); two groups of
// four warps multiply 64 queries each and select, so that one multiplies while the other selects. A block keeps its
// queries in shared memory where there is room (up to 512 dimensions) and walks over rows; blocks of one row tile run
// at the same time, so that it is read from memory once.
// Shapes: coarse.cuh. Memory: none but shared, all that a multiprocessor has.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "../device/barriers.cuh"
#include "coarse.cuh"
#include "../device/launch.cuh"
#include <cuda.h>
#include <cstring>

namespace shoal_cuda {
namespace {

constexpr uint32_t ROW_TILE = 256, THREADS = 384, GROUPS = 2;
[[maybe_unused]] constexpr uint32_t CONSUMER_WARPS = 8;
constexpr uint32_t ROW_BYTES = ROW_TILE * 128, QUERY_BYTES = QUERY_TILE * 128; // of one stage
constexpr uint32_t MAX_STAGES = 6;

struct Plan {
  uint32_t stages, stage_bytes, steps, query_tiles, row_tiles;
  /** Queries of all steps lie in shared memory; else each stage brings its own. */
  uint32_t keeps_queries;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/** A box of a tensor that begins at dimension `x` of line `y`. */
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

/** Lines of 128 bytes, swizzled over 128 bytes, in groups of 8 lines that lie 1,024 bytes apart. */
__device__ __forceinline__ uint64_t matrix_at(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | 1ull << 16 | static_cast<uint64_t>(1024 >> 4) << 32 |
         1ull << 62;
}

/** d (64 × 256) = queries (64 × 16) × rows (256 × 16)ᵀ, added to what d holds where `adds`. */
__device__ __forceinline__ void multiply(float *d, uint64_t queries, uint64_t rows, int adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
      "}, %128, %129, adds, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),
        "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),
        "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]),
        "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]),
        "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]),
        "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]),
        "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]),
        "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]),
        "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
      : "l"(queries), "l"(rows), "r"(adds));
}

__device__ __forceinline__ void produce(const CUtensorMap *row_map, const CUtensorMap *query_map, const Plan &plan,
                                        uint32_t kept, uint32_t stages, uint32_t full, uint32_t empty,
                                        uint32_t queries_full) {
  const uint32_t query_tile = blockIdx.x % plan.query_tiles;
  if (plan.keeps_queries) {
    expect(queries_full, plan.steps * QUERY_BYTES);
    for (uint32_t step = 0; step < plan.steps; step++)
      copy_box(kept + step * QUERY_BYTES, query_map, step * K_STEP, query_tile * QUERY_TILE, queries_full);
  }
  uint32_t stage = 0, parity = 1; // the first round finds every stage empty
  for (uint32_t tile = blockIdx.x / plan.query_tiles; tile < plan.row_tiles; tile += gridDim.x / plan.query_tiles)
    for (uint32_t step = 0; step < plan.steps; step++) {
      wait(empty + 8 * stage, parity);
      expect(full + 8 * stage, plan.stage_bytes);
      const uint32_t to = stages + stage * plan.stage_bytes;
      copy_box(to, row_map, step * K_STEP, tile * ROW_TILE, full + 8 * stage);
      if (!plan.keeps_queries)
        copy_box(to + ROW_BYTES, query_map, step * K_STEP, query_tile * QUERY_TILE, full + 8 * stage);
      if (++stage == plan.stages) stage = 0, parity ^= 1;
    }
}

/** What is left to do with the scores of 64 queries × 256 rows that lie in a group's registers. */
__device__ __forceinline__ void select(float *sum, const float *factors, const float *biases, const CoarseRows &rows,
                                       const CoarseQueries &queries, const CoarseOut &out, uint32_t tile,
                                       uint32_t query0, uint32_t t) {
  const bool has_bias = rows.bias != nullptr;
  float threshold[2], bias_scale[2];
#  pragma unroll
  for (int h = 0; h < 2; h++) {
    threshold[h] = out.maxima != nullptr ? 0.0f : queries.threshold[query0 + 8 * h];
    bias_scale[h] = has_bias ? queries.bias_scale[query0 + 8 * h] : 0.0f;
  }
  // 16 rows of each query at a time: 8 blocks of 8 rows, of which a thread has two.
#  pragma unroll
  for (int part = 0; part < 4; part++) {
    float most[2] = {-INFINITY, -INFINITY};
#  pragma unroll
    for (int n = 0; n < 8; n++) {
      const int block = part * 8 + n;
      const float2 factor = *reinterpret_cast<const float2 *>(factors + block * 8 + 2 * t);
      float2 bias = make_float2(0, 0);
      if (has_bias) bias = *reinterpret_cast<const float2 *>(biases + block * 8 + 2 * t);
#  pragma unroll
      for (int h = 0; h < 2; h++) {
        sum[block * 4 + 2 * h] = fmaf(sum[block * 4 + 2 * h], factor.x, bias.x * bias_scale[h]);
        sum[block * 4 + 2 * h + 1] = fmaf(sum[block * 4 + 2 * h + 1], factor.y, bias.y * bias_scale[h]);
        most[h] = fmaxf(most[h], fmaxf(sum[block * 4 + 2 * h], sum[block * 4 + 2 * h + 1]));
      }
    }
#  pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t query = query0 + 8 * h;
      if (out.maxima != nullptr) {
        out.maxima[static_cast<uint64_t>(query) * out.groups + tile * (ROW_TILE / GROUP_ROWS) + part * 4 + t] = most[h];
      } else if (most[h] >= threshold[h]) {
#  pragma unroll
        for (int n = 0; n < 8; n++)
#  pragma unroll
          for (int i = 0; i < 2; i++) {
            const float score = sum[(part * 8 + n) * 4 + 2 * h + i];
            if (score >= threshold[h])
              keep(out, query, score, rows.first + (tile * ROW_TILE + (part * 8 + n) * 8 + 2 * t + i) * rows.step);
          }
      }
    }
  }
}

__device__ __forceinline__ void consume(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out,
                                        const Plan &plan, uint32_t kept, uint32_t stages, uint32_t full, uint32_t empty,
                                        uint32_t queries_full, float *factors) {
  const uint32_t group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, lane = thread % 32;
  const uint32_t query0 = blockIdx.x % plan.query_tiles * QUERY_TILE + group * 64 + thread / 32 * 16 + lane / 4;
  float *const my_factors = factors + group * 2 * ROW_TILE, *const my_biases = my_factors + ROW_TILE;
  float sum[128];
  uint32_t stage = 0, parity = 0;
  if (plan.keeps_queries) wait(queries_full, 0);
  for (uint32_t tile = blockIdx.x / plan.query_tiles; tile < plan.row_tiles; tile += gridDim.x / plan.query_tiles) {
    float factor[2], bias[2];
#  pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32_t row = tile * ROW_TILE + 2 * thread + i;
      const uint64_t at = rows.first + static_cast<uint64_t>(row) * rows.step;
      factor[i] = row < rows.count ? __ldg(rows.factor + at) : __int_as_float(0x7fc00000);
      bias[i] = rows.bias != nullptr && row < rows.count ? __ldg(rows.bias + at) : 0.0f;
    }
    for (uint32_t step = 0; step < plan.steps; step++) {
      wait(full + 8 * stage, parity);
      const uint32_t row_part = stages + stage * plan.stage_bytes;
      const uint32_t query_part =
          (plan.keeps_queries ? kept + step * QUERY_BYTES : row_part + ROW_BYTES) + group * 64 * 128;
      const uint64_t row_matrix = matrix_at(row_part), query_matrix = matrix_at(query_part);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#  pragma unroll
      for (int k = 0; k < 4; k++) multiply(sum, query_matrix + 2 * k, row_matrix + 2 * k, step > 0 || k > 0);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (lane == 0) arrive(empty + 8 * stage);
      if (++stage == plan.stages) stage = 0, parity ^= 1;
    }
    // The other group is somewhere else by now: each has factors and a barrier of its own.
    *reinterpret_cast<float2 *>(my_factors + 2 * thread) = make_float2(factor[0], factor[1]);
    *reinterpret_cast<float2 *>(my_biases + 2 * thread) = make_float2(bias[0], bias[1]);
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    select(sum, my_factors, my_biases, rows, queries, out, tile, query0, lane % 4);
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
  }
}
#endif

__global__ void __launch_bounds__(THREADS, 1)
    hopper(const __grid_constant__ CUtensorMap row_map, const __grid_constant__ CUtensorMap query_map, CoarseRows rows,
           CoarseQueries queries, CoarseOut out, Plan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared[];
  __shared__ __align__(8) uint64_t barriers[2 * MAX_STAGES + 1];
  __shared__ __align__(8) float factors[GROUPS * 2 * ROW_TILE];
  const uint32_t kept = (shared_address(shared) + 1023) / 1024 * 1024,
                 stages = kept + (plan.keeps_queries ? plan.steps * QUERY_BYTES : 0);
  const uint32_t full = shared_address(barriers), empty = full + 8 * MAX_STAGES, queries_full = empty + 8 * MAX_STAGES;
  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < plan.stages; stage++)
      init_barrier(full + 8 * stage, 1), init_barrier(empty + 8 * stage, CONSUMER_WARPS);
    init_barrier(queries_full, 1);
    show_barriers();
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  after_previous();
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) produce(&row_map, &query_map, plan, kept, stages, full, empty, queries_full);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume(rows, queries, out, plan, kept, stages, full, empty, queries_full, factors);
  }
#endif
}

typedef CUresult (*Encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                           const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                           CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Encode encode() {
  static const Encode found = [] {
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
      return cudaGetLastError(), static_cast<Encode>(nullptr);
    return reinterpret_cast<Encode>(entry);
  }();
  return found;
}

/**
 * `lines` of `values` halves, `stride` bytes apart, in boxes of 64 halves × `box` lines. What is outside reads as 0.
 */
CUtensorMap map_of(const char *at, uint32_t values, uint32_t lines, uint64_t stride, uint32_t box) {
  CUtensorMap map;
  const cuuint64_t size[2] = {values, lines}, strides[1] = {stride};
  const cuuint32_t boxes[2] = {K_STEP, box}, steps[2] = {1, 1};
  const CUresult result = encode()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<char *>(at), size, strides,
                                   boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    fail(SHOAL_CUDA_LOST, "the driver refuses a tensor of %u × %u, %llu bytes a line (error %d)", lines, values,
         static_cast<unsigned long long>(stride), result);
  return map;
}

Plan plan_for(const CoarseRows &rows, const CoarseQueries &queries, uint32_t shared_bytes) {
  Plan plan{};
  plan.steps = queries.dims / K_STEP, plan.query_tiles = queries.padded / QUERY_TILE,
  plan.row_tiles = divided_up(rows.count, ROW_TILE);
  const uint32_t room = shared_bytes - 1024 - (GROUPS * 2 * ROW_TILE * 4 + 256); // alignment, and what is static
  plan.keeps_queries = plan.steps * QUERY_BYTES + 3 * ROW_BYTES <= room;
  plan.stage_bytes = ROW_BYTES + (plan.keeps_queries ? 0 : QUERY_BYTES);
  plan.stages = (room - (plan.keeps_queries ? plan.steps * QUERY_BYTES : 0)) / plan.stage_bytes;
  if (plan.stages > MAX_STAGES) plan.stages = MAX_STAGES;
  return plan;
}

} // namespace

bool has_hopper(int device) {
#ifdef SHOAL_HOPPER
  return facts_of(device).compute == 90 && encode() != nullptr;
#else
  return static_cast<void>(device), false;
#endif
}

void coarse_hopper(const CoarseRows &rows, const CoarseQueries &queries, const CoarseOut &out, int device,
                   cudaStream_t stream) {
  const Facts &facts = facts_of(device);
  Plan plan = plan_for(rows, queries, static_cast<uint32_t>(facts.shared_bytes));
  if (out.maxima != nullptr) plan.row_tiles = out.groups / (ROW_TILE / GROUP_ROWS);
  const uint32_t bytes = 1024 + plan.stages * plan.stage_bytes + (plan.keeps_queries ? plan.steps * QUERY_BYTES : 0);
  allow_shared<hopper>(device, bytes);
  const CUtensorMap row_map = map_of(rows.half, rows.bytes / 2, rows.count, rows.stride, ROW_TILE);
  const CUtensorMap query_map = map_of(queries.half, queries.dims, queries.padded, queries.dims * 2, QUERY_TILE);
  uint32_t walkers = static_cast<uint32_t>(facts.multiprocessors) / plan.query_tiles; // blocks of one query tile
  if (walkers == 0) walkers = 1;
  if (walkers > plan.row_tiles) walkers = plan.row_tiles;
  launch_overlapping("the Hopper kernel of coarse scores", device, hopper, walkers * plan.query_tiles, THREADS, bytes,
                     stream, row_map, query_map, rows, queries, out, plan);
}

} // namespace shoal_cuda
