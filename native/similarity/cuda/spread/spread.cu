// Spreading activation: a sparse matrix (CSR by incoming edges) times lanes of activation that lie together, step by
// step. A few threads have a node: each takes 4 lanes (or 1) of every so-manieth edge, and their sums are added by
// shuffles in a fixed order, so that results are the same bits from run to run. Nodes of very many edges are cut into
// segments, a block each, whose sums are added in order. What a node gives on (decay, threshold) is worked out where it
// is read, which saves a pass.
//
// Where few nodes give anything (ten seeds reach a thousandth of a million nodes in two steps), most edges bring a
// zero. Of large graphs a bit for each node says whether it gives; all bits fit into a multiprocessor's shared memory,
// and `sparse_kernel` reads nothing of an edge but its source, until one gives. The sums are the same bits: a zero that
// is not added changes none. Each step launches that kernel and `gather_kernel`; by the number of bits one of them has
// nothing to do. Memory: graph 4 (nodes + 1) + 8 edges bytes; a call takes 3 × 4 × nodes × lanes, or less lanes at a
// time, and the bits.
#include <algorithm>
#include <type_traits>
#include <vector>
#include "../device/copies.h"
#include "../device/launch.cuh"
#include "spread.cuh"

struct shoal_cuda_graph {
  int device;
  shoal_cuda::Memory memory;
  uint64_t nodes, edges;
  const uint32_t *begin, *source;
  const float *weight;
  /**
   * Pieces of heavy nodes: (first edge, last edge); heavy node h has segments heavy[2h + 1] to heavy[2h + 3], and is
   * node heavy[2h].
   */
  shoal_cuda::Memory heavy_memory;
  const uint32_t *segments, *heavy;
  uint32_t segment_count, heavy_count;
  shoal_cuda::Memory sliced_memory;
  shoal_cuda::Sliced sliced;
};

namespace shoal_cuda {
namespace {

constexpr uint32_t THREADS = 256, HEAVY_EDGES = 1024, SEGMENT_EDGES = 2048, BLOCK_LANES = 16;
/** Threads of `sparse_kernel`: one block on a multiprocessor. */
constexpr uint32_t SPARSE_THREADS = 1024;
/** Edges whose data a thread has under way together. */
constexpr int LOADS = 4;
/** Graphs of fewer edges are done before a second kernel has begun. */
constexpr uint64_t SPARSE_EDGES = 1 << 18;

template <int VALUES>
struct Lanes {
  float of[VALUES];
};

template <int VALUES>
__device__ __forceinline__ Lanes<VALUES> load(const float *from) {
  Lanes<VALUES> lanes;
  if (VALUES == 4) {
    const float4 four = *reinterpret_cast<const float4 *>(from);
    lanes.of[0] = four.x;
    if (VALUES == 4) lanes.of[1 % VALUES] = four.y, lanes.of[2 % VALUES] = four.z, lanes.of[3 % VALUES] = four.w;
  } else {
    lanes.of[0] = *from;
  }
  return lanes;
}

template <int VALUES>
__device__ __forceinline__ void store(float *to, const Lanes<VALUES> &lanes) {
  if (VALUES == 4)
    *reinterpret_cast<float4 *>(to) =
        make_float4(lanes.of[0], lanes.of[1 % VALUES], lanes.of[2 % VALUES], lanes.of[3 % VALUES]);
  else
    *to = lanes.of[0];
}

struct Edges {
  uint32_t source[LOADS];
  float weight[LOADS];
};

/** Edges `edge`, `edge + apart`, …; source 0xffffffff behind `last`. */
__device__ __forceinline__ Edges load_edges(const Step &step, uint32_t edge, uint32_t last, uint32_t apart) {
  Edges edges;
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const uint32_t at = edge + i * apart;
    edges.source[i] = at < last ? __ldg(step.source + at) : 0xffffffffu;
    edges.weight[i] = at < last ? __ldg(step.weight + at) : 0.0f;
  }
  return edges;
}

/** Σ over edges e, e + apart, … below `last`; LOADS of them are under way together. `edges`: the first of them. */
template <int VALUES>
__device__ __forceinline__ Lanes<VALUES> sum_edges(const Step &step, Edges edges, uint32_t edge, uint32_t last,
                                                   uint32_t apart, uint32_t lane) {
  Lanes<VALUES> sum{};
  for (; edge < last; edge += LOADS * apart) {
    Lanes<VALUES> given[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      if (edges.source[i] != 0xffffffffu)
        given[i] = load<VALUES>(step.given + static_cast<uint64_t>(edges.source[i]) * step.lanes + lane);
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      if (edges.source[i] != 0xffffffffu)
#pragma unroll
        for (int v = 0; v < VALUES; v++)
          sum.of[v] =
              fmaf(edges.weight[i], given[i].of[v] >= step.threshold ? given[i].of[v] * step.decay : 0.0f, sum.of[v]);
    edges = load_edges(step, edge + LOADS * apart, last, apart);
  }
  return sum;
}

__device__ __forceinline__ bool has_bit(const uint32_t *bits, uint32_t node) {
  return (bits[node / 32] >> (node % 32) & 1) != 0;
}

/** The same sum, of which only those nodes are read whose bit is set. */
template <int VALUES>
__device__ __forceinline__ Lanes<VALUES> sum_active(const Step &step, const uint32_t *bits, uint32_t edge,
                                                    uint32_t last, uint32_t apart, uint32_t lane) {
  Lanes<VALUES> sum{};
  for (; edge < last; edge += apart) {
    const uint32_t source = __ldg(step.source + edge);
    if (!has_bit(bits, source)) continue;
    const float weight = __ldg(step.weight + edge);
    const Lanes<VALUES> given = load<VALUES>(step.given + static_cast<uint64_t>(source) * step.lanes + lane);
#pragma unroll
    for (int v = 0; v < VALUES; v++)
      sum.of[v] = fmaf(weight, given.of[v] >= step.threshold ? given.of[v] * step.decay : 0.0f, sum.of[v]);
  }
  return sum;
}

template <int VALUES>
__device__ __forceinline__ bool any_gives(const Step &step, const Lanes<VALUES> &lanes) {
  bool some = false;
#pragma unroll
  for (int v = 0; v < VALUES; v++) some |= gives(step, lanes.of[v]);
  return some;
}

template <int VALUES>
__device__ __forceinline__ void arrive(const Step &step, uint64_t node, uint32_t lane, const Lanes<VALUES> &sum) {
  const uint64_t at = node * step.lanes + lane;
  store<VALUES>(step.arriving + at, sum);
  Lanes<VALUES> total = load<VALUES>(step.before + at);
#pragma unroll
  for (int v = 0; v < VALUES; v++) total.of[v] += sum.of[v];
  store<VALUES>(step.activation + at, total);
}

/** Of a ballot: whether a thread of this team of a warp said so. */
template <int TEAM>
__device__ __forceinline__ bool team_said(uint32_t said, uint32_t team) {
  return (said >> (team * TEAM) & ((1u << (TEAM - 1) << 1) - 1)) != 0;
}

template <int VALUES, int COLUMNS, int TEAM>
__device__ __forceinline__ void add_team(Lanes<VALUES> &sum) {
#pragma unroll
  for (int other = COLUMNS; other < TEAM; other *= 2)
#pragma unroll
    for (int v = 0; v < VALUES; v++) sum.of[v] += __shfl_xor_sync(0xffffffffu, sum.of[v], other);
}

/** `COLUMNS` threads take the lanes of a node, `TEAM` threads its edges. */
template <int VALUES, int COLUMNS, int TEAM>
__global__ void __launch_bounds__(THREADS) gather_kernel(Step step) {
  constexpr uint32_t NODES = THREADS / TEAM, WARP_NODES = 32 / TEAM; // at a time
  __shared__ uint32_t marked;
  const uint32_t thread = threadIdx.x % TEAM, column = thread % COLUMNS,
                 lane = blockIdx.y * BLOCK_LANES + column * VALUES;
  const bool has_lane = lane < step.lanes && column * VALUES < BLOCK_LANES, keeps_bits = step.active.bits != nullptr;
  next_may_begin();
  uint32_t count = 0;
  for (uint32_t first_node = blockIdx.x * NODES; first_node < step.nodes; first_node += gridDim.x * NODES) {
    const uint32_t node = first_node + threadIdx.x / TEAM;
    uint32_t first = 0, last = 0;
    if (node < step.nodes) first = __ldg(step.begin + node), last = __ldg(step.begin + node + 1);
    const bool is_mine = has_lane && last - first <= HEAVY_EDGES,
               arrives = node < step.nodes && is_mine && thread < COLUMNS;
    // The graph never changes: its edges are here before the step before this one has ended.
    Edges edges{};
    if (is_mine) edges = load_edges(step, first + thread / COLUMNS, last, TEAM / COLUMNS);
    if (first_node == blockIdx.x * NODES) {
      after_previous();
      if (keeps_bits && step.active.count[blockIdx.y] <= step.most_active) return;
    }
    Lanes<VALUES> sum{};
    if (is_mine) sum = sum_edges<VALUES>(step, edges, first + thread / COLUMNS, last, TEAM / COLUMNS, lane);
    add_team<VALUES, COLUMNS, TEAM>(sum);
    if (arrives) arrive<VALUES>(step, node, lane, sum);
    if (!keeps_bits) continue;
    const uint32_t said = __ballot_sync(0xffffffffu, arrives && any_gives(step, sum));
    if (said == 0 || threadIdx.x % 32 != 0) continue;
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t t = 0; t < WARP_NODES; t++) bits |= team_said<TEAM>(said, t) ? 1u << t : 0;
    atomicOr(step.next.bits + static_cast<uint64_t>(blockIdx.y) * step.words + node / 32, bits << node % 32);
    count += __popc(bits);
  }
  if (!keeps_bits) return;
  if (threadIdx.x == 0) marked = 0;
  __syncthreads();
  if (count > 0) atomicAdd(&marked, count);
  __syncthreads();
  if (threadIdx.x == 0 && marked > 0) atomicAdd(step.next.count + blockIdx.y, marked);
}

/** Seeds that give something: a warp has 32 nodes. */
__global__ void __launch_bounds__(SPARSE_THREADS) mark_kernel(Step step) {
  __shared__ uint32_t all;
  if (threadIdx.x == 0) all = 0;
  __syncthreads();
  const uint32_t first_lane = blockIdx.y * BLOCK_LANES, last_lane = min(first_lane + BLOCK_LANES, step.lanes);
  uint32_t count = 0;
  for (uint32_t word = blockIdx.x * (SPARSE_THREADS / 32) + threadIdx.x / 32; word < step.words;
       word += gridDim.x * (SPARSE_THREADS / 32)) {
    const uint32_t node = word * 32 + threadIdx.x % 32;
    bool some = false;
    for (uint32_t lane = first_lane; node < step.nodes && lane < last_lane; lane++)
      some |= gives(step, step.given[static_cast<uint64_t>(node) * step.lanes + lane]);
    const uint32_t bits = __ballot_sync(0xffffffffu, some);
    if (threadIdx.x % 32 == 0)
      step.active.bits[static_cast<uint64_t>(blockIdx.y) * step.words + word] = bits, count += __popc(bits);
  }
  if (count > 0) atomicAdd(&all, count);
  __syncthreads();
  if (threadIdx.x == 0 && all > 0) atomicAdd(step.active.count + blockIdx.y, all);
}

/**
 * Of 32 nodes, those that an edge reaches whose source gives: a warp looks at all sources of all of them, 16 bytes a
 * thread.
 */
__device__ __forceinline__ uint32_t reached_nodes(const Step &step, const uint32_t *bits, uint32_t begin,
                                                  uint32_t first, uint32_t last) {
  constexpr uint32_t UNROLL = 4;
  uint32_t reached = 0;
  for (uint32_t from = first / 4 * 4; from < last; from += UNROLL * 128) {
    uint4 sources[UNROLL];
#pragma unroll
    for (uint32_t i = 0; i < UNROLL; i++) {
      const uint32_t at = from + i * 128 + threadIdx.x % 32 * 4;
      // what lies behind the last edge is in the same 256 bytes
      if (at < last) sources[i] = __ldg(reinterpret_cast<const uint4 *>(step.source + at));
    }
#pragma unroll
    for (uint32_t i = 0; i < UNROLL; i++) {
      const uint32_t each[4] = {sources[i].x, sources[i].y, sources[i].z, sources[i].w};
#pragma unroll
      for (uint32_t j = 0; j < 4; j++) {
        const uint32_t at = from + i * 128 + threadIdx.x % 32 * 4 + j;
        const bool is_hit = at >= first && at < last && has_bit(bits, each[j]);
        if (!__any_sync(0xffffffffu, is_hit)) continue;
        // The last node that begins at this edge or before.
        uint32_t node = 0;
#pragma unroll
        for (uint32_t half = 16; half > 0; half /= 2)
          if (__shfl_sync(0xffffffffu, begin, node + half) <= at) node += half;
        if (is_hit) reached |= 1u << node;
      }
    }
  }
#pragma unroll
  for (int other = 16; other > 0; other /= 2) reached |= __shfl_xor_sync(0xffffffffu, reached, other);
  return reached;
}

/** Dynamic shared memory: the bits of all nodes. A warp has 32 nodes, whose bits for the next step are one word. */
template <int VALUES, int COLUMNS, int TEAM>
__global__ void __launch_bounds__(SPARSE_THREADS, 1) sparse_kernel(Step step) {
  extern __shared__ __align__(16) uint32_t bits[];
  next_may_begin();
  after_previous();
  if (blockIdx.x == 0 && threadIdx.x == 0) step.spare.count[blockIdx.y] = 0;
  if (step.active.count[blockIdx.y] > step.most_active) {
    for (uint32_t word = blockIdx.x * SPARSE_THREADS + threadIdx.x; word < step.words;
         word += gridDim.x * SPARSE_THREADS)
      step.next.bits[static_cast<uint64_t>(blockIdx.y) * step.words + word] = 0;
    return;
  }
  const uint32_t *const from = step.active.bits + static_cast<uint64_t>(blockIdx.y) * step.words;
  for (uint32_t i = threadIdx.x; i < step.words / 4; i += SPARSE_THREADS)
    reinterpret_cast<uint4 *>(bits)[i] = reinterpret_cast<const uint4 *>(from)[i];
  __syncthreads();
  const uint32_t mine = threadIdx.x % 32, team = mine / TEAM, thread = mine % TEAM, column = thread % COLUMNS;
  const uint32_t first_lane = blockIdx.y * BLOCK_LANES, lane = first_lane + column * VALUES,
                 width = min(BLOCK_LANES, step.lanes - first_lane);
  const bool has_lane = lane < step.lanes && column * VALUES < BLOCK_LANES;
  const uint32_t words = divided_up(step.nodes, 32u), apart = gridDim.x * (SPARSE_THREADS / 32);
  const auto begin_of = [&](uint32_t word, uint32_t behind) {
    return __ldg(step.begin + min(min(word, words) * 32 + mine + behind, step.nodes));
  };
  uint32_t count = 0, word = blockIdx.x * (SPARSE_THREADS / 32) + threadIdx.x / 32, next_begin = begin_of(word, 0),
           next_end = begin_of(word, 1);
  for (; word < words; word += apart) {
    const uint32_t begin = next_begin, end = next_end;
    next_begin = begin_of(word + apart, 0), next_end = begin_of(word + apart, 1);
    const uint32_t heavy = __ballot_sync(0xffffffffu, end - begin > HEAVY_EDGES),
                   filled = __ballot_sync(0xffffffffu, end > begin);
    const uint32_t first = __shfl_sync(0xffffffffu, begin, 0), last = __shfl_sync(0xffffffffu, end, 31);
    // Among the edges of a heavy node a warp would be too long.
    const uint32_t reached = (heavy != 0 ? filled : reached_nodes(step, bits, begin, first, last)) & ~heavy;
    uint32_t marked = 0;
    for (uint32_t left = reached; left != 0;) {
      uint32_t chosen = 32; // the team's node
#pragma unroll
      for (uint32_t t = 0; t < 32 / TEAM; t++) {
        if (t == team && left != 0) chosen = __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
      }
      const uint32_t from_edge = __shfl_sync(0xffffffffu, begin, chosen % 32),
                     to_edge = __shfl_sync(0xffffffffu, end, chosen % 32);
      const bool is_mine = chosen < 32 && has_lane;
      Lanes<VALUES> sum{};
      if (is_mine) sum = sum_active<VALUES>(step, bits, from_edge + thread / COLUMNS, to_edge, TEAM / COLUMNS, lane);
      add_team<VALUES, COLUMNS, TEAM>(sum);
      bool is_marked = false;
      if (is_mine && thread < COLUMNS) {
        arrive<VALUES>(step, static_cast<uint64_t>(word) * 32 + chosen, lane, sum);
        is_marked = any_gives(step, sum);
      }
      const uint32_t said = __ballot_sync(0xffffffffu, is_marked);
#pragma unroll
      for (uint32_t t = 0; t < 32 / TEAM; t++) {
        const uint32_t of = __shfl_sync(0xffffffffu, chosen, t * TEAM);
        if (of < 32 && team_said<TEAM>(said, t)) marked |= 1u << of;
      }
    }
    // Nothing arrives at the others.
    for (uint32_t i = mine; i < 32 * width; i += 32) {
      const uint32_t other = i / width;
      if (((reached | heavy) >> other & 1) != 0 || word * 32 + other >= step.nodes) continue;
      const uint64_t at = (static_cast<uint64_t>(word) * 32 + other) * step.lanes + first_lane + i % width;
      step.arriving[at] = 0;
      if (step.before != step.activation) step.activation[at] = step.before[at];
    }
    if (mine == 0)
      step.next.bits[static_cast<uint64_t>(blockIdx.y) * step.words + word] = marked, count += __popc(marked);
  }
  if (count > 0) atomicAdd(step.next.count + blockIdx.y, count);
}

/** One block a segment of a heavy node. */
template <int VALUES, int COLUMNS>
__global__ void __launch_bounds__(THREADS) segment_kernel(Step step) {
  __shared__ float sums[THREADS / 32][BLOCK_LANES];
  const uint32_t column = threadIdx.x % COLUMNS, lane = blockIdx.y * BLOCK_LANES + column * VALUES;
  const bool has_lane = lane < step.lanes && column * VALUES < BLOCK_LANES;
  const uint32_t first = step.segments[2 * blockIdx.x] + threadIdx.x / COLUMNS,
                 last = step.segments[2 * blockIdx.x + 1], apart = THREADS / COLUMNS;
  next_may_begin();
  Edges edges{};
  if (has_lane) edges = load_edges(step, first, last, apart);
  after_previous();
  Lanes<VALUES> sum{};
  if (has_lane) sum = sum_edges<VALUES>(step, edges, first, last, apart, lane);
  add_team<VALUES, COLUMNS, 32>(sum);
  if (threadIdx.x % 32 < COLUMNS && column * VALUES < BLOCK_LANES)
    for (int v = 0; v < VALUES; v++) sums[threadIdx.x / 32][column * VALUES + v] = sum.of[v];
  __syncthreads();
  if (threadIdx.x >= COLUMNS || !has_lane) return;
  for (int v = 0; v < VALUES; v++) {
    float total = 0;
    for (uint32_t warp = 0; warp < THREADS / 32; warp++) total += sums[warp][column * VALUES + v];
    step.partial[static_cast<uint64_t>(blockIdx.x) * step.lanes + lane + v] = total;
  }
}

__global__ void __launch_bounds__(THREADS) join_kernel(Step step) {
  const uint32_t node = step.heavy[2 * blockIdx.x], first = step.heavy[2 * blockIdx.x + 1],
                 last = step.heavy[2 * blockIdx.x + 3];
  next_may_begin();
  after_previous();
  for (uint32_t lane = threadIdx.x; lane < step.lanes; lane += THREADS) {
    Lanes<1> sum{};
    for (uint32_t segment = first; segment < last; segment++)
      sum.of[0] += step.partial[static_cast<uint64_t>(segment) * step.lanes + lane];
    arrive<1>(step, node, lane, sum);
    if (step.active.bits == nullptr || !gives(step, sum.of[0])) continue;
    const uint32_t bit = 1u << node % 32, block = lane / BLOCK_LANES;
    if ((atomicOr(step.next.bits + static_cast<uint64_t>(block) * step.words + node / 32, bit) & bit) == 0)
      atomicAdd(step.next.count + block, 1u);
  }
}

/** Calls work(values, columns, team) with constants for so many lanes. */
template <class Work>
void with_lanes(uint32_t all, const Work &work) {
  const uint32_t lanes = std::min(all, BLOCK_LANES);
  const auto chosen = [&](auto values, auto columns) {
    constexpr int COLUMNS = decltype(columns)::value, TEAM = COLUMNS * 4 < 8 ? 8 : COLUMNS * 4 > 32 ? 32 : COLUMNS * 4;
    work(values, columns, std::integral_constant<int, TEAM>{});
  };
  const std::integral_constant<int, 1> one;
  const std::integral_constant<int, 2> two;
  const std::integral_constant<int, 4> four;
  if (all % 4 == 0) {
    if (lanes <= 4)
      chosen(four, one);
    else if (lanes <= 8)
      chosen(four, two);
    else
      chosen(four, four);
  } else if (lanes == 1)
    chosen(one, one);
  else if (lanes == 2)
    chosen(one, two);
  else if (lanes <= 4)
    chosen(one, four);
  else if (lanes <= 8)
    chosen(one, std::integral_constant<int, 8>{});
  else
    chosen(one, std::integral_constant<int, 16>{});
}

/** `sliced`: to be used, or null. */
void spread_once(int device, const Step &step, uint32_t segments, uint32_t heavy, const Sliced *sliced,
                 cudaStream_t stream) {
  const uint32_t blocks = divided_up(step.lanes, BLOCK_LANES),
                 multiprocessors = static_cast<uint32_t>(facts_of(device).multiprocessors);
  const char *const what = "the kernels of spreading";
  with_lanes(step.lanes, [&](auto values, auto columns, auto team) {
    constexpr int VALUES = decltype(values)::value, COLUMNS = decltype(columns)::value, TEAM = decltype(team)::value;
    const uint32_t wanted = divided_up(step.nodes, THREADS / TEAM);
    if (step.active.bits != nullptr) {
      allow_shared<sparse_kernel<VALUES, COLUMNS, TEAM>>(device, step.words * 4);
      launch_overlapping(what, device, sparse_kernel<VALUES, COLUMNS, TEAM>, dim3(multiprocessors, blocks),
                         SPARSE_THREADS, step.words * 4, stream, step);
    }
    if (sliced != nullptr) return spread_sliced(step, *sliced, device, stream);
    launch_overlapping(what, device, gather_kernel<VALUES, COLUMNS, TEAM>,
                       dim3(std::min(wanted, 32 * multiprocessors), blocks), THREADS, 0, stream, step);
    if (heavy > 0)
      launch_overlapping(what, device, segment_kernel<VALUES, COLUMNS>, dim3(segments, blocks), THREADS, 0, stream,
                         step);
  });
  if (heavy > 0) launch_overlapping(what, device, join_kernel, heavy, THREADS, 0, stream, step);
}

/** Whole words of 16 bytes, as they are copied into shared memory. */
uint32_t words_for(uint64_t nodes) { return static_cast<uint32_t>(divided_up<uint64_t>(nodes, 128) * 4); }

bool can_keep_bits(int device, uint64_t nodes, uint64_t edges) {
  return edges >= SPARSE_EDGES && words_for(nodes) * 4ull + 1024 <= facts_of(device).shared_bytes;
}

/** `wide` lanes of each node. */
void copy_lanes(float *to, uint64_t to_apart, const float *from, uint64_t from_apart, uint32_t wide, uint64_t nodes) {
  if (to_apart == wide && from_apart == wide)
    std::copy_n(from, nodes * wide, to);
  else
    for (uint64_t node = 0; node < nodes; node++) std::copy_n(from + node * from_apart, wide, to + node * to_apart);
}

} // namespace
} // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" {

uint64_t shoal_cuda_graph_bytes(uint64_t nodes, uint64_t edges) {
  Shares scratch;
  scratch.take<uint32_t>(nodes + 1), scratch.take<uint32_t>(edges), scratch.take<float>(edges);
  // Heavy nodes: 8 bytes for each and for each of their segments.
  scratch.take<uint32_t>(2 * (edges / HEAVY_EDGES + 2) + 2 * (edges / SEGMENT_EDGES + edges / HEAVY_EDGES + 1));
  return scratch.used() + sliced_bytes(nodes, edges);
}

int shoal_cuda_upload_graph(int device, const shoal_graph *graph, shoal_cuda_graph **uploaded, shoal_stop stop) {
  *uploaded = nullptr;
  return answer([&] {
    if (graph->nodes >= 1u << 31)
      fail(SHOAL_CUDA_INVALID, "%llu nodes: a device takes fewer than 2^31",
           static_cast<unsigned long long>(graph->nodes));
    Lease workspace(device);
    const uint64_t edges = graph->begin[graph->nodes];
    Shares count;
    count.take<uint32_t>(graph->nodes + 1), count.take<uint32_t>(edges), count.take<float>(edges);
    std::unique_ptr<shoal_cuda_graph> made(new shoal_cuda_graph{device,
                                                                Memory(device, count.used()),
                                                                graph->nodes,
                                                                edges,
                                                                nullptr,
                                                                nullptr,
                                                                nullptr,
                                                                Memory(),
                                                                nullptr,
                                                                nullptr,
                                                                0,
                                                                0,
                                                                Memory(),
                                                                {}});
    Shares scratch(made->memory.at());
    uint32_t *const begin = scratch.take<uint32_t>(graph->nodes + 1), *const source = scratch.take<uint32_t>(edges);
    float *const weight = scratch.take<float>(edges);
    made->begin = begin, made->source = source, made->weight = weight;
    const auto copy = [&](void *to, const void *from, uint64_t elements) {
      copy_in(*workspace, workspace->stream, static_cast<char *>(to), 4, static_cast<const char *>(from), 4, 4,
              elements, stop);
    };
    copy(begin, graph->begin, graph->nodes + 1);
    copy(source, graph->source, edges);
    copy(weight, graph->weight, edges);
    std::vector<uint32_t> segments, heavy;
    for (uint64_t node = 0; node < graph->nodes; node++) {
      if (graph->begin[node + 1] - graph->begin[node] <= HEAVY_EDGES) continue;
      heavy.push_back(static_cast<uint32_t>(node)), heavy.push_back(static_cast<uint32_t>(segments.size() / 2));
      for (uint64_t edge = graph->begin[node]; edge < graph->begin[node + 1]; edge += SEGMENT_EDGES)
        segments.push_back(static_cast<uint32_t>(edge)),
            segments.push_back(static_cast<uint32_t>(std::min<uint64_t>(edge + SEGMENT_EDGES, graph->begin[node + 1])));
    }
    made->heavy_count = static_cast<uint32_t>(heavy.size() / 2),
    made->segment_count = static_cast<uint32_t>(segments.size() / 2);
    heavy.push_back(0), heavy.push_back(made->segment_count);
    if (made->heavy_count > 0) {
      made->heavy_memory = Memory(device, (segments.size() + heavy.size()) * 4 + 512);
      Shares lists(made->heavy_memory.at());
      uint32_t *const to_segments = lists.take<uint32_t>(segments.size()), *const to_heavy =
                                                                               lists.take<uint32_t>(heavy.size());
      copy(to_segments, segments.data(), segments.size());
      copy(to_heavy, heavy.data(), heavy.size());
      made->segments = to_segments, made->heavy = to_heavy;
    }
    if (const uint64_t bytes = made->heavy_count == 0 && can_slice(device) && can_keep_bits(device, graph->nodes, edges)
                                   ? sliced_bytes(graph->nodes, edges)
                                   : 0;
        bytes > 0) {
      made->sliced_memory = Memory(device, bytes);
      made->sliced = slice(made->sliced_memory.at(), *graph, begin, source, weight, device, workspace->stream);
      if (made->sliced.edges == nullptr) made->sliced_memory = Memory();
    }
    check(cudaStreamSynchronize(workspace->stream), "an upload");
    *uploaded = made.release();
  });
}

void shoal_cuda_free_graph(shoal_cuda_graph *graph) {
  if (graph != nullptr) finish_behind(graph->device);
  delete graph;
}

int shoal_cuda_spread(const shoal_cuda_graph *graph, uint32_t lanes, uint32_t steps, float decay, float threshold,
                      const float *seeds, float *totals, const shoal_cuda_terms *terms) {
  return answer([&] {
    const shoal_cuda_terms none{}, &limits = terms == nullptr ? none : *terms;
    if (graph->nodes == 0 || lanes == 0) return;
    Lease workspace(graph->device, &limits);
    shoal_cuda_times times{};
    const uint64_t nodes = graph->nodes;
    const uint32_t words = words_for(nodes);
    const bool keeps_bits = can_keep_bits(graph->device, nodes, graph->edges);
    const auto bit_words = [&](uint64_t wide) {
      return keeps_bits ? divided_up<uint64_t>(wide, BLOCK_LANES) * words : 0;
    };
    const auto counts = [&](uint64_t wide) { return 3 * divided_up<uint64_t>(wide, BLOCK_LANES); };
    const auto bytes_for = [&](uint64_t wide) {
      return (3 * nodes + graph->segment_count) * wide * 4 + (2 * bit_words(wide) + counts(wide)) * 4 + 4096;
    };
    uint32_t wide = lanes;
    while (wide > 1 && limits.work_bytes != 0 && bytes_for(wide) > limits.work_bytes)
      wide = wide > 8 ? wide / 2 / 4 * 4 : wide > 4 ? 4 : wide / 2;
    const bool is_sliced = lanes == 1 && graph->sliced.edges != nullptr && keeps_bits;
    Shares scratch(workspace->work(bytes_for(wide), limits.work_bytes));
    float *const total = scratch.take<float>(nodes * wide),
                 *const buffers[2] = {scratch.take<float>(nodes * wide), scratch.take<float>(nodes * wide)},
                 *const partial = scratch.take<float>(graph->segment_count * static_cast<uint64_t>(wide));
    uint32_t *const bits[2] = {scratch.take<uint32_t>(bit_words(wide)), scratch.take<uint32_t>(bit_words(wide))},
                    *const count = scratch.take<uint32_t>(counts(wide));
    if (lanes == 1 && !keeps_bits && graph->heavy_count == 0 &&
        can_spread_at_once(graph->device, nodes, graph->edges, steps)) {
      Step step{graph->begin,
                graph->source,
                graph->weight,
                nullptr,
                nullptr,
                static_cast<uint32_t>(nodes),
                1,
                decay,
                threshold,
                nullptr,
                nullptr,
                buffers[1],
                nullptr,
                nullptr,
                {},
                {},
                {},
                0,
                0};
      spread_at_once(*workspace, step, graph->edges, steps, buffers[0], seeds, totals, times, limits.stop);
      if (limits.times != nullptr) *limits.times = times;
      return;
    }
    for (uint32_t first = 0; first < lanes; first += wide) {
      const uint32_t now = std::min(wide, lanes - first);
      workspace->mark(workspace->begun, workspace->stream);
      char *const to = reinterpret_cast<char *>(steps == 0 ? total : buffers[0]);
      const bool is_small = nodes * now * 4 <= FEW_BYTES; // then the steps are under way before the seeds have arrived
      if (!is_small) workspace->refuse_hurried("copies of all values");
      float *const pinned = is_small ? reinterpret_cast<float *>(workspace->host(nodes * now * 4)) : nullptr;
      if (is_small) {
        copy_lanes(pinned, now, seeds + first, lanes, now, nodes);
        check(cudaMemcpyAsync(to, pinned, nodes * now * 4, cudaMemcpyHostToDevice, workspace->stream), "seeds");
      } else {
        copy_in(*workspace, workspace->stream, to, now * 4, reinterpret_cast<const char *>(seeds + first), lanes * 4ull,
                now * 4ull, nodes, limits.stop);
      }
      workspace->mark(workspace->loaded, workspace->stream);
      Step step{graph->begin,
                graph->source,
                graph->weight,
                graph->segments,
                graph->heavy,
                static_cast<uint32_t>(nodes),
                now,
                decay,
                threshold,
                buffers[0],
                buffers[0],
                buffers[1],
                total,
                partial,
                {},
                {},
                {},
                words,
                static_cast<uint32_t>(nodes / 8)};
      const uint32_t blocks = divided_up(now, BLOCK_LANES);
      const auto active = [&](uint32_t i) {
        return keeps_bits ? Active{bits[i % 2], count + i % 3 * blocks} : Active{};
      };
      if (keeps_bits && steps > 0) {
        step.active = active(0);
        check(cudaMemsetAsync(count, 0, 3 * blocks * 4, workspace->stream), "seeds");
        mark_kernel<<<dim3(static_cast<uint32_t>(facts_of(graph->device).multiprocessors), blocks), SPARSE_THREADS, 0,
                      workspace->stream>>>(step);
        check(cudaGetLastError(), "the kernel of seeds");
      }
      for (uint32_t i = 0; i < steps; i++) {
        // Eight steps under way while eight are waited for: the caller may stop between.
        if (i % 8 == 0 && i >= 16) workspace->wait(workspace->launched[i / 8 % 2], limits.stop);
        step.active = active(i), step.next = active(i + 1), step.spare = active(i + 2);
        spread_once(graph->device, step, graph->segment_count, graph->heavy_count, is_sliced ? &graph->sliced : nullptr,
                    workspace->stream);
        if (i % 8 == 7) check(cudaEventRecord(workspace->launched[i / 8 % 2].handle, workspace->stream), "an event");
        step.given = buffers[(i + 1) % 2], step.before = total, step.arriving = buffers[i % 2];
      }
      if (is_small)
        workspace->mark(workspace->computed, workspace->stream);
      else
        check(cudaEventRecord(workspace->computed.handle, workspace->stream), "an event");
      if (is_small) {
        check(cudaMemcpyAsync(pinned, total, nodes * now * 4, cudaMemcpyDeviceToHost, workspace->stream), "activation");
      } else {
        workspace->wait(workspace->computed, limits.stop);
        copy_out(*workspace, workspace->stream, reinterpret_cast<char *>(totals + first), lanes * 4ull,
                 reinterpret_cast<const char *>(total), now * 4, now * 4ull, nodes, limits.stop);
      }
      check(cudaEventRecord(workspace->ended.handle, workspace->stream), "an event");
      workspace->wait(workspace->ended, limits.stop);
      if (is_small) copy_lanes(totals + first, lanes, pinned, now, now, nodes);
      times.device_us += workspace->between(workspace->begun, workspace->ended);
      times.copy_us += workspace->between(workspace->begun, workspace->loaded) +
                       workspace->between(workspace->computed, workspace->ended);
      times.kernel_us += workspace->between(workspace->loaded, workspace->computed);
      times.copied_bytes += 2 * nodes * now * 4;
    }
    if (limits.times != nullptr) *limits.times = times;
  });
}

} // extern "C"
