// The CUDA library against an fp64 reference and against itself: random cases with awkward sizes and the values that go
// wrong, of every element type, metric and kind, on several threads at the same time, in parts, streamed, and within
// little memory; then what the interface promises otherwise (stop flag, out of memory, no device). Goes on after a
// failure; exit status 1 when there was one. Usage: cuda_test [cases [seed]]. SHOAL_CUDA_COARSE=thin|wide|hopper asks
// for one kernel of coarse scores.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <execinfo.h>
#include <thread>
#include <vector>
#include "../include/similarity_cuda.h"
#include "row_values.h"

namespace {

typedef std::mt19937_64 Random;

std::atomic<int> failures{0}, checks{0}, pinned_matrices{0}, hurried_done{0}, hurried_later{0};
std::atomic<uint64_t> queries_asked{0}, queries_redone{0};
std::mutex printing;
std::set<std::string> printed;

size_t pick(Random &random, std::initializer_list<size_t> of) { return of.begin()[random() % of.size()]; }

struct Case {
  uint64_t number;
  size_t dims, count, queries, k;
  enum shoal_dtype dtype;
  enum shoal_metric metric;
  int shape;
  std::vector<char> data;
  std::vector<float> scales, query, values; // values: rows as floats, unscaled
  std::vector<double> lengths;              // of rows, scaled
  shoal_rows rows;
};

void wrong(const Case &c, const char *what, size_t q, size_t i, double found, double expected) {
  failures++;
  const std::lock_guard<std::mutex> guard(printing);
  if (printed.size() > 40) return;
  if (!printed.insert(std::string(what) + std::to_string(c.dtype) + std::to_string(c.metric) + std::to_string(c.shape))
           .second)
    return;
  std::printf(
      "WRONG %s: case %llu shape %d dims %zu rows %zu queries %zu k %zu dtype %d metric %d; query %zu, place %zu: "
      "%.17g, expected %.17g [%s]\n",
      what, static_cast<unsigned long long>(c.number), c.shape, c.dims, c.count, c.queries, c.k, c.dtype, c.metric, q,
      i, found, expected, shoal_cuda_error());
}

enum { MIXED, NEAR, LENGTHS, SORTED, TIES, BROKEN, SHAPES };

/**
 * MIXED: mostly normal, sometimes zero, tiny, or equal to an earlier row. NEAR: a few centres with little noise, so
 * that fp16 cannot tell rows apart. LENGTHS: over nine orders of magnitude. SORTED: better from row to row. TIES: of
 * few values. BROKEN: NaN and infinities.
 */
void fill(Random &random, Case &c) {
  std::normal_distribution<float> normal;
  c.values.resize(c.count * c.dims);
  for (size_t r = 0; r < c.count; r++) {
    float *row = c.values.data() + r * c.dims;
    const size_t kind = random() % 12;
    const float length = c.shape == LENGTHS ? std::pow(10.0f, static_cast<float>(random() % 900) / 100 - 4) : 1;
    if (c.shape == TIES) {
      for (size_t d = 0; d < c.dims; d++) row[d] = static_cast<float>(random() % 2);
    } else if (c.shape == NEAR && r >= 3) {
      const float *centre = c.values.data() + random() % 3 * c.dims;
      for (size_t d = 0; d < c.dims; d++) row[d] = centre[d] + 1e-4f * normal(random);
    } else if (c.shape == SORTED) {
      for (size_t d = 0; d < c.dims; d++)
        row[d] = static_cast<float>(r + 1) / static_cast<float>(c.count) + 0.01f * normal(random);
    } else if (kind == 0 && r > 0) {
      std::copy_n(c.values.data() + random() % r * c.dims, c.dims, row);
    } else {
      for (size_t d = 0; d < c.dims; d++)
        row[d] = kind == 1 ? 0.0f
                           : length * normal(random) *
                                 (kind == 4                 ? 1e-15f
                                  : kind == 2 && d % 2 == 1 ? 1e-40f
                                                            : 1.0f);
    }
    if (c.shape == BROKEN && kind == 3) row[random() % c.dims] = std::numeric_limits<float>::quiet_NaN();
    if (c.shape == BROKEN && kind == 5 && random() % 8 == 0)
      row[random() % c.dims] = random() % 2 ? INFINITY : -INFINITY;
  }
}

Case random_case(Random &random, uint64_t number) {
  Case c;
  c.number = number;
  c.shape = random() % 3 == 0 ? MIXED : static_cast<int>(random() % SHAPES);
  c.dims = pick(random, {1, 2, 7, 15, 16, 17, 31, 33, 64, 65, 100, 128, 129, 384, 384, 500, 768, 4096});
  c.count = c.dims > 800 ? pick(random, {1, 33, 65, 2049})
                         : pick(random, {1, 7, 31, 32, 33, 257, 1000, 2049, 4097, 4097, 9000, 20011});
  c.queries = c.dims * c.count > 3'000'000 ? pick(random, {1, 3, 9, 33})
                                           : pick(random, {1, 2, 4, 7, 8, 9, 16, 17, 31, 33, 129});
  c.k = pick(random, {1, 10, 17, 50, c.count, c.count + 5});
  if (c.k > 5000 && c.queries > 4) c.queries = 4;
  c.dtype = static_cast<enum shoal_dtype>(random() % 3);
  c.metric = static_cast<enum shoal_metric>(random() % 3);
  fill(random, c);
  const size_t element = c.dtype == SHOAL_F32 ? 4 : c.dtype == SHOAL_F16 ? 2 : 1;
  const size_t stride = (c.dims + random() % 3) * element;
  c.data.assign(c.count * stride + 64, static_cast<char>(0x7f)); // what lies between rows is no number
  for (size_t r = 0; r < c.count; r++)
    for (size_t d = 0; d < c.dims; d++) {
      float &value = c.values[r * c.dims + d];
      value = store(c.dtype, value, c.data.data() + r * stride + d * element);
    }
  if (c.dtype == SHOAL_I8)
    for (size_t r = 0; r < c.count; r++) c.scales.push_back(0.025f * static_cast<float>(1 + r % 3));
  std::normal_distribution<float> normal;
  c.query.resize(c.queries * c.dims);
  for (float &value : c.query) value = normal(random);
  if (random() % 8 == 0) std::fill_n(c.query.begin(), c.dims, 0.0f);
  if (random() % 3 == 0)
    // a row asks for itself
    for (size_t d = 0; d < c.dims; d++) c.query[d] = std::isfinite(c.values[d]) ? c.values[d] : 1;
  c.rows = {c.data.data(),
            c.count,
            static_cast<uint32_t>(c.dims),
            stride,
            c.dtype,
            c.scales.empty() ? nullptr : c.scales.data(),
            0};
  for (size_t r = 0; r < c.count; r++) {
    double square = 0;
    for (size_t d = 0; d < c.dims; d++)
      square += static_cast<double>(c.values[r * c.dims + d]) * c.values[r * c.dims + d];
    c.lengths.push_back(std::sqrt(square) * (c.scales.empty() ? 1 : c.scales[r]));
  }
  return c;
}

struct Reference {
  double score, size; // size: what errors are relative to
};

Reference reference(const Case &c, size_t q, size_t r) {
  double dot = 0, far = 0, qq = 0;
  const double scale = c.scales.empty() ? 1 : c.scales[r], length = c.lengths[r];
  for (size_t d = 0; d < c.dims; d++) {
    const double a = c.query[q * c.dims + d], b = c.values[r * c.dims + d] * scale;
    dot += a * b, far += (a - b) * (a - b), qq += a * a;
  }
  const double size = std::sqrt(qq) * length;
  if (c.metric == SHOAL_L2) return {far, far + (c.scales.empty() ? 0 : 0.05 * std::sqrt(far) * length)};
  if (c.metric == SHOAL_COSINE)
    return {std::sqrt(qq) < SHOAL_MIN_LENGTH || length < SHOAL_MIN_LENGTH ? 0 * length : dot / size, 1};
  return {dot, size};
}

bool is_near(const Case &c, double found, Reference expected) {
  if (std::isnan(expected.score) || std::isinf(expected.score))
    return std::isnan(expected.score) ? std::isnan(found) : found == expected.score;
  const double allowed = c.metric == SHOAL_L2 ? 1e-5 * expected.size + 1e-30 : 1e-6 * std::max(1.0, expected.size);
  return std::fabs(found - expected.score) <= allowed;
}

struct Answer {
  std::vector<uint32_t> best, found;
  std::vector<double> scores;
  explicit Answer(const Case &c)
      : best(c.queries * c.k, 0xdeadbeef), found(c.queries, 0xdeadbeef), scores(c.queries * c.k, -1e300) {}
};

void check_topk(const Case &c, const std::vector<Reference> &expected, const Answer &a, const char *what) {
  checks++;
  for (size_t q = 0; q < c.queries; q++) {
    std::vector<std::pair<double, uint64_t>> order;
    for (size_t r = 0; r < c.count; r++) {
      const double score = expected[q * c.count + r].score;
      if (!std::isnan(score)) order.push_back({c.metric == SHOAL_L2 ? score : -score, r});
    }
    const size_t count = std::min(c.k, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<long>(count), order.end());
    if (a.found[q] != count)
      return wrong(c, (std::string(what) + " number found").c_str(), q, 0, a.found[q], static_cast<double>(count));
    for (size_t i = 0; i < count; i++) {
      const uint32_t row = a.best[q * c.k + i];
      if (row >= c.count)
        return wrong(c, (std::string(what) + " row").c_str(), q, i, row, static_cast<double>(c.count));
      const Reference mine = expected[q * c.count + row];
      if (!is_near(c, a.scores[q * c.k + i], mine))
        return wrong(c, (std::string(what) + " score").c_str(), q, i, a.scores[q * c.k + i], mine.score);
      const double best = std::fabs(order[i].first), size = expected[q * c.count + order[i].second].size;
      // Another row only where sums in another order may differ.
      if (row != order[i].second && !(std::isinf(mine.score) && std::fabs(mine.score) == best) &&
          std::fabs(std::fabs(mine.score) - best) > 1e-12 * std::max(best, size) + 1e-300)
        return wrong(c, (std::string(what) + " order").c_str(), q, i, mine.score, best);
      if (i > 0 && a.scores[q * c.k + i] == a.scores[q * c.k + i - 1] && a.best[q * c.k + i] < a.best[q * c.k + i - 1])
        return wrong(c, (std::string(what) + " tie").c_str(), q, i, row, a.best[q * c.k + i - 1]);
    }
  }
}

bool is_ok(const Case &c, int status, const char *what) {
  if (status == SHOAL_CUDA_OK) return true;
  wrong(c, (std::string(what) + " status").c_str(), 0, 0, status, 0);
  return false;
}

bool is_equal(const Case &c, const Answer &a, const Answer &b) {
  if (a.found != b.found) return false;
  for (size_t q = 0; q < c.queries; q++)
    if (std::memcmp(a.best.data() + q * c.k, b.best.data() + q * c.k, a.found[q] * 4) != 0 ||
        std::memcmp(a.scores.data() + q * c.k, b.scores.data() + q * c.k, a.found[q] * 8) != 0)
      return false;
  return true;
}

/**
 * Calls that may not wait long: each says so, or gives the answer that is known. What it leaves behind must not reach
 * the next one.
 */
template <class Ask, class Same>
void check_hurried(Random &random, const Case &c, const char *what, const Ask &ask, const Same &is_same) {
  for (int turn = 0; turn < 3; turn++) {
    const shoal_cuda_terms hurried{0, nullptr, nullptr, static_cast<double>(pick(random, {1, 20, 100, 3000}))};
    const int status = ask(&hurried);
    if (status == SHOAL_CUDA_LATER)
      hurried_later++;
    else if (is_ok(c, status, what) && ++hurried_done && !is_same())
      wrong(c, what, 0, 0, turn, 0);
  }
}

void check_rows(Random &random, const Case &c, int devices) {
  const int device = static_cast<int>(random() % static_cast<uint64_t>(devices));
  std::vector<Reference> expected(c.queries * c.count);
  for (size_t q = 0; q < c.queries; q++)
    for (size_t r = 0; r < c.count; r++) expected[q * c.count + r] = reference(c, q, r);
  shoal_cuda_rows *rows;
  if (!is_ok(c, shoal_cuda_upload(device, &c.rows, random() % 2, &rows, nullptr), "upload")) return;
  shoal_cuda_times times{};
  shoal_cuda_terms terms{0, nullptr, &times, 0}, tight{3ull << 20 << random() % 6, nullptr, nullptr, 0};
  Answer first(c), second(c), parted(c), streamed(c);
  if (is_ok(c,
            shoal_cuda_topk(&rows, 1, c.query.data(), c.queries, c.metric, static_cast<uint32_t>(c.k),
                            first.best.data(), first.scores.data(), first.found.data(), &terms),
            "topk"))
    check_topk(c, expected, first, "topk");
  queries_asked += c.queries, queries_redone += times.redone;
  // What is asked for again is recorded, and then replayed.
  for (int turn = 0; turn < 2; turn++) {
    Answer again(c);
    if (is_ok(c,
              shoal_cuda_topk(&rows, 1, c.query.data(), c.queries, c.metric, static_cast<uint32_t>(c.k),
                              again.best.data(), again.scores.data(), again.found.data(), &terms),
              "topk again") &&
        !is_equal(c, first, again))
      wrong(c, "topk again", 0, 0, turn, 0);
  }
  Answer quick(c);
  check_hurried(
      random, c, "topk hurried",
      [&](const shoal_cuda_terms *t) {
        return shoal_cuda_topk(&rows, 1, c.query.data(), c.queries, c.metric, static_cast<uint32_t>(c.k),
                               quick.best.data(), quick.scores.data(), quick.found.data(), t);
      },
      [&] { return is_equal(c, first, quick); });
  const int status = shoal_cuda_topk(&rows, 1, c.query.data(), c.queries, c.metric, static_cast<uint32_t>(c.k),
                                     second.best.data(), second.scores.data(), second.found.data(), &tight);
  // What a piece takes at least may be more than the bound: then it says so.
  if (status != SHOAL_CUDA_OUT_OF_MEMORY && is_ok(c, status, "topk in pieces") && !is_equal(c, first, second))
    wrong(c, "topk in pieces", 0, 0, 1, 0);

  // Three parts, on two devices where there are two.
  std::vector<shoal_cuda_rows *> parts;
  for (size_t p = 0, begin = 0; p < 3; p++) {
    const size_t end = p == 2 ? c.count : begin + random() % (c.count - begin + 1);
    shoal_rows piece = c.rows;
    piece.data = c.data.data() + begin * c.rows.stride, piece.count = end - begin,
    piece.scales = c.rows.scales == nullptr ? nullptr : c.rows.scales + begin;
    shoal_cuda_rows *part;
    if (is_ok(
            c,
            shoal_cuda_upload(static_cast<int>(p % static_cast<size_t>(devices)), &piece, random() % 2, &part, nullptr),
            "upload of a part"))
      parts.push_back(part);
    begin = end;
  }
  if (parts.size() == 3 &&
      is_ok(c,
            shoal_cuda_topk(parts.data(), 3, c.query.data(), c.queries, c.metric, static_cast<uint32_t>(c.k),
                            parted.best.data(), parted.scores.data(), parted.found.data(), nullptr),
            "topk of parts") &&
      !is_equal(c, first, parted))
    wrong(c, "topk of parts", 0, 0, 1, 0);
  for (auto *part : parts) shoal_cuda_free_rows(part);
  if (random() % 3 == 0) {
    shoal_cuda_terms little{64ull << 20, nullptr, nullptr, 0};
    if (random() % 2) little.work_bytes = 8ull << 20;
    const int outcome =
        shoal_cuda_topk_streamed(device, &c.rows, c.query.data(), c.queries, c.metric, static_cast<uint32_t>(c.k),
                                 streamed.best.data(), streamed.scores.data(), streamed.found.data(), &little);
    if (outcome != SHOAL_CUDA_OUT_OF_MEMORY && is_ok(c, outcome, "topk streamed") && !is_equal(c, first, streamed))
      wrong(c, "topk streamed", 0, 0, 1, 0);
  }

  std::vector<float> matrix(c.queries * c.count, -1e30f), again(matrix);
  tight.work_bytes = 1ull << (18 + random() % 8);
  if (is_ok(c, shoal_cuda_matrix(rows, c.query.data(), c.queries, c.metric, matrix.data(), nullptr), "matrix")) {
    checks++;
    for (size_t i = 0; i < matrix.size(); i++) {
      // What leaves fp32 is infinite there, or no number.
      if (c.shape == BROKEN && !std::isfinite(expected[i].score) && !std::isfinite(matrix[i])) continue;
      if (!is_near(c, matrix[i], expected[i])) {
        wrong(c, "matrix", i / c.count, i % c.count, matrix[i], expected[i].score);
        break;
      }
    }
    std::vector<float> quick(matrix.size());
    check_hurried(
        random, c, "matrix hurried",
        [&](const shoal_cuda_terms *t) {
          return shoal_cuda_matrix(rows, c.query.data(), c.queries, c.metric, quick.data(), t);
        },
        [&] { return std::memcmp(matrix.data(), quick.data(), matrix.size() * 4) == 0; });
    void *pinned = nullptr;
    for (int turn = 0; turn < 20 && pinned == nullptr; turn++)
      shoal_cuda_take_pinned(device, matrix.size() * 4, &pinned);
    if (pinned != nullptr) {
      pinned_matrices++;
      std::memset(pinned, 0x7f, matrix.size() * 4);
      for (const shoal_cuda_terms *within :
           {static_cast<const shoal_cuda_terms *>(nullptr), static_cast<const shoal_cuda_terms *>(&tight)}) {
        const int status =
            shoal_cuda_matrix(rows, c.query.data(), c.queries, c.metric, static_cast<float *>(pinned), within);
        if (status != SHOAL_CUDA_OUT_OF_MEMORY && is_ok(c, status, "matrix in pinned memory") &&
            std::memcmp(matrix.data(), pinned, matrix.size() * 4) != 0)
          wrong(c, "matrix in pinned memory", 0, 0, within != nullptr, 0);
        std::memset(pinned, 0x7f, matrix.size() * 4);
      }
      shoal_cuda_give_pinned(pinned);
    }
    const int outcome = shoal_cuda_matrix(rows, c.query.data(), c.queries, c.metric, again.data(), &tight);
    if (outcome != SHOAL_CUDA_OUT_OF_MEMORY && is_ok(c, outcome, "matrix in pieces") &&
        std::memcmp(matrix.data(), again.data(), matrix.size() * 4) != 0)
      wrong(c, "matrix in pieces", 0, 0, 1, 0);
  }

  std::vector<uint32_t> begin{0}, candidates;
  for (size_t q = 0; q < c.queries; q++) {
    for (size_t i = random() % 7; i > 0; i--) candidates.push_back(static_cast<uint32_t>(random() % c.count));
    begin.push_back(static_cast<uint32_t>(candidates.size()));
  }
  std::vector<double> scores(candidates.size() + 1, -1e300), scores_again(scores);
  tight.work_bytes = 1ull << (16 + random() % 6);
  if (is_ok(c,
            shoal_cuda_rescore(rows, c.query.data(), c.queries, c.metric, begin.data(), candidates.data(),
                               scores.data(), nullptr),
            "rescore")) {
    checks++;
    for (size_t q = 0; q < c.queries; q++)
      for (size_t i = begin[q]; i < begin[q + 1]; i++)
        if (!is_near(c, scores[i], expected[q * c.count + candidates[i]]))
          wrong(c, "rescore", q, i, scores[i], expected[q * c.count + candidates[i]].score), i = begin[q + 1];
    std::vector<double> quick(candidates.size() + 1);
    check_hurried(
        random, c, "rescore hurried",
        [&](const shoal_cuda_terms *t) {
          return shoal_cuda_rescore(rows, c.query.data(), c.queries, c.metric, begin.data(), candidates.data(),
                                    quick.data(), t);
        },
        [&] { return std::memcmp(scores.data(), quick.data(), candidates.size() * 8) == 0; });
    for (int turn = 0; turn < 2; turn++) {
      std::vector<double> more(candidates.size() + 1, -1e300);
      if (is_ok(c,
                shoal_cuda_rescore(rows, c.query.data(), c.queries, c.metric, begin.data(), candidates.data(),
                                   more.data(), nullptr),
                "rescore again") &&
          std::memcmp(scores.data(), more.data(), candidates.size() * 8) != 0)
        wrong(c, "rescore again", 0, 0, turn, 0);
    }
    const int outcome = shoal_cuda_rescore(rows, c.query.data(), c.queries, c.metric, begin.data(), candidates.data(),
                                           scores_again.data(), &tight);
    if (outcome != SHOAL_CUDA_OUT_OF_MEMORY && is_ok(c, outcome, "rescore in pieces") &&
        std::memcmp(scores.data(), scores_again.data(), candidates.size() * 8) != 0)
      wrong(c, "rescore in pieces", 0, 0, 1, 0);
  }
  shoal_cuda_free_rows(rows);
}

/** What leaves fp32 is infinite there. */
bool is_spread(float got, double expected) {
  return std::fabs(got - expected) <= 1e-5 * std::max(1.0, expected) ||
         (std::isinf(got) && expected > std::numeric_limits<float>::max());
}

void check_spread(Random &random, uint64_t number, int devices) {
  Case c{}; // for the words of a failure
  c.number = number, c.shape = 100;
  // The largest has enough edges for bits of who gives.
  size_t nodes = pick(random, {1, 2, 7, 33, 200, 5000, 12345, 17500, 20011, 32768, 32769}),
         columns = pick(random, {1, 2, 3, 4, 5, 8, 12, 16, 17, 20, 33}), steps = random() % 5;
  if (random() % 3 == 0) columns = 1;                               // what one launch does, with few seeds or many
  if (columns == 1 && random() % 4 == 0) steps = 60 + random() % 8; // 64 in one launch, no more
  if (std::getenv("SHOAL_CUDA_SPREAD") != nullptr && random() % 2 == 0) nodes = 20011, columns = 1; // these are sliced
  c.count = nodes, c.queries = columns, c.k = steps;
  std::vector<uint32_t> begin{0}, source;
  std::vector<float> weight;
  std::uniform_real_distribution<float> uniform;
  // some have most of their edges from few nodes
  const size_t degree = nodes > 20011 ? 12 : 30, hub = random() % 3 == 0 ? random() % nodes : nodes,
               likely = random() % 3 == 0 ? 700 : nodes;
  for (size_t n = 0; n < nodes; n++) {
    for (size_t e = n == hub ? 1000 + random() % 9000 : random() % degree * (n % 64 < 60); e > 0; e--)
      source.push_back(static_cast<uint32_t>(random() % (random() % 4 == 0 ? nodes : std::min(likely, nodes)))),
          weight.push_back(uniform(random) * (n == hub ? 0.01f : 0.2f));
    begin.push_back(static_cast<uint32_t>(source.size()));
  }
  std::vector<float> seeds(nodes * columns, 0.0f);
  const size_t seeds_each = random() % 4 == 0 ? nodes / 3 + 1 : random() % 12 + 1; // few give at first, or many
  for (size_t i = 0; i < columns; i++)
    for (size_t s = 0; s < seeds_each; s++) seeds[random() % nodes * columns + i] = random() % 9 == 0 ? -0.5f : 1;
  // A threshold that no value comes near: which side of it a rounding falls would decide otherwise.
  const float decay = 0.8f, threshold = random() % 2 ? 0.0f : 1e-30f;
  std::vector<double> total(seeds.begin(), seeds.end()), last(total);
  for (size_t s = 0; s < steps; s++) {
    std::vector<double> next(total.size(), 0.0);
    for (size_t n = 0; n < nodes; n++)
      for (uint32_t e = begin[n]; e < begin[n + 1]; e++)
        for (size_t i = 0; i < columns; i++)
          if (last[source[e] * columns + i] >= threshold)
            next[n * columns + i] += static_cast<double>(decay) * weight[e] * last[source[e] * columns + i];
    for (size_t i = 0; i < total.size(); i++) total[i] += next[i];
    last = next;
  }
  const shoal_graph graph{nodes, begin.data(), source.data(), weight.data()};
  shoal_cuda_graph *there;
  if (!is_ok(
          c,
          shoal_cuda_upload_graph(static_cast<int>(random() % static_cast<uint64_t>(devices)), &graph, &there, nullptr),
          "upload of a graph"))
    return;
  std::vector<float> activation(seeds), again(seeds), pieces(seeds);
  const shoal_cuda_terms tight{nodes * 12 * 4 + 8192 + 4 * source.size() / 100, nullptr, nullptr, 0};
  if (is_ok(c,
            shoal_cuda_spread(there, static_cast<uint32_t>(columns), static_cast<uint32_t>(steps), decay, threshold,
                              seeds.data(), activation.data(), nullptr),
            "spread")) {
    checks++;
    for (size_t i = 0; i < total.size(); i++)
      if (!is_spread(activation[i], total[i])) {
        wrong(c, "spread", i % columns, i / columns, activation[i], total[i]);
        break;
      }
    std::vector<float> quick(seeds.size());
    check_hurried(
        random, c, "spread hurried",
        [&](const shoal_cuda_terms *t) {
          return shoal_cuda_spread(there, static_cast<uint32_t>(columns), static_cast<uint32_t>(steps), decay,
                                   threshold, seeds.data(), quick.data(), t);
        },
        [&] { return std::memcmp(activation.data(), quick.data(), quick.size() * 4) == 0; });
    for (int turn = 0; turn < 2; turn++) {
      again = seeds;
      shoal_cuda_spread(there, static_cast<uint32_t>(columns), static_cast<uint32_t>(steps), decay, threshold,
                        again.data(), again.data(), nullptr);
      if (std::memcmp(activation.data(), again.data(), again.size() * 4) != 0) wrong(c, "spread again", 0, 0, turn, 0);
    }
    void *pinned = nullptr;
    for (int turn = 0; turn < 6 && pinned == nullptr; turn++) shoal_cuda_take_pinned(0, seeds.size() * 4, &pinned);
    if (pinned != nullptr) {
      std::memset(pinned, 0x7f, seeds.size() * 4);
      if (is_ok(c,
                shoal_cuda_spread(there, static_cast<uint32_t>(columns), static_cast<uint32_t>(steps), decay, threshold,
                                  seeds.data(), static_cast<float *>(pinned), nullptr),
                "spread into pinned memory") &&
          std::memcmp(activation.data(), pinned, seeds.size() * 4) != 0)
        wrong(c, "spread into pinned memory", 0, 0, 0, 0);
      shoal_cuda_give_pinned(pinned);
    }
    const int outcome = shoal_cuda_spread(there, static_cast<uint32_t>(columns), static_cast<uint32_t>(steps), decay,
                                          threshold, seeds.data(), pieces.data(), &tight);
    if (outcome != SHOAL_CUDA_OUT_OF_MEMORY && is_ok(c, outcome, "spread in pieces"))
      for (size_t i = 0; i < total.size(); i++)
        if (!is_spread(pieces[i], total[i])) {
          wrong(c, "spread in pieces", i % columns, i / columns, pieces[i], total[i]);
          break;
        }
  }
  shoal_cuda_free_graph(there);
}

void expect(bool is_true, const char *what) {
  checks++;
  if (is_true) return;
  failures++;
  std::printf("WRONG %s [%s]\n", what, shoal_cuda_error());
}

/** What the interface promises beside right answers. */
void check_promises() {
  Random random(7);
  const size_t count = 400'000, dims = 128, queries = 256, k = 10;
  std::vector<float> data(count * dims), query(queries * dims);
  for (float &value : data) value = static_cast<float>(random() % 2001) / 1000 - 1;
  for (float &value : query) value = static_cast<float>(random() % 2001) / 1000 - 1;
  const shoal_rows rows{data.data(), count, dims, dims * 4, SHOAL_F32, nullptr, 0};
  std::vector<uint32_t> best(queries * k), found(queries);
  std::vector<double> scores(queries * k);
  shoal_cuda_rows *there = nullptr, *none = nullptr;
  volatile uint8_t stop = 1;
  expect(shoal_cuda_upload(0, &rows, 0, &none, &stop) == SHOAL_CUDA_STOPPED && none == nullptr, "an upload stops");
  shoal_rows large = rows;
  large.count = 2'000'000'000, large.dims = 8192;
  const uint64_t before = shoal_cuda_held_bytes(0);
  expect(shoal_cuda_upload(0, &large, 1, &none, nullptr) == SHOAL_CUDA_OUT_OF_MEMORY && none == nullptr,
         "an upload that no device holds is out of memory");
  expect(shoal_cuda_held_bytes(0) == before, "and holds nothing");
  large.count = 1ull << 31;
  expect(shoal_cuda_upload(0, &large, 0, &none, nullptr) == SHOAL_CUDA_INVALID, "2^31 rows are refused");
  expect(shoal_cuda_upload(63, &rows, 0, &none, nullptr) == SHOAL_CUDA_NO_DEVICE, "there is no device 63");
  const uint64_t wanted = shoal_cuda_rows_bytes(&rows, 1);
  expect(shoal_cuda_upload(0, &rows, 1, &there, nullptr) == SHOAL_CUDA_OK, "an upload");
  if (there == nullptr) return;
  expect(shoal_cuda_held_bytes(0) - before == wanted, "an upload takes the bytes that it said");
  shoal_cuda_terms terms{0, &stop, nullptr, 0};
  const auto search = [&] {
    return shoal_cuda_topk(&there, 1, query.data(), queries, SHOAL_COSINE, k, best.data(), scores.data(), found.data(),
                           &terms);
  };
  expect(search() == SHOAL_CUDA_STOPPED, "a search stops that was stopped before it began");
  stop = 0;
  terms.work_bytes = 1000;
  expect(search() == SHOAL_CUDA_OUT_OF_MEMORY, "a search within 1,000 bytes is out of memory");
  terms.work_bytes = 0;
  expect(search() == SHOAL_CUDA_OK && found[0] == k, "a search after that");
  const auto search_within = [&](double us) {
    terms.most_wait_us = us;
    const int status = search();
    terms.most_wait_us = 0;
    return status;
  };
  expect(search_within(1e6) == SHOAL_CUDA_LATER, "what is asked for again is recorded, which takes long");
  expect(search() == SHOAL_CUDA_OK, "and recorded by who may wait");
  expect(search_within(1e6) == SHOAL_CUDA_OK && found[0] == k, "a search within a second");
  expect(search_within(0.001) == SHOAL_CUDA_LATER, "a search within a nanosecond is not done");
  std::fill(found.begin(), found.end(), 0u);
  expect(search() == SHOAL_CUDA_OK && found[0] == k, "a search that may wait");
  // Stopped while it works: every call either ends as if it had not been, or says so.
  std::atomic<bool> done{false};
  std::thread stopper([&] {
    for (int i = 0; !done; i++) {
      std::this_thread::sleep_for(std::chrono::microseconds(50 + i % 7 * 100));
      stop = 1 - stop;
    }
  });
  int stopped = 0, finished = 0;
  for (int i = 0; i < 300; i++) {
    const int status = search();
    if (status == SHOAL_CUDA_STOPPED)
      stopped++;
    else if (status == SHOAL_CUDA_OK)
      finished++;
    else
      expect(false, "a search that may be stopped");
  }
  done = true;
  stopper.join();
  stop = 0;
  expect(stopped > 0, "searches stop in between");
  std::printf("stopped while searching: %d of 300, finished %d\n", stopped, finished);
  expect(search() == SHOAL_CUDA_OK, "a search after all that");
  shoal_cuda_free_rows(there);
  shoal_cuda_trim(0);
  expect(shoal_cuda_held_bytes(0) == 0, "nothing is held when everything was given back");
}

} // namespace

/** Where it was: a line for each frame, to be read with addr2line. */
void tell_where(int signal) {
  void *frames[40];
  const int count = backtrace(frames, 40);
  std::fprintf(stderr, "signal %d\n", signal);
  backtrace_symbols_fd(frames, count, 2);
  std::_Exit(3);
}

int main(int argc, char **argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0); // what is known is told before a signal ends it
  std::signal(SIGSEGV, tell_where), std::signal(SIGABRT, tell_where);
  const int cases = argc > 1 ? std::atoi(argv[1]) : 2000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  int devices = 0;
  const int status = shoal_cuda_device_count(&devices);
  if (status == SHOAL_CUDA_NO_DEVICE) return std::printf("no device: %s\n", shoal_cuda_error()), devices == 0 ? 0 : 1;
  if (status != SHOAL_CUDA_OK) return std::printf("WRONG devices: status %d, %s\n", status, shoal_cuda_error()), 1;
  devices = std::min(devices, 2);
  shoal_cuda_device facts;
  shoal_cuda_describe(0, &facts);
  std::printf(
      "%s, compute capability %d, %d multiprocessors, %.1f GB; %d device%s used; %d cases, seed %llu, coarse %s\n",
      facts.name, facts.compute, facts.multiprocessors, facts.total_bytes / 1e9, devices, devices == 1 ? "" : "s",
      cases, static_cast<unsigned long long>(seed),
      std::getenv("SHOAL_CUDA_COARSE") ? std::getenv("SHOAL_CUDA_COARSE") : "any");
  check_promises();
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::min(12u, std::max(1u, std::thread::hardware_concurrency())); i++)
    threads.emplace_back([&] {
      for (int number; (number = next++) < cases;) {
        Random random(seed + static_cast<uint64_t>(number));
        const Case c = random_case(random, static_cast<uint64_t>(number));
        check_rows(random, c, devices);
        check_spread(random, static_cast<uint64_t>(number), devices);
      }
    });
  for (auto &thread : threads) thread.join();
  std::printf(
      "%d failures in %d checks; %llu of %llu queries were scored against every row; %d matrices in pinned memory; %d "
      "of %d hurried calls were done\n%s\n",
      failures.load(), checks.load(), static_cast<unsigned long long>(queries_redone.load()),
      static_cast<unsigned long long>(queries_asked.load()), pinned_matrices.load(), hurried_done.load(),
      hurried_done + hurried_later, failures == 0 ? "OK" : "FAILED");
  return failures == 0 ? 0 : 1;
}
