#include <sash/ops/linalg/einsum.h>
#include <sash/ops/linalg/matmul.h>

#include <map>

#include "../cases.h"

namespace sash::testing {
namespace {

/// By loops over all letters of an equation without "...".
Array loops(const std::string& equation, const Arrays& operands) {
  const size_t arrow = equation.find("->");
  std::vector<std::string> terms(1);
  for (const char c : equation.substr(0, arrow)) {
    if (c == ',') {
      terms.emplace_back();
    } else {
      terms.back() += c;
    }
  }
  const std::string result = equation.substr(arrow + 2);
  std::string letters;
  Shape extents;
  for (size_t i = 0; i < terms.size(); ++i) {
    for (size_t axis = 0; axis < terms[i].size(); ++axis) {
      const int64_t extent = operands[i].shape[static_cast<int>(axis)];
      const size_t at = letters.find(terms[i][axis]);
      if (at == std::string::npos) {
        letters += terms[i][axis];
        extents.push_back(extent);
      } else if (extent != 1) {
        extents[static_cast<int>(at)] = extent;
      }
    }
  }
  const auto picked = [&](const std::string& term, const Index& at) {
    Index index;
    for (const char c : term) index.push_back(at[static_cast<int>(letters.find(c))]);
    return index;
  };
  Array y(picked(result, extents));
  for_each_index(extents, [&](const Index& at) {
    double product = 1;
    for (size_t i = 0; i < terms.size(); ++i)
      product *= operands[i].broadcast(picked(terms[i], at));
    y[picked(result, at)] += product;
  });
  return y;
}

/// `plain` is the equation without "...", spaces and an implied result.
void add_case(OpTable& table, const std::string& equation, const std::vector<InputSpec>& inputs,
              std::string plain = "") {
  if (plain.empty()) plain = equation;
  std::string shapes;
  for (const InputSpec& input : inputs) shapes += " " + describe(input);
  table.push_back({
      .op = "einsum",
      .variant = equation + shapes,
      .inputs = inputs,
      .run = [=](const Tensors& t) { return einsum(equation, t); },
      .reference = [=](const Arrays& t) { return loops(plain, t); },
      .half_rounds = 3,
      .half_gradient_rounds = 4,
      .half_gradient_scale = 4,
  });
}

void add_bmm(OpTable& table, const InputSpec& a, const InputSpec& b) {
  table.push_back({
      .op = "bmm",
      .variant = describe(a) + " and " + describe(b),
      .inputs = {a, b},
      .run = [](const Tensors& t) { return bmm(t[0], t[1]); },
      .reference = [](const Arrays& t) { return matmul(t[0], t[1]); },
  });
}

}  // namespace

void add_einsum(OpTable& table) {
  add_case(table, "ij,jk->ik", {{{3, 4}}, {{4, 5}}});
  add_case(table, "ij , jk", {{{3, 4}}, {{4, 5}}}, "ij,jk->ik");
  add_case(table, "ba", {{{3, 4}}}, "ba->ab");
  add_case(table, "i,i->", {{{7}}, {{7}}});
  add_case(table, "i,j->ij", {{{3}}, {{4}}});
  add_case(table, "ij,ij->ij", {{{3, 4}, transposed}, {{3, 4}}});
  add_case(table, "ij->", {{{3, 4}}});
  add_case(table, "ij->j", {{{3, 4}, sliced}});
  add_case(table, "ii->i", {{{4, 4}}});
  add_case(table, "iji->j", {{{3, 2, 3}}});
  add_case(table, "ii", {{{4, 4}}}, "ii->");
  add_case(table, "bhqd,bhkd->bhqk", {{{2, 2, 3, 2}, heads}, {{2, 2, 4, 2}, heads}});
  add_case(table, "bqhd,bkhd->bhqk", {{{2, 3, 2, 2}}, {{2, 4, 2, 2}}});
  add_case(table, "bhqk,bkhd->bqhd", {{{2, 2, 3, 4}}, {{2, 4, 2, 3}}});
  add_case(table, "...ij,...jk->...ik", {{{2, 3, 4}}, {{4, 2}}}, "aij,jk->aik");
  add_case(table, "i...,i...->...", {{{3, 2, 2}}, {{3, 1, 2}}}, "iab,iab->ab");
  add_case(table, "...->...", {{{2, 3}}}, "ab->ab");
  add_case(table, "ab,bc,cd->ad", {{{2, 5}}, {{5, 3}}, {{3, 4}}});
  add_case(table, "ai,bi,ci->abc", {{{2, 3}}, {{3, 3}}, {{2, 3}}});
  add_case(table, "ij,jk,k->i", {{{3, 4}}, {{4, 2}}, {{2}}});
  add_case(table, "bij,bkl->bi", {{{2, 3, 2}}, {{2, 2, 3}}});
  add_case(table, "ij,jk->ik", {{{3, 1}}, {{4, 5}}});
  add_case(table, "ij,jk->ik", {{{3, 0}}, {{0, 5}}});
  add_case(table, "ij,jk->ki", {{{65, 33}}, {{33, 70}}});
  add_bmm(table, {{2, 3, 4}}, {{2, 4, 5}});
  add_bmm(table, {{3, 2, 5}, transposed}, {{3, 5, 2}, sliced});
  add_bmm(table, {{0, 2, 3}}, {{0, 3, 2}});
  add_bmm(table, {{2, 65, 17}}, {{2, 17, 33}, transposed});
}

}  // namespace sash::testing
