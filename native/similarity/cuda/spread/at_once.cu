// All steps of spreading to one column in a small graph, in one launch and without copies. Each thread keeps its edges
// in registers, and each block has all values of a step in its shared memory: read through the second-level cache,
// where no two edges of a warp lie together, they took 2.3 µs a step (10,000 nodes, 200,000 edges, H200, 2026-11-25),
// copied and read there 0.9. Between steps all blocks wait for each other at a counter (1.1 µs), for which the launch
// is a cooperative one: all blocks are on the device, or none is. Few seeds come with the launch, and the activation is
// written where the host reads it: the device waited 6 µs for each command that the host had not given yet, and so
// longer than it worked.
// Shapes: step.cuh, with one column. Memory: values of all nodes twice (`given`, `Step::arriving`), and a counter.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
//
// Why: docs/decisions/similarity-gpu.md#a-small-search-is-a-chain-of-short-kernels
#include <algorithm>
#include <cstring>
#include <type_traits>
#include "../device/launch.cuh"
#include "ways.cuh"

namespace shoal_cuda {
namespace {

constexpr uint32_t BLOCK = 1024;
/** Edges that a thread keeps, what is more being read in each step; and times four values that it has under way. */
constexpr uint32_t EDGES = 5, COPIES = 4;
/** With more nodes copying all values takes longer than reading those that edges ask for. */
constexpr uint64_t MOST_NODES = 1 << 15;
constexpr uint32_t MOST_STEPS = 64;
/** More of them are copied as the values of all nodes. */
constexpr uint32_t MOST_SEEDS = 64;

struct Seeds {
  /** 0: all values lie in `Step::given`. */
  uint32_t count;
  uint32_t node[MOST_SEEDS];
  float value[MOST_SEEDS];
};

/** Of all blocks: what they count from, and where. */
struct Counter {
  uint32_t *at, before;
};

__device__ __forceinline__ float4 load_from_all(const float *from) {
  float4 four;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "l"(from)
               : "memory");
  return four;
}

/** Values of all nodes, and up to three of what lies behind. */
__device__ __forceinline__ void copy_values(float *to, const float *from, uint32_t nodes) {
  for (uint32_t first = threadIdx.x * 4; first < nodes; first += COPIES * BLOCK * 4) {
    float4 four[COPIES];
#pragma unroll
    for (uint32_t i = 0; i < COPIES; i++)
      if (first + i * BLOCK * 4 < nodes) four[i] = load_from_all(from + first + i * BLOCK * 4);
#pragma unroll
    for (uint32_t i = 0; i < COPIES; i++)
      if (first + i * BLOCK * 4 < nodes) *reinterpret_cast<float4 *>(to + first + i * BLOCK * 4) = four[i];
  }
}

/** What all blocks wrote before can be read after, when each has added one and there are `wanted`. */
__device__ __forceinline__ void wait_for_all(uint32_t *counter, uint32_t wanted) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    uint32_t count;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    while (static_cast<int32_t>(count - wanted) < 0);
  }
  __syncthreads();
}

/**
 * `TEAM` threads have a node. What arrives lies in `step.arriving` and `step.given` in turn; the activation goes to
 * `step.activation`, in the host's memory.
 */
template <uint32_t TEAM>
__global__ void __launch_bounds__(BLOCK, 1) at_once_kernel(Step step, uint32_t steps, Seeds seeds, Counter counter) {
  extern __shared__ __align__(16) float values[];
  const uint32_t node = (blockIdx.x * BLOCK + threadIdx.x) / TEAM, thread = threadIdx.x % TEAM;
  const bool is_first = node < step.nodes && thread == 0;
  uint32_t first = 0, last = 0;
  if (node < step.nodes) first = __ldg(step.begin + node) + thread, last = __ldg(step.begin + node + 1);
  uint32_t source[EDGES];
  float weight[EDGES];
#pragma unroll
  for (uint32_t i = 0; i < EDGES; i++) {
    const bool is_edge = first + i * TEAM < last;
    source[i] = is_edge ? __ldg(step.source + first + i * TEAM) : 0;
    weight[i] = is_edge ? __ldg(step.weight + first + i * TEAM) : 0.0f;
  }
  if (seeds.count == 0) {
    copy_values(values, step.given, step.nodes);
  } else {
    for (uint32_t i = threadIdx.x * 4; i < step.nodes; i += BLOCK * 4)
      *reinterpret_cast<float4 *>(values + i) = make_float4(0, 0, 0, 0);
    __syncthreads();
    if (threadIdx.x < seeds.count) values[seeds.node[threadIdx.x]] = seeds.value[threadIdx.x];
  }
  __syncthreads();
  const auto add = [&](float sum, float weight, float value) {
    return fmaf(weight, value >= step.threshold ? value * step.decay : 0.0f, sum);
  };
  float total = is_first ? values[node] : 0.0f, *arriving = step.arriving, *free = const_cast<float *>(step.given);
  for (uint32_t done = 0;;) {
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < EDGES; i++)
      if (first + i * TEAM < last) sum = add(sum, weight[i], values[source[i]]);
    for (uint32_t edge = first + EDGES * TEAM; edge < last; edge += TEAM)
      sum = add(sum, __ldg(step.weight + edge), values[__ldg(step.source + edge)]);
#pragma unroll
    for (uint32_t other = 1; other < TEAM; other *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    total += sum;
    if (++done == steps) break;
    if (is_first) asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(arriving + node), "f"(sum) : "memory");
    wait_for_all(counter.at, counter.before + done * gridDim.x);
    copy_values(values, arriving, step.nodes);
    __syncthreads();
    float *const next = free;
    free = arriving, arriving = next;
  }
  // Through shared memory, so that a warp's 32 values leave together.
  __syncthreads();
  if (is_first) values[threadIdx.x / TEAM] = total;
  __syncthreads();
  const uint32_t mine = blockIdx.x * (BLOCK / TEAM) + threadIdx.x;
  if (threadIdx.x < BLOCK / TEAM && mine < step.nodes) step.activation[mine] = values[threadIdx.x];
}

/** Threads for each node: as many as take its edges, where all nodes have room. 0: they have not. */
uint32_t team_of(int device, uint64_t nodes, uint64_t edges) {
  const uint64_t threads = static_cast<uint64_t>(facts_of(device).multiprocessors) * BLOCK;
  uint32_t team = 32;
  while (team > 1 && (nodes * team > threads || (team > 8 && edges < nodes * (EDGES / 2 + 1) * (team / 2)))) team /= 2;
  return team > 1 ? team : 0;
}

/** Of one block: values of all nodes, or those that it writes. */
size_t shared_bytes(uint64_t nodes) {
  return std::max<size_t>(divided_up<uint64_t>(nodes, 4) * 16, BLOCK / 2 * sizeof(float));
}

/** Nodes of `seeds` that have a value; none when there are too many for it. */
Seeds few_seeds(const float *seeds, uint32_t nodes) {
  constexpr uint32_t STRIDE = 32;
  Seeds few{};
  for (uint32_t first = 0; first < nodes; first += STRIDE) {
    const uint32_t last = std::min(first + STRIDE, nodes);
    if (last - first == STRIDE) {
      uint64_t bits[STRIDE / 2], some = 0;
      std::memcpy(bits, seeds + first, sizeof bits);
      for (const uint64_t two : bits) some |= two;
      if ((some & 0x7fffffff7fffffff) == 0) continue;
    }
    for (uint32_t node = first; node < last; node++) {
      if (seeds[node] == 0) continue;
      if (few.count == MOST_SEEDS) return Seeds{};
      few.node[few.count] = node, few.value[few.count] = seeds[node], few.count++;
    }
  }
  if (few.count == 0) few.count = 1; // of nothing at all
  return few;
}

template <uint32_t TEAM>
void launch(Workspace &workspace, const Step &step, uint32_t steps, const Seeds &seeds) {
  const uint32_t blocks = divided_up(step.nodes * TEAM, BLOCK);
  const size_t bytes = shared_bytes(step.nodes);
  allow_shared<at_once_kernel<TEAM>>(workspace.device, bytes);
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks), config.blockDim = dim3(BLOCK), config.dynamicSmemBytes = bytes,
  config.stream = workspace.stream;
  config.attrs = &together, config.numAttrs = 1;
  const Counter counter{workspace.counter(), workspace.counted};
  workspace.mark(workspace.loaded, workspace.stream);
  check(cudaLaunchKernelEx(&config, at_once_kernel<TEAM>, step, steps, seeds, counter),
        "the kernel of all steps of spreading");
  workspace.counted += blocks * (steps - 1);
}

} // namespace

bool can_spread_at_once(int device, uint64_t nodes, uint64_t edges, uint32_t steps) {
  const Facts &facts = facts_of(device);
  return facts.can_wait_for_all && steps > 0 && steps <= MOST_STEPS && nodes <= MOST_NODES &&
         shared_bytes(nodes) <= facts.shared_bytes && team_of(device, nodes, edges) > 0;
}

shoal_cuda_times spread_at_once(Workspace &workspace, Step step, const AllSteps &all) {
  const size_t bytes = step.nodes * sizeof(float);
  const Seeds few = few_seeds(all.seeds, step.nodes);
  const bool is_direct = !workspace.is_hurried && is_pinned(all.totals), is_copied = few.count == 0;
  float *const pinned = !is_copied && is_direct ? nullptr : reinterpret_cast<float *>(workspace.host(bytes));
  step.given = all.given, step.activation = is_direct ? all.totals : pinned;
  if (is_copied) {
    std::copy_n(all.seeds, step.nodes, pinned);
    workspace.mark(workspace.begun, workspace.stream);
    check(cudaMemcpyAsync(all.given, pinned, bytes, cudaMemcpyHostToDevice, workspace.stream), "seeds");
  }
  switch (team_of(workspace.device, step.nodes, all.edges)) {
    case 32:
      launch<32>(workspace, step, all.steps, few);
      break;
    case 16:
      launch<16>(workspace, step, all.steps, few);
      break;
    case 8:
      launch<8>(workspace, step, all.steps, few);
      break;
    case 4:
      launch<4>(workspace, step, all.steps, few);
      break;
    default:
      launch<2>(workspace, step, all.steps, few);
  }
  check(cudaEventRecord(workspace.ended.handle, workspace.stream), "an event");
  workspace.wait(workspace.ended, all.stop);
  if (!is_direct) std::copy_n(pinned, step.nodes, all.totals);
  shoal_cuda_times times{};
  times.kernel_us = workspace.between(workspace.loaded, workspace.ended);
  times.copy_us = is_copied ? workspace.between(workspace.begun, workspace.loaded) : 0;
  times.device_us = times.copy_us + times.kernel_us;
  times.copied_bytes = (is_copied ? 2 : 1) * bytes;
  return times;
}

} // namespace shoal_cuda
