#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "../nn/data/loader.h"
#include "../nn/module.h"
#include "grad_scaler.h"
#include "optimizer.h"

namespace sash::optim {

/// What a checkpoint holds besides model, optimizer and random state.
struct CheckpointInfo {
  int64_t step = 0;
  std::map<std::string, std::string> extra{};  ///< the caller's own, such as settings
};

/// Writes one safetensors file from which training continues bit for bit.
///
/// It has `model.*`, `optimizer.*` and, with a scaler, `scaler.*` tensors; the optimizer's kind,
/// seed and offset of each device's generator, the step, `extra` and, with a loader, its place as
/// metadata. A `Generator` of the caller's own is the caller's to save (`Generator::state`).
/// Atomic: on failure `path` keeps the old file. `IoError` if it cannot be written.
SASH_API void save_checkpoint(const std::string& path, const nn::Module& model,
                              const Optimizer& optimizer, const CheckpointInfo& info = {},
                              const GradScaler* scaler = nullptr,
                              const data::Loader* loader = nullptr);

/// The information in such a file, such as settings to build its model with; reads the header only.
/// `IoError` or `FormatError` for a file that is no checkpoint.
SASH_API CheckpointInfo checkpoint_info(const std::string& path);

/// Reads such a file back into a model and an optimizer made alike, and restores the generators of
/// all devices. States of devices that are not here are kept, and saved again; a program that goes
/// on where the other did not draw starts that device's numbers from the seed. A file of an earlier
/// version has one state, for all devices.
/// `IoError` or `FormatError` for a file that is no checkpoint, `ValueError` if it is one of
/// another model, kind of optimizer or dataset, or with a scaler or loader where there is none
/// here, or the reverse; nothing is changed then. The optimizer's parameters are known by their
/// place alone, as in PyTorch: two of one shape that changed places are not told apart.
SASH_API CheckpointInfo load_checkpoint(const std::string& path, nn::Module& model,
                                        Optimizer& optimizer, GradScaler* scaler = nullptr,
                                        data::Loader* loader = nullptr);

/// The model alone, from a file of `save_checkpoint`, or one whose keys are the model's own, or
/// those after "model.".
SASH_API void load_model(const std::string& path, nn::Module& model);

}  // namespace sash::optim
