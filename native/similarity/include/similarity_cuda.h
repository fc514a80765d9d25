// What the CUDA kernels of Shoal compute, as the C interface of a library that is opened at run time (dlopen): nothing
// of CUDA is needed to build or run what opens it, and only NVIDIA's driver to use a GPU. Answers are those of
// similarity.h: ordered and scored in fp64, ties to the lower number, rows that hold NaN never found; the same bits
// from run to run on one device. Callers check shapes and values, as for similarity.h.
//
// Build: sh native/similarity/build.sh cuda       Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#pragma once
#include "similarity.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/** Raised with every change of this file that callers notice; `shoal_cuda_abi()` must be equal. */
#define SHOAL_CUDA_ABI 3

/**
 * What every call gives back. Except for OK, outputs mean nothing and the call holds nothing; `shoal_cuda_error()` has
 * the words.
 */
enum shoal_cuda_status {
  SHOAL_CUDA_OK = 0,
  /** Ordinary: a smaller upload, or fewer bytes of work, may fit. Everything that was there is still usable. */
  SHOAL_CUDA_OUT_OF_MEMORY = 1,
  /** The stop flag was set. */
  SHOAL_CUDA_STOPPED = 2,
  /** No driver, one that is too old, no GPU, or none with this number. Not an error of the machine. */
  SHOAL_CUDA_NO_DEVICE = 3,
  /** A shape that the library does not take: the words say which. */
  SHOAL_CUDA_INVALID = 4,
  /** The device failed. Nothing on it can be used in this process any more. */
  SHOAL_CUDA_LOST = 5,
  /** Not within `most_wait_us`: to be asked for again by a thread that may wait. */
  SHOAL_CUDA_LATER = 6
};

int shoal_cuda_abi(void);

/** Words for the last status other than OK of this thread; "" before there was one. */
const char *shoal_cuda_error(void);

/** How many devices this process sees; 0 with OK is not given: none is NO_DEVICE, and *count is 0 then. */
int shoal_cuda_device_count(int *count);

typedef struct {
  char name[256];
  /** 90 for compute capability 9.0. */
  int compute;
  int multiprocessors;
  /** Memory of the device, and what the driver calls free of it now. */
  uint64_t total_bytes, free_bytes;
} shoal_cuda_device;

int shoal_cuda_describe(int device, shoal_cuda_device *facts);

/**
 * Bytes of the device's memory that this library has allocated: collections, graphs, and work memory kept between
 * calls.
 */
uint64_t shoal_cuda_held_bytes(int device);
/** Gives back work memory that no running call uses, and pinned memory that nobody has taken. */
void shoal_cuda_trim(int device);

/**
 * Page-locked host memory for results: a device writes into it as it is, and what lies elsewhere is copied there by the
 * processor (33 GB/s instead of 51, or 11 where the memory was never touched; H200, 2026-11-22). Locking takes longer
 * than one such copy, so there is some once it has been asked for often enough, and not more than
 * SHOAL_CUDA_MOST_PINNED_BYTES in a process: OUT_OF_MEMORY, and null, until then and above. What was taken is kept for
 * the next one when it is given back.
 */
int shoal_cuda_take_pinned(int device, uint64_t bytes, void **memory);
void shoal_cuda_give_pinned(void *memory);
#define SHOAL_CUDA_MOST_PINNED_BYTES (1ull << 30)

/**
 * Rows on one device, for every metric. Never changed after upload; any number of calls may use one at the same time.
 */
typedef struct shoal_cuda_rows shoal_cuda_rows;

/**
 * Bytes of device memory that an upload of such rows takes and keeps (data and scales are not looked at). `has_half`:
 * see there.
 */
uint64_t shoal_cuda_rows_bytes(const shoal_rows *rows, int has_half);

/**
 * Copies rows to a device. `rows->scales`: what int8 values are multiplied with, or null; `rows->longest` is ignored:
 * lengths are worked out on the device. `has_half` 1 keeps an fp16 form beside fp32 and int8 rows (2 bytes a value
 * more; 0 is right for fp16 rows, which are their own): searches choose by it what they score exactly, four times
 * (fp32) as fast. Without it they make it piece by piece, in each call. Fewer than 2^31 rows; data and stride on
 * multiples of the element.
 */
int shoal_cuda_upload(int device, const shoal_rows *rows, int has_half, shoal_cuda_rows **uploaded, shoal_stop stop);
void shoal_cuda_free_rows(shoal_cuda_rows *rows);

/** Where the time of a call went, as the device's clock has it. Of several devices: the slowest. */
typedef struct {
  /** From the first thing the call did on the device to the last. */
  double device_us;
  /**
   * Parts of it with copies between host and device, and with kernels, under way; their sum is larger where they
   * overlap.
   */
  double copy_us, kernel_us;
  /** Bytes copied, both ways. */
  uint64_t copied_bytes;
  /** Queries whose candidates could not be proven to hold the best: these were scored exactly against every row. */
  uint64_t redone;
} shoal_cuda_times;

/** What a call may use and tell. */
typedef struct {
  /**
   * Most bytes of device memory beside uploaded rows and graphs: the call takes its work in pieces that fit. 0: what it
   * likes best.
   */
  uint64_t work_bytes;
  shoal_stop stop;
  /** Null: not wanted. */
  shoal_cuda_times *times;
  /**
   * More than 0: the caller waits no longer than this for the device, and for nothing else that takes long
   * (allocations, recordings, results that are large): LATER then. What was begun on the device may still be under way,
   * in memory of the library's own.
   */
  double most_wait_us;
} shoal_cuda_terms;

/**
 * Work memory that a top-k of this size likes best. A call that may use less takes longer and gives the same answer.
 */
uint64_t shoal_cuda_topk_bytes(uint64_t rows, uint32_t dims, uint64_t query_count, uint32_t k);

/**
 * shoal_topk over rows that lie on one device or in parts on several: row r of part p has the number Σ (rows of parts
 * before p) + r. `queries` (query_count × dims), `best` and `scores` (query_count × k) and `found` are host memory; k
 * may be larger than there are rows. Parts have one `dims` and element type.
 */
int shoal_cuda_topk(const shoal_cuda_rows *const *parts, uint32_t part_count, const float *queries,
                    uint64_t query_count, enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores,
                    uint32_t *found, const shoal_cuda_terms *terms);

/**
 * The same over rows in host memory, which pass through `device` in pieces: while one is searched, the next is copied.
 * `work_bytes` bounds everything the call holds there. `rows->scales` as for upload.
 */
int shoal_cuda_topk_streamed(int device, const shoal_rows *rows, const float *queries, uint64_t query_count,
                             enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores, uint32_t *found,
                             const shoal_cuda_terms *terms);

/**
 * shoal_rescore: scores in fp64 of query q against `candidates[begin[q] .. begin[q+1])`; host memory, numbers below the
 * rows of `rows`.
 */
int shoal_cuda_rescore(const shoal_cuda_rows *rows, const float *queries, uint64_t query_count,
                       enum shoal_metric metric, const uint32_t *begin, const uint32_t *candidates, double *scores,
                       const shoal_cuda_terms *terms);

/** shoal_matrix: every score in fp32, `scores` is query_count × rows in host memory, best of all in pinned memory. */
int shoal_cuda_matrix(const shoal_cuda_rows *rows, const float *queries, uint64_t query_count, enum shoal_metric metric,
                      float *scores, const shoal_cuda_terms *terms);

/** A graph on one device; never changed after upload. */
typedef struct shoal_cuda_graph shoal_cuda_graph;

uint64_t shoal_cuda_graph_bytes(uint64_t nodes, uint64_t edges);
/** `graph->begin[graph->nodes]` edges, as shoal_graph has them. */
int shoal_cuda_upload_graph(int device, const shoal_graph *graph, shoal_cuda_graph **uploaded, shoal_stop stop);
void shoal_cuda_free_graph(shoal_cuda_graph *graph);

/**
 * shoal_spread: `seeds` and `totals` are nodes × columns in host memory, the same or apart; totals best of all in
 * pinned memory.
 */
int shoal_cuda_spread(const shoal_cuda_graph *graph, uint32_t columns, uint32_t steps, float decay, float threshold,
                      const float *seeds, float *totals, const shoal_cuda_terms *terms);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
