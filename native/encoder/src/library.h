// An encoder library (encoder.h) opened at run time. Refuses one of another ABI: what it calls a model may lie
// differently in memory.
#pragma once
#include <dlfcn.h>
#include <stdexcept>
#include <string>
#include <type_traits>
#include "../include/encoder.h"

namespace shoal {

struct Library {
  decltype(&shoal_encoder_abi) abi;
  decltype(&shoal_encoder_error) error;
  decltype(&shoal_encoder_devices) devices;
  decltype(&shoal_encoder_open) open;
  decltype(&shoal_encoder_prepare) prepare;
  decltype(&shoal_encoder_run) run;
  decltype(&shoal_encoder_memory) memory;
  decltype(&shoal_encoder_weight_bytes) weight_bytes;
  decltype(&shoal_encoder_lane_bytes) lane_bytes;
  decltype(&shoal_encoder_shrink) shrink;
  decltype(&shoal_encoder_close) close;
  decltype(&shoal_encoder_profile) profile;
  decltype(&shoal_encoder_peak) peak;

  /** Stays open as long as the process: code that a device may still run is never unloaded. */
  explicit Library(const std::string &path) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
    find(abi, "shoal_encoder_abi");
    if (abi() != SHOAL_ENCODER_ABI)
      throw std::runtime_error(path + " speaks version " + std::to_string(abi()) +
                               " of the encoder's interface, this is version " + std::to_string(SHOAL_ENCODER_ABI) +
                               ": build both from one source");
    find(error, "shoal_encoder_error"), find(devices, "shoal_encoder_devices"), find(open, "shoal_encoder_open"),
        find(prepare, "shoal_encoder_prepare"), find(run, "shoal_encoder_run");
    find(memory, "shoal_encoder_memory"), find(weight_bytes, "shoal_encoder_weight_bytes"),
        find(lane_bytes, "shoal_encoder_lane_bytes"), find(shrink, "shoal_encoder_shrink");
    find(close, "shoal_encoder_close"), find(profile, "shoal_encoder_profile"), find(peak, "shoal_encoder_peak");
  }

  template <class Function>
  bool look_for(Function &function, const char *name) const {
    function = reinterpret_cast<std::remove_reference_t<Function>>(dlsym(handle_, name));
    return function != nullptr;
  }

 private:
  template <class Function>
  void find(Function &function, const char *name) {
    if (!look_for(function, name)) throw std::runtime_error(std::string("the encoder's library has no ") + name);
  }

  void *handle_ = nullptr;
};

} // namespace shoal
