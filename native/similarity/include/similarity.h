// What the CPU kernels of Shoal compute, as a C interface without Node in it. Callers check shapes and values; the
// kernels assert. Rows and queries are row-major. Every function returns the same bits from run to run on one build and
// one instruction set, whatever the number of threads.
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

/** A vector shorter than this has no 1/‖v‖ in fp32: it counts as one of length 0. */
#define SHOAL_MIN_LENGTH 1e-30

/**
 * `count` rows of `dims` elements, `stride` bytes apart. For dot and l2, `scales` is what int8 values are multiplied
 * with (null: 1), and `longest` no shorter than the longest row that holds no NaN. For cosine `scales` is 1/‖row‖ in
 * units of the stored values, 0 for a row of length 0, and must be there.
 */
typedef struct {
  const void *data;
  uint64_t count;
  uint32_t dims;
  uint64_t stride;
  enum shoal_dtype dtype;
  const float *scales;
  double longest;
} shoal_rows;

/** Set by another thread to end a call early; what it then leaves in its results means nothing. Null: never. */
typedef const volatile uint8_t *shoal_stop;

/** Names of the instruction sets that this machine runs, best first; the index is what `isa` means below. */
int shoal_isa_count(void);
const char *shoal_isa_name(int isa);

/** ‖row‖ of each row in units of the stored values, in fp64. */
void shoal_lengths(int isa, int threads, const shoal_rows *rows, double *lengths);

/** Whether every value is at most `most` without its sign: NaN is not. */
int shoal_all_within(const float *values, uint64_t count, double most);

/**
 * The `k` best rows of each query by exact search: `best` (row numbers) and `scores` are queries × k, `found[q]` says
 * how many are filled (fewer than k when there are fewer rows or some score NaN). Ordered and scored in fp64, ties to
 * the lower number.
 */
void shoal_topk(int isa, int threads, const float *queries, uint64_t query_count, const shoal_rows *rows,
                enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores, uint32_t *found, shoal_stop stop);

/** Scores of every query against every row: `scores` is queries × rows. */
void shoal_matrix(int isa, int threads, const float *queries, uint64_t query_count, const shoal_rows *rows,
                  enum shoal_metric metric, float *scores, shoal_stop stop);

/**
 * Scores in fp64 of chosen rows: query q against `candidates[begin[q] .. begin[q+1])`, in that order. Numbers are below
 * `rows->count`.
 */
void shoal_rescore(int isa, int threads, const float *queries, uint64_t query_count, const shoal_rows *rows,
                   enum shoal_metric metric, const uint32_t *begin, const uint32_t *candidates, double *scores,
                   shoal_stop stop);

/**
 * A graph by incoming edges: node i has edges `begin[i] .. begin[i+1])`, each from `source` with `weight`, sources
 * rising.
 */
typedef struct {
  uint64_t nodes;
  const uint32_t *begin;
  const uint32_t *source;
  const float *weight;
} shoal_graph;

/**
 * Spreading activation (Collins and Loftus 1975, as a linear map): `activation` is nodes × columns, one column for each
 * set of seeds, and holds the seeds' values on entry. In each step every node whose activation of the last step is at
 * least `threshold` gives `decay` × weight × activation along its outgoing edges; what arrives is summed and added to
 * the total. `scratch` is 2 × nodes × columns. A step is as much work as the graph has nodes and edges: a call does the
 * part [from, to) of the work of all steps, the first begins at 0, and each later one where the one before it ended,
 * with the same arrays. Once all of it is done `activation` holds the totals, the same bits however the work was
 * divided.
 */
void shoal_spread(int isa, int threads, const shoal_graph *graph, uint32_t columns, uint64_t from, uint64_t to,
                  float decay, float threshold, float *activation, float *scratch, shoal_stop stop);

/**
 * Multiply-adds of `threads` loops that do nothing else, in GFLOP/s: the peak that the others are measured against.
 * Takes some 50 ms.
 */
double shoal_peak(int isa, int threads);

#ifdef __cplusplus
}
#endif
