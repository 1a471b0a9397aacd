// orrery loadgen: a workload sent for real to a server of OpenAI's API.
#include <fmt/format.h>

#include <algorithm>

#include "base/output.h"
#include "base/progress.h"
#include "cli/common_options.h"
#include "cli/options.h"
#include "cli/read_options.h"
#include "cli/serve_options.h"
#include "loadgen/event_stream.h"
#include "loadgen/load_run.h"
#include "reports/serve.h"
#include "writers/csv.h"
#include "writers/json.h"

namespace orrery {
namespace {

constexpr double kMostModelsS = 30;  // of the list of models

constexpr Choice<bool> kApis[] = {{"completions", false}, {"chat", true}};
constexpr Choice<bool> kPrompts[] = {{"words", false}, {"ids", true}};

void add(Section& s, Column column, Cell value) {
  s.table.columns.push_back(std::move(column));
  if (s.table.rows.empty()) s.table.rows.emplace_back();
  s.table.rows.front().push_back(std::move(value));
}

Section rates_section(const LoadResult& r, const ServingFigures& f) {
  Section s{.key = "", .title = "Measured", .single = true, .table = {}};
  add(s, {.key = "requests_per_s"}, f.requests_per_s);
  add(s, {.key = "tokens_per_s", .digits = 1}, f.tokens_per_s);
  add(s, {.key = "output_tokens_per_s", .digits = 1}, f.output_tokens_per_s);
  add(s, {.key = "total_s"}, f.seconds);
  add(s, {.key = "completed"}, f.completed);
  add(s, {.key = "failed"}, f.failed);
  add(s, {.key = "max_in_flight"}, r.most_in_flight);
  return s;
}

Section client_section(const LoadResult& r) {
  Section s{.key = "client", .title = "The client's own part", .single = true, .table = {}};
  std::vector<double> late;
  for (const LoadRequest& q : r.requests)
    if (q.sent >= 0) late.push_back((q.sent - q.record.arrival) / 1e6);
  const double n = static_cast<double>(std::max<std::size_t>(1, r.requests.size()));
  const Quantiles q = quantiles_of(std::move(late));
  add(s, {.key = "cpu_ms_per_request"}, 1e3 * r.client_cpu_s / n);
  add(s, {.key = "send_late_p50_ms", .title = "sent late, p50 (ms)"}, q.p50);
  add(s, {.key = "send_late_p99_ms", .title = "p99 (ms)"}, q.p99);
  add(s, {.key = "send_late_max_ms", .title = "most (ms)"}, q.max);
  return s;
}

Section requests_section(const LoadResult& r) {
  Section s{.key = "requests", .title = "", .table = {}};
  s.table.columns = {{.key = "s"},          {.key = "input_tokens"}, {.key = "output_tokens"}, {.key = "ttft_ms"},
                     {.key = "latency_ms"}, {.key = "status"},       {.key = "error"}};
  for (const LoadRequest& q : r.requests) {
    const RequestRecord& t = q.record;
    const auto ms = [&](double ns) { return t.end >= 0 ? Cell{(ns - t.arrival) / 1e6} : Cell{}; };
    s.table.rows.push_back({t.arrival / 1e9, t.input, t.output, ms(t.first_token), ms(t.end),
                            static_cast<std::int64_t>(q.status), q.error.empty() ? Cell{} : Cell{q.error}});
  }
  return s;
}

Document document_of(const LoadTarget& target, const LoadResult& r, const ServiceLevel& level, Notes notes) {
  Document d;
  d.command = "loadgen";
  d.inputs = {target.url};
  std::vector<RequestRecord> records;
  std::uint64_t failed = 0, uncounted = 0, implausible = 0;
  std::string first;
  for (const LoadRequest& q : r.requests) {
    records.push_back(q.record);
    uncounted += q.record.end >= 0 && !q.counted && !q.implausible;
    implausible += q.record.end >= 0 && q.implausible;
    if (q.record.end >= 0) continue;
    if (failed++ == 0) first = q.error;
  }
  notes.add("request-failed", Severity::data_loss, failed, first, "in no rate and no latency");
  notes.add("tokens-not-told", Severity::info, uncounted, {},
            "the server sends no usage: events with text stand for tokens");
  notes.add("usage-implausible", Severity::data_loss, implausible, {},
            "the server tells more tokens than were asked for and sent: events with text, and the prompt as asked for, "
            "stand for them");
  notes.add("event-too-long", Severity::data_loss, r.dropped_events, {},
            fmt::format("events of more than {} MiB are dropped", EventStream::kMostLine >> 20));
  d.notes = std::move(notes);
  const ServingFigures f = figures_of(records, r.itl);
  d.sections.push_back(rates_section(r, f));
  add_serving_figures(f, d.sections);
  if (level.asked()) {
    Section s{.key = "slo", .title = "Service level", .single = true, .table = {}};
    const double kept = share_within(records, level);
    add(s, {.key = "kept_pct", .digits = 1}, 100 * kept);  // NaN, so null: no request tells
    add(s, {.key = "goodput_requests_per_s"},
        f.seconds > 0 ? Cell{kept * static_cast<double>(records.size()) / f.seconds} : Cell{});
    d.sections.push_back(std::move(s));
  }
  d.sections.push_back(client_section(r));
  d.sections.push_back(requests_section(r));
  return d;
}

Result<int> run_loadgen(const Args& args) {
  const auto options = understand(*find_command("loadgen"), args);
  if (!options) return tl::unexpected(options.error());
  if (!args.has("--url")) return fail("no URL", "--url", "for example --url http://127.0.0.1:8000");
  LoadTarget target;
  Notes notes;
  auto asked = described_workload(args, notes);
  if (!asked) return tl::unexpected(asked.error());
  const auto level = read_level(args);
  if (!level) return tl::unexpected(level.error());
  if (const Status ok =
          all_of({choose(args, "--api", kApis, target.chat), choose(args, "--prompts", kPrompts, target.token_ids),
                  choose(args, "--ignore-eos", kSwitch, target.ignore_eos),
                  real(args, "--temperature", target.temperature, 0, 10),
                  real(args, "--timeout", target.timeout_s, 0.001, 1e6),
                  whole(args, "--concurrency", target.most_in_flight, 100'000)});
      !ok)
    return tl::unexpected(ok.error());
  if (target.chat && target.token_ids)
    return fail("messages of a chat are text", "--prompts", "words, or --api completions");
  if (const auto it = args.options.find("--header"); it != args.options.end()) {
    target.headers = it->second;
    for (const std::string& h : target.headers)
      if (h.find(':') == std::string::npos || h.find_first_of("\r\n") != std::string::npos)
        return fail("not NAME: VALUE: " + h, "--header");
  }
  auto url = endpoint_of(args.value("--url"), target.chat);
  if (!url) return tl::unexpected(url.error());
  target.url = std::move(*url);
  target.model = args.value("--model");
  if (target.model.empty()) {
    auto model = first_model(target.url, target.headers, std::min(kMostModelsS, target.timeout_s));
    if (!model) return tl::unexpected(model.error());
    target.model = std::move(*model);
  }
  // Hours of a run are not lost to a name that cannot be written.
  if (const std::string path = args.value("--out"); !path.empty())
    if (const Status ok = check_writable(path); !ok) return tl::unexpected(ok.error());
  if (!options->csv_directory.empty())
    if (const Status ok = check_csv_directory(options->csv_directory); !ok) return tl::unexpected(ok.error());
  Progress progress(options->show_progress);
  progress.stage("sending");
  const std::uint64_t all = asked->workload.requests.size();
  auto result = send_load(target, asked->workload, [&](std::uint64_t done) { progress.update(done, all); });
  progress.finish();
  if (!result) return tl::unexpected(result.error());
  const bool none = std::all_of(result->requests.begin(), result->requests.end(),
                                [](const LoadRequest& r) { return r.record.end < 0; });
  if (none) return fail("no request was answered: " + result->requests.front().error, target.url);
  const Document d = document_of(target, *result, *level, std::move(notes));
  if (const std::string path = args.value("--out"); !path.empty())
    if (const auto ok = write_file(path, to_json(d)); !ok) return tl::unexpected(ok.error());
  return emit(d, *options);
}

}  // namespace

Command loadgen_command() {
  return {
      .name = "loadgen",
      .summary = "send a workload to a real server and measure what its users would feel",
      .operands = "",
      .least = 0,
      .most = 0,
      .description =
          "Sends requests to a server of OpenAI's completions API with streaming (vLLM, TGI, SGLang, llama.cpp ...), "
          "each when it is due, whether or not others were answered, and measures what `orrery estimate serve` "
          "estimates: rates, latency, time to the first token (TTFT) and per token after it (TPOT), between tokens "
          "(ITL). Times count from when a request was due. Workload options are those of `estimate serve`.\n\n"
          "Prompts are made-up words or numbers of tokens, all different but for --shared-prefix and "
          "--identical-prompts. Answers are as "
          "long as asked where the server knows ignore_eos; its own count of tokens is used where it tells it. "
          "docs/formats/loadgen.md describes the result, which `estimate serve --calibrate` takes.",
      .options =
          with({{"--url", "URL", "the server: http://HOST:PORT, or the endpoint itself", Takes::word},
                {"--model", "NAME", "as the server calls it (default: the first that it lists)", Takes::word},
                {"--api", "completions|chat", "which endpoint (default: completions)", Takes::word},
                {"--prompts", "words|ids", "prompts as text or as numbers of tokens (default: words)", Takes::word},
                {"--ignore-eos", "on|off", "ask for answers of the whole length (default: on)", Takes::word},
                {"--temperature", "X", "(default: 0)", Takes::word},
                {"--concurrency", "N", "at most so many requests at a time; others wait, and their wait counts",
                 Takes::word},
                {"--timeout", "S", "seconds of one request (default: 600), and, up to 30, of the list of models",
                 Takes::word},
                {"--header", "NAME: VALUE", "of every request (may be repeated)", Takes::word, true},
                {"--out", "FILE", "write the JSON document to FILE as well", Takes::file},
                {"--slo", "KEY=MS,...", "ttft_ms, tpot_ms, latency_ms: how many requests keep it", Takes::word}},
               with(workload_options(), {kCsv, kJson, kQuiet, kThreads, kHelp})),
      .when_incomplete = "some requests failed, or what the server sent could not be used; the rest is answered",
      .examples =
          {{"A server on this machine, five requests a second, the result kept for `estimate serve --calibrate`:",
            "orrery loadgen --url http://127.0.0.1:8000 --requests 200 --rate 5 --out measured.json"},
           {"A chat endpoint, at most 16 requests at a time:",
            "orrery loadgen --url http://127.0.0.1:8000 --api chat --concurrency 16 --input-tokens 512 "
            "--output-tokens 128"}},
      .run = run_loadgen};
}

}  // namespace orrery
