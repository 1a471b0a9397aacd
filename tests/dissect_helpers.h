// Traces for the tests of `dissect`: operators with shapes and sequence numbers, Python frames, and a rank taken apart.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "reports/dissect.h"
#include "trace_builder.h"

namespace orrery::testing {

class DissectBuilder : public TraceBuilder {
 public:
  using TraceBuilder::TraceBuilder;

  struct Said {
    std::int64_t sequence = -1;
    std::string_view dims = "", types = "", inputs = "";
  };
  // An operator of the current thread that says something of itself.
  OpId says(std::string_view name, double ts, double dur, const Said& said) {
    OpArgs& a = t.op_args;
    a.sequence.push_back(said.sequence);
    a.fwd_thread.push_back(0);
    a.input_dims.push_back(t.strings.intern(said.dims));
    a.input_types.push_back(t.strings.intern(said.types));
    a.concrete_inputs.push_back(t.strings.intern(said.inputs));
    a.comm.push_back(kNone);
    return row(OpKind::cpu_op, name, thread_lane(thread_now), ts, dur, 0, static_cast<std::uint32_t>(a.size() - 1));
  }
  DissectBuilder& thread(std::int64_t n) {
    thread_now = n;
    on(n);
    return *this;
  }
  OpId frame(std::string_view name, double ts, double dur) {
    return row(OpKind::python, name, thread_lane(thread_now), ts, dur);
  }
  OpId module(const std::string& name, double ts, double dur) { return frame("nn.Module: " + name, ts, dur); }
  // A kernel of stream 7 from `start` to `end`, launched by a call at `at` of 1 us.
  OpId run(std::string_view kernel, double at, double start, double end, std::int64_t stream = 7) {
    return launched(kernel, at, 1, stream, start, end - start);
  }

 private:
  std::int64_t thread_now = 1;
};

struct Taken {  // a trace and what dissect_rank makes of it
  RankTrace trace;
  Dissection d;
  // One step, microseconds.
  Taken(DissectBuilder b, double begin, double end) : Taken(std::move(b), {{us(begin), us(end)}}) {}
  Taken(DissectBuilder b, const std::vector<Interval>& steps)
      : trace(b.finish()), d(dissect_rank(trace, steps, steps, {})) {}
  Taken(const Taken&) = delete;

  const DissectedTask& task(std::string_view kernel) const {
    for (const DissectedTask& x : d.tasks)
      if (trace.name_of(OpId{x.row}) == kernel) return x;
    ADD_FAILURE() << "no task " << kernel;
    return d.tasks.front();
  }
  std::string phase(std::string_view kernel) const { return std::string(name_of(task(kernel).phase)); }
  std::string module(std::string_view kernel) const { return d.modules[task(kernel).module]; }
  double own(std::string_view kernel) const { return to_us(task(kernel).exclusive); }
  double host(Phase p) const { return to_us(d.host[static_cast<std::size_t>(p)]); }
  // Everything is the steps'.
  void expect_whole() const {
    Ns gpu = d.idle, host = 0;
    for (const DissectedTask& x : d.tasks) gpu += x.exclusive;
    for (const Ns x : d.host) host += x;
    EXPECT_EQ(gpu, d.length);
    EXPECT_EQ(host, d.length);
    EXPECT_GE(d.idle, 0);
  }
};

}  // namespace orrery::testing
