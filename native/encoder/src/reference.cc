// The encoder as it is defined: plain C++, fp32, one row after the other, GELU always by the error function. What the
// CUDA library is compared with, and what runs where there is no GPU, so that everything above the C interface can be
// tested there. It is no product: on the CPU ONNX Runtime is faster. Memory limits are judged by the same law as on
// CUDA, so that running out of it can be tested too.
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>
#include "model.h"

using namespace shoal;

namespace {

using Floats = std::vector<float>;

/** A matrix [outputs, inputs] turned over: its rows are inputs, so that the inner loop runs along outputs. */
Floats turned(const float *matrix, int outputs, int inputs) {
  Floats result(static_cast<size_t>(outputs) * inputs);
  for (int o = 0; o < outputs; o++)
    for (int i = 0; i < inputs; i++)
      result[static_cast<size_t>(i) * outputs + o] = matrix[static_cast<size_t>(o) * inputs + i];
  return result;
}

struct Linear {
  int inputs = 0, outputs = 0;
  Floats matrix, bias;
  Linear() = default;
  Linear(const float *weight, const float *b, int outs, int ins)
      : inputs(ins), outputs(outs), matrix(turned(weight, outs, ins)), bias(b, b + outs) {}

  /** to[t] = from[t] · matrix + bias (+ to[t]). Four tokens and 32 outputs at a time stay in registers. */
  void apply(const float *from, float *to, int tokens, bool adds) const {
    constexpr int T = 4, O = 32;
    for (int t = 0; t < tokens; t += T) {
      const int rows = std::min(T, tokens - t);
      for (int o = 0; o < outputs; o += O) {
        const int width = std::min(O, outputs - o);
        float sum[T][O] = {};
        if (rows == T && width == O) {
          for (int i = 0; i < inputs; i++) {
            const float *w = &matrix[static_cast<size_t>(i) * outputs + o];
            for (int r = 0; r < T; r++) {
              const float x = from[static_cast<size_t>(t + r) * inputs + i];
              for (int k = 0; k < O; k++) sum[r][k] += x * w[k];
            }
          }
        } else {
          for (int i = 0; i < inputs; i++) {
            const float *w = &matrix[static_cast<size_t>(i) * outputs + o];
            for (int r = 0; r < rows; r++)
              for (int k = 0; k < width; k++) sum[r][k] += from[static_cast<size_t>(t + r) * inputs + i] * w[k];
          }
        }
        for (int r = 0; r < rows; r++)
          for (int k = 0; k < width; k++) {
            float &out = to[static_cast<size_t>(t + r) * outputs + o + k];
            out = sum[r][k] + bias[static_cast<size_t>(o + k)] + (adds ? out : 0);
          }
      }
    }
  }
};

struct Norm {
  Floats weight, bias;
  float epsilon = 0;
  Norm() = default;
  Norm(const float *w, const float *b, int size, float e) : weight(w, w + size), bias(b, b + size), epsilon(e) {}

  void apply(float *values, int tokens) const {
    const size_t size = weight.size();
    for (int t = 0; t < tokens; t++, values += size) {
      double sum = 0, squares = 0;
      for (size_t i = 0; i < size; i++) sum += values[i];
      const double mean = sum / static_cast<double>(size);
      for (size_t i = 0; i < size; i++) squares += (values[i] - mean) * (values[i] - mean);
      const double factor = 1 / std::sqrt(squares / static_cast<double>(size) + static_cast<double>(epsilon));
      for (size_t i = 0; i < size; i++)
        values[i] = static_cast<float>((values[i] - mean) * factor) * weight[i] + bias[i];
    }
  }
};

struct Layer {
  Linear query, key, value, output, wide, narrow;
  Norm middle, end;
};

/** What one thread computes a row in. */
struct Scratch {
  Floats hidden, query, key, value, context, wide, scores;
  Scratch(const shoal_encoder_model &m, int width) {
    const size_t tokens = static_cast<size_t>(width), h = tokens * static_cast<size_t>(m.hidden);
    hidden.resize(h), query.resize(h), key.resize(h), value.resize(h), context.resize(h),
        wide.resize(tokens * static_cast<size_t>(m.intermediate)), scores.resize(tokens);
  }
};

} // namespace

struct shoal_encoder {
  shoal_encoder_model model;
  shoal_encoder_options options;
  Floats words, positions;
  Norm norm;
  std::vector<Layer> layers;
  std::vector<std::unique_ptr<std::mutex>> busy;
  std::mutex counting;
  std::vector<uint64_t> held;
  uint64_t most_held = 0;
};

namespace {

void attend(const shoal_encoder_model &m, Scratch &s, int length) {
  const int size = m.hidden / m.heads;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  const size_t h = static_cast<size_t>(m.hidden);
  for (int head = 0; head < m.heads; head++) {
    const size_t at = static_cast<size_t>(head * size);
    for (int q = 0; q < length; q++) {
      const float *query = &s.query[static_cast<size_t>(q) * h + at];
      float most = -INFINITY, total = 0;
      for (int k = 0; k < length; k++) {
        const float *key = &s.key[static_cast<size_t>(k) * h + at];
        float score = 0;
        for (int i = 0; i < size; i++) score += query[i] * key[i];
        s.scores[static_cast<size_t>(k)] = score * scale;
        most = std::fmax(most, score * scale);
      }
      for (int k = 0; k < length; k++)
        total += s.scores[static_cast<size_t>(k)] = std::exp(s.scores[static_cast<size_t>(k)] - most);
      float *context = &s.context[static_cast<size_t>(q) * h + at];
      std::fill(context, context + size, 0.0f);
      for (int k = 0; k < length; k++) {
        const float weight = s.scores[static_cast<size_t>(k)] / total;
        const float *value = &s.value[static_cast<size_t>(k) * h + at];
        for (int i = 0; i < size; i++) context[i] += weight * value[i];
      }
    }
  }
}

void encode(const shoal_encoder &e, const int32_t *ids, int length, Scratch &s, float *embedding) {
  const shoal_encoder_model &m = e.model;
  const size_t h = static_cast<size_t>(m.hidden);
  for (int t = 0; t < length; t++)
    for (size_t i = 0; i < h; i++)
      s.hidden[static_cast<size_t>(t) * h + i] =
          e.words[static_cast<size_t>(ids[t]) * h + i] + e.positions[static_cast<size_t>(t) * h + i];
  e.norm.apply(s.hidden.data(), length);
  for (const Layer &layer : e.layers) {
    layer.query.apply(s.hidden.data(), s.query.data(), length, false);
    layer.key.apply(s.hidden.data(), s.key.data(), length, false);
    layer.value.apply(s.hidden.data(), s.value.data(), length, false);
    attend(m, s, length);
    layer.output.apply(s.context.data(), s.hidden.data(), length, true);
    layer.middle.apply(s.hidden.data(), length);
    layer.wide.apply(s.hidden.data(), s.wide.data(), length, false);
    for (size_t i = 0; i < static_cast<size_t>(length) * static_cast<size_t>(m.intermediate); i++)
      s.wide[i] = 0.5f * s.wide[i] * (1 + std::erf(s.wide[i] * 0.70710678f));
    layer.narrow.apply(s.wide.data(), s.hidden.data(), length, true);
    layer.end.apply(s.hidden.data(), length);
  }
  const int tokens = m.pooling == SHOAL_ENCODER_CLS ? 1 : length;
  for (size_t i = 0; i < h; i++) {
    double sum = 0;
    for (int t = 0; t < tokens; t++) sum += s.hidden[static_cast<size_t>(t) * h + i];
    embedding[i] = static_cast<float>(sum / tokens);
  }
  if (!m.normalize) return;
  double squares = 0;
  for (size_t i = 0; i < h; i++) squares += static_cast<double>(embedding[i]) * embedding[i];
  const double factor = 1 / std::fmax(std::sqrt(squares), 1e-12);
  for (size_t i = 0; i < h; i++) embedding[i] = static_cast<float>(embedding[i] * factor);
  write_unit(embedding, embedding, m.hidden);
}

/** As on CUDA: a lane keeps the largest it was given until `shrink`. */
int hold(shoal_encoder &e, size_t lane, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(e.counting);
  if (bytes <= e.held[lane]) return SHOAL_ENCODER_OK;
  uint64_t all = bytes + shoal_encoder_weight_bytes(&e.model);
  for (size_t other = 0; other < e.held.size(); other++) all += other == lane ? 0 : e.held[other];
  if (e.options.memory_limit != 0 && all > e.options.memory_limit) {
    e.held[lane] = 0;
    return refuse(SHOAL_ENCODER_OUT_OF_MEMORY, "out of memory: " + std::to_string(bytes) +
                                                   " bytes are beyond the limit of " +
                                                   std::to_string(e.options.memory_limit));
  }
  e.held[lane] = bytes;
  uint64_t lanes = 0;
  for (uint64_t held : e.held) lanes += held;
  e.most_held = std::max(e.most_held, lanes);
  return SHOAL_ENCODER_OK;
}

} // namespace

#define SHOAL_EXPORT extern "C" __attribute__((visibility("default")))

SHOAL_EXPORT int shoal_encoder_abi(void) { return SHOAL_ENCODER_ABI; }
SHOAL_EXPORT const char *shoal_encoder_error(void) { return last_error().c_str(); }
SHOAL_EXPORT int shoal_encoder_devices(void) { return 1; }
SHOAL_EXPORT uint64_t shoal_encoder_weight_bytes(const shoal_encoder_model *model) {
  return WeightLayout(*model).bytes;
}
SHOAL_EXPORT uint64_t shoal_encoder_lane_bytes(const shoal_encoder_model *model, uint64_t tokens, uint64_t rows) {
  return StreamLayout(*model, Capacity(tokens, rows)).bytes;
}

SHOAL_EXPORT int shoal_encoder_open(const shoal_encoder_model *model, const float *const *weights,
                                    const shoal_encoder_options *options, shoal_encoder **encoder) {
  if (model == nullptr || weights == nullptr || options == nullptr || encoder == nullptr || options->lanes < 1 ||
      options->lanes > 16)
    return refuse(SHOAL_ENCODER_BAD_ARGUMENT, "open needs a model, weights and 1 to 16 lanes");
  *encoder = nullptr;
  if (check_model(*model) != SHOAL_ENCODER_OK) return SHOAL_ENCODER_BAD_ARGUMENT;
  if (options->memory_limit != 0 && shoal_encoder_weight_bytes(model) > options->memory_limit)
    return refuse(SHOAL_ENCODER_OUT_OF_MEMORY, "out of memory: the weights alone are beyond the limit");
  const int h = model->hidden, i = model->intermediate;
  std::unique_ptr<shoal_encoder> e(new (std::nothrow) shoal_encoder);
  if (!e) return refuse(SHOAL_ENCODER_OUT_OF_MEMORY, "out of host memory");
  e->model = *model, e->options = *options;
  e->words.assign(weights[SHOAL_WORDS],
                  weights[SHOAL_WORDS] + static_cast<size_t>(model->vocabulary) * static_cast<size_t>(h));
  e->positions.assign(weights[SHOAL_POSITIONS],
                      weights[SHOAL_POSITIONS] + static_cast<size_t>(model->positions) * static_cast<size_t>(h));
  for (size_t at = 0; at < e->positions.size(); at++)
    e->positions[at] += weights[SHOAL_FIRST_TYPE][at % static_cast<size_t>(h)];
  e->norm = Norm(weights[SHOAL_NORM], weights[SHOAL_NORM_BIAS], h, model->norm_epsilon);
  for (int layer = 0; layer < model->layers; layer++) {
    const float *const *w = weights + SHOAL_EMBEDDING_WEIGHTS + layer * SHOAL_LAYER_WEIGHTS;
    e->layers.push_back(
        {Linear(w[SHOAL_QUERY], w[SHOAL_QUERY_BIAS], h, h), Linear(w[SHOAL_KEY], w[SHOAL_KEY_BIAS], h, h),
         Linear(w[SHOAL_VALUE], w[SHOAL_VALUE_BIAS], h, h), Linear(w[SHOAL_OUTPUT], w[SHOAL_OUTPUT_BIAS], h, h),
         Linear(w[SHOAL_WIDE], w[SHOAL_WIDE_BIAS], i, h), Linear(w[SHOAL_NARROW], w[SHOAL_NARROW_BIAS], h, i),
         Norm(w[SHOAL_OUTPUT_NORM], w[SHOAL_OUTPUT_NORM_BIAS], h, model->norm_epsilon),
         Norm(w[SHOAL_NARROW_NORM], w[SHOAL_NARROW_NORM_BIAS], h, model->norm_epsilon)});
  }
  for (int lane = 0; lane < options->lanes; lane++) e->busy.push_back(std::make_unique<std::mutex>());
  e->held.resize(static_cast<size_t>(options->lanes));
  *encoder = e.release();
  return SHOAL_ENCODER_OK;
}

SHOAL_EXPORT int shoal_encoder_prepare(shoal_encoder *, uint64_t) { return SHOAL_ENCODER_OK; }

SHOAL_EXPORT int shoal_encoder_run(shoal_encoder *e, int32_t lane, const int32_t *ids, const int32_t *lengths,
                                   int32_t rows, int32_t width, float *embeddings) {
  if (lane < 0 || static_cast<size_t>(lane) >= e->busy.size() || embeddings == nullptr)
    return refuse(SHOAL_ENCODER_BAD_ARGUMENT, "there is no lane " + std::to_string(lane));
  uint64_t tokens = 0;
  if (check_run(e->model, ids, lengths, rows, width, &tokens) != SHOAL_ENCODER_OK) return SHOAL_ENCODER_BAD_ARGUMENT;
  std::lock_guard<std::mutex> lock(*e->busy[static_cast<size_t>(lane)]);
  if (hold(*e, static_cast<size_t>(lane), shoal_encoder_lane_bytes(&e->model, tokens, static_cast<uint64_t>(rows))) !=
      SHOAL_ENCODER_OK)
    return SHOAL_ENCODER_OUT_OF_MEMORY;
  std::atomic<int32_t> next{0};
  const auto work = [&] {
    Scratch scratch(e->model, width);
    for (int32_t row = next++; row < rows; row = next++)
      encode(*e, ids + static_cast<size_t>(row) * width, lengths[row], scratch,
             embeddings + static_cast<size_t>(row) * e->model.hidden);
  };
  const int32_t threads =
      tokens < 256 ? 1
                   : std::min<int32_t>(rows, static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency())));
  std::vector<std::thread> others;
  for (int32_t thread = 1; thread < threads; thread++) others.emplace_back(work);
  work();
  for (std::thread &thread : others) thread.join();
  return SHOAL_ENCODER_OK;
}

SHOAL_EXPORT int shoal_encoder_memory(shoal_encoder *e, shoal_encoder_memory_use *use) {
  std::lock_guard<std::mutex> lock(e->counting);
  *use = {shoal_encoder_weight_bytes(&e->model), 0, e->most_held};
  for (uint64_t held : e->held) use->lanes += held;
  return SHOAL_ENCODER_OK;
}

SHOAL_EXPORT int shoal_encoder_shrink(shoal_encoder *e) {
  std::lock_guard<std::mutex> lock(e->counting);
  std::fill(e->held.begin(), e->held.end(), 0);
  return SHOAL_ENCODER_OK;
}

SHOAL_EXPORT void shoal_encoder_close(shoal_encoder *e) { delete e; }

SHOAL_EXPORT int shoal_encoder_profile(shoal_encoder *e, const int32_t *ids, const int32_t *lengths, int32_t rows,
                                       int32_t width, float *embeddings, shoal_encoder_step *, int32_t *count) {
  *count = 0;
  return shoal_encoder_run(e, 0, ids, lengths, rows, width, embeddings);
}

SHOAL_EXPORT int shoal_encoder_peak(int32_t, double *, double *) {
  return refuse(SHOAL_ENCODER_UNSUPPORTED, "the reference has no peak");
}
