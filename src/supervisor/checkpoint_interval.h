// A run between two failures, and how often it should save.
#pragma once

namespace orrery {

// Seconds. After `startup` the run trains for `interval`, stops for `block`, and so on. A checkpoint counts when it is
// on storage, `persist` after its block; the next one waits for that.
struct SaveRhythm {
  double startup = 0, interval = 1800, block = 60, persist = 0;
  double period() const { return (interval > persist ? interval : persist) + block; }
};

// Of a run at `age` seconds since its start. starting + trained + saving = age; what is kept <= trained.
struct RhythmProgress {
  double starting = 0, trained = 0, saving = 0;
  double kept = 0;  // of trained: in checkpoints that count
};
RhythmProgress progress_at(const SaveRhythm& rhythm, double age);

// Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974: sqrt(2 C M).
double young_interval_s(double block_s, double mtbf_s);

// Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006, equation 37:
// sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) - C where C < 2M, else M.
double daly_interval_s(double block_s, double mtbf_s);

// The interval that keeps most work of a run, over failures at constant rate: searched among runs of progress_at.
// `rhythm.interval` is not read.
double best_interval_s(SaveRhythm rhythm, double mtbf_s);

}  // namespace orrery
