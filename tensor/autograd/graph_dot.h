#pragma once

#include <string>

#include "../io/state_dict.h"

namespace sash {

/// The recorded graph of `output` in the DOT language of Graphviz: its leaves at the top, below
/// them the ops with the shapes of their outputs, `output` last. Tensors in `names` have their
/// names there.
///
///     std::ofstream("graph.dot") << graph_dot(loss, model.named_parameters());
///     $ dot -Tsvg graph.dot -o graph.svg
///
/// `AutogradError` unless `output` requires grad. Ops are numbered in the order they were recorded:
/// the same program gives the same text.
SASH_API std::string graph_dot(const Tensor& output, const StateDict& names = {});

}  // namespace sash
