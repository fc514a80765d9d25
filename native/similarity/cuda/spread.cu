// Spreading activation: a sparse matrix (CSR by incoming edges) times lanes of activation that lie together, step by step. A few
// threads have a node: each takes 4 lanes (or 1) of every so-manieth edge, and their sums are added by shuffles in a fixed order, so
// that results are the same bits from run to run. Nodes of very many edges are cut into segments, a block each, whose sums
// are added in order. What a node gives on (decay, threshold) is worked out where it is read, which saves a pass.
// Memory: graph 4 (nodes + 1) + 8 edges bytes; a call takes 3 × 4 × nodes × lanes, or less lanes at a time.
#include <algorithm>
#include <type_traits>
#include <vector>
#include "device.h"

struct shoal_cuda_graph {
  int device;
  shoal_cuda::Memory memory;
  uint64_t nodes, edges;
  const uint32_t *begin, *source;
  const float *weight;
  /** Pieces of heavy nodes: (first edge, last edge); heavy node h has segments heavy[2h + 1] to heavy[2h + 3], and is node heavy[2h]. */
  shoal_cuda::Memory heavy_memory;
  const uint32_t *segments, *heavy;
  uint32_t segment_count, heavy_count;
};

namespace shoal_cuda {
namespace {

constexpr uint32_t THREADS = 256, HEAVY_EDGES = 1024, SEGMENT_EDGES = 2048, BLOCK_LANES = 16;

struct Step {
  const uint32_t *begin, *source;
  const float *weight;
  const uint32_t *segments, *heavy;
  uint32_t nodes, lanes;
  float decay, threshold;
  /** What nodes had before: the activation, or the seeds in the first step. */
  const float *given, *before;
  float *arriving, *activation, *partial;
};

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
  if (VALUES == 4) *reinterpret_cast<float4 *>(to) = make_float4(lanes.of[0], lanes.of[1 % VALUES], lanes.of[2 % VALUES], lanes.of[3 % VALUES]);
  else *to = lanes.of[0];
}

/** Σ over edges e, e + apart, … below `last`; four of them are under way together. */
template <int VALUES>
__device__ __forceinline__ Lanes<VALUES> sum_edges(const Step &step, uint32_t edge, uint32_t last, uint32_t apart, uint32_t lane) {
  constexpr int LOADS = 4;
  Lanes<VALUES> sum{};
  for (; edge < last; edge += LOADS * apart) {
    uint32_t source[LOADS];
    float weight[LOADS];
    Lanes<VALUES> given[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const uint32_t at = edge + i * apart;
      source[i] = at < last ? __ldg(step.source + at) : 0xffffffffu;
      weight[i] = at < last ? __ldg(step.weight + at) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      if (source[i] != 0xffffffffu) given[i] = load<VALUES>(step.given + static_cast<uint64_t>(source[i]) * step.lanes + lane);
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      if (source[i] != 0xffffffffu)
#pragma unroll
        for (int v = 0; v < VALUES; v++) sum.of[v] = fmaf(weight[i], given[i].of[v] >= step.threshold ? given[i].of[v] * step.decay : 0.0f, sum.of[v]);
  }
  return sum;
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

/** `COLUMNS` threads take the lanes of a node, `TEAM` threads its edges. */
template <int VALUES, int COLUMNS, int TEAM>
__global__ void __launch_bounds__(THREADS) gather_kernel(Step step) {
  const uint32_t thread = threadIdx.x % TEAM, column = thread % COLUMNS, lane = blockIdx.y * BLOCK_LANES + column * VALUES;
  const uint32_t node = blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
  uint32_t first = 0, last = 0;
  if (node < step.nodes) first = __ldg(step.begin + node), last = __ldg(step.begin + node + 1);
  const bool is_heavy = last - first > HEAVY_EDGES, has_lane = lane < step.lanes && column * VALUES < BLOCK_LANES;
  Lanes<VALUES> sum{};
  if (has_lane && !is_heavy) sum = sum_edges<VALUES>(step, first + thread / COLUMNS, last, TEAM / COLUMNS, lane);
#pragma unroll
  for (int other = COLUMNS; other < TEAM; other *= 2)
#pragma unroll
    for (int v = 0; v < VALUES; v++) sum.of[v] += __shfl_xor_sync(0xffffffffu, sum.of[v], other);
  if (node < step.nodes && has_lane && !is_heavy && thread < COLUMNS) arrive<VALUES>(step, node, lane, sum);
}

/** One block a segment of a heavy node. */
template <int VALUES, int COLUMNS>
__global__ void __launch_bounds__(THREADS) segment_kernel(Step step) {
  __shared__ float sums[THREADS / 32][BLOCK_LANES];
  const uint32_t column = threadIdx.x % COLUMNS, lane = blockIdx.y * BLOCK_LANES + column * VALUES;
  const bool has_lane = lane < step.lanes && column * VALUES < BLOCK_LANES;
  Lanes<VALUES> sum{};
  if (has_lane) sum = sum_edges<VALUES>(step, step.segments[2 * blockIdx.x] + threadIdx.x / COLUMNS, step.segments[2 * blockIdx.x + 1], THREADS / COLUMNS, lane);
#pragma unroll
  for (int other = COLUMNS; other < 32; other *= 2)
#pragma unroll
    for (int v = 0; v < VALUES; v++) sum.of[v] += __shfl_xor_sync(0xffffffffu, sum.of[v], other);
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
  const uint32_t node = step.heavy[2 * blockIdx.x], first = step.heavy[2 * blockIdx.x + 1], last = step.heavy[2 * blockIdx.x + 3];
  for (uint32_t lane = threadIdx.x; lane < step.lanes; lane += THREADS) {
    Lanes<1> sum{};
    for (uint32_t segment = first; segment < last; segment++) sum.of[0] += step.partial[static_cast<uint64_t>(segment) * step.lanes + lane];
    arrive<1>(step, node, lane, sum);
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
    if (lanes <= 4) chosen(four, one);
    else if (lanes <= 8) chosen(four, two);
    else chosen(four, four);
  } else if (lanes == 1) chosen(one, one);
  else if (lanes == 2) chosen(one, two);
  else if (lanes <= 4) chosen(one, four);
  else if (lanes <= 8) chosen(one, std::integral_constant<int, 8>{});
  else chosen(one, std::integral_constant<int, 16>{});
}

void spread_once(const Step &step, uint32_t segments, uint32_t heavy, cudaStream_t stream) {
  const uint32_t blocks = divided_up(step.lanes, BLOCK_LANES);
  with_lanes(step.lanes, [&](auto values, auto columns, auto team) {
    constexpr int VALUES = decltype(values)::value, COLUMNS = decltype(columns)::value, TEAM = decltype(team)::value;
    gather_kernel<VALUES, COLUMNS, TEAM><<<dim3(divided_up(step.nodes, THREADS / TEAM), blocks), THREADS, 0, stream>>>(step);
    if (heavy > 0) segment_kernel<VALUES, COLUMNS><<<dim3(segments, blocks), THREADS, 0, stream>>>(step);
  });
  if (heavy > 0) join_kernel<<<heavy, THREADS, 0, stream>>>(step);
  check(cudaGetLastError(), "the kernels of spreading");
}

}  // namespace
}  // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" {

uint64_t shoal_cuda_graph_bytes(uint64_t nodes, uint64_t edges) {
  Parts parts;
  parts.take<uint32_t>(nodes + 1), parts.take<uint32_t>(edges), parts.take<float>(edges);
  // Heavy nodes: 8 bytes for each and for each of their segments.
  parts.take<uint32_t>(2 * (edges / HEAVY_EDGES + 2) + 2 * (edges / SEGMENT_EDGES + edges / HEAVY_EDGES + 1));
  return parts.used();
}

int shoal_cuda_upload_graph(int device, const shoal_graph *graph, shoal_cuda_graph **uploaded, shoal_stop stop) {
  *uploaded = nullptr;
  return answer([&] {
    if (graph->nodes >= 1u << 31) fail(SHOAL_CUDA_INVALID, "%llu nodes: a device takes fewer than 2^31", static_cast<unsigned long long>(graph->nodes));
    Lease slot(device);
    const uint64_t edges = graph->begin[graph->nodes];
    Parts count;
    count.take<uint32_t>(graph->nodes + 1), count.take<uint32_t>(edges), count.take<float>(edges);
    std::unique_ptr<shoal_cuda_graph> made(new shoal_cuda_graph{device, Memory(device, count.used()), graph->nodes, edges, nullptr, nullptr, nullptr, Memory(), nullptr, nullptr, 0, 0});
    Parts parts(made->memory.at());
    uint32_t *const begin = parts.take<uint32_t>(graph->nodes + 1), *const source = parts.take<uint32_t>(edges);
    float *const weight = parts.take<float>(edges);
    made->begin = begin, made->source = source, made->weight = weight;
    const auto copy = [&](void *to, const void *from, uint64_t elements) { copy_in(*slot, slot->stream, static_cast<char *>(to), 4, static_cast<const char *>(from), 4, 4, elements, stop); };
    copy(begin, graph->begin, graph->nodes + 1);
    copy(source, graph->source, edges);
    copy(weight, graph->weight, edges);
    std::vector<uint32_t> segments, heavy;
    for (uint64_t node = 0; node < graph->nodes; node++) {
      if (graph->begin[node + 1] - graph->begin[node] <= HEAVY_EDGES) continue;
      heavy.push_back(static_cast<uint32_t>(node)), heavy.push_back(static_cast<uint32_t>(segments.size() / 2));
      for (uint64_t edge = graph->begin[node]; edge < graph->begin[node + 1]; edge += SEGMENT_EDGES)
        segments.push_back(static_cast<uint32_t>(edge)), segments.push_back(static_cast<uint32_t>(std::min<uint64_t>(edge + SEGMENT_EDGES, graph->begin[node + 1])));
    }
    made->heavy_count = static_cast<uint32_t>(heavy.size() / 2), made->segment_count = static_cast<uint32_t>(segments.size() / 2);
    heavy.push_back(0), heavy.push_back(made->segment_count);
    if (made->heavy_count > 0) {
      made->heavy_memory = Memory(device, (segments.size() + heavy.size()) * 4 + 512);
      Parts lists(made->heavy_memory.at());
      uint32_t *const to_segments = lists.take<uint32_t>(segments.size()), *const to_heavy = lists.take<uint32_t>(heavy.size());
      copy(to_segments, segments.data(), segments.size());
      copy(to_heavy, heavy.data(), heavy.size());
      made->segments = to_segments, made->heavy = to_heavy;
    }
    check(cudaStreamSynchronize(slot->stream), "an upload");
    *uploaded = made.release();
  });
}

void shoal_cuda_free_graph(shoal_cuda_graph *graph) { delete graph; }

int shoal_cuda_spread(const shoal_cuda_graph *graph, uint32_t lanes, uint32_t steps, float decay, float threshold, float *activation, const shoal_cuda_terms *terms) {
  return answer([&] {
    const shoal_cuda_terms none{}, &limits = terms == nullptr ? none : *terms;
    if (graph->nodes == 0 || lanes == 0) return;
    Lease slot(graph->device);
    shoal_cuda_times times{};
    const uint64_t nodes = graph->nodes;
    const auto bytes_for = [&](uint64_t wide) { return (3 * nodes + graph->segment_count) * wide * 4 + 2048; };
    uint32_t wide = lanes;
    while (wide > 1 && limits.work_bytes != 0 && bytes_for(wide) > limits.work_bytes) wide = wide > 8 ? wide / 2 / 4 * 4 : wide > 4 ? 4 : wide / 2;
    Parts parts(slot->work(bytes_for(wide), limits.work_bytes));
    float *const total = parts.take<float>(nodes * wide), *const buffers[2] = {parts.take<float>(nodes * wide), parts.take<float>(nodes * wide)}, *const partial = parts.take<float>(graph->segment_count * static_cast<uint64_t>(wide));
    for (uint32_t first = 0; first < lanes; first += wide) {
      const uint32_t now = std::min(wide, lanes - first);
      char *const host = reinterpret_cast<char *>(activation + first);
      check(cudaEventRecord(slot->begun.handle, slot->stream), "an event");
      char *const to = reinterpret_cast<char *>(steps == 0 ? total : buffers[0]);
      const bool is_small = nodes * now * 4 <= FEW_BYTES; // then the steps are under way before the seeds have arrived
      float *const pinned = is_small ? reinterpret_cast<float *>(slot->host(nodes * now * 4)) : nullptr;
      if (is_small) {
        for (uint64_t node = 0; node < nodes; node++) std::copy_n(activation + node * lanes + first, now, pinned + node * now);
        check(cudaMemcpyAsync(to, pinned, nodes * now * 4, cudaMemcpyHostToDevice, slot->stream), "seeds");
      } else {
        copy_in(*slot, slot->stream, to, now * 4, host, lanes * 4ull, now * 4ull, nodes, limits.stop);
      }
      check(cudaEventRecord(slot->loaded.handle, slot->stream), "an event");
      Step step{graph->begin, graph->source, graph->weight, graph->segments, graph->heavy, static_cast<uint32_t>(nodes), now, decay, threshold, buffers[0], buffers[0], buffers[1], total, partial};
      Event passed[2];
      for (uint32_t i = 0; i < steps; i++) {
        // Eight steps under way while eight are waited for: the caller may stop between.
        if (i % 8 == 0 && i >= 16) slot->wait(passed[i / 8 % 2], limits.stop);
        spread_once(step, graph->segment_count, graph->heavy_count, slot->stream);
        if (i % 8 == 7) check(cudaEventRecord(passed[i / 8 % 2].handle, slot->stream), "an event");
        step.given = buffers[(i + 1) % 2], step.before = total, step.arriving = buffers[i % 2];
      }
      check(cudaEventRecord(slot->computed.handle, slot->stream), "an event");
      if (is_small) {
        check(cudaMemcpyAsync(pinned, total, nodes * now * 4, cudaMemcpyDeviceToHost, slot->stream), "activation");
      } else {
        slot->wait(slot->computed, limits.stop);
        copy_out(*slot, slot->stream, host, lanes * 4ull, reinterpret_cast<const char *>(total), now * 4, now * 4ull, nodes, limits.stop);
      }
      check(cudaEventRecord(slot->ended.handle, slot->stream), "an event");
      slot->wait(slot->ended, limits.stop);
      if (is_small) for (uint64_t node = 0; node < nodes; node++) std::copy_n(pinned + node * now, now, activation + node * lanes + first);
      times.device_us += microseconds(slot->begun, slot->ended);
      times.copy_us += microseconds(slot->begun, slot->loaded) + microseconds(slot->computed, slot->ended);
      times.kernel_us += microseconds(slot->loaded, slot->computed);
      times.copied_bytes += 2 * nodes * now * 4;
    }
    if (limits.times != nullptr) *limits.times = times;
  });
}

}  // extern "C"
