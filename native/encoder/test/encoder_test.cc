// Every answer of an encoder library against the reference, on random weights and awkward sizes, then its times.
//   encoder_test <reference library> <library> [tiny | brief | check | time | large | counters | all] [seed [other]]
// large: ragged rows in the shapes of bge-base and bge-large; with the path of another library, such as an earlier
// tree's, both take turns, so that the ratio is of one card in one minute.
// A case prints OK with the least cosine to the reference, or WRONG and goes on; the exit status says whether any was
// wrong. Nothing is timed on answers that were not checked. Without a device the checks run the reference against
// itself.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>
#include "../src/library.h"

namespace {

using shoal::Library;

std::mt19937_64 generator;
int wrong = 0;

void say(bool is_right, const std::string &what, const std::string &detail) {
  if (!is_right) wrong++;
  std::printf("%s %s: %s\n", is_right ? "OK   " : "WRONG", what.c_str(), detail.c_str());
  std::fflush(stdout);
}

template <class... Values>
std::string text(const char *format, Values... values) {
  char buffer[400];
  std::snprintf(buffer, sizeof buffer, format, values...);
  return buffer;
}

/** Random weights, large enough for attention that prefers some keys to others. */
struct Weights {
  std::vector<std::vector<float>> values;
  std::vector<const float *> pointers;

  explicit Weights(const shoal_encoder_model &m) {
    const size_t h = static_cast<size_t>(m.hidden), i = static_cast<size_t>(m.intermediate);
    const float spread = 1.2f / std::sqrt(static_cast<float>(h));
    add(static_cast<size_t>(m.vocabulary) * h, 0, 0.8f), add(static_cast<size_t>(m.positions) * h, 0, 0.3f),
        add(2 * h, 0, 0.2f), add(h, 1, 0.1f), add(h, 0, 0.1f);
    for (int layer = 0; layer < m.layers; layer++) {
      for (int part = 0; part < 3; part++) add(h * h, 0, spread), add(h, 0, 0.1f);
      add(h * h, 0, spread / 2), add(h, 0, 0.1f), add(h, 1, 0.1f), add(h, 0, 0.1f);
      add(h * i, 0, spread), add(i, 0, 0.1f), add(h * i, 0, spread / 2), add(h, 0, 0.1f), add(h, 1, 0.1f),
          add(h, 0, 0.1f);
    }
    for (const auto &value : values) pointers.push_back(value.data());
  }

  void add(size_t count, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    values.emplace_back(count);
    for (float &value : values.back()) value = normal(generator);
  }
};

struct Batch {
  int32_t rows = 0, width = 0;
  std::vector<int32_t> ids, lengths;
  int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
};

Batch batch(const std::vector<int32_t> &lengths, int32_t vocabulary, int32_t more_width = 0) {
  Batch b;
  b.rows = static_cast<int32_t>(lengths.size()), b.lengths = lengths;
  b.width = *std::max_element(lengths.begin(), lengths.end()) + more_width;
  b.ids.assign(static_cast<size_t>(b.rows) * static_cast<size_t>(b.width), -7); // padding that must not be looked at
  std::uniform_int_distribution<int32_t> id(0, vocabulary - 1);
  for (int32_t row = 0; row < b.rows; row++)
    for (int32_t at = 0; at < lengths[static_cast<size_t>(row)]; at++)
      b.ids[static_cast<size_t>(row) * static_cast<size_t>(b.width) + static_cast<size_t>(at)] = id(generator);
  return b;
}

/** log-normal, median 52, mean 83, 8 to 512 */
std::vector<int32_t> ragged(size_t count) {
  std::normal_distribution<double> normal(std::log(52.0), 0.967);
  std::vector<int32_t> lengths(count);
  for (int32_t &length : lengths)
    length = static_cast<int32_t>(std::min(512.0, std::max(8.0, std::exp(normal(generator)))));
  return lengths;
}

double cosine(const float *a, const float *b, int size) {
  double dot = 0, aa = 0, bb = 0;
  for (int i = 0; i < size; i++)
    dot += static_cast<double>(a[i]) * b[i], aa += static_cast<double>(a[i]) * a[i],
        bb += static_cast<double>(b[i]) * b[i];
  return dot / std::sqrt(aa * bb);
}

constexpr double LEAST_COSINE = 0.9999;

struct Subject {
  const Library &library;
  shoal_encoder_model model;
  shoal_encoder *encoder = nullptr;
  int status;
  Subject(const Library &l, const shoal_encoder_model &m, const Weights &weights, int lanes = 1, uint64_t limit = 0)
      : library(l), model(m) {
    const shoal_encoder_options options{0, lanes, limit};
    status = l.open(&m, weights.pointers.data(), &options, &encoder);
    if (status != 0) std::printf("WRONG open: %d %s\n", status, l.error()), wrong++;
  }
  ~Subject() { library.close(encoder); }
  std::vector<float> run(const Batch &b, int lane = 0, int *outcome = nullptr) const {
    std::vector<float> vectors(static_cast<size_t>(b.rows) * static_cast<size_t>(model.hidden), NAN);
    const int result = library.run(encoder, lane, b.ids.data(), b.lengths.data(), b.rows, b.width, vectors.data());
    if (outcome != nullptr)
      *outcome = result;
    else if (result != 0)
      std::printf("WRONG run: %d %s\n", result, library.error()), wrong++;
    return vectors;
  }
};

/**
 * Compares up to `most` rows of the batch, which the reference runs by themselves: rows do not depend on each other.
 */
void compare(const std::string &name, const Subject &reference, const Subject &subject, const Batch &b,
             int32_t most = 1 << 30) {
  const std::vector<float> found = subject.run(b);
  std::vector<int32_t> chosen(static_cast<size_t>(b.rows));
  std::iota(chosen.begin(), chosen.end(), 0);
  std::shuffle(chosen.begin(), chosen.end(), generator);
  chosen.resize(static_cast<size_t>(std::min(most, b.rows)));
  Batch part;
  part.rows = static_cast<int32_t>(chosen.size()), part.width = b.width;
  for (int32_t row : chosen) {
    part.lengths.push_back(b.lengths[static_cast<size_t>(row)]);
    part.ids.insert(part.ids.end(), b.ids.begin() + static_cast<ptrdiff_t>(row) * b.width,
                    b.ids.begin() + static_cast<ptrdiff_t>(row + 1) * b.width);
  }
  const std::vector<float> expected = reference.run(part);
  const int size = subject.model.hidden;
  double least = 2, largest = 0;
  int32_t worst = 0;
  for (size_t at = 0; at < chosen.size(); at++) {
    const float *a = &found[static_cast<size_t>(chosen[at]) * static_cast<size_t>(size)],
                *e = &expected[at * static_cast<size_t>(size)];
    const double c = cosine(a, e, size);
    if (!(c >= least)) least = std::isnan(c) ? -1 : c, worst = chosen[at];
    double squares = 0;
    for (int i = 0; i < size; i++) squares += static_cast<double>(a[i]) * a[i];
    if (subject.model.normalize && !(std::fabs(std::sqrt(squares) - 1) < 1e-7))
      say(false, name, text("row %d has the length %.9f", chosen[at], std::sqrt(squares)));
    for (int i = 0; i < size; i++) largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - e[i]));
  }
  const bool is_whole = std::all_of(found.begin(), found.end(), [](float value) { return std::isfinite(value); });
  say(is_whole && least >= LEAST_COSINE && largest < (subject.model.normalize ? 0.02 : 0.5), name,
      text("%d rows, %lld tokens, least cosine %.7f (row %d of %d tokens), largest difference %.5f%s", b.rows,
           static_cast<long long>(b.tokens()), least, worst, b.lengths[static_cast<size_t>(worst)], largest,
           is_whole ? "" : ", NOT FINITE"));
}

constexpr shoal_encoder_model MINILM{384, 6, 12, 1536, 30522, 512, 1e-12f, SHOAL_ENCODER_MEAN, 1, 0};
constexpr shoal_encoder_model BGE_BASE{768, 12, 12, 3072, 30522, 512, 1e-12f, SHOAL_ENCODER_CLS, 1, 0};
constexpr shoal_encoder_model BGE_LARGE{1024, 24, 16, 4096, 30522, 512, 1e-12f, SHOAL_ENCODER_CLS, 1, 0};

// ---- checks -----------------------------------------------------------------------------------------------------

void check_shapes(const Library &reference, const Library &library, size_t most) {
  struct Shape {
    const char *name;
    shoal_encoder_model model;
  };
  const Shape shapes[] = {
      {"384, 12 heads of 32", {384, 2, 12, 1536, 1000, 512, 1e-12f, SHOAL_ENCODER_MEAN, 1, 0}},
      {"768, 12 heads of 64", {768, 1, 12, 3072, 1000, 512, 1e-12f, SHOAL_ENCODER_MEAN, 1, 0}},
      {"384, 12 heads of 32, exact GELU", {384, 2, 12, 1536, 1000, 512, 1e-12f, SHOAL_ENCODER_MEAN, 1, 1}},
      {"384, 6 heads of 64, first token", {384, 1, 6, 1536, 1000, 512, 1e-12f, SHOAL_ENCODER_CLS, 1, 0}},
      {"1024, 16 heads of 64", {1024, 1, 16, 4096, 500, 512, 1e-12f, SHOAL_ENCODER_MEAN, 1, 0}},
      {"64, 2 heads of 32, not normalised", {64, 2, 2, 128, 300, 512, 1e-5f, SHOAL_ENCODER_MEAN, 0, 1}},
      {"96, 3 heads of 32", {96, 1, 3, 200, 300, 512, 1e-12f, SHOAL_ENCODER_MEAN, 1, 0}},
      {"32, 1 head of 32", {32, 3, 1, 64, 300, 512, 1e-12f, SHOAL_ENCODER_MEAN, 1, 0}},
      {"256, 4 heads of 64", {256, 1, 4, 1024, 300, 512, 1e-12f, SHOAL_ENCODER_MEAN, 1, 0}},
      {"512, 8 heads of 64", {512, 1, 8, 2048, 300, 512, 1e-12f, SHOAL_ENCODER_MEAN, 1, 1}},
  };
  for (const Shape &shape : shapes) {
    if (most-- == 0) break;
    const Weights weights(shape.model);
    const Subject expected(reference, shape.model, weights), subject(library, shape.model, weights);
    if (subject.status != 0) continue;
    std::vector<int32_t> awkward, up_to_80(80);
    std::iota(up_to_80.begin(), up_to_80.end(), 1);
    for (int32_t length : {1,  2,  3,  7,  8,  9,   15,  16,  17,  31,  32,  33,  47,  48,  49,  63,  64,  65,
                           79, 80, 81, 96, 97, 127, 128, 129, 191, 200, 255, 256, 257, 383, 400, 500, 511, 512})
      awkward.push_back(length);
    compare(std::string(shape.name) + ", awkward lengths", expected, subject, batch(awkward, shape.model.vocabulary));
    compare(std::string(shape.name) + ", rows of 1 to 80", expected, subject, batch(up_to_80, shape.model.vocabulary),
            30);
    compare(std::string(shape.name) + ", short rows, wide padding", expected, subject,
            batch(std::vector<int32_t>(67, 5), shape.model.vocabulary, 91), 20);
  }
}

void check_minilm(const Library &reference, const Library &library) {
  const Weights weights(MINILM);
  const Subject expected(reference, MINILM, weights), subject(library, MINILM, weights, 2);
  if (subject.status != 0) return;
  for (int32_t length : {1, 8, 14, 16, 17, 33, 64, 100, 128, 300, 512})
    compare(text("one row of %d", length), expected, subject, batch({length}, MINILM.vocabulary, length % 8));
  if (library.prepare(subject.encoder, 65536) != 0) say(false, "prepare", library.error());
  for (int32_t length : {1, 14, 129, 512})
    compare(text("one row of %d, prepared", length), expected, subject, batch({length}, MINILM.vocabulary));
  std::vector<int32_t> all(512);
  std::iota(all.begin(), all.end(), 1);
  compare("rows of 1 to 512", expected, subject, batch(all, MINILM.vocabulary), 40);
  compare("4,096 rows of 16", expected, subject, batch(std::vector<int32_t>(4096, 16), MINILM.vocabulary), 64);
  compare("ragged, 65 k tokens", expected, subject, batch(ragged(790), MINILM.vocabulary, 5), 48);
  compare("128 rows of 512", expected, subject, batch(std::vector<int32_t>(128, 512), MINILM.vocabulary), 4);
  compare("2 rows of 512, after larger ones", expected, subject, batch({512, 512}, MINILM.vocabulary));

  // lanes side by side give the bits that they give one after the other
  std::vector<Batch> batches;
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < 8; i++)
    batches.push_back(batch(ragged(static_cast<size_t>(i % 2 == 0 ? 3 : 150)), MINILM.vocabulary)),
        alone.push_back(subject.run(batches.back()));
  bool is_equal[2] = {true, true};
  const auto work = [&](int lane) {
    for (int times = 0; times < 3; times++)
      for (size_t i = 0; i < batches.size(); i++) {
        const std::vector<float> found = subject.run(batches[i], lane);
        is_equal[lane] = is_equal[lane] && std::memcmp(found.data(), alone[i].data(), found.size() * 4) == 0;
      }
  };
  std::thread one(work, 0), two(work, 1);
  one.join(), two.join();
  say(is_equal[0] && is_equal[1], "two lanes at the same time", "bit-equal to one after the other");

  // a size that is met again is replayed from a record
  const Batch small = batch({14, 3, 100}, MINILM.vocabulary);
  const std::vector<float> launched = subject.run(small), recorded = subject.run(small), replayed = subject.run(small);
  say(recorded == launched && replayed == launched, "launched, recorded and replayed", "the same bits");
}

void check_faults(const Library &library) {
  shoal_encoder_model model{64, 2, 2, 128, 300, 128, 1e-12f, SHOAL_ENCODER_MEAN, 1, 0};
  Weights weights(model);
  for (int i = 0; i < 64; i++) weights.values[SHOAL_WORDS][static_cast<size_t>(299 * 64 + i)] = NAN;
  const uint64_t room = library.weight_bytes(&model) + library.lane_bytes(&model, 2000, 20);
  const Subject subject(library, model, weights, 2, room);
  if (subject.status != 0) return;

  Batch b = batch({5, 9, 30}, 299);
  const std::vector<float> before = subject.run(b);
  Batch poisoned = b;
  for (int32_t at = 0; at < 9; at++) poisoned.ids[static_cast<size_t>(b.width + at)] = 299;
  const std::vector<float> after = subject.run(poisoned);
  const bool is_apart =
      std::memcmp(before.data(), after.data(), 64 * 4) == 0 && std::memcmp(&before[128], &after[128], 64 * 4) == 0 &&
      std::all_of(after.begin() + 64, after.begin() + 128, [](float value) { return std::isnan(value); });
  say(is_apart, "a row of NaN", "stays NaN, and its neighbours keep their bits");

  const auto refused = [&](const char *what, Batch bad, int lane, int expected) {
    int outcome = 0;
    subject.run(bad, lane, &outcome);
    say(outcome == expected, what, outcome == 0 ? "runs" : library.error());
  };
  Batch bad = b;
  bad.ids[1] = 300;
  refused("an id outside the vocabulary", bad, 0, SHOAL_ENCODER_BAD_ARGUMENT);
  bad = b, bad.ids[0] = -1;
  refused("a negative id", bad, 0, SHOAL_ENCODER_BAD_ARGUMENT);
  bad = b, bad.lengths[0] = 0;
  refused("a row without tokens", bad, 0, SHOAL_ENCODER_BAD_ARGUMENT);
  bad = b, bad.lengths[0] = bad.width + 1;
  refused("a row longer than its width", bad, 0, SHOAL_ENCODER_BAD_ARGUMENT);
  refused("a row longer than the model takes", batch({129}, 299), 0, SHOAL_ENCODER_BAD_ARGUMENT);
  refused("a lane that is not there", b, 2, SHOAL_ENCODER_BAD_ARGUMENT);

  library.shrink(subject.encoder);
  shoal_encoder_memory_use use{};
  library.memory(subject.encoder, &use);
  say(use.lanes == 0 && use.weights == library.weight_bytes(&model), "shrink",
      text("%llu bytes of weights, %llu of lanes", static_cast<unsigned long long>(use.weights),
           static_cast<unsigned long long>(use.lanes)));
  const Batch large = batch(std::vector<int32_t>(20, 100), 299);
  int outcome = 0;
  subject.run(large, 0, &outcome);
  library.memory(subject.encoder, &use);
  say(outcome == 0 && use.lanes == library.lane_bytes(&model, 2000, 20), "memory",
      text("%llu bytes predicted, %llu held", static_cast<unsigned long long>(library.lane_bytes(&model, 2000, 20)),
           static_cast<unsigned long long>(use.lanes)));
  refused("a run beyond the limit", batch(std::vector<int32_t>(24, 100), 299), 0, SHOAL_ENCODER_OUT_OF_MEMORY);
  refused("the other lane, while this one holds nothing", large, 1, 0);
  refused("this one, while the other holds all", large, 0, SHOAL_ENCODER_OUT_OF_MEMORY);
  library.shrink(subject.encoder);
  const std::vector<float> again = subject.run(b);
  say(std::memcmp(before.data(), again.data(), before.size() * 4) == 0, "after running out of memory",
      "the bits of before");

  shoal_encoder *none = nullptr;
  const shoal_encoder_options options{0, 1, 0};
  shoal_encoder_model odd = model;
  odd.heads = 3;
  const int status = library.open(&odd, weights.pointers.data(), &options, &none);
  say(status == SHOAL_ENCODER_BAD_ARGUMENT, "64 values for 3 heads", library.error());
}

// ---- times ------------------------------------------------------------------------------------------------------

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct StepTimes {
  std::vector<std::string> order;
  std::map<std::string, std::vector<double>> times;
  double sum(const std::string &name) const {
    std::vector<double> sorted = times.at(name);
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  double all() const {
    double total = 0;
    for (const std::string &name : order) total += sum(name);
    return total;
  }
};

/** Microseconds of each step in a whole run, summed over the layers; medians of seven runs. */
StepTimes profile(const Subject &subject, const Batch &b) {
  StepTimes result;
  std::vector<float> vectors(static_cast<size_t>(b.rows) * static_cast<size_t>(subject.model.hidden));
  for (int times = 0; times < 9; times++) {
    shoal_encoder_step steps[512];
    int32_t count = 512;
    if (subject.library.profile(subject.encoder, b.ids.data(), b.lengths.data(), b.rows, b.width, vectors.data(), steps,
                                &count) != 0)
      std::printf("WRONG profile: %s\n", subject.library.error()), wrong++;
    if (times < 2) continue;
    std::map<std::string, double> sums;
    for (int32_t at = 0; at < std::min(count, 512); at++) {
      if (sums.count(steps[at].name) == 0 && times == 2) result.order.push_back(steps[at].name);
      sums[steps[at].name] += steps[at].microseconds;
    }
    for (const auto &sum : sums) result.times[sum.first].push_back(sum.second);
  }
  return result;
}

struct Corpus {
  std::vector<Batch> batches;
  int64_t tokens = 0, rows = 0;
};

/** Sorted, cut by real tokens; the batches in random order. */
Corpus corpus(std::vector<int32_t> lengths, int64_t budget, bool is_sorted = true) {
  Corpus c;
  if (is_sorted) std::sort(lengths.begin(), lengths.end());
  std::vector<int32_t> open;
  int64_t tokens = 0;
  for (int32_t length : lengths) {
    if (tokens + length > budget) c.batches.push_back(batch(open, 30522)), open.clear(), tokens = 0;
    open.push_back(length), tokens += length;
  }
  if (!open.empty()) c.batches.push_back(batch(open, 30522));
  for (const Batch &b : c.batches) c.tokens += b.tokens(), c.rows += b.rows;
  std::shuffle(c.batches.begin(), c.batches.end(), generator);
  return c;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/** Rows per second of all batches once, through `lanes` lanes, a thread each. */
double pass(const Subject &subject, const Corpus &c, int lanes) {
  size_t most = 0;
  for (const Batch &b : c.batches) most = std::max(most, static_cast<size_t>(b.rows));
  std::vector<std::vector<float>> outputs(static_cast<size_t>(lanes));
  for (auto &output : outputs) output.resize(most * static_cast<size_t>(subject.model.hidden));
  std::atomic<size_t> next{0};
  const auto work = [&](int lane) {
    for (size_t at = next++; at < c.batches.size(); at = next++) {
      const Batch &b = c.batches[at];
      if (subject.library.run(subject.encoder, lane, b.ids.data(), b.lengths.data(), b.rows, b.width,
                              outputs[static_cast<size_t>(lane)].data()) != 0)
        std::printf("WRONG run: %s\n", subject.library.error()), wrong++;
    }
  };
  const auto begin = Clock::now();
  std::vector<std::thread> threads;
  for (int lane = 0; lane < lanes; lane++) threads.emplace_back(work, lane);
  for (std::thread &thread : threads) thread.join();
  return static_cast<double>(c.rows) / seconds_since(begin);
}

/** Median of three passes after one that warms up. */
double speed(const Subject &subject, const Corpus &c, int lanes) {
  pass(subject, c, lanes);
  std::vector<double> speeds;
  for (int times = 0; times < 3; times++) speeds.push_back(pass(subject, c, lanes));
  return median(speeds);
}

void print_profile(const char *name, const StepTimes &times, int64_t tokens, int layers) {
  std::printf("%s: ", name);
  for (const std::string &step : times.order) {
    const bool is_once = step == "embeddings" || step == "pooling";
    std::printf("%s %.1f, ", step.c_str(), times.sum(step) / (is_once ? 1 : layers));
  }
  std::printf("all %.0f us, %.2f Mtok/s\n", times.all(), static_cast<double>(tokens) / times.all());
}

/** A few ragged runs and nothing else, for tools that count what kernels do. */
void run_for_counters(const Library &library) {
  const Weights weights(MINILM);
  const Subject subject(library, MINILM, weights);
  const Batch mixed = batch(ragged(790), MINILM.vocabulary);
  for (int i = 0; i < 3; i++) subject.run(mixed);
}

void time_all(const Library &library) {
  double copy = 0, product = 0;
  if (library.peak(0, &copy, &product) != 0) std::printf("WRONG peak: %s\n", library.error()), wrong++;
  std::printf("copy %.2f TB/s, fp16 product of 8,192 cubed %.0f TFLOP/s\n", copy / 1e12, product / 1e12);
  const Weights weights(MINILM);
  shoal_encoder_model exact = MINILM;
  exact.exact_gelu = 1;
  const Subject subject(library, MINILM, weights, 2), by_erf(library, exact, weights, 1);
  auto begin = Clock::now();
  library.prepare(subject.encoder, 65536);
  std::printf("prepare %.3f s\n", seconds_since(begin));
  library.prepare(by_erf.encoder, 65536);
  const Batch mixed = batch(ragged(790), MINILM.vocabulary);
  for (const auto &shape : {std::pair<size_t, int32_t>(4096, 16), {512, 128}, {128, 512}}) {
    const Batch even = batch(std::vector<int32_t>(shape.first, shape.second), MINILM.vocabulary);
    print_profile(text("rows of %d, 65 k tokens, a layer", shape.second).c_str(), profile(subject, even), even.tokens(),
                  6);
  }
  print_profile("exact GELU, ragged, 65 k tokens, a layer", profile(by_erf, mixed), mixed.tokens(), 6);
  print_profile("ragged, 65 k tokens, a layer", profile(subject, mixed), mixed.tokens(), 6);
  const Batch eighth = batch(ragged(99), MINILM.vocabulary);
  print_profile("ragged, 8 k tokens, a layer", profile(subject, eighth), eighth.tokens(), 6);
  const Batch one = batch({14}, MINILM.vocabulary);
  print_profile("one of 14 tokens, launched, a layer", profile(subject, one), 14, 6);
  std::vector<double> times;
  for (int i = 0; i < 600; i++) {
    begin = Clock::now();
    subject.run(one);
    if (i >= 100) times.push_back(seconds_since(begin) * 1e6);
  }
  std::sort(times.begin(), times.end());
  std::printf("one text of 14 tokens: p50 %.0f us, p99 %.0f us\n", times[250], times[495]);
  const std::vector<int32_t> lengths = ragged(32768);
  std::printf("exact GELU, 65536 tokens: %.1f k texts/s with one lane\n",
              speed(by_erf, corpus(lengths, 65536), 1) / 1e3);
  std::printf("arrival order, 65536 tokens: %.1f k texts/s with one lane\n",
              speed(subject, corpus(lengths, 65536, false), 1) / 1e3);
  for (int64_t budget : {4096, 8192, 16384, 32768, 65536, 131072, 262144}) {
    const Corpus c = corpus(lengths, budget);
    const double single = speed(subject, c, 1), twin = speed(subject, c, 2),
                 mean = static_cast<double>(c.tokens) / static_cast<double>(c.rows);
    std::printf("sorted, budget %lld: %.1f k texts/s (%.2f Mtok/s) with one lane, %.1f k (%.2f) with two\n",
                static_cast<long long>(budget), single / 1e3, single * mean / 1e6, twin / 1e3, twin * mean / 1e6);
  }
}

/** Passes after the first, which warms up: the libraries take turns, and every other time the last one begins. */
constexpr int TURNS = 5;

/**
 * Ragged rows, checked and then timed, through each library: real tokens per second at budgets of real tokens, one
 * lane and two. Ratios are of medians, to the first library.
 */
void time_shape(const char *name, const shoal_encoder_model &model, size_t rows, const Library &reference,
                const std::vector<const Library *> &libraries) {
  const Weights weights(model);
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const Library *library : libraries) {
    subjects.push_back(std::make_unique<Subject>(*library, model, weights, 2));
    if (subjects.back()->status != 0) return;
    if (library->prepare(subjects.back()->encoder, 65536) != 0) say(false, "prepare", library->error());
  }
  {
    const Subject expected(reference, model, weights);
    const Batch mixed = batch({1, 7, 8, 16, 23, 33, 40, 52, 52, 64, 65, 83, 100, 128, 129, 160}, model.vocabulary);
    for (size_t at = 0; at < subjects.size(); at++)
      compare(text("%s, library %zu", name, at + 1), expected, *subjects[at], mixed);
  }
  if (wrong > 0) return;
  const std::vector<int32_t> lengths = ragged(rows);
  for (int64_t budget : {32768, 65536, 131072}) {
    const Corpus c = corpus(lengths, budget);
    const double mean = static_cast<double>(c.tokens) / static_cast<double>(c.rows);
    for (int lanes : {1, 2}) {
      std::vector<std::vector<double>> speeds(subjects.size());
      for (int turn = 0; turn <= TURNS; turn++)
        for (size_t step = 0; step < subjects.size(); step++) {
          const size_t at = turn % 2 == 0 ? step : subjects.size() - 1 - step;
          const double found = pass(*subjects[at], c, lanes);
          if (turn > 0) speeds[at].push_back(found);
        }
      for (size_t at = 0; at < subjects.size(); at++) {
        std::printf("%s, budget %lld, lanes %d, library %zu: %.1f k texts/s, %.3f Mtok/s, ratio %.3f; each:", name,
                    static_cast<long long>(budget), lanes, at + 1, median(speeds[at]) / 1e3,
                    median(speeds[at]) * mean / 1e6, median(speeds[at]) / median(speeds[0]));
        for (double found : speeds[at]) std::printf(" %.3f", found * mean / 1e6);
        std::printf("\n");
      }
      std::fflush(stdout);
    }
  }
}

void time_large(const Library &reference, const std::vector<const Library *> &libraries) {
  double copy = 0, product = 0;
  if (libraries[0]->peak(0, &copy, &product) == 0)
    std::printf("copy %.2f TB/s, fp16 product of 8,192 cubed %.0f TFLOP/s\n", copy / 1e12, product / 1e12);
  else
    std::printf("no peak: %s\n", libraries[0]->error());
  time_shape("bge-base", BGE_BASE, 16384, reference, libraries);
  time_shape("bge-large", BGE_LARGE, 8192, reference, libraries);
}

} // namespace

int main(int count, char **arguments) {
  if (count < 3)
    return std::fprintf(stderr,
                        "encoder_test <reference library> <library> "
                        "[tiny | brief | check | time | large | counters | all] [seed [other library]]\n"),
           2;
  const std::string what = count > 3 ? arguments[3] : "all";
  const uint64_t seed = count > 4 ? std::strtoull(arguments[4], nullptr, 10) : std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  generator.seed(seed);
  const Library reference(arguments[1]), library(arguments[2]);
  if (library.abi() != SHOAL_ENCODER_ABI) return std::printf("WRONG abi %d\n", library.abi()), 1;
  if (library.devices() == 0) return std::printf("no device: %s; nothing was checked\n", library.error()), 3;
  if (what == "counters") return run_for_counters(library), 0;
  if (what == "large") {
    std::vector<const Library *> libraries{&library};
    std::unique_ptr<const Library> other;
    if (count > 5) other = std::make_unique<const Library>(arguments[5]), libraries.push_back(other.get());
    time_large(reference, libraries);
    return std::printf("%d wrong\n", wrong), wrong == 0 ? 0 : 1;
  }
  if (what != "time") {
    check_faults(library);
    check_shapes(reference, library, what == "tiny" ? 2 : 100);
    if (what == "tiny") return std::printf("%d wrong\n", wrong), wrong == 0 ? 0 : 1;
    if (what != "brief") check_minilm(reference, library);
    std::printf("%d wrong\n", wrong);
  }
  if (what != "check" && what != "brief" && wrong == 0) time_all(library);
  return wrong == 0 ? 0 : 1;
}
