#include "callback.h"

namespace sash::optim {

Callback::~Callback() = default;
void Callback::on_start(Trainer&) {}
void Callback::on_step(const StepReport&) {}
void Callback::on_save(const std::string&, int64_t) {}
void Callback::on_warning(const std::string&) {}
void Callback::on_end(Trainer&) {}

}  // namespace sash::optim
