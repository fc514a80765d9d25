// What Shoal's own encoder computes, as a C interface without Node in it: from the padded token ids of a micro-batch to
// vectors of length 1, for BERT models with norms behind each half of a layer, GELU and absolute positions. Two
// libraries have it: one for CUDA (fp16, sums in fp32), and the reference in plain C++ (fp32), which the other is
// compared with.
//
// Both are opened at run time (dlopen). A function that returns an int gives a shoal_encoder_status; what went wrong is
// then in shoal_encoder_error(), for the calling thread. Padding is neither computed nor looked at.
//
// Build and test: sh native/encoder/build.sh test
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** 2: rows are of length 1 to the last bit, or NaN in all values. */
#define SHOAL_ENCODER_ABI 2

enum shoal_encoder_status {
  SHOAL_ENCODER_OK = 0,
  /** An ordinary outcome: nothing of the failed run stays behind, and the encoder goes on. */
  SHOAL_ENCODER_OUT_OF_MEMORY = 1,
  /** Every later call of this process on this device would fail as well. */
  SHOAL_ENCODER_DEVICE_LOST = 2,
  /** The call is refused and nothing ran. */
  SHOAL_ENCODER_BAD_ARGUMENT = 3,
  /** This library cannot do it here: no device, no cuBLASLt, a model it has no kernels for. */
  SHOAL_ENCODER_UNSUPPORTED = 4,
  SHOAL_ENCODER_FAILED = 5,
};

enum shoal_encoder_pooling { SHOAL_ENCODER_MEAN = 0, SHOAL_ENCODER_CLS = 1 };

/**
 * `exact_gelu`: by the error function, as BERT was trained; else its form with tanh, which the matrix product does by
 * itself.
 */
typedef struct {
  int32_t hidden, layers, heads, intermediate, vocabulary, positions;
  float norm_epsilon;
  int32_t pooling, normalize, exact_gelu;
} shoal_encoder_model;

/**
 * Weights are an array of pointers to fp32 values in host memory, which may be freed after the call: those of the
 * embeddings, then those of each layer, in these orders. Matrices are [outputs, inputs], as their authors store them.
 */
enum shoal_encoder_embedding_weight {
  SHOAL_WORDS,
  SHOAL_POSITIONS,
  SHOAL_FIRST_TYPE,
  SHOAL_NORM,
  SHOAL_NORM_BIAS,
  SHOAL_EMBEDDING_WEIGHTS
};
enum shoal_encoder_layer_weight {
  SHOAL_QUERY,
  SHOAL_QUERY_BIAS,
  SHOAL_KEY,
  SHOAL_KEY_BIAS,
  SHOAL_VALUE,
  SHOAL_VALUE_BIAS,
  SHOAL_OUTPUT,
  SHOAL_OUTPUT_BIAS,
  SHOAL_OUTPUT_NORM,
  SHOAL_OUTPUT_NORM_BIAS,
  SHOAL_WIDE,
  SHOAL_WIDE_BIAS,
  SHOAL_NARROW,
  SHOAL_NARROW_BIAS,
  SHOAL_NARROW_NORM,
  SHOAL_NARROW_NORM_BIAS,
  SHOAL_LAYER_WEIGHTS
};

/**
 * A lane is a stream of the device with memory of its own; lanes run side by side. `memory_limit`: most bytes of the
 * device that the encoder may hold, 0 for no limit.
 */
typedef struct {
  int32_t device, lanes;
  uint64_t memory_limit;
} shoal_encoder_options;

typedef struct shoal_encoder shoal_encoder;

int shoal_encoder_abi(void);
/** What went wrong in this thread's last call that failed. */
const char *shoal_encoder_error(void);
/** Devices that can be used; 0 where there is no driver. */
int shoal_encoder_devices(void);

int shoal_encoder_open(const shoal_encoder_model *model, const float *const *weights,
                       const shoal_encoder_options *options, shoal_encoder **encoder);

/**
 * Chooses matrix products for runs of up to so many tokens and loads their code, so that no later run has to. Before
 * the first run.
 */
int shoal_encoder_prepare(shoal_encoder *encoder, uint64_t tokens);

/**
 * `ids` is rows × width, `lengths` says how many of each row are tokens (1 to width), `embeddings` is rows × hidden.
 * Returns when the vectors are there: where `normalize` is set, of length 1 to the last bit of fp32, or NaN in all
 * values. One call at a time in each lane; lanes may run at the same time, from any threads.
 */
int shoal_encoder_run(shoal_encoder *encoder, int32_t lane, const int32_t *ids, const int32_t *lengths, int32_t rows,
                      int32_t width, float *embeddings);

/**
 * Bytes of the device that the encoder holds itself: weights, and what the lanes compute in. The driver's context and
 * code come on top.
 */
typedef struct {
  uint64_t weights, lanes, most_lanes;
} shoal_encoder_memory_use;
int shoal_encoder_memory(shoal_encoder *encoder, shoal_encoder_memory_use *use);

/**
 * What weights take, and what one lane takes for runs of up to so many tokens (padding not counted) and rows: known
 * before it runs.
 */
uint64_t shoal_encoder_weight_bytes(const shoal_encoder_model *model);
uint64_t shoal_encoder_lane_bytes(const shoal_encoder_model *model, uint64_t tokens, uint64_t rows);

/** Gives back what idle lanes hold; the next run takes what it needs again. */
int shoal_encoder_shrink(shoal_encoder *encoder);
void shoal_encoder_close(shoal_encoder *encoder);

/** One run in lane 0, with the time of each step in microseconds. `count`: room for steps, then how many there are. */
typedef struct {
  const char *name;
  float microseconds;
} shoal_encoder_step;
int shoal_encoder_profile(shoal_encoder *encoder, const int32_t *ids, const int32_t *lengths, int32_t rows,
                          int32_t width, float *embeddings, shoal_encoder_step *steps, int32_t *count);

/** What the device can do at best: a large copy (bytes read and written) and a large fp16 product, both per second. */
int shoal_encoder_peak(int32_t device, double *copy_bytes, double *product_flops);

#ifdef __cplusplus
}
#endif
