// Traces of several ranks in one document, as a tool that fuses them would write it.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "import_helpers.h"

namespace orrery::testing {

using Json = nlohmann::ordered_json;

// How a tool may write the rank into an event, and what else it rewrites.
struct Style {
  enum Pids { kept, shifted, text } pids = kept;
  bool rank_as_text = false;
  bool only_slices = false;  // flows and metadata get no rank
};

inline Json fused_event(Json e, std::int64_t rank, const Style& style) {
  const std::string ph = e["ph"];
  if (!style.only_slices || (ph != "M" && ph != "s" && ph != "f")) {
    if (style.rank_as_text)
      e["args"]["rank"] = std::to_string(rank);
    else
      e["args"]["rank"] = rank;
  }
  constexpr std::int64_t kShift = 100'000'000;
  if (style.pids == Style::shifted) {
    if (e.contains("pid") && e["pid"].is_number_integer()) e["pid"] = e["pid"].get<std::int64_t>() + rank * kShift;
    if (e.contains("id") && e["id"].is_number_integer()) e["id"] = e["id"].get<std::int64_t>() + rank * kShift;
    if (e.contains("args") && e["args"].contains("correlation"))
      e["args"]["correlation"] = e["args"]["correlation"].get<std::int64_t>() + rank * kShift;
  } else if (style.pids == Style::text && e.contains("pid")) {
    const Json& pid = e["pid"];
    e["pid"] = "rank" + std::to_string(rank) + "_" + (pid.is_string() ? pid.get<std::string>() : pid.dump());
  }
  return e;
}

// The metadata of the first, the events of all.
inline std::string fused(const std::vector<Json>& documents, const Style& style) {
  Json all = documents[0];
  all["traceEvents"] = Json::array();
  for (const Json& d : documents)
    for (const Json& e : d["traceEvents"])
      all["traceEvents"].push_back(fused_event(e, d["distributedInfo"]["rank"], style));
  return all.dump();
}

inline std::string slice(std::string_view ph, std::string_view cat, std::string_view name, int pid, int tid, double ts,
                         std::string_view more) {
  std::ostringstream s;
  s << R"({"ph": ")" << ph << R"(", "cat": ")" << cat << R"(", "name": ")" << name << R"(", "pid": )" << pid
    << R"(, "tid": )" << tid << R"(, "ts": )" << ts << ", " << more << "}";
  return s.str();
}

// One of two ranks: an operator launches a gemm, then an all-reduce of both begins and ends together. Processes,
// threads, streams, correlations and flow ids are those of the other as well. The gemm of rank 1 takes 40 us longer.
inline Json small_rank(int rank) {
  const double late = 40 * rank;
  std::ostringstream gemm, wait, comm;
  gemm << R"("dur": )" << 100 + late
       << R"(, "args": {"device": 0, "stream": 7, "correlation": 7, "grid": [4, 1, 1], "block": [64, 1, 1]})";
  wait << R"("dur": )" << 80 - late
       << R"(, "args": {"device": 0, "stream": 20, "correlation": 9, "Collective name": "allreduce", )"
       << R"("In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2, "dtype": "Float", )"
       << R"("Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": 5})";
  const std::vector<std::string> events = {
      R"({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}})",
      R"({"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}})",
      R"({"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}})",
      slice("X", "user_annotation", "ProfilerStep#3", 1, 1, 1000, R"("dur": 300)"),
      slice("X", "cpu_op", "aten::mm", 1, 1, 1010, R"("dur": 40, "args": {"External id": 1, "Input Dims": [[8, 4]]})"),
      slice("X", "cuda_runtime", "cudaLaunchKernel", 1, 1, 1020, R"("dur": 10, "args": {"correlation": 7})"),
      slice("s", "ac2g", "ac2g", 1, 1, 1020, R"("id": 7)"),
      slice("X", "kernel", rank == 0 ? "gemm" : "gemm_late", 0, 7, 1035, gemm.str()),
      slice("f", "ac2g", "ac2g", 0, 7, 1035, R"("id": 7, "bp": "e")"),
      slice("i", "cpu_instant_event", "[memory]", 1, 1, 1036,
            R"("s": "t", "args": {"Bytes": 64, "Total Allocated": 128, "Device Type": 1, "Device Id": 0})"),
      slice("X", "cuda_runtime", "cudaEventRecord", 1, 1, 1056, R"("dur": 2, "args": {"correlation": 8})"),
      slice("X", "cuda_runtime", "cudaStreamWaitEvent", 1, 1, 1060, R"("dur": 2, "args": {"correlation": 10})"),
      slice("X", "cuda_sync", "Stream Wait Event", 0, 20, 1061,
            R"("dur": 1, "args": {"cuda_sync_kind": "Stream Wait Event", "device": 0, "stream": 20, "correlation": 10,
                "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 8, "wait_on_cuda_event_id": 1})"),
      slice("X", "cuda_runtime", "cudaLaunchKernel", 1, 1, 1066, R"("dur": 8, "args": {"correlation": 9})"),
      slice("X", "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 20, 1140 + late, wait.str()),
      slice("B", "cpu_op", "open_and_closed", 1, 2, 1100, R"("args": {})"),
      slice("X", "cpu_op", "never_ends", 1, 1, 1120, R"("args": {"External id": 2})"),
      slice("E", "cpu_op", "open_and_closed", 1, 2, 1150, R"("args": {})"),
      slice("X", "gpu_memcpy", "Memcpy DtoH", 0, 7, 1230,
            R"("dur": 5, "args": {"device": 0, "stream": 7, "correlation": 0, "bytes": 4096})"),
      slice("X", "python_function", "train.py(1): step", 1, 1, 1005,
            R"("dur": 290, "args": {"Python id": 1, "Python parent id": null})")};
  return Json::parse(document(events, R"("distributedInfo": {"backend": "nccl", "rank": )" + std::to_string(rank) +
                                          R"(, "world_size": 2}, "baseTimeNanoseconds": 1700000000000000000,
"deviceProperties": [{"id": 0, "name": "Test GPU", "totalGlobalMem": 1000000000, "numSms": 100}])"));
}

// The eight ranks of the sample job.
inline std::vector<Json> sample() {
  std::vector<Json> documents;
  for (int r = 0; r < 8; ++r) {
    const std::string path =
        std::string(ORRERY_SOURCE_DIR) + "/samples/gpt-tp2-pp2-dp2/rank-" + std::to_string(r) + ".json.gz";
    auto file = open_file(path);
    auto source = file ? decompressed(std::move(*file), path) : std::move(file);
    std::string text;
    for (char buffer[1 << 16]; source;) {
      const auto got = (*source)->read(buffer, sizeof buffer);
      if (!got || *got == 0) break;
      text.append(buffer, *got);
    }
    documents.push_back(Json::parse(text, nullptr, false));
  }
  return documents;
}

}  // namespace orrery::testing
