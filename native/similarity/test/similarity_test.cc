// The kernels against an fp64 reference, for every instruction set of this machine: random cases with awkward sizes,
// and the values that go wrong (zeros, NaN, infinities, denormals, duplicates). Usage: similarity_test [cases] [seed];
// exit 1 on the first difference, which is printed with its seed.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>
#include "../include/similarity.h"
#include "../cpu/threads.h"
#include "row_values.h"

namespace {

typedef std::mt19937_64 Random;

size_t pick(Random &random, std::initializer_list<size_t> of) { return of.begin()[random() % of.size()]; }

struct Case {
  size_t dims, count, queries, k;
  int threads;
  enum shoal_dtype dtype;
  enum shoal_metric metric;
  std::vector<char> data;
  std::vector<float> scales, query, values; // values: rows as floats, unscaled
  shoal_rows rows;
};

/** Values of a row: mostly normal, sometimes zero, tiny, equal to an earlier row, or not a number. */
void fill(Random &random, Case &c) {
  std::normal_distribution<float> normal;
  c.values.resize(c.count * c.dims);
  for (size_t r = 0; r < c.count; r++) {
    float *row = c.values.data() + r * c.dims;
    const size_t kind = random() % 12;
    if (kind == 0 && r > 0)
      std::copy_n(c.values.data() + random() % r * c.dims, c.dims, row);
    else
      for (size_t d = 0; d < c.dims; d++)
        row[d] = kind == 1 ? 0.0f : normal(random) * (kind == 4 ? 1e-15f : kind == 2 && d % 2 == 1 ? 1e-40f : 1.0f);
    if (kind == 3 && random() % 4 == 0) row[random() % c.dims] = std::numeric_limits<float>::quiet_NaN();
  }
}

Case random_case(Random &random) {
  Case c;
  c.dims = pick(random, {1, 2, 7, 15, 16, 17, 31, 33, 64, 100, 128, 129, 384, 4096});
  c.count = c.dims > 512 ? pick(random, {1, 7, 31, 33, 65}) : pick(random, {1, 7, 31, 32, 33, 100, 257, 1000, 4097});
  c.queries = pick(random, {1, 2, 3, 4, 5, 7, 12, 13, 19, 20, 31, 33});
  c.k = pick(random, {1, 10, 17, c.count, c.count + 5});
  c.threads = static_cast<int>(pick(random, {1, 2, 3}));
  c.dtype = static_cast<enum shoal_dtype>(random() % 3);
  c.metric = static_cast<enum shoal_metric>(random() % 3);
  fill(random, c);
  const size_t element = c.dtype == SHOAL_F32 ? 4 : c.dtype == SHOAL_F16 ? 2 : 1;
  const size_t stride = c.dims * element + random() % 3 * (c.dtype == SHOAL_F32 ? 4 : element);
  c.data.assign(c.count * stride + 64, 0);
  std::vector<float> factors(c.count, 1.0f);
  for (size_t r = 0; r < c.count; r++)
    for (size_t d = 0; d < c.dims; d++) {
      float &value = c.values[r * c.dims + d];
      value = store(c.dtype, value, c.data.data() + r * stride + d * element);
    }
  if (c.metric == SHOAL_COSINE || c.dtype == SHOAL_I8)
    for (size_t r = 0; r < c.count; r++) {
      double square = 0;
      for (size_t d = 0; d < c.dims; d++)
        square += static_cast<double>(c.values[r * c.dims + d]) * c.values[r * c.dims + d];
      c.scales.push_back(c.metric != SHOAL_COSINE                       ? 0.025f * (1 + r % 3)
                         : square < SHOAL_MIN_LENGTH * SHOAL_MIN_LENGTH ? 0
                                                                        : static_cast<float>(1 / std::sqrt(square)));
    }
  std::normal_distribution<float> normal;
  c.query.resize(c.queries * c.dims);
  for (float &value : c.query) value = normal(random);
  if (random() % 8 == 0) std::fill_n(c.query.begin(), c.dims, 0.0f);
  // a row asks for itself
  if (random() % 3 == 0)
    for (size_t d = 0; d < c.dims; d++) c.query[d] = std::isnan(c.values[d]) ? 1 : c.values[d];
  c.rows = {c.data.data(),
            c.count,
            static_cast<uint32_t>(c.dims),
            stride,
            c.dtype,
            c.scales.empty() ? nullptr : c.scales.data(),
            0};
  std::vector<double> lengths(c.count);
  shoal_lengths(0, 1, &c.rows, lengths.data());
  for (size_t r = 0; r < c.count; r++)
    if (lengths[r] > 0)
      c.rows.longest =
          std::max(c.rows.longest, lengths[r] * (c.metric == SHOAL_COSINE || c.scales.empty() ? 1 : c.scales[r]));
  return c;
}

struct Reference {
  double score, size; // size: ‖q‖ ‖r‖, what errors are relative to
};

Reference reference(const Case &c, size_t q, size_t r) {
  double dot = 0, far = 0, qq = 0, rr = 0;
  const double scale = c.metric != SHOAL_COSINE && !c.scales.empty() ? c.scales[r] : 1;
  for (size_t d = 0; d < c.dims; d++) {
    const double a = c.query[q * c.dims + d], b = c.values[r * c.dims + d] * scale;
    dot += a * b, far += (a - b) * (a - b), qq += a * a, rr += b * b;
  }
  const double size = std::sqrt(qq) * std::sqrt(rr);
  // An int8 value times its scale is rounded once before the difference is taken; that error does not shrink with the
  // distance.
  if (c.metric == SHOAL_L2) return {far, far + (c.scales.empty() ? 0 : 0.05 * std::sqrt(far * rr))};
  if (c.metric == SHOAL_COSINE) return {qq < 1e-60 || rr < 1e-60 ? 0 * dot : dot / size, std::isnan(dot) ? size : 1};
  return {dot, size};
}

int fail(const char *what, const Case &c, int isa, size_t q, size_t i, double found, double expected) {
  std::printf(
      "%s: isa %s dims %zu rows %zu queries %zu k %zu threads %d dtype %d metric %d; query %zu, place %zu: %.9g, "
      "expected %.9g\n",
      what, shoal_isa_name(isa), c.dims, c.count, c.queries, c.k, c.threads, c.dtype, c.metric, q, i, found, expected);
  return 1;
}

bool is_near(const Case &c, double found, Reference expected) {
  const double allowed = c.metric == SHOAL_L2 ? 1e-5 * expected.size + 1e-30 : 1e-6 * std::max(1.0, expected.size);
  return (std::isnan(found) && std::isnan(expected.score)) || std::fabs(found - expected.score) <= allowed;
}

int check(const Case &c, int isa) {
  std::vector<float> matrix(c.queries * c.count);
  shoal_matrix(isa, c.threads, c.query.data(), c.queries, &c.rows, c.metric, matrix.data(), nullptr);
  std::vector<uint32_t> ids(c.queries * c.k), again_ids(ids);
  std::vector<double> scores(c.queries * c.k), again(scores);
  std::vector<uint32_t> found(c.queries), again_found(found);
  shoal_topk(isa, c.threads, c.query.data(), c.queries, &c.rows, c.metric, static_cast<uint32_t>(c.k), ids.data(),
             scores.data(), found.data(), nullptr);
  shoal_topk(isa, 1, c.query.data(), c.queries, &c.rows, c.metric, static_cast<uint32_t>(c.k), again_ids.data(),
             again.data(), again_found.data(), nullptr);
  if (ids != again_ids || found != again_found ||
      std::memcmp(scores.data(), again.data(), scores.size() * sizeof(double)) != 0)
    return fail("threads change the answer", c, isa, 0, 0, 0, 0);
  for (size_t q = 0; q < c.queries; q++) {
    std::vector<std::pair<double, uint64_t>> order;
    for (size_t r = 0; r < c.count; r++) {
      const Reference expected = reference(c, q, r);
      if (!is_near(c, matrix[q * c.count + r], expected))
        return fail("matrix", c, isa, q, r, matrix[q * c.count + r], expected.score);
      if (!std::isnan(expected.score)) order.push_back({c.metric == SHOAL_L2 ? expected.score : -expected.score, r});
    }
    std::sort(order.begin(), order.end());
    const size_t count = std::min(c.k, order.size());
    if (found[q] != count) return fail("number found", c, isa, q, 0, found[q], static_cast<double>(count));
    for (size_t i = 0; i < count; i++) {
      const double best = std::fabs(order[i].first), mine = reference(c, q, ids[q * c.k + i]).score;
      if (!is_near(c, scores[q * c.k + i], reference(c, q, ids[q * c.k + i])))
        return fail("score", c, isa, q, i, scores[q * c.k + i], mine);
      // Another id only where sums in another order may differ: 1e-12 of their size, far below a unit in the last place
      // of fp32.
      if (ids[q * c.k + i] != order[i].second &&
          std::fabs(std::fabs(mine) - best) > 1e-12 * std::max(best, reference(c, q, order[i].second).size) + 1e-300)
        return fail("order", c, isa, q, i, mine, best);
    }
  }
  return 0;
}

int check_rescore(Random &random, const Case &c, int isa) {
  std::vector<uint32_t> begin{0}, candidates;
  for (size_t q = 0; q < c.queries; q++) {
    for (size_t i = random() % 5; i > 0; i--) candidates.push_back(static_cast<uint32_t>(random() % c.count));
    begin.push_back(static_cast<uint32_t>(candidates.size()));
  }
  std::vector<double> scores(candidates.size());
  shoal_rescore(isa, c.threads, c.query.data(), c.queries, &c.rows, c.metric, begin.data(), candidates.data(),
                scores.data(), nullptr);
  for (size_t q = 0; q < c.queries; q++)
    for (size_t i = begin[q]; i < begin[q + 1]; i++)
      if (!is_near(c, scores[i], reference(c, q, candidates[i])))
        return fail("rescore", c, isa, q, i, scores[i], reference(c, q, candidates[i]).score);
  return 0;
}

int check_spread(Random &random) {
  const size_t nodes = pick(random, {1, 2, 7, 33, 200}), columns = pick(random, {1, 3, 4, 8, 13, 16, 17, 29}),
               steps = random() % 5;
  std::vector<uint32_t> begin{0}, source;
  std::vector<float> weight;
  std::uniform_real_distribution<float> uniform;
  for (size_t n = 0; n < nodes; n++) {
    for (size_t e = random() % 6; e > 0; e--)
      source.push_back(static_cast<uint32_t>(random() % nodes)), weight.push_back(uniform(random));
    begin.push_back(static_cast<uint32_t>(source.size()));
  }
  std::vector<float> seeds(nodes * columns, 0.0f);
  for (size_t i = 0; i < columns; i++) seeds[random() % nodes * columns + i] = 1;
  const float decay = 0.8f, threshold = 0.05f;
  std::vector<double> total(seeds.begin(), seeds.end()), last(total);
  for (size_t s = 0; s < steps; s++) {
    std::vector<double> next(total.size(), 0.0);
    for (size_t n = 0; n < nodes; n++)
      for (uint32_t e = begin[n]; e < begin[n + 1]; e++)
        for (size_t i = 0; i < columns; i++)
          // Values a rounding away from the threshold may fire on one side only: the reference asks in fp32 as well.
          if (static_cast<float>(last[source[e] * columns + i]) >= threshold)
            next[n * columns + i] += decay * weight[e] * last[source[e] * columns + i];
    for (size_t i = 0; i < total.size(); i++) total[i] += next[i];
    last = next;
  }
  const shoal_graph graph{nodes, begin.data(), source.data(), weight.data()};
  const uint64_t work = steps * (nodes + source.size());
  for (int isa = 0; isa < shoal_isa_count(); isa++) {
    std::vector<float> whole;
    for (int threads = 1; threads <= 3; threads++) {
      std::vector<float> activation(seeds), scratch(2 * seeds.size());
      // The first time all of it in one call, then in parts that may end within a step.
      const uint64_t most = threads == 1 ? work : 1 + random() % std::max<uint64_t>(1, work);
      for (uint64_t from = 0; from < work; from += most)
        shoal_spread(isa, threads, &graph, static_cast<uint32_t>(columns), from, std::min(work, from + most), decay,
                     threshold, activation.data(), scratch.data(), nullptr);
      if (threads == 1) whole = activation;
      if (std::memcmp(activation.data(), whole.data(), whole.size() * sizeof(float)) != 0)
        return std::printf("spread: isa %s, nodes %zu, columns %zu, steps %zu: other bits in parts of %zu\n",
                           shoal_isa_name(isa), nodes, columns, steps, static_cast<size_t>(most)),
               1;
      for (size_t i = 0; i < total.size(); i++)
        if (std::fabs(activation[i] - total[i]) > 1e-5 * std::max(1.0, total[i])) {
          std::printf("spread: isa %s, nodes %zu, columns %zu, steps %zu: value %zu is %.9g, expected %.9g\n",
                      shoal_isa_name(isa), nodes, columns, steps, i, activation[i], total[i]);
          return 1;
        }
    }
  }
  return 0;
}

} // namespace

/** Who asks for the best 0 rows, or of 0 rows, finds none. */
int check_nothing(int isa) {
  const float row[16] = {1};
  for (const uint32_t k : {0u, 1u}) {
    const shoal_rows rows{row, k == 0 ? 1u : 0u, 16, sizeof row, SHOAL_F32, nullptr, 1};
    uint32_t best = 7, found[2] = {7, 7};
    double score = 7;
    const float queries[32] = {1};
    shoal_topk(isa, 2, queries, 2, &rows, SHOAL_DOT, k, &best, &score, found, nullptr);
    if (found[0] != 0 || found[1] != 0 || best != 7 || score != 7)
      return std::printf("%s: found %u and %u of nothing\n", shoal_isa_name(isa), found[0], found[1]), 1;
  }
  return 0;
}

/** Callers that share threads: everything is done once, what one throws comes to its caller alone. */
int check_sharing() {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; caller++)
    callers.emplace_back([&wrong] {
      for (int i = 0; i < 2000; i++) {
        const uint64_t blocks = i % 40;
        std::atomic<uint64_t> sum{0};
        bool is_thrown = false;
        try {
          shoal::in_blocks(1 + i % 9, blocks, [&](auto next) {
            for (uint64_t block; next(&block);) {
              if (i % 100 == 99 && block == 1) throw i;
              sum += block + 1;
            }
          });
        } catch (const int thrown) {
          is_thrown = thrown == i;
        }
        const bool throws = i % 100 == 99 && blocks > 1;
        if (is_thrown != throws || (!throws && sum != blocks * (blocks + 1) / 2)) wrong++;
      }
    });
  for (std::thread &caller : callers) caller.join();
  return wrong == 0 ? 0 : (std::printf("%d pieces of work were not done once\n", wrong.load()), 1);
}

int main(int argc, char **argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 2000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  std::printf("%d cases, seed %llu, instruction sets:", cases, static_cast<unsigned long long>(seed));
  for (int isa = 0; isa < shoal_isa_count(); isa++) std::printf(" %s", shoal_isa_name(isa));
  std::printf("\n");
  for (int isa = 0; isa < shoal_isa_count(); isa++)
    if (check_nothing(isa) != 0) return 1;
  if (check_sharing() != 0) return 1;
  for (int i = 0; i < cases; i++) {
    Random random(seed + i);
    const Case c = random_case(random);
    for (int isa = 0; isa < shoal_isa_count(); isa++)
      if (check(c, isa) != 0 || check_rescore(random, c, isa) != 0) return std::printf("case %d\n", i), 1;
    if (check_spread(random) != 0) return std::printf("case %d\n", i), 1;
  }
  std::printf("%d cases passed\n", cases);
  return 0;
}
