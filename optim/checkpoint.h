#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "../nn/data/loader.h"
#include "../nn/module.h"
#include "grad_scaler.h"
#include "optimizer.h"

namespace sash::optim {

/// Contents of a checkpoint besides model, optimizer and random state.
struct CheckpointInfo {
  int64_t step = 0;
  std::map<std::string, std::string> extra{};  ///< strings of the caller, such as settings
};

/// Writes one safetensors file from which training continues bit for bit.
///
/// It has `model.*`, `optimizer.*` and, with a scaler, `scaler.*` tensors; the optimizer's kind,
/// seed and offset of each device's generator, the step, `extra` and, with a loader, its place as
/// metadata. The caller saves its own `Generator`s (`Generator::state`). Atomic: if it fails, the
/// old file at `path` stays. `IoError` if it cannot be written.
SASH_API void save_checkpoint(const std::string& path, const nn::Module& model,
                              const Optimizer& optimizer, const CheckpointInfo& info = {},
                              const GradScaler* scaler = nullptr,
                              const nn::data::Loader* loader = nullptr);

/// The information in such a file, such as settings to build its model with; reads the header only.
/// `IoError` or `FormatError` for a file that is not a checkpoint.
SASH_API CheckpointInfo checkpoint_info(const std::string& path);

/// Loads a checkpoint into a model and an optimizer made with the same arguments, and restores the
/// generators of all devices. States of devices that are missing here stay in memory and are saved
/// again. On a device without a saved state, random numbers start from the seed. A file of an
/// earlier version has one state, for all devices. `IoError` or `FormatError` for a file that is
/// not a checkpoint. `ValueError` if it belongs to another model, kind of optimizer or dataset, or
/// if only one of file and call has a scaler or loader; nothing is changed then. The optimizer's
/// parameters are identified by their order alone, as in PyTorch: if two parameters of one shape
/// swap their order, there is no error.
SASH_API CheckpointInfo load_checkpoint(const std::string& path, nn::Module& model,
                                        Optimizer& optimizer, GradScaler* scaler = nullptr,
                                        nn::data::Loader* loader = nullptr);

/// Loads the model only, from a file of `save_checkpoint`, or from any file whose keys are the
/// model's, with or without the prefix "model.".
SASH_API void load_model(const std::string& path, nn::Module& model);

}  // namespace sash::optim
