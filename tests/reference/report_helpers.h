// Reports of runs written by hand or made up: what several tests ask of them.
#pragma once
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "reference/graph_maker.h"
#include "reports/reports.h"
#include "writers/json.h"

namespace orrery {

using Json = nlohmann::json;

// The section as the JSON writer would nest it.
inline Json json_of(const Section& s) {
  Document d;
  d.sections.push_back(s);
  return Json::parse(to_json(d))[s.key];
}

// Every rank's device, then what `see` wants of it.
template <class See>
inline void each_device(const ExecGraph& g, const Replay& r, See see) {
  const DeviceTasks tasks = device_tasks(g);
  DeviceRuns device;
  for (std::uint32_t k = 0; k < g.ranks.size(); ++k) {
    look_at_device(g, r, tasks, k, device);
    see(device);
  }
}
inline std::vector<StepTimes> times_of(const ExecGraph& g, const Replay& r) {
  const StepRows rows = *select_steps(g, {});
  std::vector<StepTimes> times(rows.size());
  each_device(g, r, [&](const DeviceRuns& d) { add_step_times(g, r, d, rows, times); });
  return times;
}
inline std::vector<IdleTimes> idle_of(const ExecGraph& g, const Replay& r) {
  std::vector<IdleTimes> times;
  each_device(g, r, [&](const DeviceRuns& d) { times.push_back(idle_times(g, r, d, *select_steps(g, {}))); });
  return times;
}
struct HandRun {  // measured = replayed unless a test changes one
  GraphMaker m;
  explicit HandRun(std::uint32_t ranks = 1, std::uint32_t lanes = 4) : m(ranks, lanes) {}
  std::vector<StepTimes> times() {
    Replay r;
    replay(m.g, r);
    return times_of(m.g, r);
  }
  ClassTimes classes() {
    m.observe();
    return times().at(0).measured_classes;
  }
};

inline void expect_classes(const ClassTimes& t, Ns exposed_compute, Ns overlapped, Ns exposed_comm, Ns other,
                           Ns memory) {
  EXPECT_EQ(t.exposed_compute, exposed_compute);
  EXPECT_EQ(t.overlapped, overlapped);
  EXPECT_EQ(t.exposed_comm, exposed_comm);
  EXPECT_EQ(t.other, other);
  EXPECT_EQ(t.memory, memory);
}

inline Ns of(const IdleTimes& t, IdleCause c) { return t.by_cause[static_cast<std::size_t>(c)]; }

// A random job as the builder makes them: one host thread (lane 0) and a worker thread (lane 1) that hand over to each
// other, launches on two streams (lanes 2 and 3), event waits, blocking synchronisations, stalls; one step round it all
// and one over a part.
GraphMaker random_job(std::mt19937_64& random, int calls);

}  // namespace orrery
