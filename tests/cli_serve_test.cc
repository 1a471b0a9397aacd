// estimate serve and loadgen, as a user calls them.
#include <gtest/gtest.h>
#include <httplib.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "cli_run.h"

namespace orrery::test {
namespace {

using nlohmann::json;

const std::string kServe = "estimate serve --model llama-3.1-8b --platform h100 --gpus 1 --requests 100 ";

json answer(const std::string& arguments, int status = 0) {
  const Outcome o = orrery(arguments + " --json");
  EXPECT_EQ(o.status, status) << o.err;
  return json::parse(o.out, nullptr, false);
}

TEST(CliServe, AnswersWhatTheContractNames) {
  const json d = answer(kServe + "--rate 5 --slo ttft_ms=400,tpot_ms=40 --price 2.5");
  for (const char* key : {"requests_per_s", "tokens_per_s", "output_tokens_per_s", "kv_cache_gib", "max_batch",
                          "cost_per_million_tokens", "total_s"})
    EXPECT_TRUE(d[key].is_number()) << key;
  for (const char* of : {"latency_ms", "ttft_ms", "tpot_ms", "itl_ms"})
    for (const char* q : {"mean", "p50", "p90", "p95", "p99", "max"}) EXPECT_TRUE(d[of][q].is_number()) << of << q;
  EXPECT_GE(d["ttft_ms"]["p99"], d["ttft_ms"]["p50"]);
  ASSERT_EQ(d["cdf"].size(), 100u);
  EXPECT_EQ(d["cdf"][99][1], 1.0);
  EXPECT_EQ(d["cdf"][99][0], d["latency_ms"]["max"]);
  EXPECT_FALSE(d["timeline"].empty());
  for (const char* key : {"s", "running", "waiting", "kv_used_pct"}) EXPECT_TRUE(d["timeline"][0].contains(key));
  EXPECT_FALSE(d["prefill_modules"].empty());
  EXPECT_FALSE(d["decode_modules"].empty());
  EXPECT_FALSE(d["assumptions"].empty());
  EXPECT_TRUE(d["binds"].is_string());
  EXPECT_GT(d["slo"]["highest_requests_per_s"], 5);
  EXPECT_GT(d["slo"]["kept_pct"], 99);
  const auto of = d["interval"]["output_tokens_per_s"];
  EXPECT_LE(of[0], d["output_tokens_per_s"]);
  EXPECT_GE(of[1], d["output_tokens_per_s"]);
}

TEST(CliServe, TheSameSeedTheSameAnswer) {
  const std::string call = kServe + "--rate 20 --arrivals burst:3 --output-tokens lognormal:200 --json";
  EXPECT_EQ(orrery(call).out, orrery(call).out);
  EXPECT_NE(orrery(call).out, orrery(call + " --seed 2").out);
}

TEST(CliServe, AThousandAtOnceAreTextAndCsv) {
  const TempDir dir;
  const Outcome o = orrery(kServe + "--csv " + dir.path.string());
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("first token (TTFT)"), std::string::npos);
  EXPECT_TRUE(fs::exists(dir.path / "timeline.csv"));
  EXPECT_EQ(read_file(dir.path / "cdf.csv").substr(0, 13), "ms,fraction\r\n");
  const std::string interval = read_file(dir.path / "interval.csv");
  EXPECT_EQ(interval.substr(0, 51), "output_tokens_per_s_from,output_tokens_per_s_to,lat");
  EXPECT_EQ(interval.find(' '), std::string::npos);
  EXPECT_EQ(std::count(interval.begin(), interval.end(), ','), 14);  // two rows of eight
  EXPECT_FALSE(fs::exists(dir.path / "slo.csv"));                    // not asked
  EXPECT_NE(orrery("estimate serve --engine list").out.find("lightllm"), std::string::npos);
}

TEST(CliServe, OwnEnginesAndFilesOfRequests) {
  const TempDir dir;
  write_text(
      dir / "engine.toml",
      "[engine]\nname = \"mine\"\nsource = \"here\"\nsure = \"stated\"\nscheduling = \"static\"\nstep_us = 5000\n");
  write_text(dir / "requests.csv", "time,input,output\n0,100,10\n1,x,10\n2,200,20\n3,300,0\n");
  const json d = answer("estimate serve --model llama-3.1-8b --platform h100 --gpus 1 --engine " +
                            (dir / "engine.toml") + " --lengths " + (dir / "requests.csv"),
                        1);
  EXPECT_EQ(d["job"]["engine"], "mine");
  EXPECT_EQ(d["notes"].size(), 2u);
  EXPECT_GT(d["total_s"], 2.0);
  EXPECT_EQ(
      answer("estimate serve --model llama-3.1-8b --platform h100 --gpus 1 --lengths - <" + (dir / "requests.csv"),
             1)["completed"],
      2);
}

TEST(CliServe, LongRequestsAreRefusedAndSaid) {
  const json d = answer(kServe + "--max-model-len 300 --input-tokens uniform:100,500 --output-tokens 10", 1);
  EXPECT_GT(d["refused"], 0);
  EXPECT_EQ(d["notes"][0]["name"], "request-too-long");
}

TEST(CliServe, OneTokenHasNoTimePerTokenAfterIt) {
  const json d = answer(kServe + "--output-tokens 1 --slo tpot_ms=10");
  EXPECT_TRUE(d["tpot_ms"]["mean"].is_null());
  EXPECT_TRUE(d["itl_ms"]["p99"].is_null());
  EXPECT_TRUE(d["interval"]["tpot_mean_ms"].is_null());
  EXPECT_TRUE(d["slo"]["kept_pct"].is_null());
  EXPECT_TRUE(d["slo"]["highest_requests_per_s"].is_null());
  EXPECT_TRUE(d["ttft_ms"]["mean"].is_number());
}

TEST(CliServe, NothingCompletedHasNoLatency) {
  const json d = answer(kServe + "--max-model-len 100", 1);
  EXPECT_EQ(d["completed"], 0);
  EXPECT_TRUE(d["latency_ms"]["mean"].is_null());
  EXPECT_TRUE(d["ttft_ms"]["max"].is_null());
  EXPECT_TRUE(d["interval"]["latency_mean_ms"].is_null());
}

TEST(CliServe, IdenticalPromptsAreFoundAgain) {
  const std::string call = kServe + "--rate 5 --identical-prompts on --prefix-caching ";
  EXPECT_GT(answer(call + "on")["time"]["prefix_hit_pct"], 80);
  EXPECT_EQ(answer(call + "off")["time"]["prefix_hit_pct"], 0);
}

TEST(CliServe, NoRateAboveWhatAllAtOnceAreAnsweredAt) {
  const std::string call =
      "estimate serve --model llama-3.1-8b --platform dgx-h100 --tp 1 --replicas 8 --requests 800 ";
  const double at_once = answer(call)["requests_per_s"];
  const json d = answer(call + "--slo ttft_ms=1000,tpot_ms=100");
  EXPECT_LE(d["slo"]["highest_requests_per_s"], at_once * (1 + 1e-9));
  EXPECT_GT(d["slo"]["highest_requests_per_s"], 0.5 * at_once);
}

class ServeRefusals : public ::testing::TestWithParam<const char*> {};
TEST_P(ServeRefusals, InOneLine) {
  const Outcome o = orrery(GetParam());
  EXPECT_EQ(o.status, 2) << GetParam();
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
}
INSTANTIATE_TEST_SUITE_P(
    Slips, ServeRefusals,
    ::testing::Values("estimate serve", "estimate serve --model llama-2-7b", "estimate serve --model x --platform h100",
                      "estimate serve --model llama-2-7b --platform h100 --engine vlm",
                      "estimate serve --model llama-2-7b --platform h100 --rate 0",
                      "estimate serve --model llama-2-7b --platform h100 --rate fast",
                      "estimate serve --model llama-2-7b --platform h100 --input-tokens much",
                      "estimate serve --model llama-2-7b --platform h100 --gpus 3",
                      "estimate serve --model llama-2-7b --platform h100 --tp 2 --gpus 3",
                      "estimate serve --model llama-2-7b --platform h100 --zero 3",
                      "estimate train --model llama-2-7b --platform h100 --rate 3",
                      "estimate serve --model llama-2-70b --platform rtx4090-1x",
                      "estimate serve --model llama-2-7b --platform h100 --slo ttft=3",
                      "estimate serve --model llama-2-7b --platform h100 --speculate tokens=0",
                      "estimate serve --model llama-2-7b --platform h100 --speculate acceptance=0.5",
                      "estimate serve --model llama-2-7b --platform h100 --expert-parallel 2",
                      "estimate serve --model llama-2-7b --platform h100 --prefill-replicas 1",
                      "estimate serve --model llama-2-7b --platform a100 --quantize fp8",
                      "estimate serve --model llama-2-7b --platform h100 --lengths no/such/file",
                      "estimate serve --model llama-2-7b --platform h100 --calibrate README.md",
                      "estimate serve --model llama-2-7b --platform h100 --lengths README.md --input-tokens 3",
                      "estimate serve --model llama-2-70b --platform 8xL40S --tp 16", "loadgen",
                      "loadgen --url localhost", "loadgen --url http://127.0.0.1:1",
                      "loadgen --url http://127.0.0.1:1 --model m --requests 1",
                      "loadgen --url http://127.0.0.1:1 --api words", "loadgen --url http://h --header x",
                      "estimate serve --model llama-3.1-8b --platform h100 --gpus 1 --kv-tokens 1000000",
                      "loadgen --url http:// --requests 1",
                      "loadgen --url http://127.0.0.1:1 --model m --requests 1 --out no/such/folder/x.json",
                      "loadgen --url http://127.0.0.1:1 --model m --requests 1 --csv README.md"));

TEST(CliLoadgen, MeasuresAndCalibrates) {
  httplib::Server server;
  server.Get("/v1/models", [](const httplib::Request&, httplib::Response& r) {
    r.set_content(R"({"data": [{"id": "made-up"}]})", "application/json");
  });
  server.Post("/v1/completions", [](const httplib::Request& request, httplib::Response& response) {
    const std::int64_t tokens = json::parse(request.body)["max_tokens"];
    response.set_chunked_content_provider("text/event-stream", [tokens](std::size_t, httplib::DataSink& sink) {
      for (std::int64_t k = 0; k < tokens; ++k) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        const std::string piece = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
        if (!sink.write(piece.data(), piece.size())) return false;
      }
      const std::string end = "data: [DONE]\n\n";
      sink.write(end.data(), end.size());
      sink.done();
      return true;
    });
  });
  const int port = server.bind_to_any_port("127.0.0.1");
  std::thread thread([&] { server.listen_after_bind(); });
  while (!server.is_running()) std::this_thread::yield();
  const TempDir dir;
  const json d = answer("loadgen --url http://127.0.0.1:" + std::to_string(port) +
                        " --requests 10 --rate 20 --input-tokens 30 --output-tokens 8 --out " + (dir / "result.json"));
  server.stop();
  thread.join();
  EXPECT_EQ(d["completed"], 10);
  EXPECT_EQ(d["notes"][0]["name"], "tokens-not-told");
  EXPECT_GT(d["tpot_ms"]["mean"], 10.0);  // of 20, less what a stall of the client bunches
  EXPECT_EQ(d["requests"].size(), 10u);
  EXPECT_EQ(d["requests"][0]["output_tokens"], 8);
  EXPECT_TRUE(d["client"]["cpu_ms_per_request"].is_number());
  const json e = answer(kServe + "--rate 5 --calibrate " + (dir / "result.json"));
  EXPECT_EQ(e["calibration"][0]["events"], 10);
  EXPECT_GT(e["calibration"][0]["after"], 1.5);  // 20 ms a token
  EXPECT_GT(e["tpot_ms"]["mean"], 8.0);
}

}  // namespace
}  // namespace orrery::test
