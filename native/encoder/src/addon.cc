// An encoder library as a Node addon, in plain N-API. What is exported is declared in
// libs/inference/src/encoder-addon.ts; numbers and lengths are checked before the library sees them. Buffers are the
// caller's, are held until their run has ended, and results are written into them.
#include <node_api.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include "../../napi/arguments.h"
#include "checksum.h"
#include "halves.h"
#include "served_encoder.h"

namespace {

using shoal::Batch;
using shoal::Encoder;
using shoal::Job;
using shoal::Sizes;

class Call : public shoal::Arguments {
 public:
  using Arguments::Arguments;

  /** Ten sizes of the model and three of the encoder, in the order of encoder.h. */
  Sizes sizes(size_t i) {
    Sizes sizes{};
    const double *v = array<double>(i, 13);
    if (is_bad) return sizes;
    for (int at = 0; at < 13; at++)
      if (!(v[at] >= 0 && v[at] <= (at == 12 ? 9007199254740991.0 : 2147483647.0)))
        return refuse_range(i, "thirteen sizes"), sizes;
    const auto whole = [v](int at) { return static_cast<int32_t>(v[at]); };
    sizes.model = {whole(0), whole(1), whole(2), whole(3), whole(4), whole(5), static_cast<float>(v[6]),
                   whole(7), whole(8), whole(9)};
    sizes.options = {whole(10), whole(11), static_cast<uint64_t>(v[12])};
    return sizes;
  }

  std::shared_ptr<Encoder> encoder(size_t i) {
    const auto *shared = external<std::shared_ptr<Encoder>>(i, "an encoder");
    return shared == nullptr ? nullptr : *shared;
  }

  /** One that is in this state: what is asked for later would never be answered, or have no model. */
  std::shared_ptr<Encoder> encoder(size_t i, Encoder::State state, const char *wanted) {
    const auto found = encoder(i);
    if (!is_bad && found->state != state) refuse_range(i, wanted);
    return found;
  }

  /** What the library reads of each weight, in the order of encoder.h. */
  std::vector<const float *> weights(size_t i, const shoal_encoder_model &model) {
    const auto of = [](int32_t size) { return static_cast<size_t>(size); };
    const size_t hidden = of(model.hidden), wide = of(model.intermediate);
    const uint64_t count = SHOAL_EMBEDDING_WEIGHTS + static_cast<uint64_t>(model.layers) * SHOAL_LAYER_WEIGHTS;
    return arrays<float>(i, count, [&](size_t at) -> size_t {
      if (at == SHOAL_WORDS) return of(model.vocabulary) * hidden;
      if (at == SHOAL_POSITIONS) return of(model.positions) * hidden;
      if (at < SHOAL_EMBEDDING_WEIGHTS) return hidden;
      switch ((at - SHOAL_EMBEDDING_WEIGHTS) % SHOAL_LAYER_WEIGHTS) {
        case SHOAL_QUERY:
        case SHOAL_KEY:
        case SHOAL_VALUE:
        case SHOAL_OUTPUT:
          return hidden * hidden;
        case SHOAL_WIDE:
        case SHOAL_NARROW:
          return wide * hidden;
        case SHOAL_WIDE_BIAS:
          return wide;
        default:
          return hidden;
      }
    });
  }

  /** A job whose promise is returned; the arguments are held until it is settled. */
  Job *job(napi_value *promise) {
    Job *job = new Job;
    *promise = job->promise.begin(env_);
    job->promise.hold(hold());
    return job;
  }

  /** A promise that `work` fulfils in one of the encoder's streams. */
  napi_value promise(const std::shared_ptr<Encoder> &encoder, std::function<void(Job &, int32_t stream)> work,
                     bool is_urgent = false) {
    if (is_bad) return nullptr;
    napi_value promise;
    Job *job = this->job(&promise);
    job->work = std::move(work);
    encoder->ask(job, is_urgent);
    return promise;
  }
};

/** encoder(library): throws where the library cannot be opened. */
napi_value make_encoder(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const std::string path = call.text(0);
  if (call.is_bad) return nullptr;
  try {
    napi_value external;
    auto *shared = new std::shared_ptr<Encoder>(new Encoder(env, path));
    napi_create_external(
        env, shared, [](napi_env, void *data, void *) { delete static_cast<std::shared_ptr<Encoder> *>(data); },
        nullptr, &external);
    return external;
  } catch (const std::exception &error) {
    return napi_throw_error(env, nullptr, error.what()), nullptr;
  }
}

/** devices(library): how many can be used, and why there are none; throws where the library cannot be opened. */
napi_value devices(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const std::string path = call.text(0);
  if (call.is_bad) return nullptr;
  try {
    const shoal::Library library(path);
    const int count = library.devices();
    return shoal::array_of(env, {shoal::number_of(env, count), shoal::text_of(env, count > 0 ? "" : library.error())});
  } catch (const std::exception &error) {
    return napi_throw_error(env, nullptr, error.what()), nullptr;
  }
}

/** open(encoder, sizes, weights, preparedTokens) */
napi_value open(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0, Encoder::State::fresh, "an encoder that was not opened before");
  const Sizes sizes = call.sizes(1);
  const std::vector<const float *> weights = call.weights(2, sizes.model);
  const uint64_t tokens = call.whole<uint64_t>(3, 0);
  if (call.is_bad) return nullptr;
  encoder->state = Encoder::State::open;
  encoder->hidden = static_cast<size_t>(sizes.model.hidden);
  return call.promise(encoder, [encoder = encoder.get(), sizes, weights, tokens](Job &self, int32_t) {
    encoder->note(self, encoder->open(sizes, weights, tokens));
    encoder->tell_memory(self);
  });
}

/** run(encoder, ids, lengths, embeddings, rows, width, isUrgent): [milliseconds, bytes of weights, of streams, most of
 * streams] */
napi_value run(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0, Encoder::State::open, "an encoder that is open");
  const int32_t rows = call.whole<int32_t>(4, 1), width = call.whole<int32_t>(5, 1, 1 << 20);
  const bool is_urgent = call.truth(6);
  const int32_t *ids = call.array<int32_t>(1, static_cast<size_t>(rows) * static_cast<size_t>(width)),
                *lengths = call.array<int32_t>(2, static_cast<size_t>(rows));
  float *embeddings = call.array<float>(3, call.is_bad ? 0 : static_cast<size_t>(rows) * encoder->hidden);
  return call.promise(
      encoder,
      [batch = Batch{ids, lengths, rows, width}, embeddings, encoder = encoder.get()](Job &self, int32_t stream) {
        encoder->run(self, stream, batch, embeddings);
      },
      is_urgent);
}

/** shrink(encoder): [bytes of weights, of streams, most of streams] */
napi_value shrink(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0, Encoder::State::open, "an encoder that is open");
  return call.promise(
      encoder,
      [encoder = encoder.get()](Job &self, int32_t) {
        if (encoder->is_open(self)) encoder->note(self, encoder->library.shrink(encoder->encoder));
        encoder->tell_memory(self);
      },
      true);
}

/** close(encoder): after everything that was asked before. */
napi_value close(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0);
  if (!call.is_bad && encoder->state == Encoder::State::closed) call.refuse_range(0, "an encoder that is not closed");
  if (call.is_bad) return nullptr;
  encoder->state = Encoder::State::closed;
  napi_value promise;
  encoder->close(call.job(&promise));
  return promise;
}

/** bytes(encoder, sizes, tokens, rows): of a stream; of the weights where tokens is 0. */
napi_value bytes(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0);
  const Sizes sizes = call.sizes(1);
  const uint64_t tokens = call.whole<uint64_t>(2, 0), rows = call.whole<uint64_t>(3, 0);
  if (call.is_bad) return nullptr;
  const shoal::Library &library = encoder->library;
  const uint64_t bytes =
      tokens == 0 ? library.weight_bytes(&sizes.model)
                  : library.lane_bytes(&sizes.model, static_cast<uint64_t>(tokens), static_cast<uint64_t>(rows));
  return shoal::number_of(env, static_cast<double>(bytes));
}

/** runningMs(encoder): how long the longest run that goes on has taken so far; 0 when idle. */
napi_value running_ms(napi_env env, napi_callback_info info) {
  Call call(env, info);
  const auto encoder = call.encoder(0);
  return call.is_bad ? nullptr : shoal::number_of(env, encoder->running_ms());
}

/** halves(values, halves): whether there is an instruction for that; `halves` has room for as many. */
napi_value halves(napi_env env, napi_callback_info info) {
  Call call(env, info);
  size_t count = 0;
  const float *const values = call.array<float>(0, 0, &count);
  uint16_t *const to = call.array<uint16_t>(1, count);
  if (call.is_bad) return nullptr;
  if (shoal::has_halves()) shoal::to_halves(values, to, count);
  return shoal::truth_of(env, shoal::has_halves());
}

/** checksum(bytes): their CRC-32, or undefined where there is no instruction for that. */
napi_value checksum(napi_env env, napi_callback_info info) {
  Call call(env, info);
  size_t count = 0;
  const uint8_t *const bytes = call.array<uint8_t>(0, 0, &count);
  if (call.is_bad || !shoal::has_checksum()) return nullptr;
  return shoal::number_of(env, shoal::checksum(bytes, count));
}

} // namespace

NAPI_MODULE_INIT() {
  shoal::export_functions(env, exports,
                          {{"encoder", make_encoder},
                           {"devices", devices},
                           {"open", open},
                           {"run", run},
                           {"shrink", shrink},
                           {"close", close},
                           {"bytes", bytes},
                           {"runningMs", running_ms},
                           {"halves", halves},
                           {"checksum", checksum}});
  return exports;
}
