#include "whatif/schedule.h"

#include <algorithm>
#include <string>

namespace orrery {
namespace {

struct Place {  // of a pass
  std::int32_t micro_batch, chunk;
};

// Writes one stage's slots down; knows who is whose neighbour.
class StageWriter {
 public:
  StageWriter(const Schedule& job, std::int32_t stage, std::vector<Slot>& out) : job_(job), stage_(stage), out_(out) {}

  void run(Pass pass, Place p) { out_.push_back({true, pass, p.micro_batch, p.chunk, {}}); }

  // One batch: what passes hand over and what passes need, of those given. Nothing at the ends of the model.
  struct Batch {
    std::optional<Place> after_backward = {}, before_forward = {}, after_forward = {}, before_backward = {};
  };
  void exchange(const Batch& b) {
    Slot slot;
    slot.transfers.reserve(2);  // nearly all have one or two
    if (b.after_backward) send(slot, false, *b.after_backward);
    if (b.before_forward) receive(slot, true, *b.before_forward);
    if (b.after_forward) send(slot, true, *b.after_forward);
    if (b.before_backward) receive(slot, false, *b.before_backward);
    if (!slot.transfers.empty()) out_.push_back(std::move(slot));
  }

 private:
  std::int32_t parts() const { return job_.stages * job_.chunks; }
  void send(Slot& slot, bool forward, Place p) const {
    const std::int32_t to = p.chunk * job_.stages + stage_ + (forward ? 1 : -1);
    if (to < 0 || to >= parts() || job_.stages == 1) return;
    slot.transfers.push_back({true, forward, to % job_.stages, p.micro_batch, p.chunk});
  }
  void receive(Slot& slot, bool forward, Place p) const {
    const auto t = input_of(job_, stage_, {true, forward ? Pass::forward : Pass::backward, p.micro_batch, p.chunk, {}});
    if (t) slot.transfers.push_back(*t);
  }

  const Schedule& job_;
  std::int32_t stage_;
  std::vector<Slot>& out_;
};

// 1F1B, and with `split` ZB-H1: a weight pass after every backward pass, but before the cool-down stage s puts `s` of
// them off, so that the last gradients reach the first stage sooner, and does them at the end, where 1F1B idles. It
// then holds s micro-batches more than in 1F1B: as many as the first stage, no more.
void write_one_f_one_b(const Schedule& job, std::int32_t stage, bool split, StageWriter& out) {
  const std::int32_t m = job.micro_batches, warm_up = std::min(job.stages - stage - 1, m), steady = m - warm_up;
  std::int32_t weights = 0;
  const auto place = [](std::int32_t i) { return Place{i, 0}; };
  const auto weight = [&] { out.run(Pass::weight, place(weights++)); };

  for (std::int32_t i = 0; i < warm_up; ++i) {
    out.exchange({.before_forward = place(i)});
    out.run(Pass::forward, place(i));
    out.exchange({.after_forward = place(i)});
  }
  if (steady > 0) out.exchange({.before_forward = place(warm_up)});
  for (std::int32_t i = 0; i < steady; ++i) {
    const std::int32_t f = warm_up + i;
    out.run(Pass::forward, place(f));
    out.exchange({.after_forward = place(f), .before_backward = place(i)});
    out.run(Pass::backward, place(i));
    if (i + 1 < steady)
      out.exchange({.after_backward = place(i), .before_forward = place(f + 1)});
    else
      out.exchange({.after_backward = place(i)});
    if (split && (i < steady - 1 - stage || i == steady - 1)) weight();
  }
  for (std::int32_t i = steady; i < m; ++i) {
    out.exchange({.before_backward = place(i)});
    out.run(Pass::backward, place(i));
    out.exchange({.after_backward = place(i)});
    if (split) weight();
  }
  while (split && weights < m) weight();
}

void write_interleaved(const Schedule& job, std::int32_t stage, bool all_forward_first, StageWriter& out) {
  const std::int32_t group = job.stages, all = job.micro_batches * job.chunks;
  // Chunk after chunk of `group` micro-batches, then of the next `group`. Backward the chunks are taken from the last.
  const auto forward = [&](std::int32_t k) {
    return Place{k / (group * job.chunks) * group + k % group, k / group % job.chunks};
  };
  const auto backward = [&](std::int32_t k) {
    const Place p = forward(k);
    return Place{p.micro_batch, job.chunks - 1 - p.chunk};
  };
  const auto next = [&](const auto& order, std::int32_t k) {
    return k + 1 < all ? std::optional<Place>(order(k + 1)) : std::nullopt;
  };

  const std::int32_t warm_up = job.micro_batches == job.stages && all_forward_first
                                   ? all
                                   : std::min(all, (job.stages - stage - 1) * 2 + (job.chunks - 1) * job.stages);
  const std::int32_t steady = all - warm_up;

  out.exchange({.before_forward = forward(0)});
  for (std::int32_t k = 0; k < warm_up; ++k) {
    out.run(Pass::forward, forward(k));
    StageWriter::Batch batch{.before_forward = next(forward, k), .after_forward = forward(k)};
    if (k == warm_up - 1 && steady > 0) batch.before_backward = backward(0);
    out.exchange(batch);
  }
  for (std::int32_t k = 0; k < steady; ++k) {
    out.run(Pass::forward, forward(warm_up + k));
    if (job.overlap) {
      out.exchange({.before_forward = next(forward, warm_up + k), .after_forward = forward(warm_up + k)});
      out.run(Pass::backward, backward(k));
      out.exchange({.after_backward = backward(k), .before_backward = next(backward, k)});
      continue;
    }
    out.run(Pass::backward, backward(k));
    out.exchange({.after_backward = backward(k),
                  .before_forward = next(forward, warm_up + k),
                  .after_forward = forward(warm_up + k),
                  .before_backward = next(backward, k)});
  }
  if (steady == 0) out.exchange({.before_backward = backward(0)});
  for (std::int32_t k = steady; k < all; ++k) {
    out.run(Pass::backward, backward(k));
    out.exchange({.after_backward = backward(k), .before_backward = next(backward, k)});
  }
}

}  // namespace

std::string_view name_of(ScheduleKind k) {
  switch (k) {
    case ScheduleKind::one_f_one_b:
      return "1f1b";
    case ScheduleKind::interleaved:
      return "interleaved";
    case ScheduleKind::zero_bubble:
      return "zero-bubble";
  }
  return "";
}

std::optional<Transfer> input_of(const Schedule& job, std::int32_t stage, const Slot& pass) {
  if (!pass.is_pass || pass.pass == Pass::weight || job.stages == 1) return std::nullopt;
  const bool forward = pass.pass == Pass::forward;
  const std::int32_t from = pass.chunk * job.stages + stage - (forward ? 1 : -1);
  if (from < 0 || from >= job.stages * job.chunks) return std::nullopt;
  return Transfer{false, forward, from % job.stages, pass.micro_batch, from / job.stages};
}

Result<Schedule> make_schedule(ScheduleKind kind, std::int32_t stages, std::int32_t chunks, std::int32_t micro_batches,
                               bool overlap, bool all_forward_first) {
  constexpr std::int64_t kMostPasses = 100'000'000;  // of all stages: memory, and no overflow below
  if (stages < 1 || chunks < 1 || micro_batches < 1)
    return fail("a schedule needs at least one stage, one chunk and one micro-batch");
  // Each factor is below 2^31: dividing avoids the overflow of three.
  if (std::int64_t{stages} * chunks > kMostPasses / micro_batches)
    return fail("too many passes for a schedule: " + std::to_string(stages) + " stages, " + std::to_string(chunks) +
                " chunks, " + std::to_string(micro_batches) + " micro-batches");
  if (kind != ScheduleKind::interleaved && chunks > 1)
    return fail("only the interleaved schedule has several chunks on a stage", "",
                "use interleaved:" + std::to_string(chunks));
  if (overlap && chunks == 1) return fail("only an interleaved schedule sends and receives beside its passes");
  if (chunks > 1 && micro_batches % stages != 0)
    return fail("interleaved: " + std::to_string(micro_batches) + " micro-batches are not a multiple of " +
                    std::to_string(stages) + " stages",
                "", "choose a multiple, or 1f1b");

  Schedule job{kind, stages, chunks, micro_batches, overlap, {}};
  job.stage.resize(static_cast<std::size_t>(stages));
  for (std::int32_t s = 0; s < stages; ++s) {
    job.stage[static_cast<std::size_t>(s)].reserve(static_cast<std::size_t>(micro_batches) *
                                                   static_cast<std::size_t>(chunks) * (stages > 1 ? 4 : 2));
    StageWriter out(job, s, job.stage[static_cast<std::size_t>(s)]);
    if (chunks > 1)
      write_interleaved(job, s, all_forward_first, out);
    else
      write_one_f_one_b(job, s, kind == ScheduleKind::zero_bubble, out);
  }
  return job;
}

}  // namespace orrery
