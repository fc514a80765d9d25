// Values for JavaScript, made in its thread.
#pragma once
#include <node_api.h>
#include <initializer_list>
#include <string>
#include <vector>

namespace shoal {

inline napi_value undefined_of(napi_env env) {
  napi_value value;
  napi_get_undefined(env, &value);
  return value;
}

inline napi_value number_of(napi_env env, double number) {
  napi_value value;
  napi_create_double(env, number, &value);
  return value;
}

inline napi_value truth_of(napi_env env, bool is_true) {
  napi_value value;
  napi_get_boolean(env, is_true, &value);
  return value;
}

inline napi_value text_of(napi_env env, const std::string &words) {
  napi_value value;
  napi_create_string_utf8(env, words.c_str(), words.size(), &value);
  return value;
}

/** An array of these values. */
inline napi_value array_of(napi_env env, const std::vector<napi_value> &values) {
  napi_value array;
  napi_create_array_with_length(env, values.size(), &array);
  for (size_t i = 0; i < values.size(); i++) napi_set_element(env, array, static_cast<uint32_t>(i), values[i]);
  return array;
}

/** An Error with this message, and with this `code` unless it is empty. */
inline napi_value error_of(napi_env env, const std::string &message, const std::string &code = "") {
  napi_value error;
  napi_create_error(env, code.empty() ? nullptr : text_of(env, code), text_of(env, message), &error);
  return error;
}

struct ExportedFunction {
  const char *name;
  napi_callback function;
};

inline void export_functions(napi_env env, napi_value exports, std::initializer_list<ExportedFunction> functions) {
  for (const ExportedFunction &one : functions) {
    const napi_property_descriptor property{one.name, nullptr, one.function,    nullptr,
                                            nullptr,  nullptr, napi_enumerable, nullptr};
    napi_define_properties(env, exports, 1, &property);
  }
}

} // namespace shoal
