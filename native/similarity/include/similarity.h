// What the CPU kernels of Shoal compute, as a C interface without Node in it. Callers check shapes and values; the kernels
// assert. Rows and queries are row-major. Every function returns the same bits from run to run on one build and one
// instruction set, whatever the number of threads.
//
// Build and test by itself: sh native/similarity/build.sh test
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum shoal_dtype { SHOAL_F32 = 0, SHOAL_F16 = 1, SHOAL_I8 = 2 };
/** dot: Σ q·r. l2: Σ (q − r)², the smallest is best. cosine: Σ q·r ÷ (‖q‖ ‖r‖), 0 where either is of length 0. */
enum shoal_metric { SHOAL_DOT = 0, SHOAL_L2 = 1, SHOAL_COSINE = 2 };

/**
 * `count` rows of `dims` elements, `stride` bytes apart. `scales`: a factor for each row, or null for 1. For dot and l2 it is
 * what int8 values are multiplied with; for cosine it is 1/‖row‖ in units of the stored values, and null means that all rows
 * are of length 1. A row shorter than 1e-30 has no 1/‖row‖ in fp32: callers take it for a row of length 0 (scale 0).
 */
typedef struct {
  const void *data;
  uint64_t count;
  uint32_t dims;
  uint64_t stride;
  enum shoal_dtype dtype;
  const float *scales;
} shoal_rows;

/** Names of the instruction sets that this machine runs, best first; the index is what `isa` means below. */
int shoal_isa_count(void);
const char *shoal_isa_name(int isa);

/**
 * The `k` best rows of each query by exact search: `ids` and `scores` are queries × k, `found[q]` says how many are filled
 * (fewer than k when the collection is smaller or rows score NaN). Candidates are found in fp32, the returned ones ordered and
 * scored in fp64, ties broken by the lower id.
 */
void shoal_topk(int isa, int threads, const float *queries, uint64_t query_count, const shoal_rows *rows, enum shoal_metric metric,
                uint32_t k, uint64_t *ids, float *scores, uint32_t *found);

/** Scores of every query against every row: `scores` is queries × rows. */
void shoal_matrix(int isa, int threads, const float *queries, uint64_t query_count, const shoal_rows *rows, enum shoal_metric metric, float *scores);

/** Scores in fp64 of chosen rows: query q against `candidates[begin[q] .. begin[q+1])`, in that order. Ids are below `rows->count`. */
void shoal_rescore(int threads, const float *queries, uint64_t query_count, const shoal_rows *rows, enum shoal_metric metric,
                   const uint64_t *begin, const uint64_t *candidates, float *scores);

/** A graph by outgoing edges: node i has edges `begin[i] .. begin[i+1])`, each to `target` with `weight`. */
typedef struct {
  uint64_t nodes;
  const uint64_t *begin;
  const uint32_t *target;
  const float *weight;
} shoal_graph;

/**
 * Spreading activation (Collins and Loftus 1975, as a linear map): `activation` is nodes × lanes, one lane for each set of seeds,
 * and holds the seeds' values on entry. In each step every node whose activation of the last step is at least `threshold`
 * gives `decay` × weight × activation to the targets of its edges; what arrives is summed and added to the total. On return
 * `activation` holds the totals. `scratch` is 2 × nodes × lanes.
 */
void shoal_spread(int isa, int threads, const shoal_graph *graph, uint32_t lanes, uint32_t steps, float decay, float threshold, float *activation, float *scratch);

#ifdef __cplusplus
}
#endif
