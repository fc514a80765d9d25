// Exact top-k over parts of a collection on several devices, side by side: each is a search of its own (search.h), and
// what they find is merged here. Shapes: best, scores and found as similarity_cuda.h has them. Memory: that of each
// search; results of each part in host memory.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <memory>
#include "merge.h"

namespace shoal_cuda {
namespace {

/** Parts of a collection, in order. */
struct Collection {
  const shoal_cuda_rows *const *parts;
  uint32_t count;
};

void search_part(const shoal_cuda_rows &part, const Query &query, const shoal_cuda_terms &terms, const Best &best,
                 shoal_cuda_times &times) {
  if (part.rows.count == 0) return static_cast<void>(std::fill_n(best.found, query.count, 0u));
  Lease workspace(part.device, &terms);
  search(*workspace, part.rows, part.device_summary, query, terms, best, times);
}

/** Devices side by side, each with the parts that lie on it. */
shoal_cuda_times search_devices(const Collection &of, const Query &query, const shoal_cuda_terms &terms,
                                const Best &best) {
  std::vector<std::unique_ptr<Held>> held;
  std::vector<int> devices;
  for (uint32_t p = 0; p < of.count; p++) {
    held.emplace_back(new Held(query));
    if (std::find(devices.begin(), devices.end(), of.parts[p]->device) == devices.end())
      devices.push_back(of.parts[p]->device);
  }
  std::vector<shoal_cuda_times> taken(devices.size());
  std::vector<std::unique_ptr<Aside>> asides;
  for (size_t d = 0; d < devices.size(); d++)
    asides.emplace_back(new Aside([&, d] {
      for (uint32_t p = 0; p < of.count; p++) {
        if (of.parts[p]->device != devices[d]) continue;
        shoal_cuda_times mine{};
        search_part(*of.parts[p], query, terms, held[p]->best(), mine);
        add_times(taken[d], mine, false);
      }
    }));
  for (auto &aside : asides) aside->join();
  shoal_cuda_times times{};
  for (const auto &mine : taken) add_times(times, mine, true);
  Merge merge(query, best);
  uint64_t first = 0;
  for (uint32_t p = 0; p < of.count; first += of.parts[p++]->rows.count) merge.add(held[p]->best(), first);
  return times;
}

} // namespace
} // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" {

uint64_t shoal_cuda_topk_bytes(uint64_t rows, uint32_t dims, uint64_t query_count, uint32_t k) {
  if (rows == 0 || dims == 0 || query_count == 0 || k == 0) return 0;
  return search_bytes(static_cast<uint32_t>(rows), dims, query_count, k);
}

int shoal_cuda_topk(const shoal_cuda_rows *const *parts, uint32_t part_count, const float *queries,
                    uint64_t query_count, enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores,
                    uint32_t *found, const shoal_cuda_terms *terms) {
  return answer([&] {
    const Query query{queries, query_count, metric, k};
    const Best to{best, scores, found};
    check_query(query);
    const shoal_cuda_terms none{}, &limits = terms == nullptr ? none : *terms;
    shoal_cuda_times times{};
    if (part_count == 1) {
      search_part(*parts[0], query, limits, to, times);
    } else {
      refuse_hurried(limits);
      times = search_devices({parts, part_count}, query, limits, to);
    }
    if (limits.times != nullptr) *limits.times = times;
  });
}

} // extern "C"
