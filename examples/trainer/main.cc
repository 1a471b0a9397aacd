#include <cstdio>
#include <exception>

#include "evaluate.h"
#include "train.h"

int main(int argc, char** argv) {
  trainer::Settings settings = trainer::parse(argc, argv);
  try {
    if (!settings.evaluate.empty()) return trainer::evaluate(settings);
    if (!settings.score.empty()) return trainer::score(settings);
    if (settings.rank < 0) return trainer::run_all(settings);
    if (!settings.rendezvous.empty())
      settings.addresses.assign(static_cast<std::size_t>(settings.world), {settings.host, 0});
    const int listening = trainer::listen_at(settings.addresses[static_cast<std::size_t>(settings.rank)]);
    if (!settings.rendezvous.empty()) trainer::meet(settings);
    return trainer::run_rank(settings, settings.rank, listening, settings.addresses);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "orrery_trainer: %s\n", e.what());
    return 2;
  }
}
