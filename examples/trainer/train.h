#pragma once
#include "settings.h"

namespace trainer {

// All of one rank's life; the exit status of its process.
int run_rank(const Settings& settings, int rank, int listening, const std::vector<Address>& addresses);

// Writes where this rank listens into the directory `rendezvous`, and waits for all others. Throws CommunicationError.
void meet(Settings& settings);

// Starts all ranks as children of this process and waits for them. A rank that fails takes the others with it.
int run_all(const Settings& settings);

}  // namespace trainer
