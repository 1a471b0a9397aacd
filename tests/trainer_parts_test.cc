// The example trainer from inside: its gradients are those of its loss, and its sums do not depend on who adds.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <future>
#include <thread>

#include "data.h"
#include "model.h"
#include "ring.h"

namespace trainer {
namespace {

TEST(TrainerParts, GradientsAreTheSlopesOfTheLoss) {
  const Shape shape{11, 8, 2, 2, 6};
  Model model(shape);
  std::vector<float> weights = model.initial(3);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] *= 3;  // away from the flat start
  const auto tokens = sample(1, 5, shape.sequence, shape.vocabulary);
  std::vector<float> gradient(model.size(), 0), ignored(model.size(), 0);
  model.loss(weights, tokens, 1, gradient);
  for (const Parameter& p : model.parameters()) {
    // Along the gradient of one parameter: its slope is the norm, large enough to be seen in floats.
    double norm = 0;
    for (std::size_t i = p.begin; i < p.begin + p.size; ++i) norm += static_cast<double>(gradient[i]) * gradient[i];
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 1e-4) << p.name;
    const double step = 0.01;
    double at[2];
    for (const int side : {0, 1}) {
      std::vector<float> moved = weights;
      for (std::size_t i = p.begin; i < p.begin + p.size; ++i) {
        moved[i] += static_cast<float>((side == 0 ? -step : step) * gradient[i] / norm);
      }
      at[side] = static_cast<double>(model.loss(moved, tokens, 1, ignored));
    }
    EXPECT_NEAR((at[1] - at[0]) / (2 * step), norm, 0.01 * norm + 2e-4) << p.name;
  }
}

TEST(TrainerParts, AnUntrainedModelKnowsNothing) {
  const Shape shape{64, 32, 4, 2, 32};
  Model model(shape);
  std::vector<float> gradient(model.size());
  const float loss = model.loss(model.initial(1), sample(1, 0, 32, 64), 1, gradient);
  EXPECT_NEAR(loss, std::log(64.0), 0.3);
}

TEST(TrainerParts, SamplesFollowFromTheirNumber) {
  EXPECT_EQ(sample(1, 7, 32, 64), sample(1, 7, 32, 64));
  EXPECT_NE(sample(1, 7, 32, 64), sample(1, 8, 32, 64));
  EXPECT_NE(sample(1, 7, 32, 64), sample(2, 7, 32, 64));
}

void with_ring(int world, const std::function<void(Ring&)>& body) {
  std::vector<Address> addresses(static_cast<std::size_t>(world));
  std::vector<int> listening;
  for (Address& a : addresses) listening.push_back(listen_at(a));
  std::vector<std::thread> ranks;
  for (int r = 0; r < world; ++r) {
    ranks.emplace_back([&, r] {
      Ring ring(r, listening[static_cast<std::size_t>(r)], addresses, 20);
      body(ring);
    });
  }
  for (std::thread& t : ranks) t.join();
}

TEST(TrainerParts, RingsOfEverySize) {
  for (int world = 1; world <= 5; ++world) {
    with_ring(world, [world](Ring& ring) {
      for (const std::size_t n : {1u, 2u, 7u, 100'000u}) {  // fewer than ranks; more than a socket holds
        std::vector<std::int64_t> values(n);
        for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<std::int64_t>(i) * (ring.rank() + 1);
        ring.all_reduce(values);
        const std::int64_t factor = world * (world + 1) / 2;
        for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(values[i], static_cast<std::int64_t>(i) * factor);
        std::vector<float> all(n, -1);
        const auto [begin, end] = ring.share(n, ring.rank());
        for (std::size_t i = begin; i < end; ++i) all[i] = static_cast<float>(i);
        ring.all_gather(all);
        for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(all[i], static_cast<float>(i));
      }
      std::string text = ring.rank() == 0 ? std::string(3000, 'a') : "";
      ring.broadcast(text);
      ASSERT_EQ(text, std::string(3000, 'a'));
    });
  }
}

TEST(TrainerParts, ASilentPeerIsSaidToHaveBeenSoForAsLongAsItWas) {
  std::vector<Address> addresses(2);
  std::vector<int> listening;
  for (Address& a : addresses) listening.push_back(listen_at(a));
  std::promise<void> over;
  std::thread silent([&] {
    Ring ring(1, listening[1], addresses, 20);
    over.get_future().wait();
  });
  std::string said;
  {
    Ring ring(0, listening[0], addresses, 0.25);
    std::vector<std::int64_t> values(2);
    try {
      ring.all_reduce(values);
    } catch (const CommunicationError& e) {
      said = e.what();
    }
  }
  over.set_value();
  silent.join();
  const std::size_t at = said.find("ran for ");
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_GE(std::stoi(said.substr(at + 8)), 250) << said;
}

TEST(TrainerParts, AStrangerIsTurnedAway) {
  std::vector<Address> addresses(2);
  std::vector<int> listening;
  for (Address& a : addresses) listening.push_back(listen_at(a));
  Address nobody;
  const std::vector<Address> one{nobody, addresses[0]};
  std::thread stranger([&] {  // says it is rank 0 of a ring; the one before rank 0 is rank 1
    EXPECT_THROW(Ring(0, listen_at(nobody), one, 0.2), CommunicationError);
  });
  stranger.join();
  std::thread other([&] { Ring ring(1, listening[1], addresses, 20); });
  EXPECT_NO_THROW(Ring(0, listening[0], addresses, 20));
  other.join();
}

}  // namespace
}  // namespace trainer
