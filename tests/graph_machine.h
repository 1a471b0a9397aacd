// A host and a GPU that obey the rules the graph is to find, at any speed, and write down what a profiler would. The
// same program run at another speed is the truth for a changed replay. Times are microseconds.
//   a kernel starts 6 us after its launch call begins, 1 us after the task ahead of it and 1 us after those that its
//   stream waits for; a blocked call sees its release 8 us later and takes 2 us of host time then; a thread sees a
//   wake-up after 5 us. These delays are the device's, not the host's: only host work scales with `host`.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trace_builder.h"

namespace orrery::testing {

struct Speed {
  double host = 1, kernel = 1, comm = 1;
};

class Machine {
 public:
  static constexpr double kLaunch = 6, kOrder = 1, kRelease = 8, kWake = 5, kSyncCost = 2;
  struct Event {
    std::vector<double> ends;  // of the tasks that it captured
    std::int64_t corr = 0, stream = 0;
  };

  TraceBuilder b;

  explicit Machine(Speed speed = {}, std::int64_t rank = 0, double start = 0) : b(rank), speed_(speed) {
    clock_[1] = start;
    b.on(1);
  }

  double& now() { return clock_[thread_]; }
  void work(double host_us) { now() += host_us * speed_.host; }

  // A row of the host around what `body` does.
  template <class Body>
  void op(std::string_view name, Body body) {
    const OpId row = b.op(name, now(), 0);
    body();
    close(row);
  }
  template <class Body>
  void range(std::string_view name, Body body) {
    const OpId row = b.range(name, now(), 0);
    body();
    close(row);
  }

  void kernel(std::string_view name, std::int64_t stream, double us) {
    task(OpKind::kernel, name, stream, us * speed_.kernel);
  }
  void collective_kernel(std::string_view name, std::int64_t stream, double us) {
    task(OpKind::kernel, name, stream, us * speed_.comm);
  }
  void copy(std::string_view name, std::int64_t stream, double us) { task(OpKind::memcpy, name, stream, us); }
  void memset(std::int64_t stream, double us) { task(OpKind::memset, "Memset (Device)", stream, us); }

  Event record(std::int64_t stream) {
    Event e{{}, ++corr_, stream};
    const Stream& s = streams_[stream];
    e.ends = s.waits;
    if (s.used) e.ends.push_back(s.end);
    call("cudaEventRecord", 1, e.corr);
    return e;
  }
  void wait(std::int64_t stream, const Event& e) {
    const double begin = now();
    call("cudaStreamWaitEvent", 1, ++corr_);
    b.sync_row(SyncKind::stream_wait_event, begin, 0.5, corr_, stream, e.stream, e.corr);
    Stream& s = streams_[stream];
    s.waits.insert(s.waits.end(), e.ends.begin(), e.ends.end());
  }
  void stream_sync(std::int64_t stream) {
    blocked("cudaStreamSynchronize", streams_[stream].empty_at(), SyncKind::stream_sync, stream);
  }
  void device_sync() {
    double end = 0;
    for (const auto& [number, s] : streams_) end = std::max(end, s.empty_at());
    blocked("cudaDeviceSynchronize", end, SyncKind::context_sync, -1);
  }
  void event_sync(const Event& e) {
    double end = 0;
    for (const double t : e.ends) end = std::max(end, t);
    blocked("cudaEventSynchronize", end, SyncKind::event_sync, -1, e.stream, e.corr);
  }
  // Reads one number from the device: a copy into pageable memory, whose call returns when it is done, then a sync.
  void item(std::int64_t stream) {
    const OpId row = b.L("cudaMemcpyAsync", now(), 0, ++corr_);
    const double end = enqueue(OpKind::memcpy, "Memcpy DtoH (Device -> Pageable)", stream, 2);
    now() = std::max(now(), end + kRelease) + kSyncCost * speed_.host;
    close(row);
    work(1);
    stream_sync(stream);
  }

  // One collective of `comm_us` on stream `stream`, as PyTorch issues it; NCCL's own stream is `stream` + 1,000.
  Event collective(std::string_view name, std::int64_t compute, std::int64_t stream, double comm_us) {
    Event done;
    op("c10d::allreduce_", [&] {
      work(3);
      op("record_param_comms", [&] {
        work(2);
        wait(stream, record(compute));
        range("nccl:all_reduce", [&] {
          work(2);
          wait(stream, record(stream + 1000));
          collective_kernel(name, stream, comm_us);
          wait(stream + 1000, record(stream));
          work(1);
        });
        done = record(stream);
        work(1);
      });
      work(1);
    });
    return done;
  }
  void wait_for_collective(std::int64_t compute, const Event& done) {
    op("record_param_comms", [&] {
      work(1);
      wait(compute, done);
    });
  }

  // `body` on another thread, which this one waits for.
  template <class Body>
  void hand_over(std::int64_t other, double before, double after, Body body) {
    const std::int64_t me = thread_;
    clock_[other] = std::max(clock_[other], now() + kWake + before * speed_.host);
    thread_ = other;
    b.on(other);
    body();
    const double released = now();
    thread_ = me;
    b.on(me);
    now() = released + kWake + after * speed_.host;
  }

 private:
  struct Stream {
    double end = 0;
    bool used = false;
    std::vector<double> waits;
    double empty_at() const {
      double t = end;
      for (const double w : waits) t = std::max(t, w);
      return t;
    }
  };
  Speed speed_;
  std::int64_t thread_ = 1;
  std::int64_t corr_ = 0;
  std::map<std::int64_t, double> clock_;
  std::map<std::int64_t, Stream> streams_;

  void close(OpId row) { b.t.ops.dur[raw(row)] = us(now()) - b.t.ops.start[raw(row)]; }
  void call(std::string_view name, double host_us, std::int64_t corr) {
    const OpId row = b.L(name, now(), 0, corr);
    work(host_us);
    close(row);
    work(0.5);
  }
  double enqueue(OpKind kind, std::string_view name, std::int64_t stream, double us) {
    Stream& s = streams_[stream];
    double start = now() + kLaunch;
    if (s.used) start = std::max(start, s.end + kOrder);
    for (const double end : s.waits) start = std::max(start, end + kOrder);
    s.waits.clear();
    s.used = true;
    s.end = start + us;
    b.row(kind, name, b.stream_lane(stream), start, us, corr_);
    return s.end;
  }
  void task(OpKind kind, std::string_view name, std::int64_t stream, double us) {
    const OpId row = b.L(kind == OpKind::memcpy ? "cudaMemcpyAsync" : "cudaLaunchKernel", now(), 0, ++corr_);
    enqueue(kind, name, stream, us);
    work(4);
    close(row);
    work(1);
  }
  // Until `end`; 0 is no wait.
  void blocked(std::string_view name, double end, SyncKind kind, std::int64_t stream, std::int64_t recorded = -1,
               std::int64_t record_corr = -1) {
    const double begin = now();
    const OpId row = b.L(name, begin, 0, ++corr_);
    if (end > begin) now() = end + kRelease;
    now() += kSyncCost * speed_.host;
    close(row);
    b.sync_row(kind, begin, now() - begin, corr_, stream, recorded, record_corr);
    work(1);
  }
};

// Data-parallel training: forward on thread 1, backward on thread 2 with an all-reduce a bucket, the optimizer after
// all of them, then the loss is read. `layers` forward operators of three kernels each.
inline Machine training(Speed speed, int steps = 3, int layers = 20, std::int64_t rank = 0) {
  Machine m(speed, rank);
  for (int step = 1; step <= steps; ++step) {
    m.range("ProfilerStep#" + std::to_string(step), [&] {
      m.work(20);
      m.op("aten::copy_", [&] {
        m.work(2);
        m.copy("Memcpy HtoD (Pinned -> Device)", 7, 12);
      });
      for (int l = 0; l < layers; ++l) {
        m.op("aten::linear", [&] {
          m.work(7);
          m.kernel("gemm", 7, 30 + l % 5 * 11);
          m.op("aten::add", [&] {
            m.work(3);
            m.kernel("elementwise", 7, 4);
            m.work(1);
          });
          m.kernel("norm", 7, 8 + l % 3);
        });
        m.work(l % 4 == 0 ? 90 : 5);  // now and then the host falls behind
      }
      std::vector<Machine::Event> open;
      m.op("Backward", [&] {
        m.work(6);
        m.hand_over(2, 10, 12, [&] {
          for (int l = layers; l-- > 0;) {
            m.op("autograd::evaluate", [&] {
              m.work(4);
              m.kernel("gemm_backward", 7, 55 + l % 7 * 9);
              m.kernel("gemm_backward", 7, 40);
            });
            if (l % 5 == 0) open.push_back(m.collective("ncclDevKernel_AllReduce_Sum", 7, 16, 180));
            m.work(2);
          }
          while (!open.empty()) {
            m.wait_for_collective(7, open.back());
            open.pop_back();
          }
          m.work(3);
        });
      });
      m.op("Optimizer.step", [&] {
        for (int k = 0; k < 4; ++k) m.kernel("multi_tensor_adam", 7, 35);
        m.work(5);
      });
      m.op("aten::item", [&] {
        m.work(2);
        m.item(7);
      });
      m.work(10);
    });
    m.work(8);
  }
  return m;
}

// One stage of a pipeline with tensor parallelism: activations come and go in batched sends and receives (stream 24),
// an all-reduce in the middle of every layer holds compute (stream 16), gradients are reduced beside the backward
// (stream 18), the next batch is copied on stream 20, and the device is synchronised after every exchange.
inline Machine pipeline_stage(Speed speed, int micro_batches = 6) {
  Machine m(speed);
  auto exchange = [&] {
    Machine::Event done;
    for (const char* what : {"c10d::send", "c10d::recv_"}) {
      m.op(what, [&] {
        m.work(2);
        m.op("record_param_comms", [&] { m.work(4); });
      });
    }
    m.wait(24, m.record(7));
    m.range("nccl:coalesced", [&] {
      m.work(3);
      m.wait(24, m.record(28));
      m.collective_kernel("ncclDevKernel_SendRecv", 24, 90);
      m.wait(28, m.record(24));
    });
    done = m.record(24);
    m.wait_for_collective(7, done);
  };
  m.range("ProfilerStep#0", [&] {
    for (int mb = 0; mb < micro_batches; ++mb) {
      exchange();
      m.device_sync();
      Machine::Event batch;
      m.op("prefetch", [&] {
        m.copy("Memcpy HtoD (Pinned -> Device)", 20, 25);
        batch = m.record(20);
      });
      for (int l = 0; l < 4; ++l) {
        m.op("layer", [&] {
          m.work(6);
          m.kernel("gemm", 7, 60 + 13 * l);
          m.wait_for_collective(7, m.collective("ncclDevKernel_AllReduce_Sum", 7, 16, 45));
          m.kernel("elementwise", 7, 7);
        });
      }
      m.wait(7, batch);
      m.kernel("loss", 7, 5);
      m.hand_over(2, 8, 9, [&] {
        std::vector<Machine::Event> open;
        for (int l = 0; l < 4; ++l) {
          m.op("layer_backward", [&] {
            m.work(5);
            m.kernel("gemm_backward", 7, 100);
          });
          open.push_back(m.collective("ncclDevKernel_ReduceScatter_Sum", 7, 18, 120));
        }
        while (!open.empty()) {
          m.wait_for_collective(7, open.back());
          open.pop_back();
        }
        m.work(2);
      });
      m.memset(7, 2);
      m.kernel("accumulate", 7, 9);
    }
    m.op("grad_norm", [&] { m.item(7); });
    m.kernel("multi_tensor_adam", 7, 80);
    m.stream_sync(7);
    m.work(20);
  });
  return m;
}

// Fully sharded data parallel: the weights of the next layer are gathered beside the compute of this one, on a side
// stream (20) that waits for the gather (NCCL's stream 16) and that compute waits for; gradients are scattered on
// stream 18.
inline Machine fully_sharded(Speed speed, int layers = 12) {
  Machine m(speed);
  auto wait_stream = [&](std::int64_t waiting, std::int64_t on) { m.wait(waiting, m.record(on)); };
  auto gather = [&] {
    m.op("FullyShardedDataParallel._unshard", [&] {
      m.work(4);
      m.copy("Memcpy DtoD (Device -> Device)", 20, 6);
      m.wait_for_collective(20, m.collective("ncclDevKernel_AllGather_RING_LL", 20, 16, 140));
    });
  };
  m.range("ProfilerStep#0", [&] {
    gather();
    for (int l = 0; l < layers; ++l) {
      m.work(6);
      wait_stream(7, 20);
      m.op("forward", [&] {
        for (int k = 0; k < 3; ++k) m.kernel("gemm", 7, 50 + l % 4 * 20);
      });
      if (l + 1 < layers) {
        wait_stream(20, 7);  // not too far ahead
        gather();
      }
    }
    m.op("loss", [&] { m.item(7); });
    std::vector<Machine::Event> open;
    m.hand_over(2, 9, 12, [&] {
      gather();
      for (int l = 0; l < layers; ++l) {
        m.work(5);
        wait_stream(7, 20);
        if (l + 1 < layers) gather();
        m.op("backward", [&] {
          for (int k = 0; k < 4; ++k) m.kernel("gemm_backward", 7, 60);
        });
        open.push_back(m.collective("ncclDevKernel_ReduceScatter_Sum", 7, 18, 150));
      }
      while (!open.empty()) {
        m.wait_for_collective(7, open.back());
        open.pop_back();
      }
    });
    m.kernel("multi_tensor_adam", 7, 60);
    m.device_sync();
  });
  return m;
}

// Anything goes: kernels, copies and memsets on four streams, records, waits on any of them, blocking calls.
inline Machine random_program(Speed speed, std::uint64_t seed, int actions = 200) {
  Machine m(speed);
  std::mt19937_64 random(seed);
  auto pick = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  const int host = 1 + pick(20), device = 1 + pick(60);  // host-bound, device-bound and between
  const std::int64_t streams[] = {7, 16, 20, 24};
  std::vector<Machine::Event> events;
  m.range("ProfilerStep#0", [&] {
    for (int k = 0; k < actions; ++k) {
      const std::int64_t s = streams[std::min(pick(6), 3)];
      switch (pick(24)) {
        case 0:
        case 1:
        case 2:
          events.push_back(m.record(s));
          break;
        case 3:
        case 4:
        case 5:
          if (!events.empty())
            m.wait(s, events[events.size() - 1 -
                             static_cast<std::size_t>(pick(std::min(4, static_cast<int>(events.size()))))]);
          break;
        case 6:
          m.copy("Memcpy DtoD (Device -> Device)", s, 1 + pick(device));
          break;
        case 7:
          m.memset(s, 1 + pick(3));
          break;
        case 8:
          m.collective_kernel("ncclDevKernel_AllGather", s, 1 + pick(3 * device));
          break;
        case 9:
          switch (pick(8)) {
            case 0:
              m.device_sync();
              break;
            case 1:
              m.stream_sync(s);
              break;
            case 2:
              if (!events.empty()) m.event_sync(events.back());
              break;
            case 3:
              m.item(s);
              break;
            default:
              break;
          }
          break;
        default:
          m.op("aten::op", [&] {
            m.work(pick(host));
            m.kernel("kernel", s, 1 + pick(device));
            m.work(pick(3));
          });
          m.work(pick(host));
      }
    }
    m.device_sync();
  });
  return m;
}

}  // namespace orrery::testing
