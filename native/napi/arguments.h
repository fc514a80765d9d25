// The arguments of one call from JavaScript, for every addon here, in plain N-API: presence, types, ranges, lengths and
// alignment are checked before anything is touched, and the first one that is not what it should be throws (TypeError,
// or RangeError for a value that cannot be) and makes `is_bad`. Arrays stay the caller's; `hold` keeps them while
// something works on them.
#pragma once
#include <node_api.h>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace shoal {

class Arguments {
 public:
  bool is_bad = false;

  Arguments(napi_env env, napi_callback_info info) : env_(env) {
    napi_get_cb_info(env, info, &count_, values_, nullptr, nullptr);
  }

  double number(size_t i) {
    double value = 0;
    if (i >= count_ || napi_get_value_double(env_, values_[i], &value) != napi_ok) refuse(i, "a number");
    return value;
  }

  /** A whole number from `least` to `most`, which this type has; 0 when it is refused. */
  template <class T>
  T whole(size_t i, double least = static_cast<double>(std::numeric_limits<T>::lowest()), double most = most_of<T>()) {
    const double value = number(i);
    if (!is_bad && !(std::floor(value) == value && value >= least && value <= most))
      refuse_range(i, "a whole number that can be there");
    return is_bad ? T(0) : static_cast<T>(value);
  }

  /** A number that is not NaN. */
  float real(size_t i) {
    const double value = number(i);
    if (!is_bad && std::isnan(value)) refuse_range(i, "a number other than NaN");
    return is_bad ? 0 : static_cast<float>(value);
  }

  bool truth(size_t i) {
    bool value = false;
    if (i >= count_ || napi_get_value_bool(env_, values_[i], &value) != napi_ok) refuse(i, "true or false");
    return value;
  }

  std::string text(size_t i) { return text_of(raw(i), i); }

  std::vector<std::string> texts(size_t i) {
    std::vector<std::string> found;
    for (const napi_value element : elements(i, "an array of strings")) found.push_back(text_of(element, i));
    return found;
  }

  /** An array of at least so many elements; how many there are is put into `length`. */
  template <class T>
  T *array(size_t i, size_t least = 0, size_t *length = nullptr) {
    return array_of<T>(raw(i), i, least, length);
  }

  /** `count` arrays, the one at `at` of at least `least(at)` elements. */
  template <class T, class Least>
  std::vector<const T *> arrays(size_t i, uint64_t count, const Least &least) {
    std::vector<const T *> found;
    const std::vector<napi_value> given = elements(i, "an array of arrays");
    if (!is_bad && given.size() != count) refuse_range(i, "as many arrays as there have to be");
    for (size_t at = 0; at < given.size() && !is_bad; at++)
      found.push_back(array_of<T>(given[at], i, least(at), nullptr));
    return found;
  }

  /** Null for null and undefined. */
  template <class T>
  T *array_or_null(size_t i) {
    napi_valuetype type = napi_undefined;
    napi_typeof(env_, raw(i), &type);
    return type == napi_null || type == napi_undefined ? nullptr : array<T>(i);
  }

  /** What an external points to. */
  template <class T>
  T *external(size_t i, const char *wanted) {
    napi_valuetype type = napi_undefined;
    void *data = nullptr;
    napi_typeof(env_, raw(i), &type);
    if (type != napi_external || napi_get_value_external(env_, raw(i), &data) != napi_ok)
      return refuse(i, wanted), nullptr;
    return static_cast<T *>(data);
  }

  /** The argument as it is, for those who read it themselves; undefined when it is missing. */
  napi_value raw(size_t i) {
    napi_value value;
    if (i < count_) return values_[i];
    napi_get_undefined(env_, &value);
    return value;
  }

  /** Throws in JavaScript, once. */
  void refuse(size_t i, const char *wanted) {
    if (!is_bad) napi_throw_type_error(env_, nullptr, ("argument " + std::to_string(i) + " is not " + wanted).c_str());
    is_bad = true;
  }

  /** As `refuse`, for a value of the right type that cannot be there. */
  void refuse_range(size_t i, const char *wanted) {
    if (!is_bad) napi_throw_range_error(env_, nullptr, ("argument " + std::to_string(i) + " is not " + wanted).c_str());
    is_bad = true;
  }

  /** Keeps all arguments alive until the reference is deleted. */
  napi_ref hold() {
    napi_value all;
    napi_ref held;
    napi_create_array_with_length(env_, count_, &all);
    for (size_t i = 0; i < count_; i++) napi_set_element(env_, all, static_cast<uint32_t>(i), values_[i]);
    napi_create_reference(env_, all, 1, &held);
    return held;
  }

 protected:
  napi_env env_;

 private:
  static constexpr size_t MOST = 20;

  /** Whole numbers above 2^53 are not told apart by JavaScript. */
  template <class T>
  static constexpr double most_of() {
    return sizeof(T) < 8 ? static_cast<double>(std::numeric_limits<T>::max()) : 9007199254740991.0;
  }

  /** Bytes may lie in any array; everything else in one of its own kind. */
  template <class T>
  static bool is_kind(napi_typedarray_type type) {
    typedef typename std::remove_const<T>::type Element;
    if (sizeof(Element) == 1)
      return type == napi_uint8_array || type == napi_int8_array || type == napi_uint8_clamped_array;
    if (std::is_same<Element, float>::value) return type == napi_float32_array;
    if (std::is_same<Element, double>::value) return type == napi_float64_array;
    if (sizeof(Element) == 2) return type == napi_uint16_array || type == napi_int16_array;
    return sizeof(Element) == 4 && (type == napi_uint32_array || type == napi_int32_array);
  }

  std::string text_of(napi_value value, size_t i) {
    size_t length = 0;
    if (napi_get_value_string_utf8(env_, value, nullptr, 0, &length) != napi_ok) return refuse(i, "a string"), "";
    std::string found(length, '\0');
    napi_get_value_string_utf8(env_, value, &found[0], length + 1, &length);
    return found;
  }

  template <class T>
  T *array_of(napi_value value, size_t i, size_t least, size_t *length) {
    bool is_array = false;
    size_t found = 0;
    void *data = nullptr;
    napi_is_typedarray(env_, value, &is_array);
    napi_typedarray_type type = napi_uint8_array;
    if (!is_array || napi_get_typedarray_info(env_, value, &type, &found, &data, nullptr, nullptr) != napi_ok)
      refuse(i, "a typed array");
    else if (!is_kind<T>(type))
      refuse(i, "a typed array of that kind");
    else if (found < least || (found > 0 && data == nullptr))
      refuse_range(i, "a typed array of that length");
    else if (reinterpret_cast<uintptr_t>(data) % alignof(T) != 0)
      refuse_range(i, "aligned to its elements");
    if (length != nullptr) *length = is_bad ? 0 : found;
    return is_bad ? nullptr : static_cast<T *>(data);
  }

  std::vector<napi_value> elements(size_t i, const char *wanted) {
    uint32_t length = 0;
    if (napi_get_array_length(env_, raw(i), &length) != napi_ok) return refuse(i, wanted), std::vector<napi_value>();
    std::vector<napi_value> found(length);
    for (uint32_t at = 0; at < length; at++) napi_get_element(env_, raw(i), at, &found[at]);
    return found;
  }

  size_t count_ = MOST;
  napi_value values_[MOST];
};

} // namespace shoal
