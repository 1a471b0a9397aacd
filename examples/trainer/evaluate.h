// Evaluation of the example's model: what a suite's inference and metric would be, small and real.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "settings.h"

namespace trainer {

// Loads the weights at settings.evaluate (a checkpoint's directory, or a safetensors file), then computes for each
// piece of settings.work the loss of every item: made text, another one for each dataset. A line an item, in a file
// that appears whole. Throws what can be said in one line.
int evaluate(const Settings& settings);

// Mean loss and perplexity over files of `evaluate`, with an interval by resampling: real work for a CPU, more of it
// with settings.resamples.
int score(const Settings& settings);

}  // namespace trainer
