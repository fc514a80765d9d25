// The arguments of one call from JavaScript, for every addon here, in plain N-API: types are checked, and the first one
// that is not what it should be throws and makes `is_bad`. Arrays stay the caller's; `hold` keeps them while something
// works on them.
#pragma once
#include <node_api.h>
#include <string>
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

  /** A number as one of this type; it is trusted to be one. */
  template <class T>
  T whole(size_t i) {
    return static_cast<T>(number(i));
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

  template <class T>
  std::vector<const T *> arrays(size_t i, size_t least) {
    std::vector<const T *> found;
    for (const napi_value element : elements(i, "an array of arrays"))
      found.push_back(array_of<T>(element, i, least, nullptr));
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
    if (!is_array || napi_get_typedarray_info(env_, value, nullptr, &found, &data, nullptr, nullptr) != napi_ok)
      refuse(i, "a typed array");
    else if (found < least)
      refuse(i, "a typed array of that length");
    if (length != nullptr) *length = found;
    return static_cast<T *>(data);
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
