#include "loadgen/load_run.h"

#include <curl/curl.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/text_match.h"
#include "loadgen/event_stream.h"

namespace orrery {
namespace {

constexpr std::size_t kMostErrorText = 300;
// Polls end late by up to a millisecond: from so much before a request is due naps of at most kNapNs follow.
constexpr double kNapsFromNs = 1'000'000, kNapNs = 100'000;

using Clock = std::chrono::steady_clock;

double thread_cpu_s() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

Status start_curl() {
  static std::once_flag once;
  static CURLcode code = CURLE_OK;
  std::call_once(once, [] { code = curl_global_init(CURL_GLOBAL_DEFAULT); });
  if (code != CURLE_OK) return fail(std::string("libcurl does not start: ") + curl_easy_strerror(code), "loadgen");
  return {};
}

struct EasyDelete {
  void operator()(CURL* c) const { curl_easy_cleanup(c); }
};
struct MultiDelete {
  void operator()(CURLM* m) const { curl_multi_cleanup(m); }
};
struct ListDelete {
  void operator()(curl_slist* l) const { curl_slist_free_all(l); }
};
using Easy = std::unique_ptr<CURL, EasyDelete>;
using Headers = std::unique_ptr<curl_slist, ListDelete>;

Headers headers_of(const std::vector<std::string>& lines) {
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  list = curl_slist_append(list, "Expect:");  // bodies go at once
  for (const std::string& line : lines) list = curl_slist_append(list, line.c_str());
  return Headers(list);
}

std::string one_line(std::string text) {
  if (text.size() > kMostErrorText) text.resize(kMostErrorText);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return text;
}

// A prompt of so many tokens, different for each request so that no prefix is found again, but for the first
// `shared` pieces. Words of common tokenisers: one token each, near enough; the server's own count is what is reported.
nlohmann::json prompt_of(const LoadTarget& target, const Workload& w, std::size_t index) {
  const Request& r = w.requests[index];
  const std::int64_t shared = static_cast<std::int64_t>(r.prefixes) * w.prefix_piece;
  Random random(0x9e3779b97f4a7c15u * (index + 1)), common(1);
  if (target.token_ids) {
    nlohmann::json ids = nlohmann::json::array();
    for (std::int64_t k = 0; k < r.input; ++k)
      ids.push_back(100 + static_cast<std::int64_t>(20'000 * (k < shared ? common : random).uniform()));
    return ids;
  }
  static constexpr const char* kWords[] = {
      "time",    "year",    "people",   "way",    "day",        "man",    "thing",   "woman",
      "life",    "child",   "world",    "school", "state",      "family", "student", "group",
      "country", "problem", "hand",     "part",   "place",      "case",   "week",    "company",
      "system",  "program", "question", "work",   "government", "number", "night",   "point"};
  std::string text;
  for (std::int64_t k = 0; k < r.input; ++k) {
    if (k > 0) text += ' ';
    text += kWords[static_cast<std::size_t>(32 * (k < shared ? common : random).uniform())];
  }
  return text;
}

std::string body_of(const LoadTarget& target, const Workload& w, std::size_t index) {
  nlohmann::json body = {{"model", target.model},
                         {"max_tokens", w.requests[index].output},
                         {"temperature", target.temperature},
                         {"stream", true},
                         {"stream_options", {{"include_usage", true}}}};
  if (target.ignore_eos) body["ignore_eos"] = true;
  if (target.chat)
    body["messages"] = {{{"role", "user"}, {"content", prompt_of(target, w, index)}}};
  else
    body["prompt"] = prompt_of(target, w, index);
  return body.dump();
}

struct Flight {
  explicit Flight(std::function<double()> clock)
      : now(std::move(clock)), stream([this](std::string_view data) { take(data); }) {}
  void begin(LoadRequest& r, LogHistogram& between) {
    request = &r, itl = &between;
    stream = EventStream([this](std::string_view data) { take(data); });
    plain.clear();
    last = -1;
    said_done = false;
  }
  void take(std::string_view data) {
    const CompletionChunk c = read_chunk(data);
    if (!c.error.empty()) {
      request->error = one_line(c.error);
      return;
    }
    said_done |= c.done || c.finished;
    if (c.completion_tokens > 0) request->record.output = c.completion_tokens, request->counted = true;
    if (c.prompt_tokens > 0) request->record.input = c.prompt_tokens;
    if (!c.text) return;
    const double at = now();
    if (request->record.first_token < 0) request->record.first_token = at;
    if (last >= 0) itl->add(at - last, 1);
    last = at;
    ++request->chunks;
  }

  std::function<double()> now;
  EventStream stream;
  LoadRequest* request = nullptr;
  LogHistogram* itl = nullptr;
  std::string body, plain;  // plain: the begin of an answer that is no stream
  double last = -1;
  bool said_done = false;
  Easy easy;
};

std::size_t on_bytes(char* bytes, std::size_t size, std::size_t n, void* to) {
  Flight& f = *static_cast<Flight*>(to);
  const std::string_view text(bytes, size * n);
  if (f.plain.size() < kMostErrorText) f.plain += text.substr(0, kMostErrorText - f.plain.size());
  f.stream.feed(text);
  return size * n;
}

std::size_t append(char* bytes, std::size_t size, std::size_t n, void* to) {
  std::string& out = *static_cast<std::string*>(to);
  if (out.size() + size * n > (1 << 22)) return 0;
  out.append(bytes, size * n);
  return size * n;
}

// What an ended transfer comes to.
void land(Flight& f, CURLcode code, double now) {
  LoadRequest& r = *f.request;
  f.stream.finish();
  curl_easy_getinfo(f.easy.get(), CURLINFO_RESPONSE_CODE, &r.status);
  if (code != CURLE_OK)
    r.error = curl_easy_strerror(code);
  else if (r.status != 200 && r.error.empty())
    r.error = "HTTP " + std::to_string(r.status) + ": " + one_line(f.plain);
  else if (r.error.empty() && r.chunks == 0)
    r.error = "no token in the answer: " + one_line(f.plain);
  else if (r.error.empty() && !f.said_done)
    r.error = "the stream ended early";
  if (!r.error.empty()) return;
  if (!r.counted) r.record.output = r.chunks;
  r.record.end = f.last >= 0 ? f.last : now;
}

}  // namespace

Result<std::string> endpoint_of(const std::string& url, bool chat) {
  if (!url.starts_with("http://") && !url.starts_with("https://"))
    return fail("not a URL: " + url, "--url", "for example --url http://127.0.0.1:8000");
  std::string base = url;
  while (base.ends_with('/')) base.pop_back();
  if (ends(base, "/completions")) return base;
  if (!ends(base, "/v1")) base += "/v1";
  return base + (chat ? "/chat/completions" : "/completions");
}

Result<std::string> first_model(const std::string& url, const std::vector<std::string>& headers) {
  if (const Status ok = start_curl(); !ok) return tl::unexpected(ok.error());
  const std::size_t cut = url.rfind("/v1/");
  const std::string at = (cut == std::string::npos ? url : url.substr(0, cut)) + "/v1/models";
  const Easy easy(curl_easy_init());
  const Headers list = headers_of(headers);
  std::string text;
  curl_easy_setopt(easy.get(), CURLOPT_URL, at.c_str());
  curl_easy_setopt(easy.get(), CURLOPT_HTTPHEADER, list.get());
  curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, append);
  curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &text);
  curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT, 30L);
  curl_easy_setopt(easy.get(), CURLOPT_NOSIGNAL, 1L);
  const CURLcode code = curl_easy_perform(easy.get());
  if (code != CURLE_OK) return fail(curl_easy_strerror(code), at, "is the server up?");
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (j.is_object() && j.contains("data") && j["data"].is_array() && !j["data"].empty() && j["data"][0].is_object() &&
      j["data"][0].contains("id") && j["data"][0]["id"].is_string())
    return j["data"][0]["id"].get<std::string>();
  return fail("the server lists no models", at, "--model NAME says which one to ask for");
}

Result<LoadResult> send_load(const LoadTarget& target, const Workload& workload,
                             const std::function<void(std::uint64_t done)>& on_progress) {
  if (const Status ok = start_curl(); !ok) return tl::unexpected(ok.error());
  const std::unique_ptr<CURLM, MultiDelete> multi(curl_multi_init());
  if (!multi) return fail("libcurl does not start", "loadgen");
  LoadResult result;
  result.requests.resize(workload.requests.size());
  const Headers headers = headers_of(target.headers);
  const Clock::time_point begin = Clock::now();
  const auto now = [begin] {
    return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
  };
  const double cpu = thread_cpu_s();
  std::vector<std::unique_ptr<Flight>> flights;
  std::vector<Flight*> idle;
  std::size_t next = 0, done = 0;
  std::int64_t flying = 0;

  const auto send = [&](std::size_t index) {
    if (idle.empty()) {
      flights.push_back(std::make_unique<Flight>(now));
      Flight& f = *flights.back();
      f.easy.reset(curl_easy_init());
      CURL* c = f.easy.get();
      curl_easy_setopt(c, CURLOPT_URL, target.url.c_str());
      curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers.get());
      curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
      curl_easy_setopt(c, CURLOPT_WRITEDATA, &f);
      curl_easy_setopt(c, CURLOPT_PRIVATE, &f);
      curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
      curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L);
      curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, static_cast<long>(1e3 * target.timeout_s));
      idle.push_back(&f);
    }
    Flight& f = *idle.back();
    idle.pop_back();
    LoadRequest& r = result.requests[index];
    r.record.arrival = workload.requests[index].arrival_ns;
    r.record.input = workload.requests[index].input;
    r.record.output = workload.requests[index].output;
    f.begin(r, result.itl);
    f.body = body_of(target, workload, index);
    curl_easy_setopt(f.easy.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(f.body.size()));
    curl_easy_setopt(f.easy.get(), CURLOPT_POSTFIELDS, f.body.c_str());
    r.sent = r.record.started = now();
    curl_multi_add_handle(multi.get(), f.easy.get());
    result.most_in_flight = std::max(result.most_in_flight, ++flying);
  };

  while (done < workload.requests.size()) {
    const auto may_send = [&] {
      return next < workload.requests.size() && (target.most_in_flight == 0 || flying < target.most_in_flight);
    };
    while (may_send() && workload.requests[next].arrival_ns <= now()) send(next++);
    int running = 0;
    curl_multi_perform(multi.get(), &running);
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi.get(), &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      void* of = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &of);
      Flight& f = *static_cast<Flight*>(of);
      const CURLcode code = message->data.result;
      land(f, code, now());
      curl_multi_remove_handle(multi.get(), f.easy.get());
      idle.push_back(&f);
      --flying;
      on_progress(++done);
    }
    if (done == workload.requests.size()) break;
    double wait = 100e6;
    if (may_send()) wait = std::clamp(workload.requests[next].arrival_ns - now(), 0.0, wait);
    if (wait > kNapsFromNs)
      curl_multi_poll(multi.get(), nullptr, 0, static_cast<int>((wait - kNapsFromNs) / 1e6) + 1, nullptr);
    else
      std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(wait, kNapNs))));
  }
  result.client_cpu_s = thread_cpu_s() - cpu;
  double end = 0;
  for (const LoadRequest& r : result.requests) end = std::max(end, r.record.end);
  result.seconds = end / 1e9;
  flights.clear();  // before the multi handle
  return result;
}

}  // namespace orrery
