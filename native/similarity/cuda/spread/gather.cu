// Steps of spreading in which every edge is read. Shapes: a graph by incoming edges (CSR), activation nodes × columns;
// each thread takes 4 columns (or 1) of every so-manieth edge of a node, and sums are added in a fixed order, so that
// results are the same bits from run to run. Nodes of very many edges are cut into segments, a block each, whose sums
// are added in order. What a node gives on (decay, threshold) is worked out where it is read, which saves a pass.
// Memory: what Step points to; nothing is allocated.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <algorithm>
#include "../device/launch.cuh"
#include "columns.cuh"
#include "ways.cuh"

namespace shoal_cuda {

namespace {

constexpr uint32_t THREADS = 256;
/** Edges whose data a thread has under way together. */
constexpr int LOADS = 4;

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
__device__ __forceinline__ Columns<VALUES> sum_edges(const Step &step, Edges edges, uint32_t edge, uint32_t last,
                                                     uint32_t apart, uint32_t column) {
  Columns<VALUES> sum{};
  for (; edge < last; edge += LOADS * apart) {
    Columns<VALUES> given[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      if (edges.source[i] != 0xffffffffu)
        given[i] = load<VALUES>(step.given + static_cast<uint64_t>(edges.source[i]) * step.columns + column);
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

/** `ACROSS` threads take the columns of a node, `TEAM` threads its edges. */
template <int VALUES, int ACROSS, int TEAM>
__global__ void __launch_bounds__(THREADS) gather_kernel(Step step) {
  constexpr uint32_t NODES = THREADS / TEAM, WARP_NODES = 32 / TEAM; // at a time
  __shared__ uint32_t marked;
  const uint32_t thread = threadIdx.x % TEAM, across = thread % ACROSS,
                 column = blockIdx.y * BLOCK_COLUMNS + across * VALUES;
  const bool has_column = column < step.columns && across * VALUES < BLOCK_COLUMNS,
             keeps_bits = step.active.bits != nullptr;
  next_may_begin();
  uint32_t count = 0;
  for (uint32_t first_node = blockIdx.x * NODES; first_node < step.nodes; first_node += gridDim.x * NODES) {
    const uint32_t node = first_node + threadIdx.x / TEAM;
    uint32_t first = 0, last = 0;
    if (node < step.nodes) first = __ldg(step.begin + node), last = __ldg(step.begin + node + 1);
    const bool is_mine = has_column && last - first <= HEAVY_EDGES,
               arrives = node < step.nodes && is_mine && thread < ACROSS;
    // The graph never changes: its edges are here before the step before this one has ended.
    Edges edges{};
    if (is_mine) edges = load_edges(step, first + thread / ACROSS, last, TEAM / ACROSS);
    if (first_node == blockIdx.x * NODES) {
      after_previous();
      if (keeps_bits && step.active.count[blockIdx.y] <= step.most_active) return;
    }
    Columns<VALUES> sum{};
    if (is_mine) sum = sum_edges<VALUES>(step, edges, first + thread / ACROSS, last, TEAM / ACROSS, column);
    add_team<VALUES, ACROSS, TEAM>(sum);
    if (arrives) arrive<VALUES>(step, node, column, sum);
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

/** One block a segment of a heavy node. */
template <int VALUES, int ACROSS>
__global__ void __launch_bounds__(THREADS) segment_kernel(Step step) {
  __shared__ float sums[THREADS / 32][BLOCK_COLUMNS];
  const uint32_t across = threadIdx.x % ACROSS, column = blockIdx.y * BLOCK_COLUMNS + across * VALUES;
  const bool has_column = column < step.columns && across * VALUES < BLOCK_COLUMNS;
  const uint32_t first = step.segments[2 * blockIdx.x] + threadIdx.x / ACROSS, last = step.segments[2 * blockIdx.x + 1],
                 apart = THREADS / ACROSS;
  next_may_begin();
  Edges edges{};
  if (has_column) edges = load_edges(step, first, last, apart);
  after_previous();
  Columns<VALUES> sum{};
  if (has_column) sum = sum_edges<VALUES>(step, edges, first, last, apart, column);
  add_team<VALUES, ACROSS, 32>(sum);
  if (threadIdx.x % 32 < ACROSS && across * VALUES < BLOCK_COLUMNS)
    for (int v = 0; v < VALUES; v++) sums[threadIdx.x / 32][across * VALUES + v] = sum.of[v];
  __syncthreads();
  if (threadIdx.x >= ACROSS || !has_column) return;
  for (int v = 0; v < VALUES; v++) {
    float total = 0;
    for (uint32_t warp = 0; warp < THREADS / 32; warp++) total += sums[warp][across * VALUES + v];
    step.partial[static_cast<uint64_t>(blockIdx.x) * step.columns + column + v] = total;
  }
}

__global__ void __launch_bounds__(THREADS) join_kernel(Step step) {
  const uint32_t node = step.heavy[2 * blockIdx.x], first = step.heavy[2 * blockIdx.x + 1],
                 last = step.heavy[2 * blockIdx.x + 3];
  next_may_begin();
  after_previous();
  for (uint32_t column = threadIdx.x; column < step.columns; column += THREADS) {
    Columns<1> sum{};
    for (uint32_t segment = first; segment < last; segment++)
      sum.of[0] += step.partial[static_cast<uint64_t>(segment) * step.columns + column];
    arrive<1>(step, node, column, sum);
    if (step.active.bits == nullptr || !gives(step, sum.of[0])) continue;
    const uint32_t bit = 1u << node % 32, block = column / BLOCK_COLUMNS;
    if ((atomicOr(step.next.bits + static_cast<uint64_t>(block) * step.words + node / 32, bit) & bit) == 0)
      atomicAdd(step.next.count + block, 1u);
  }
}

} // namespace

void spread_gathered(const Step &step, const HeavyNodes &heavy, int device, cudaStream_t stream) {
  const uint32_t blocks = divided_up(step.columns, BLOCK_COLUMNS),
                 multiprocessors = static_cast<uint32_t>(facts_of(device).multiprocessors);
  const char *const what = "the kernels of spreading";
  with_columns(step.columns, [&](auto values, auto across, auto team) {
    constexpr int VALUES = decltype(values)::value, ACROSS = decltype(across)::value, TEAM = decltype(team)::value;
    const uint32_t wanted = divided_up(step.nodes, THREADS / TEAM);
    launch_overlapping(what, device, gather_kernel<VALUES, ACROSS, TEAM>,
                       dim3(std::min(wanted, 32 * multiprocessors), blocks), THREADS, 0, stream, step);
    if (heavy.count > 0)
      launch_overlapping(what, device, segment_kernel<VALUES, ACROSS>, dim3(heavy.segments, blocks), THREADS, 0, stream,
                         step);
  });
  if (heavy.count > 0) launch_overlapping(what, device, join_kernel, heavy.count, THREADS, 0, stream, step);
}

} // namespace shoal_cuda
