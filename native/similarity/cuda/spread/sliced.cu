// Spreading to one column where many nodes of a large graph give. Read through the second-level cache, an edge brings 4
// bytes and moves a sector of 32: 189 µs a step of 20 M edges (H200, 2026-11-22), and cuSPARSE takes longer. Here the
// edges are there a second time, by strip of the nodes that receive and in each strip by slice of those that give. A
// warp keeps the sums of its strip in shared memory while one slice after the other passes: one thread of each block
// asks the copy engine for the next. Every block reads all values, 4 MB, from the second-level cache; reading them once
// for a cluster of 2, 4 or 8 blocks was no faster. So an edge moves 8 bytes of memory, and a node what it moves anyway:
// 75 µs such a step (2026-11-23). When a block had a slice and went through all strips, whose sums for each slice were
// written and read again, it took 120.
//
// Sums are the same from run to run: a warp adds the edges of a strip in order, 32 at a time. Of these 32 no two have
// the same receiver, since the one would undo what the other adds: of the edges of a strip from a slice, in the order
// of receivers, each next one is in the next of as many groups as it takes, and where a group has room left are edges
// to nobody.
// Shapes: Sliced in ways.cuh, with one column. Memory: `sliced_bytes` beside the graph, made once with it.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
//
// Why: docs/decisions/similarity-gpu.md#spreading-reads-what-gives
#include <algorithm>
#include <cstdlib>
#include <vector>
#include "../device/barriers.cuh"
#include "../device/launch.cuh"
#include "ways.cuh"

namespace shoal_cuda {
namespace {

constexpr uint32_t THREADS = 1024, WARPS = THREADS / 32 - 1, STAGES = 2;
/** Nodes of a strip, and of a slice. */
constexpr uint32_t MOST_ROWS = 512, MOST_WIDTH = 1 << 16;
/** A device that this is for has at least so many multiprocessors, each with a block; an H200 132. */
constexpr uint32_t LEAST_BLOCKS = 114;
/** What a multiprocessor of sm_90 and sm_100 has, and what of it barriers take. */
constexpr uint32_t SHARED_BYTES = 232448, BARRIER_BYTES = 128;
/** Groups that a warp has under way of the next slice while it adds those of this one, which has about 5. */
[[maybe_unused]] constexpr uint32_t AHEAD = 5;
/**
 * Room for edges to nobody: so many for each slice of a strip. A group has 16 of them in the mean; more where one node
 * has most edges from a slice.
 */
constexpr uint32_t NOBODY_EDGES = 48;
/** Smaller graphs are as fast without. */
constexpr uint64_t LEAST_EDGES = 4 << 20;
/**
 * All wait for the warp with the most edges; up to so many times the mean it is done before the next slice has come.
 */
constexpr uint64_t MOST_UNEVEN = 4;

/** For tests: SHOAL_CUDA_SPREAD=sliced makes many slices of few nodes, of every graph that keeps bits. */
bool is_forced() {
  const char *const asked = std::getenv("SHOAL_CUDA_SPREAD");
  return asked != nullptr && asked[0] == 's';
}

/** No edges yet; no slices: not worth it. */
Sliced shape_of(uint64_t nodes, uint64_t edges) {
  Sliced sliced{};
  const uint64_t rows = divided_up(divided_up(nodes, uint64_t{LEAST_BLOCKS} * WARPS), uint64_t{32}) * 32;
  if (nodes == 0 || rows > MOST_ROWS || (!is_forced() && edges < LEAST_EDGES)) return sliced;
  const uint64_t most = is_forced()
                            ? 1024
                            : std::min<uint64_t>(MOST_WIDTH, (SHARED_BYTES - BARRIER_BYTES - WARPS * (rows + 32) * 4) /
                                                                 (STAGES * 4) / 32 * 32);
  const uint64_t slices = divided_up(nodes, most);
  sliced.slices = static_cast<uint32_t>(slices);
  sliced.width = static_cast<uint32_t>(divided_up(divided_up(nodes, slices), uint64_t{32}) * 32);
  sliced.rows = static_cast<uint32_t>(rows);
  sliced.strips = static_cast<uint32_t>(divided_up(nodes, rows));
  return sliced;
}

uint64_t most_edges(const Sliced &sliced, uint64_t edges) {
  return edges + static_cast<uint64_t>(NOBODY_EDGES) * sliced.slices * sliced.strips;
}

void lay_out(Shares &shares, Sliced &sliced, uint64_t edges) {
  sliced.edges = shares.take<uint2>(most_edges(sliced, edges));
  sliced.begin = shares.take<uint32_t>(static_cast<uint64_t>(sliced.slices) * sliced.strips + 1);
}

size_t shared_bytes(const Sliced &sliced) {
  return BARRIER_BYTES + (STAGES * sliced.width + WARPS * (sliced.rows + 32)) * sizeof(float);
}

/** Of the counts of all threads of a block. */
struct Counted {
  uint32_t before, total, most;
};

__device__ Counted count_all(uint32_t mine) {
  __shared__ uint32_t sums[MOST_ROWS / 32], mosts[MOST_ROWS / 32];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t sum = mine, most = mine;
  for (uint32_t apart = 1; apart < 32; apart *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, sum, apart);
    if (lane >= apart) sum += other;
    most = max(most, __shfl_xor_sync(0xffffffffu, most, apart));
  }
  __syncthreads(); // nobody reads those of the call before any more
  if (lane == 31) sums[warp] = sum, mosts[warp] = most;
  __syncthreads();
  Counted counted{sum - mine, 0, 0};
  for (uint32_t other = 0; other < blockDim.x / 32; other++) {
    if (other < warp) counted.before += sums[other];
    counted.total += sums[other], counted.most = max(counted.most, mosts[other]);
  }
  return counted;
}

__device__ uint32_t count_edges(const uint32_t *source, uint32_t first, uint32_t last, uint32_t low, uint32_t width) {
  uint32_t count = 0;
  for (uint32_t edge = first; edge < last; edge++) count += source[edge] - low < width;
  return count;
}

/** A block has a strip, a thread a node. `begin` of each slice becomes how many groups it takes. */
__global__ void __launch_bounds__(MOST_ROWS)
    size_kernel(const uint32_t *begin, const uint32_t *source, uint32_t nodes, Sliced sliced) {
  const uint32_t node = blockIdx.x * sliced.rows + threadIdx.x, first = begin[min(node, nodes)],
                 last = begin[min(node + 1, nodes)];
  for (uint32_t slice = 0; slice < sliced.slices; slice++) {
    const Counted counted = count_all(count_edges(source, first, last, slice * sliced.width, sliced.width));
    if (threadIdx.x == 0)
      sliced.begin[static_cast<uint64_t>(blockIdx.x) * sliced.slices + slice] =
          max(divided_up(counted.total, 32u), counted.most);
  }
}

/** Sizes become first groups. One block. */
__global__ void __launch_bounds__(THREADS) begin_kernel(Sliced sliced) {
  __shared__ uint32_t sums[THREADS];
  const uint32_t all = sliced.slices * sliced.strips, each = divided_up(all, THREADS),
                 first = min(threadIdx.x * each, all), last = min(first + each, all);
  uint32_t sum = 0;
  for (uint32_t i = first; i < last; i++) sum += sliced.begin[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (uint32_t apart = 1; apart < THREADS; apart *= 2) {
    const uint32_t before = threadIdx.x >= apart ? sums[threadIdx.x - apart] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  uint32_t at = threadIdx.x == 0 ? 0 : sums[threadIdx.x - 1];
  for (uint32_t i = first; i < last; i++) {
    const uint32_t size = sliced.begin[i];
    sliced.begin[i] = at;
    at += size;
  }
  if (threadIdx.x == THREADS - 1) sliced.begin[all] = sums[THREADS - 1];
}

/** A block has a strip, a thread a node. */
__global__ void __launch_bounds__(MOST_ROWS)
    place_kernel(const uint32_t *begin, const uint32_t *source, const float *weight, uint32_t nodes, Sliced sliced) {
  const uint32_t node = blockIdx.x * sliced.rows + threadIdx.x, first = begin[min(node, nodes)],
                 last = begin[min(node + 1, nodes)];
  for (uint32_t slice = 0; slice < sliced.slices; slice++) {
    const uint32_t low = slice * sliced.width,
                   *const begin_of = sliced.begin + static_cast<uint64_t>(blockIdx.x) * sliced.slices + slice,
                   groups = begin_of[1] - begin_of[0];
    const Counted counted = count_all(count_edges(source, first, last, low, sliced.width));
    uint2 *const to = sliced.edges + static_cast<uint64_t>(begin_of[0]) * 32;
    uint32_t at = counted.before;
    for (uint32_t edge = first; edge < last; edge++)
      if (source[edge] - low < sliced.width)
        to[at % groups * 32 + at / groups] =
            make_uint2((source[edge] - low) | threadIdx.x << 18, __float_as_uint(weight[edge])),
                                   at++;
    for (uint32_t none = counted.total + threadIdx.x; none < groups * 32; none += blockDim.x)
      to[none % groups * 32 + none / groups] = make_uint2(sliced.rows << 18, 0);
  }
}

#if __CUDA_ARCH__ >= 900
/** One thread of a block. */
__device__ __forceinline__ void bring_slices(const Step &step, const Sliced &sliced, const float *values, uint32_t full,
                                             uint32_t empty) {
  // What lies behind the last node is in the same 256 bytes, and no edge comes from there.
  const uint32_t padded = divided_up(step.nodes, 4u) * 4;
  for (uint32_t slice = 0; slice < sliced.slices; slice++) {
    const uint32_t stage = slice % STAGES, first = slice * sliced.width, bytes = min(sliced.width, padded - first) * 4;
    if (slice >= STAGES) wait(empty + 8 * stage, (slice / STAGES - 1) % 2);
    expect(full + 8 * stage, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(values + stage * sliced.width)),
                 "l"(step.given + first), "r"(bytes), "r"(full + 8 * stage)
                 : "memory");
  }
}

/** Groups [first, last) of a slice. */
struct Ahead {
  uint32_t first, last;
  uint2 edges[AHEAD];

  __device__ __forceinline__ void load(const Sliced &sliced, uint32_t from, uint32_t to, uint32_t lane) {
    first = from, last = to;
    const uint2 *const at = sliced.edges + static_cast<uint64_t>(from) * 32 + lane;
#  pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++)
      if (from + i < to) edges[i] = __ldcs(at + i * 32);
  }
};

/** What an edge brings; `values` at its source. */
__device__ __forceinline__ float given_by(const Step &step, const float *values, uint2 edge) {
  const float value = values[edge.x & 0xffff];
  return value >= step.threshold ? value * step.decay : 0.0f;
}

/** 32 edges, one a lane: to `sums` of the warp. */
__device__ __forceinline__ void add_group(float *sums, uint2 edge, float given) {
  float *const sum = reinterpret_cast<float *>(reinterpret_cast<char *>(sums) + (edge.x >> 16));
  *sum = fmaf(__uint_as_float(edge.y), given, *sum);
  __syncwarp();
}

/**
 * A warp: everything that arrives at its strip; the groups of the first slice are in `ahead[0]`. Returns how many nodes
 * give something in the next step.
 */
__device__ __forceinline__ uint32_t take_slices(const Step &step, const Sliced &sliced, const float *values,
                                                float *sums, uint32_t full, uint32_t empty, uint32_t strip,
                                                uint32_t lane, Ahead (&ahead)[2], uint32_t lasts) {
  const bool has_strip = strip < sliced.strips;
  for (uint32_t pair = 0; pair < sliced.slices; pair += 2) {
#  pragma unroll
    for (uint32_t turn = 0; turn < 2; turn++) { // each has registers of its own: what is under way cannot be moved
      const uint32_t slice = pair + turn, stage = slice % STAGES, next = slice + 1;
      if (slice >= sliced.slices) break;
      if (has_strip && next < sliced.slices) {
        if (next % 32 == 0)
          lasts =
              __ldg(sliced.begin + static_cast<uint64_t>(strip) * sliced.slices + min(next + 1 + lane, sliced.slices));
        ahead[1 - turn].load(sliced, ahead[turn].last, __shfl_sync(0xffffffffu, lasts, next % 32), lane);
      }
      const Ahead &now = ahead[turn];
      wait(full + 8 * stage, slice / STAGES % 2);
      const float *const here = values + stage * sliced.width;
      float given[AHEAD]; // before anything is added: what is read does not wait for that
#  pragma unroll
      for (uint32_t i = 0; i < AHEAD; i++)
        if (now.first + i < now.last) given[i] = given_by(step, here, now.edges[i]);
#  pragma unroll
      for (uint32_t i = 0; i < AHEAD; i++)
        if (now.first + i < now.last) add_group(sums, now.edges[i], given[i]);
      for (uint32_t group = now.first + AHEAD; group < now.last; group++) {
        const uint2 edge = __ldcs(sliced.edges + static_cast<uint64_t>(group) * 32 + lane);
        add_group(sums, edge, given_by(step, here, edge));
      }
      __syncwarp();
      if (lane == 0) arrive(empty + 8 * stage);
    }
  }
  uint32_t marked = 0;
  for (uint32_t row = lane; has_strip && row < sliced.rows; row += 32) {
    const uint32_t node = strip * sliced.rows + row;
    const float sum = sums[row];
    if (node < step.nodes) {
      step.arriving[node] = sum;
      step.activation[node] = step.before[node] + sum;
    }
    const uint32_t said = __ballot_sync(0xffffffffu, node < step.nodes && gives(step, sum));
    if (lane == 0 && node < step.nodes) step.next.bits[node / 32] = said;
    marked += __popc(said);
  }
  return marked;
}
#endif

/**
 * Dynamic shared memory: barriers, the values of some slices, then the sums of each warp. The last warp brings the
 * values.
 */
__global__ void __launch_bounds__(THREADS, 1) sliced_kernel(Step step, Sliced sliced) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char memory[];
  uint64_t *const barriers = reinterpret_cast<uint64_t *>(memory);
  uint32_t *const marked = reinterpret_cast<uint32_t *>(barriers + 2 * STAGES);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, full = shared_address(barriers),
                 empty = full + 8 * STAGES;
  const float *const values = reinterpret_cast<const float *>(memory + BARRIER_BYTES);
  float *const sums =
      reinterpret_cast<float *>(memory + BARRIER_BYTES) + STAGES * sliced.width + warp * (sliced.rows + 32);
  next_may_begin();
  if (threadIdx.x == 0) {
    *marked = 0;
    for (uint32_t stage = 0; stage < STAGES; stage++) {
      init_barrier(full + 8 * stage, 1);
      init_barrier(empty + 8 * stage, WARPS);
    }
    show_barriers();
  }
  // The graph never changes: its edges are here before the step before this one has ended.
  const uint32_t strip = warp * gridDim.x + blockIdx.x;
  Ahead ahead[2]{};
  uint32_t lasts = 0;
  if (warp < WARPS && strip < sliced.strips) {
    const uint32_t *const begin = sliced.begin + static_cast<uint64_t>(strip) * sliced.slices;
    lasts = __ldg(begin + min(1 + lane, sliced.slices));
    ahead[0].load(sliced, __ldg(begin), __shfl_sync(0xffffffffu, lasts, 0), lane);
    for (uint32_t row = lane; row < sliced.rows; row += 32) sums[row] = 0;
    __syncwarp();
  }
  __syncthreads();
  after_previous();
  if (*step.active.count <= step.most_active) return;
  if (warp < WARPS) {
    const uint32_t mine = take_slices(step, sliced, values, sums, full, empty, strip, lane, ahead, lasts);
    if (lane == 0 && mine > 0) atomicAdd(marked, mine);
  } else if (lane == 0) {
    bring_slices(step, sliced, values, full, empty);
  }
  __syncthreads();
  if (threadIdx.x == 0 && *marked > 0) atomicAdd(step.next.count, *marked);
#endif
}

/** Whether no warp and no block has much more to do than others. */
bool is_even(const Sliced &sliced, const uint32_t *begin, uint64_t nodes) {
  std::vector<uint64_t> edges(sliced.blocks);
  uint64_t most = 0;
  for (uint64_t strip = 0; strip < sliced.strips; strip++) {
    const uint64_t of_strip = begin[std::min(nodes, (strip + 1) * sliced.rows)] - begin[strip * sliced.rows];
    edges[strip % sliced.blocks] += of_strip;
    most = std::max(most, of_strip);
  }
  const uint64_t all = begin[nodes];
  return is_forced() || (most * sliced.strips <= MOST_UNEVEN * all &&
                         *std::max_element(edges.begin(), edges.end()) * sliced.blocks * 2 <= 3 * all);
}

} // namespace

uint64_t sliced_bytes(uint64_t nodes, uint64_t edges) {
  Sliced sliced = shape_of(nodes, edges);
  if (sliced.slices == 0) return 0;
  Shares shares;
  lay_out(shares, sliced, edges);
  return shares.used();
}

bool can_slice(int device) {
  const Facts &facts = facts_of(device);
  return facts.code >= 90 && facts.shared_bytes >= SHARED_BYTES &&
         static_cast<uint32_t>(facts.multiprocessors) >= LEAST_BLOCKS;
}

Sliced slice(char *memory, const shoal_graph &graph, const shoal_graph &there, int device, cudaStream_t stream) {
  const uint64_t edges = graph.begin[graph.nodes];
  Sliced sliced = shape_of(graph.nodes, edges);
  sliced.blocks = static_cast<uint32_t>(facts_of(device).multiprocessors);
  if (!is_even(sliced, graph.begin, graph.nodes)) return {};
  Shares shares(memory);
  lay_out(shares, sliced, edges);
  const uint32_t nodes = static_cast<uint32_t>(graph.nodes), all = sliced.slices * sliced.strips;
  uint32_t groups;
  size_kernel<<<sliced.strips, sliced.rows, 0, stream>>>(there.begin, there.source, nodes, sliced);
  begin_kernel<<<1, THREADS, 0, stream>>>(sliced);
  check(cudaMemcpyAsync(&groups, sliced.begin + all, 4, cudaMemcpyDeviceToHost, stream), "the size of a sliced graph");
  check(cudaStreamSynchronize(stream), "the size of a sliced graph");
  if (groups * 32ull > most_edges(sliced, edges)) return {};
  place_kernel<<<sliced.strips, sliced.rows, 0, stream>>>(there.begin, there.source, there.weight, nodes, sliced);
  check(cudaGetLastError(), "the kernels that slice a graph");
  return sliced;
}

void spread_sliced(const Step &step, const Sliced &sliced, int device, cudaStream_t stream) {
  allow_shared<sliced_kernel>(device, shared_bytes(sliced));
  launch_overlapping("the kernel of spreading in slices", device, sliced_kernel, dim3(sliced.blocks), THREADS,
                     shared_bytes(sliced), stream, step, sliced);
}

} // namespace shoal_cuda
