// Spreading to one lane where many nodes of a large graph give. Read through the second-level cache, an edge brings 4 bytes and moves a sector of 32: 189 µs a step of 20 M
// edges, and cuSPARSE takes longer; this takes 125 (H200, 2026-11-22). Here a block has a slice of the giving nodes' values in its shared memory, and the edges are there a second time, by slice:
//   sliced_kernel  a warp takes one strip of 128 receiving nodes after the other and adds what its edges bring to 128 sums in shared memory, which it writes
//   fold_kernel    adds the sums that each slice has for a node, in order
// So an edge moves 8 bytes, and a node 8 for each slice. Sums are the same from run to run: a warp adds the edges of a strip in order, 32 at a time. Of these 32 no two should have the
// same receiver, since the one would undo what the other adds: in a strip all first edges of its nodes come before all second ones, and what meets all the same says so in its bits.
#include <algorithm>
#include <cstdlib>
#include "launch.cuh"
#include "spread.cuh"

namespace shoal_cuda {
namespace {

constexpr uint32_t STRIP = 128, THREADS = 1024, WARPS = THREADS / 32, FOLD_THREADS = 256, MOST_SLICES = 40;
/** 212,992 bytes of values, beside WARPS × STRIP sums: what a multiprocessor of sm_90 has. */
constexpr uint32_t MOST_WIDTH = 53248;
/** Edges that a lane has under way, of the next strip while it adds those of this one. Strips of the graphs that this is for have about 4 × 32. */
constexpr int AHEAD = 6;
/** Smaller graphs are as fast without. */
constexpr uint64_t LEAST_EDGES = 4 << 20;
/** What a strip costs beside its edges, in edges. */
constexpr uint32_t STRIP_COSTS = 64;

/** For tests: SHOAL_CUDA_SPREAD=sliced makes many slices of few nodes, of every graph that keeps bits. */
bool is_forced() {
  const char *const asked = std::getenv("SHOAL_CUDA_SPREAD");
  return asked != nullptr && asked[0] == 's';
}

/** No edges yet; no slices: not worth it. */
Sliced shape_of(uint64_t nodes, uint64_t edges) {
  Sliced sliced{};
  const uint64_t most = is_forced() ? 1024 : MOST_WIDTH, slices = divided_up(nodes, most);
  if (slices > MOST_SLICES || nodes == 0) return sliced;
  // A node costs 8 bytes for each slice, an edge saves 24 and more.
  if (!is_forced() && (edges < LEAST_EDGES || edges < nodes * slices / 2)) return sliced;
  sliced.slices = static_cast<uint32_t>(slices);
  sliced.width = static_cast<uint32_t>(divided_up(divided_up(nodes, slices), uint64_t{32}) * 32);
  sliced.strips = static_cast<uint32_t>(divided_up(nodes, uint64_t{STRIP}));
  return sliced;
}

constexpr uint32_t MOST_BLOCKS = 1024;

void lay_out(Parts &parts, Sliced &sliced, uint64_t edges) {
  sliced.edges = parts.take<uint2>(edges);
  sliced.begin = parts.take<uint32_t>(static_cast<uint64_t>(sliced.slices) * sliced.strips + 1);
  sliced.shares = parts.take<uint32_t>(MOST_BLOCKS + 1);
}

size_t shared_bytes(const Sliced &sliced) { return (sliced.width + WARPS * STRIP) * sizeof(float); }

/** How many edges of each slice each node of one strip has. Every thread has a node; another column of `counts` for each, so that they meet in no bank. */
struct Counts {
  uint16_t of[MOST_SLICES][STRIP + 2];
};

__device__ void count_edges(Counts &counts, const uint32_t *begin, const uint32_t *source, uint32_t nodes, const Sliced &sliced) {
  const uint32_t node = blockIdx.x * STRIP + threadIdx.x;
  for (uint32_t slice = 0; slice < sliced.slices; slice++) counts.of[slice][threadIdx.x] = 0;
  if (node < nodes)
    for (uint32_t edge = begin[node], last = begin[node + 1]; edge < last; edge++) counts.of[source[edge] / sliced.width][threadIdx.x]++;
  __syncthreads();
}

/** `begin` of each strip becomes how many edges it has. */
__global__ void __launch_bounds__(STRIP) size_kernel(const uint32_t *begin, const uint32_t *source, uint32_t nodes, Sliced sliced) {
  __shared__ Counts counts;
  count_edges(counts, begin, source, nodes, sliced);
  for (uint32_t slice = threadIdx.x; slice < sliced.slices; slice += STRIP) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < STRIP; i++) sum += counts.of[slice][i];
    sliced.begin[static_cast<uint64_t>(slice) * sliced.strips + blockIdx.x] = sum;
  }
}

/** Sizes become first edges, and shares are cut. One block. */
__global__ void __launch_bounds__(THREADS) begin_kernel(Sliced sliced) {
  __shared__ uint32_t sums[THREADS];
  const uint32_t all = sliced.slices * sliced.strips, each = divided_up(all, THREADS), first = min(threadIdx.x * each, all), last = min(first + each, all);
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
  __syncthreads();
  const uint64_t total = sums[THREADS - 1] + static_cast<uint64_t>(all) * STRIP_COSTS;
  for (uint32_t block = threadIdx.x; block <= sliced.blocks; block += THREADS) {
    const uint64_t wanted = total * block / sliced.blocks;
    uint32_t low = 0, high = all; // the first strip before which there is so much
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (sliced.begin[middle] + static_cast<uint64_t>(middle) * STRIP_COSTS >= wanted) high = middle;
      else low = middle + 1;
    }
    sliced.shares[block] = block == sliced.blocks ? all : low;
  }
}

/** The edges of a strip, in each slice: the first of every node, in the order of nodes, then the second of every node, … */
__global__ void __launch_bounds__(STRIP) place_kernel(const uint32_t *begin, const uint32_t *source, const float *weight, uint32_t nodes, Sliced sliced) {
  __shared__ Counts counts, placed;
  count_edges(counts, begin, source, nodes, sliced);
  const uint32_t node = blockIdx.x * STRIP + threadIdx.x;
  if (node >= nodes) return;
  for (uint32_t slice = 0; slice < sliced.slices; slice++) placed.of[slice][threadIdx.x] = 0;
  for (uint32_t edge = begin[node], last = begin[node + 1]; edge < last; edge++) {
    const uint32_t from = source[edge], slice = from / sliced.width, round = placed.of[slice][threadIdx.x]++;
    uint32_t before = 0;
    for (uint32_t i = 0; i < STRIP; i++) {
      const uint32_t count = counts.of[slice][i];
      before += min(count, round) + (i < threadIdx.x && count > round ? 1 : 0);
    }
    sliced.edges[sliced.begin[static_cast<uint64_t>(slice) * sliced.strips + blockIdx.x] + before] = make_uint2(from - slice * sliced.width | threadIdx.x << 16, __float_as_uint(weight[edge]));
  }
}

/** A warp has a strip of a slice. */
__global__ void __launch_bounds__(256) meet_kernel(Sliced sliced) {
  const uint32_t strip = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (strip >= sliced.slices * sliced.strips) return;
  const uint32_t last = sliced.begin[strip + 1];
  for (uint32_t group = sliced.begin[strip]; group < last; group += 32) {
    const uint32_t edge = group + lane;
    const uint32_t first = edge < last ? sliced.edges[edge].x : 0xffffffffu - lane; // no strip has such a receiver
    const uint32_t same = __match_any_sync(0xffffffffu, edge < last ? first >> 16 & 0xff : 256 + lane);
    const uint32_t earlier = __popc(same & ((1u << lane) - 1));
    if (edge < last && earlier > 0) sliced.edges[edge].x = first | earlier << 24;
  }
}

struct Ahead {
  uint32_t first, last;
  uint2 edges[AHEAD];
};

__device__ __forceinline__ Ahead load_strip(const Sliced &sliced, uint32_t strip, uint32_t lane) {
  Ahead ahead;
  ahead.first = __ldg(sliced.begin + strip), ahead.last = __ldg(sliced.begin + strip + 1);
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    const uint32_t edge = ahead.first + i * 32 + lane;
    ahead.edges[i] = edge < ahead.last ? __ldcs(sliced.edges + edge) : make_uint2(0, 0);
  }
  return ahead;
}

/** What 32 edges bring, one a lane: to `sums` of the warp. */
__device__ __forceinline__ void add_edges(float *sums, const float *values, uint2 edge, bool is_there) {
  const uint32_t round = edge.x >> 24;
  float *const sum = sums + (edge.x >> 16 & (STRIP - 1));
  const float value = values[edge.x & 0xffff], weight = __uint_as_float(edge.y);
  if (is_there && round == 0) *sum = fmaf(weight, value, *sum);
  __syncwarp();
  for (uint32_t i = 1; __any_sync(0xffffffffu, is_there && round >= i); i++) {
    if (is_there && round == i) *sum = fmaf(weight, value, *sum);
    __syncwarp();
  }
}

/** Dynamic shared memory: the values of a slice, then the sums of each warp. */
__global__ void __launch_bounds__(THREADS, 1) sliced_kernel(Step step, Sliced sliced, float *partial) {
  extern __shared__ __align__(16) float values[];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float *const sums = values + sliced.width + warp * STRIP;
  float4 *const mine = reinterpret_cast<float4 *>(sums) + lane; // 4 of its sums
  next_may_begin();
  after_previous();
  if (*step.active.count <= step.most_active) return;
  *mine = make_float4(0, 0, 0, 0);
  const uint32_t end = sliced.shares[blockIdx.x + 1];
  for (uint32_t from = sliced.shares[blockIdx.x], to; from < end; from = to) {
    const uint32_t slice = from / sliced.strips, first = slice * sliced.width, count = min(sliced.width, step.nodes - first);
    to = min(end, (slice + 1) * sliced.strips);
    Ahead next{};
    if (from + warp < to) next = load_strip(sliced, from + warp, lane);
    __syncthreads(); // nobody reads the slice before any more
    // What lies behind the last node is in the same 256 bytes, and no edge comes from there.
    for (uint32_t i = threadIdx.x * 4; i < count; i += THREADS * 4) {
      const float4 four = *reinterpret_cast<const float4 *>(step.given + first + i);
      const auto given = [&](float value) { return value >= step.threshold ? value * step.decay : 0.0f; };
      *reinterpret_cast<float4 *>(values + i) = make_float4(given(four.x), given(four.y), given(four.z), given(four.w));
    }
    __syncthreads();
    for (uint32_t strip = from + warp; strip < to; strip += WARPS) {
      const Ahead now = next;
      if (strip + WARPS < to) next = load_strip(sliced, strip + WARPS, lane);
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        if (now.first + i * 32 < now.last) add_edges(sums, values, now.edges[i], now.first + i * 32 + lane < now.last);
      for (uint32_t group = now.first + AHEAD * 32; group < now.last; group += 32) {
        const bool is_there = group + lane < now.last;
        add_edges(sums, values, is_there ? __ldcs(sliced.edges + group + lane) : make_uint2(0, 0), is_there);
      }
      reinterpret_cast<float4 *>(partial + static_cast<uint64_t>(strip) * STRIP)[lane] = *mine;
      *mine = make_float4(0, 0, 0, 0);
      __syncwarp();
    }
  }
}

__global__ void __launch_bounds__(FOLD_THREADS) fold_kernel(Step step, Sliced sliced, const float *partial) {
  __shared__ uint32_t marked;
  if (threadIdx.x == 0) marked = 0;
  next_may_begin();
  after_previous();
  if (*step.active.count <= step.most_active) return;
  const uint32_t node = blockIdx.x * FOLD_THREADS + threadIdx.x;
  const uint64_t apart = static_cast<uint64_t>(sliced.strips) * STRIP;
  float sum = 0;
  if (node < step.nodes) {
    const float before = step.before[node];
#pragma unroll 10
    for (uint32_t slice = 0; slice < sliced.slices; slice++) sum += __ldcs(partial + slice * apart + node);
    step.arriving[node] = sum;
    step.activation[node] = before + sum;
  }
  const uint32_t said = __ballot_sync(0xffffffffu, node < step.nodes && gives(step, sum));
  __syncthreads();
  if (threadIdx.x % 32 == 0 && node < step.nodes) {
    step.next.bits[node / 32] = said;
    if (said != 0) atomicAdd(&marked, __popc(said));
  }
  __syncthreads();
  if (threadIdx.x == 0 && marked > 0) atomicAdd(step.next.count, marked);
}

}  // namespace

uint64_t sliced_bytes(uint64_t nodes, uint64_t edges) {
  Sliced sliced = shape_of(nodes, edges);
  if (sliced.slices == 0) return 0;
  Parts parts;
  lay_out(parts, sliced, edges);
  return parts.used();
}

uint64_t sliced_floats(const Sliced &sliced) { return static_cast<uint64_t>(sliced.slices) * sliced.strips * STRIP; }

Sliced slice(char *memory, const uint32_t *begin, const uint32_t *source, const float *weight, uint64_t nodes, uint64_t edges, int device, cudaStream_t stream) {
  Sliced sliced = shape_of(nodes, edges);
  if (sliced.slices == 0 || shared_bytes(sliced) > facts_of(device).shared_bytes) return {};
  Parts parts(memory);
  lay_out(parts, sliced, edges);
  sliced.blocks = std::min<uint32_t>(MOST_BLOCKS, static_cast<uint32_t>(facts_of(device).multiprocessors));
  const uint32_t count = static_cast<uint32_t>(nodes);
  size_kernel<<<sliced.strips, STRIP, 0, stream>>>(begin, source, count, sliced);
  begin_kernel<<<1, THREADS, 0, stream>>>(sliced);
  place_kernel<<<sliced.strips, STRIP, 0, stream>>>(begin, source, weight, count, sliced);
  meet_kernel<<<divided_up(sliced.slices * sliced.strips, 8u), 256, 0, stream>>>(sliced);
  check(cudaGetLastError(), "the kernels that slice a graph");
  return sliced;
}

void spread_sliced(const Step &step, const Sliced &sliced, float *partial, int device, cudaStream_t stream) {
  const char *const what = "the kernels of spreading in slices";
  allow_shared<sliced_kernel>(device, shared_bytes(sliced));
  launch_overlapping(what, device, sliced_kernel, dim3(sliced.blocks), THREADS, shared_bytes(sliced), stream, step, sliced, partial);
  launch_overlapping(what, device, fold_kernel, dim3(divided_up(step.nodes, FOLD_THREADS)), FOLD_THREADS, 0, stream, step, sliced, static_cast<const float *>(partial));
}

}  // namespace shoal_cuda
