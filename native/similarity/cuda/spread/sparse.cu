// Steps of spreading in a large graph of which few nodes give anything (ten seeds reach a thousandth of a million nodes
// in two steps): most edges bring a zero. A bit for each node says whether it gives; all bits fit into a
// multiprocessor's shared memory, and nothing of an edge is read but its source, until one gives. The sums are the same
// bits as gather.cu's: a zero that is not added changes none. Shapes: step.cuh; a word of bits has 32 nodes. Memory:
// what Step points to.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <algorithm>
#include "../device/launch.cuh"
#include "columns.cuh"
#include "ways.cuh"

namespace shoal_cuda {

namespace {

/** Threads of `sparse_kernel`: one block on a multiprocessor. */
constexpr uint32_t SPARSE_THREADS = 1024;
/** Graphs of fewer edges are done before a second kernel has begun. */
constexpr uint64_t SPARSE_EDGES = 1 << 18;

__device__ __forceinline__ bool has_bit(const uint32_t *bits, uint32_t node) {
  return (bits[node / 32] >> (node % 32) & 1) != 0;
}

/** The same sum, of which only those nodes are read whose bit is set. */
template <int VALUES>
__device__ __forceinline__ Columns<VALUES> sum_active(const Step &step, const uint32_t *bits, uint32_t edge,
                                                      uint32_t last, uint32_t apart, uint32_t column) {
  Columns<VALUES> sum{};
  for (; edge < last; edge += apart) {
    const uint32_t source = __ldg(step.source + edge);
    if (!has_bit(bits, source)) continue;
    const float weight = __ldg(step.weight + edge);
    const Columns<VALUES> given = load<VALUES>(step.given + static_cast<uint64_t>(source) * step.columns + column);
#pragma unroll
    for (int v = 0; v < VALUES; v++)
      sum.of[v] = fmaf(weight, given.of[v] >= step.threshold ? given.of[v] * step.decay : 0.0f, sum.of[v]);
  }
  return sum;
}

/** Seeds that give something: a warp has 32 nodes. */
__global__ void __launch_bounds__(SPARSE_THREADS) mark_kernel(Step step) {
  __shared__ uint32_t all;
  if (threadIdx.x == 0) all = 0;
  __syncthreads();
  const uint32_t first_column = blockIdx.y * BLOCK_COLUMNS,
                 last_column = min(first_column + BLOCK_COLUMNS, step.columns);
  uint32_t count = 0;
  for (uint32_t word = blockIdx.x * (SPARSE_THREADS / 32) + threadIdx.x / 32; word < step.words;
       word += gridDim.x * (SPARSE_THREADS / 32)) {
    const uint32_t node = word * 32 + threadIdx.x % 32;
    bool some = false;
    for (uint32_t column = first_column; node < step.nodes && column < last_column; column++)
      some |= gives(step, step.given[static_cast<uint64_t>(node) * step.columns + column]);
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
template <int VALUES, int ACROSS, int TEAM>
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
  const uint32_t mine = threadIdx.x % 32, team = mine / TEAM, thread = mine % TEAM, across = thread % ACROSS;
  const uint32_t first_column = blockIdx.y * BLOCK_COLUMNS, column = first_column + across * VALUES,
                 width = min(BLOCK_COLUMNS, step.columns - first_column);
  const bool has_column = column < step.columns && across * VALUES < BLOCK_COLUMNS;
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
      const bool is_mine = chosen < 32 && has_column;
      Columns<VALUES> sum{};
      if (is_mine) sum = sum_active<VALUES>(step, bits, from_edge + thread / ACROSS, to_edge, TEAM / ACROSS, column);
      add_team<VALUES, ACROSS, TEAM>(sum);
      bool is_marked = false;
      if (is_mine && thread < ACROSS) {
        arrive<VALUES>(step, static_cast<uint64_t>(word) * 32 + chosen, column, sum);
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
      const uint64_t at = (static_cast<uint64_t>(word) * 32 + other) * step.columns + first_column + i % width;
      step.arriving[at] = 0;
      if (step.before != step.activation) step.activation[at] = step.before[at];
    }
    if (mine == 0)
      step.next.bits[static_cast<uint64_t>(blockIdx.y) * step.words + word] = marked, count += __popc(marked);
  }
  if (count > 0) atomicAdd(step.next.count + blockIdx.y, count);
}

} // namespace

uint32_t bit_words_for(uint64_t nodes) { return static_cast<uint32_t>(divided_up<uint64_t>(nodes, 128) * 4); }

bool can_keep_bits(int device, uint64_t nodes, uint64_t edges) {
  return edges >= SPARSE_EDGES && bit_words_for(nodes) * 4ull + 1024 <= facts_of(device).shared_bytes;
}

void mark_seeds(const Step &step, int device, cudaStream_t stream) {
  const uint32_t blocks = divided_up(step.columns, BLOCK_COLUMNS);
  check(cudaMemsetAsync(step.active.count, 0, 3 * blocks * 4, stream), "seeds");
  mark_kernel<<<dim3(static_cast<uint32_t>(facts_of(device).multiprocessors), blocks), SPARSE_THREADS, 0, stream>>>(
      step);
  check(cudaGetLastError(), "the kernel of seeds");
}

void spread_sparse(const Step &step, int device, cudaStream_t stream) {
  const uint32_t blocks = divided_up(step.columns, BLOCK_COLUMNS),
                 multiprocessors = static_cast<uint32_t>(facts_of(device).multiprocessors);
  with_columns(step.columns, [&](auto values, auto across, auto team) {
    constexpr int VALUES = decltype(values)::value, ACROSS = decltype(across)::value, TEAM = decltype(team)::value;
    allow_shared<sparse_kernel<VALUES, ACROSS, TEAM>>(device, step.words * 4);
    launch_overlapping("the kernels of spreading", device, sparse_kernel<VALUES, ACROSS, TEAM>,
                       dim3(multiprocessors, blocks), SPARSE_THREADS, step.words * 4, stream, step);
  });
}

} // namespace shoal_cuda
