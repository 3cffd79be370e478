// A generator learns eight points on a circle from a critic whose gradient is held at length 1
// (Gulrajani et al., "Improved training of Wasserstein GANs", 2017). The penalty's own gradient is
// a second derivative. About 90 % of what it draws then lies at one of the points, and all are hit.
#include <cstdio>
#include <numbers>

#include <sash/sash.h>

#include "support/flags.h"

using namespace sash;

namespace {

constexpr int kPoints = 8, kBatch = 256, kNoise = 4, kCriticSteps = 5;
constexpr double kSpread = 0.1;  // of samples around a point, all of which have norm 2

nn::Sequential net(int64_t in, int64_t out) {
  return nn::Sequential(nn::Linear(in, 64), nn::ReLU(), nn::Linear(64, 64), nn::ReLU(),
                        nn::Linear(64, out));
}

// [kPoints, 2].
Tensor points() {
  const Tensor angle = arange(kPoints) * (2 * std::numbers::pi / kPoints);
  return 2 * stack({cos(angle), sin(angle)}, 1);
}

Tensor draw_data() {
  return index_select(points(), 0, randint(0, kPoints, {kBatch})) + kSpread * randn({kBatch, 2});
}

// Mean of (|gradient of the critic| - 1)^2 between real and generated samples.
Tensor gradient_penalty(nn::Module& critic, const Tensor& real, const Tensor& fake) {
  const Tensor x = (real + rand({kBatch, 1}) * (fake - real)).requires_grad_();
  const Tensor g = grad({critic(x).sum()}, {x}, {}, {.create_graph = true})[0];
  return square(g.norm(2, {1}) - 1).mean();
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 3000;
  double least = 0;
  Flags flags("Trains a generator with a critic under a gradient penalty.");
  flags.add("--steps", steps, "Of the generator");
  flags.add("--least", least, "Percent of samples at a point, below which the run fails");
  return flags.run(argc, argv, [&] {
    nn::Sequential generator = net(kNoise, 2), critic = net(2, 1);
    optim::Adam generator_adam(generator.parameters(), {.lr = 1e-3, .beta1 = 0.5, .beta2 = 0.9});
    optim::Adam critic_adam(critic.parameters(), {.lr = 1e-3, .beta1 = 0.5, .beta2 = 0.9});
    for (int step = 1; step <= steps; ++step) {
      Tensor distance, penalty;
      for (int i = 0; i < kCriticSteps; ++i) {
        const Tensor real = draw_data(), fake = generator(randn({kBatch, kNoise})).detach();
        distance = critic(real).mean() - critic(fake).mean();
        penalty = gradient_penalty(critic, real, fake);
        critic_adam.zero_grad();
        (10 * penalty - distance).backward();
        critic_adam.step();
      }
      generator_adam.zero_grad();
      (-critic(generator(randn({kBatch, kNoise}))).mean()).backward();
      generator_adam.step();
      if (step % 100 == 0) {
        std::printf("step %4d  distance %.4f  penalty %.4f\n", step, distance.item<double>(),
                    penalty.item<double>());
      }
    }

    const NoGradGuard no_grad;
    const Tensor drawn = generator(randn({2000, kNoise}));
    const Chosen nearest = min((drawn.unsqueeze(1) - points()).norm(2, {2}), 1);
    const double near = lt(nearest.values, 4 * kSpread).to(default_dtype()).mean().item<double>();
    const double hit = any(one_hot(nearest.indices, kPoints), {0}).sum().item<double>();
    std::printf("%.1f %% of samples near a point, %.0f of %d points hit\n", 100 * near, hit,
                kPoints);
    return 100 * near >= least ? 0 : 1;
  });
}
