#include "graph_dot.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "../tensor_impl.h"
#include "node.h"

namespace sash {
namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string shape_text(DType dtype, const Shape& shape) {
  return std::string(name(dtype)) + " " + to_string(shape);
}

// The ops that `root` was made by, in the order they were recorded.
std::vector<const Node*> nodes_above(const Node* root) {
  std::vector<const Node*> nodes{root};
  std::unordered_set<const Node*> seen{root};
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Edge& edge : nodes[i]->edges) {
      if (edge.node && seen.insert(edge.node.get()).second) nodes.push_back(edge.node.get());
    }
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const Node* a, const Node* b) { return a->sequence() < b->sequence(); });
  return nodes;
}

class Drawing {
 public:
  explicit Drawing(const StateDict& names) {
    for (const auto& [name, tensor] : names) {
      if (!tensor.defined() || !tensor.requires_grad()) continue;
      const Edge edge = detail::edge_of(tensor);
      if (edge.leaf) {
        leaf_names_.emplace(edge.leaf.get(), name);
      } else {
        output_names_.emplace(std::pair(edge.node.get(), edge.output), name);
      }
    }
  }

  std::string draw(const Edge& root) {
    text_ = "digraph {\n  node [shape=box, style=filled, fillcolor=white, fontname=Helvetica]\n";
    if (root.leaf) leaf(*root.leaf);
    if (root.node) {
      const std::vector<const Node*> nodes = nodes_above(root.node.get());
      for (size_t i = 0; i < nodes.size(); ++i) op(*nodes[i], i, nodes[i] == root.node.get());
    }
    return text_ + "}\n";
  }

 private:
  void op(const Node& node, size_t number, bool last) {
    const std::string id = "op" + std::to_string(number);
    numbers_.emplace(&node, id);
    std::string label = escaped(node.name());
    for (uint32_t i = 0; i < node.outputs.size(); ++i) {
      label += "\\n";
      const auto named = output_names_.find({&node, i});
      if (named != output_names_.end()) label += escaped(named->second) + " ";
      label += shape_text(node.outputs[i].dtype, node.outputs[i].shape);
    }
    text_ +=
        "  " + id + " [label=\"" + label + "\"" + (last ? ", fillcolor=palegreen" : "") + "]\n";
    for (const Edge& edge : node.edges) {
      if (!edge) continue;
      text_ += "  " + (edge.leaf ? leaf(*edge.leaf) : numbers_.at(edge.node.get())) + " -> " + id;
      if (edge.node && edge.node->outputs.size() > 1) {
        text_ += " [label=\"output " + std::to_string(edge.output) + "\"]";
      }
      text_ += "\n";
    }
  }

  // Its id; declared on first use.
  std::string leaf(const TensorImpl& tensor) {
    const auto [at, is_new] = leaves_.emplace(&tensor, "leaf" + std::to_string(leaves_.size()));
    if (is_new) {
      const auto named = leaf_names_.find(&tensor);
      text_ += "  " + at->second + " [label=\"" +
               (named == leaf_names_.end() ? "leaf" : escaped(named->second)) + "\\n" +
               shape_text(tensor.dtype, tensor.shape) + "\", fillcolor=lightblue]\n";
    }
    return at->second;
  }

  std::unordered_map<const TensorImpl*, std::string> leaf_names_, leaves_;
  std::map<std::pair<const Node*, uint32_t>, std::string> output_names_;
  std::unordered_map<const Node*, std::string> numbers_;
  std::string text_;
};

}  // namespace

std::string graph_dot(const Tensor& output, const StateDict& names) {
  if (!output.defined() || !output.requires_grad()) {
    throw AutogradError("graph_dot", "a tensor that requires grad",
                        output.defined() ? "one without history" : "an undefined one");
  }
  return Drawing(names).draw(detail::edge_of(output));
}

}  // namespace sash
