#include "../kernels/update_rules.h"

namespace sash::kernels {

constinit RuleKernel<LionSettings> lion_step{"lion_step"};
constinit RuleKernel<RmspropSettings> rmsprop_step{"rmsprop_step"};
constinit RuleKernel<MuonSettings> muon_direction{"muon_direction"};
constinit RuleKernel<DecayedStepSettings> decayed_step{"decayed_step"};

}  // namespace sash::kernels
